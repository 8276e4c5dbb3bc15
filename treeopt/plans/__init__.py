"""Plans: the result of a search, and its JSON.

* `plan`: the values, by batch size: choices with their predictions, proofs, engine rules' prices, switches.
* `plan_json`: plan files, written and read.
"""
