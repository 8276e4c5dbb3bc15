"""Constraints that engines put on trees, each with its source; `treeopt.engines` lists the constraints of each engine.

* `constraint`: the Constraint protocol, and the limits that a search gets from it.
* `size_rules`: numbers of nodes, levels, children and candidates.
* `rank_rules`: which candidate ranks nodes may take.
* `shape_rules`: chains only, uniform branching, full trees.
"""

from treeopt.constraints.constraint import Constraint, Limits, broken, hereditary, joined
from treeopt.constraints.rank_rules import ContiguousRanks, ExpandPrefix, RanksBelow, RootRanksContiguous
from treeopt.constraints.shape_rules import ChainOnly, FullTree, UniformBranching
from treeopt.constraints.size_rules import (
    ChildrenAtMost,
    DepthAtLeast,
    DepthAtMost,
    FitsPool,
    LevelsAtMost,
    NodesAtMost,
    SizesAmong,
    branching,
    pool,
)

__all__ = [
    "ChainOnly",
    "ChildrenAtMost",
    "Constraint",
    "ContiguousRanks",
    "DepthAtLeast",
    "DepthAtMost",
    "ExpandPrefix",
    "FitsPool",
    "FullTree",
    "LevelsAtMost",
    "Limits",
    "NodesAtMost",
    "RanksBelow",
    "RootRanksContiguous",
    "SizesAmong",
    "UniformBranching",
    "branching",
    "broken",
    "hereditary",
    "joined",
    "pool",
]
