"""Rules that engines put on trees, each with its source; which engine has which, the engine's file says."""

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
