"""Hydra, the reference code at zankner/Hydra@3f39fbd: a static list of rank paths, `hydra_choices`.

The children of a node are always its best candidates (hydra/model/mlp_head.py:180), and of siblings the first are
continued, as many as the list continues (:184 and the comment at hydra/model/utils.py:114). A list that says
otherwise is built as another tree without a word. There is no exporter yet.
"""

from treeopt.constraints import Constraint, ContiguousRanks, DepthAtMost, ExpandPrefix, RanksBelow

ENGINE = "Hydra 3f39fbd"
CONSTRAINTS: tuple[Constraint, ...] = (
    RanksBelow(10, source="hydra/model/utils.py, TOPK"),
    ContiguousRanks(source="hydra/model/mlp_head.py:180, num_children"),
    ExpandPrefix(source="hydra/model/mlp_head.py:184, children_to_expand"),
)


def constraints(*, heads: int | None) -> tuple[Constraint, ...]:
    """What the list can express with so many heads; None where the number is not known.

    >>> [rule.name for rule in constraints(heads=4)][-1]
    'depth at most 4'
    """
    return CONSTRAINTS if heads is None else (*CONSTRAINTS, DepthAtMost(heads, source="one head a depth"))
