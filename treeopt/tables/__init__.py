"""Results as tables on the terminal.

* `terminal_text`: text that all tables share: the terminal, intervals, one-line descriptions of provenance.
* `plan_tables`: plans, as `treeopt search` prints them.
* `trace_tables`: traces, as `treeopt trace info` prints them.
* `learning_curve_tables`: learning curves.
* `compare_tables`: comparisons of drafters.
* `simulate_tables`: simulated runs, servers and capacities.
* `validate_tables`: predicted beside measured.
* `whatif_tables`: predictions for other devices.
* `doctor_tables`: packages, device and trials.
"""
