"""Searches for static trees without engine rules.

* `best_first`: the most frequent rank prefixes, optimal for position-averaged tokens at every size and depth.
* `shrinkage`: the strength of shrinkage of path counts on few anchors.
* `back_off`: the distribution of the next rank that counts are shrunk towards.
* `local_search`: the steps of that refinement.
* `hydra_growth`: Hydra's procedure, which grows a tree node by node by replay (`--method hydra`).
"""
