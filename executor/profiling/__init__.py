"""Profiling: measure the step times of a runner, treeopt's loop or an engine.

* `measurement_rounds`: `Measurement`: schedule, budget, rounds and resuming, for every runner.
* `profile_settings`: what is measured, how often, and for how long.
* `configurations`: the configurations (trees, policies, batch sizes, contexts) that a profile measures.
* `timed_blocks`: blocks of the loop's steps: their prompts, what they are expected to take, prefill, the profile.
* `engine_waves`: waves of an engine's requests, and the profile that they make.
* `tuned_settings`: what a tuner asks for, measured in an engine; the profile and trace of it.
"""
