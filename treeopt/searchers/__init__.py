"""Search algorithms, one per file; each states what it proves.

Static trees, without engine rules:

* `best_first`: the most frequent rank prefixes, optimal for position-averaged tokens; shrinkage of counts.
* `renewal_local_search`: refines a tree by replay (`--method renewal`).
* `hydra_growth`: Hydra's procedure, which grows a tree node by node by replay (`--method hydra`).

Static trees under engine rules, or with costs that depend on level widths:

* `choose_method`: the best tree of every size and depth that keeps the rules, by the method that the rules allow.
* `integer_programme`: the tree with the most tokens per second by CP-SAT inside Dinkelbach, with a bound on all others.

Dynamic policies, which build a new tree at each step:

* `choose_policy`: the best policy of a kind and its settings, chosen by replay, evaluated on another trace.
* `step_prices`: seconds of replayed steps, with padding of trees of different sizes.
"""
