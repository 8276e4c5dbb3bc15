"""Results for people: tables on the terminal, plots, and one HTML page.

* `terminal_text`: text that all tables share: the terminal, intervals, one-line descriptions of provenance.
* `plan_tables`: plans, as `treeopt search` prints them.
* `trace_tables`: traces, as `treeopt trace info` prints them.
* `learning_curve_tables`: learning curves.
* `compare_tables`: comparisons of drafters.
* `simulate_tables`: simulated runs, servers and capacities.
* `validate_tables`: predicted beside measured.
* `whatif_tables`: predictions for other devices.
* `doctor_tables`: packages, device and trials.
* `plots`: plots of plans, traces and records.
* `page_sections`: results as sections of the HTML page.
* `html_page`: the HTML page.
"""
