"""Rules that engines put on trees, each with its source; which engine has which, the engine's file says."""

from treeopt.constraints.base import Constraint, Limits, broken, hereditary, joined
from treeopt.constraints.counts import (
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
from treeopt.constraints.families import ChainOnly, FullTree, UniformBranching
from treeopt.constraints.ranks import ContiguousRanks, ExpandPrefix, RanksBelow, RootRanksContiguous

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
