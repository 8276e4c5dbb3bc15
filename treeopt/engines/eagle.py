"""EAGLE-1, the reference code at SafeAILab/EAGLE, branch v1: a static list of rank paths, `tree_choices`.

Candidates are numbered rank + 5 * (number of the parent), so rank 5 would be another parent's best token, without
a word; a tree of one level ends in an IndexError. There is no exporter yet.
"""

from treeopt.constraints import Constraint, DepthAtLeast, RanksBelow

ENGINE = "EAGLE v1"
CONSTRAINTS: tuple[Constraint, ...] = (
    RanksBelow(5, source="modeling_eagle.py, TOPK"),
    DepthAtLeast(2, source="generate_tree_buffers in modeling_eagle.py"),
)
