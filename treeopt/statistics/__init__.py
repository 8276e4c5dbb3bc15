"""Statistics: estimates with intervals, and fitted curves; knows no trees.

* `clustered_estimate`: ratios with 95 % intervals clustered by request, paired differences, shares.
* `robust_mean`: the trimmed mean, which a few outliers do not move.
* `isotonic_regression`: non-decreasing curves fitted to noisy points.
"""
