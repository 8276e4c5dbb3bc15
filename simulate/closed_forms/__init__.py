"""Closed forms: speedup formulas of papers, and their error on published speedups.

* `leviathan_speedup`: expected tokens per step, Theorem 3.8 (speedup), Theorem 3.11 (operations), best chain length.
* `coral_speedup`: speedup from latencies (Eq. 1) or from weight counts (Eq. 6).
* `checked_arguments`: the ranges of the formulas' arguments.
* `paper_speedups`: speedups that papers measured, read from data/published/.
* `speedup_predictors`: the formulas, and forms calibrated on some rows, applied to published speedups.
* `errors_on_published_speedups`: predicted beside published speedups, with their errors.
"""
