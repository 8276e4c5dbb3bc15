"""Results as tables and sentences, the same for terminal, page and notebooks.

* `blocks`: tables, lines and cells with their full text: what every medium shows.
* `words`: values with intervals, trees, and descriptions of provenance in words.
* `plan_answers`: the choices of a plan in sentences, and what to run next.
* `plan`: plans, as `treeopt search` prints them.
* `trace`: traces, as `treeopt trace info` prints them.
* `learning_curves`: learning curves.
* `comparison`: comparisons of drafters.
* `run`: simulated runs, servers and capacities.
* `validation`: predicted beside measured.
* `whatif`: predictions for other devices.
* `training`: the accuracy of a trained drafter.
* `health`: packages, device and trials.
"""
