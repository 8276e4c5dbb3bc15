"""Recording: collect a trace of a drafter on what the target writes.

* `collect_trace`: `collect`, from prompts to a trace, in shards that can be resumed.
* `engine_steps`: what an engine writes, and traces of its own steps.
* `recording_settings`: the settings of a collection.
* `teacher_forced`: ranks, probabilities and acceptance of siblings at every token, in one pass.
* `record_candidates`: whole candidate trees, for dynamic policies.
"""
