"""Profiling: measure the step times of a target and a drafter on a device.

* `measure_steps`: `measure_profile`, from a first look to the profile.
* `profile_settings`: what is measured, how often, and for how long.
* `measured_shapes`: the configurations (trees, batch sizes, contexts) that a profile measures.
* `measured_policies`: policies that never stop early, to time dynamic trees.
* `first_look`: what blocks are expected to take.
* `schedule`: the order of blocks, and what fits a time budget.
* `block_prompts`: the prompts that blocks start from.
* `timed_block`: a few consecutive steps, timed.
* `work_file`: finished blocks on disk, so that a measurement can be resumed.
* `drift`: the machine's drift is removed from the blocks.
* `prefill_times`: seconds of reading prompts.
"""
