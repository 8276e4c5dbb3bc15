"""Constraints that engines put on trees, each with its source; `treeopt.engines` lists the constraints of each engine.

* `constraint`: the Constraint protocol, and the limits that a search gets from it.
* `rules`: numbers of nodes and levels, candidate ranks, chains alone.
"""

from treeopt.constraints.constraint import Constraint, Limits, broken, hereditary, joined
from treeopt.constraints.rules import (
    ChainOnly,
    ContiguousRanks,
    DepthAtLeast,
    DepthAtMost,
    NodesAtMost,
    RanksBelow,
    branching,
    pool,
)

__all__ = [
    "ChainOnly",
    "Constraint",
    "ContiguousRanks",
    "DepthAtLeast",
    "DepthAtMost",
    "Limits",
    "NodesAtMost",
    "RanksBelow",
    "branching",
    "broken",
    "hereditary",
    "joined",
    "pool",
]
