"""Hydra, the reference code at zankner/Hydra@3f39fbd: a static list of rank paths, `hydra_choices`.

The children of a node are always its best candidates (hydra/model/mlp_head.py:180), and of siblings the first are
continued, as many as the list continues (:184 and the comment at hydra/model/utils.py:114). A list that says
otherwise is built as another tree without a word. There is no exporter yet.
"""

from treeopt.constraints import Constraint, ContiguousRanks, ExpandPrefix, RanksBelow

ENGINE = "Hydra 3f39fbd"
CONSTRAINTS: tuple[Constraint, ...] = (
    RanksBelow(10, source="hydra/model/utils.py, TOPK"),
    ContiguousRanks(source="hydra/model/mlp_head.py:180, num_children"),
    ExpandPrefix(source="hydra/model/mlp_head.py:184, children_to_expand"),
)
