"""Engines: other programs' inference engines, driven, timed and recorded; they need their own environments.

* `engine`: the interface of every driver, and the values that pass through it: requests, draft settings, steps.
* `model_files`: name and hash of the models that an engine loads.
* `engine_record`: the record of a run, kept in a file as requests end, so that a run can resume.
* `engine_trace`: traces recorded in an engine: its texts, its own steps, a step at every anchor.
* `step_times`: seconds between steps while all rows are busy.
* `engine_profile`: step times by batch size and draft length, measured in shuffled rounds.
* `engine_validation`: predicted beside measured.
* `connections/`: processes of engines, and clients of their servers.
* `drivers/`: one engine a file.
"""
