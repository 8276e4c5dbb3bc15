"""Statistics: estimates with intervals, and fitted curves; knows no trees.

* `clustered_estimate`: ratios with 95 % intervals clustered by request, paired differences, shares.
* `isotonic_regression`: non-decreasing curves fitted to noisy points.
"""
