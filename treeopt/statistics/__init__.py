"""Statistics: estimates with intervals, and fitted curves; knows no trees.

* `clustered_estimate`: ratios with 95 % intervals clustered by request, paired differences, shares.
* `group_spread`: how much wider an interval is if clustered by group instead of by request.
* `jackknife`: jackknife+ intervals of predictions.
* `robust_mean`: the trimmed mean, which a few outliers do not move.
* `isotonic_regression`: non-decreasing curves fitted to noisy points.
"""
