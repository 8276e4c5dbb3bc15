"""Searches for dynamic policies, which build a new tree at each step.

* `choose_policy`: the best policy of a kind and its settings, chosen by replay, evaluated on another trace.
* `cost_aware_fit`: the fit of the policy that drafts and verifies while it pays.
* `step_prices`: seconds of replayed steps, with padding of trees of different sizes.
"""
