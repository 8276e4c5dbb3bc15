"""Validation: predictions fixed before a measurement, and how well they agree with it.

* `predictions`: a plan, closed forms and whole runs, with a hash over all of them, fixed before measuring.
* `end_to_end`: the predicted end-to-end speedup of whole runs: prefill, steps and idle rows.
* `agreement`: predicted beside measured speedups: errors, coverage of intervals, and whether the best tree is found.
"""
