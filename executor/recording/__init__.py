"""Recording: collect a trace of a drafter on what the target writes.

* `collect_trace`: `collect`, from prompts to a trace, in shards that can be resumed.
* `engine_steps`: what an engine writes, and traces of its own steps.
* `recording_settings`: the settings of a collection.
* `teacher_forced`: the one pass over the texts that yields ranks, probabilities and entropies.
* `sibling_acceptance`: the probability that a rule accepts each sibling.
* `record_candidates`: whole candidate trees, for dynamic policies.
"""
