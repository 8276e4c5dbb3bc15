"""Results as tables and sentences, and how a terminal shows them.

* `blocks`: tables, lines and cells with their full text: what every medium shows.
* `terminal_blocks`: blocks printed on a terminal.
* `table_layout`: tables as lines that fit a width; no cell is cut.
* `terminal_text`: text that all tables share: the terminal, lines that fit it, intervals, descriptions of provenance.
* `plan_answers`: the choices of a plan in sentences, and what to run next.
* `plan_tables`: plans, as `treeopt search` prints them.
* `trace_tables`: traces, as `treeopt trace info` prints them.
* `learning_curve_tables`: learning curves.
* `compare_tables`: comparisons of drafters.
* `simulate_tables`: simulated runs, servers and capacities.
* `validate_tables`: predicted beside measured.
* `whatif_tables`: predictions for other devices.
* `train_tables`: the accuracy of a trained drafter.
* `doctor_tables`: packages, device and trials.
"""
