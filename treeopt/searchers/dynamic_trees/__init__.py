"""Searches for dynamic policies, which build a new tree at each step.

* `choose_policy`: the best policy of a kind, chosen by replay on one trace and evaluated on another.
* `settings_grid`: the settings that a kind tries, replayed one by one.
* `cost_aware_fit`: the fit of the policy that drafts and verifies while it pays.
* `step_prices`: seconds of replayed steps, with padding of trees of different sizes.
"""
