"""Searches for static trees without engine rules.

* `best_first`: the most frequent rank prefixes, optimal for position-averaged tokens; shrinkage of counts.
* `local_search`: the steps of that refinement.
* `hydra_growth`: Hydra's procedure, which grows a tree node by node by replay (`--method hydra`).
"""
