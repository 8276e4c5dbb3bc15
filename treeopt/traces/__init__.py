"""Traces: the recorded acceptance of a drafter, its file format, its checks, its shards, merging and splitting.

* `trace`: the Trace, and checks of every value.
* `confidence_reliability`: the drafter's confidence in its own chain, and its reliability curve.
* `candidates`: recorded candidate trees, for dynamic policies.
* `trace_files`: `load_trace` and `save_trace`; names, types and sizes of the arrays of the .npz file.
* `resumable_shards`: the folder of shards that an interrupted trace collection resumes from.
* `merge_split`: merge several traces into one, split a trace into two.
* `importers`: other programs' acceptance figures as traces, one source per file; they read files and run no model.
"""
