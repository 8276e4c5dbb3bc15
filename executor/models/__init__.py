"""Target and drafter as a pair: what identifies them, and models with random weights.

* `fingerprint`: names and hashes by which traces, profiles and validations are matched.
* `random_weights`: targets and drafters of a given shape with random weights, for timing.
"""
