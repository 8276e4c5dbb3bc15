"""Rules for Hypothesis, and what limits mean in words that share nothing with the rules."""

from hypothesis import strategies as st

from treeopt.constraints import (
    ChainOnly,
    Constraint,
    ContiguousRanks,
    DepthAtLeast,
    DepthAtMost,
    Limits,
    NodesAtMost,
    RanksBelow,
)
from treeopt.tree import Tree

SOURCE = "engine/file.py"


def _of(made: type, *arguments: st.SearchStrategy) -> st.SearchStrategy[Constraint]:
    return st.builds(made, *arguments, source=st.just(SOURCE))


rule = (
    _of(RanksBelow, st.integers(1, 4))
    | _of(DepthAtMost, st.integers(1, 4))
    | _of(NodesAtMost, st.integers(1, 9))
    | _of(ContiguousRanks)
    | _of(ChainOnly)
    | _of(DepthAtLeast, st.integers(1, 3))
)
rules = st.lists(rule, max_size=4)


def kept(limits: Limits, tree: Tree) -> bool:
    """Whether a tree keeps limits."""
    if tree.nodes == 0:
        return True
    paths = set(tree.paths)
    return (
        len(paths) <= limits.nodes
        and limits.min_depth <= max(map(len, paths)) <= limits.depth
        and all(max(path) < limits.ranks for path in paths)
        and (not limits.contiguous or all((*path[:-1], path[-1] - 1) in paths for path in paths if path[-1]))
    )
