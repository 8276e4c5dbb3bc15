"""Searches for dynamic policies, which build a new tree at each step.

* `choose_policy`: the best policy of a kind, chosen by replay on one trace and evaluated on another.
* `settings_grid`: the grid of settings of each kind, replayed one by one.
* `step_prices`: seconds of replayed steps, with padding of trees of different sizes.
* `oracle_bound`: an upper bound on the speed of any policy on the same candidates.
"""
