"""The Python API: what `import treeopt` offers, thin functions over all rooms, one command a file.

* `file_loading`: `import_trace`, `load_trace`, `load_profile`, `load_plan`, `load_tree`, and values given by path.
* `search_trace`: `search`, the fastest tree for each batch size.
* `simulate_requests`: `simulate`, a run of all requests or a server's days; `verdict`, which draft lengths pay.
* `whatif_devices`: `whatif`, devices, batch sizes and contexts that were not measured.
* `compare_traces`: `compare`, drafters side by side.
* `validate_plan`: `validate`, predicted beside measured.
* `record_trace`: `collect`, a trace of what the target, or an engine, writes.
* `profile_steps`: `profile`, step times.
* `watch_server`: `watch`, running servers beside their plan.
* `decode_prompts`: `decode`, texts with a drafter and a tree.
* `train_drafter`: `train`, a drafter by a published recipe.
* `tune_engine`: `tune`, the best draft length of an engine, by measuring.
* `ray_workers`: parts of a command on a cluster of Ray.
* `runners`: what decodes in these: the loop with its models, or an engine in words.
* `report_files`: results that commands wrote, read and put on one page.
* `device_charts`: charts of step times and of devices.
* `messages`: warnings and notes through `logging`, progress through a callback.
* `run_models`: models, prompts and the choice of tokens of a real run.
"""
