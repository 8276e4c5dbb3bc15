"""Searches for static trees under engine rules, or costs that depend on level widths.

* `choose_method`: the best tree of every size and depth that keeps the rules, by the method that the rules allow.
* `node_pool`: the nodes that these searches choose from, and the best trees among them.
* `cpsat_integer_programme`: trees under rules as an integer programme for CP-SAT.
* `dinkelbach`: the tree with the most tokens per second by that programme, with a bound on all others.
"""
