"""Runs in inference engines, timed and recorded; `treeopt.engines` holds the engines and their drivers.

* `engine_record`: the record of a run, kept in a file as requests end, so that a run can resume.
* `engine_trace`: traces recorded in an engine: its texts, its own steps, a step at every anchor.
* `step_times`: seconds between steps while all rows are busy.
* `engine_profile`: step times by batch size and draft length, measured in shuffled rounds.
* `engine_validation`: predicted beside measured.
"""
