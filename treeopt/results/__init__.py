"""Results: each kind's columns, sentences, charts and files, said once for terminal, page, notebooks and tables.

* `kinds`: what is known of a kind of result, `RESULTS`, the registry of all kinds, and results as JSON values.
* `tables_and_numbers`: tables, lines and cells with their full text: what every medium shows; columns of several kinds.
* `words`: values with intervals, trees, provenance, the command that writes a plan for an engine.
* `plan`, `predictions`: what `treeopt search` chose; the same, fixed before a measurement.
* `trace`: what a drafter gets right, and how many requests choose a tree.
* `tree`: static trees.
* `comparison`: drafters side by side.
* `run`, `serving`, `capacity`: simulated runs and servers.
* `validation`, `engine_checks`: predicted beside measured; engines beside the replay.
* `profile`: measured step times.
* `whatif`: devices that were not measured.
* `watch`: running servers beside their plan.
* `training`: the accuracy of a trained drafter.
* `tuning`: the draft length of an engine that measuring chose.
* `models`: models that are known by name.
* `health`: packages, device and trials.
"""
