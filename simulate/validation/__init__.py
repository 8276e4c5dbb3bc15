"""Validation: predictions fixed before a measurement, and how well they agree with it.

* `predictions`: a plan, closed forms and whole runs, with a hash over all of them, fixed before measuring.
* `end_to_end`: the predicted end-to-end speedup of whole runs: prefill, steps and idle rows.
* `predicted_vs_measured`: predicted beside measured speedups: errors, coverage of intervals, the best tree;
  validations that measured the choice of a plan.
* `make_predictions`: predictions of a plan before it is measured.
* `prediction_sources`: the trace, profile, plan or file that predictions are made from.
"""
