"""Validation: predictions fixed before a measurement, and how well they agree with it.

* `predictions`: a plan, closed forms and whole runs, with a hash over all of them, fixed before measuring.
* `predicted_vs_measured`: predicted beside measured speedups: errors, coverage of intervals, the best tree;
  validations that measured the choice of a plan.
* `make_predictions`: predictions before anything is measured, from a plan, a trace with step times, or a file.
"""
