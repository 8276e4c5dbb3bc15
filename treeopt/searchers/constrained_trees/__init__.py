"""Searches for static trees under engine rules, or costs that depend on level widths.

* `choose_method`: the best tree of every size and depth that keeps the rules, by the method that the rules allow.
* `knapsack`: exact dynamic programme for rules on the order of siblings, any values.
* `greedy`: trees grown under caps on levels and children; proves nothing.
* `uniform_trees`: all trees in which the nodes of a level have equally many children.
* `filler_nodes`: nodes without value that fill a tree up to a size or depth that a rule requires.
* `node_pool`: the nodes that these searches choose from.
* `cpsat_integer_programme`: trees under rules as an integer programme for CP-SAT.
* `dinkelbach`: the tree with the most tokens per second by that programme, with a bound on all others.
"""
