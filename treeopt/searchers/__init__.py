"""Search algorithms, one per file; each states what it proves.

* `static_trees`: one tree for all steps, without engine rules.
* `constrained_trees`: one tree for all steps, under an engine's rules or costs that depend on level widths.
* `dynamic_trees`: policies that build a new tree at each step.
"""
