"""Rules for Hypothesis, and what limits mean in words that share nothing with the rules."""

from collections.abc import Callable

from hypothesis import strategies as st

from treeopt.constraints import (
    Constraint,
    Limits,
    chains_only,
    contiguous_ranks,
    depth_at_least,
    depth_at_most,
    nodes_at_most,
    ranks_below,
)
from treeopt.tree import Tree

SOURCE = "engine/file.py"


def _of(made: Callable[..., Constraint], *arguments: st.SearchStrategy) -> st.SearchStrategy[Constraint]:
    return st.builds(made, *arguments, source=st.just(SOURCE))


rule = (
    _of(ranks_below, st.integers(1, 4))
    | _of(depth_at_most, st.integers(1, 4))
    | _of(nodes_at_most, st.integers(1, 9))
    | _of(contiguous_ranks)
    | _of(chains_only)
    | _of(depth_at_least, st.integers(1, 3))
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
