"""Rules for Hypothesis, and what limits mean in words that share nothing with the rules."""

from collections import Counter

from hypothesis import strategies as st

from treeopt.constraints import (
    ChainOnly,
    ChildrenAtMost,
    Constraint,
    ContiguousRanks,
    DepthAtLeast,
    DepthAtMost,
    ExpandPrefix,
    FitsPool,
    FullTree,
    LevelsAtMost,
    Limits,
    NodesAtMost,
    RanksBelow,
    RootRanksContiguous,
    SizesAmong,
    UniformBranching,
)
from treeopt.tree import Tree

SOURCE = "engine/file.py"


def _of(made: type, *arguments: st.SearchStrategy) -> st.SearchStrategy[Constraint]:
    return st.builds(made, *arguments, source=st.just(SOURCE))


numbers = st.lists(st.integers(1, 7), min_size=1, max_size=3).map(tuple)
excluding = (
    _of(RanksBelow, st.integers(1, 4)) | _of(DepthAtMost, st.integers(1, 4)) | _of(NodesAtMost, st.integers(1, 9))
)
ordered = _of(ContiguousRanks) | _of(RootRanksContiguous) | _of(ExpandPrefix)
counting = _of(SizesAmong, numbers) | _of(LevelsAtMost, numbers) | _of(ChildrenAtMost, st.integers(1, 3))
shaped = _of(ChainOnly) | _of(UniformBranching) | _of(FullTree) | _of(DepthAtLeast, st.integers(1, 3)) | _of(FitsPool)
rule = excluding | ordered | counting | shaped
rules = st.lists(rule, max_size=4)


def kept(limits: Limits, tree: Tree) -> bool:
    """Whether a tree keeps limits."""
    if tree.nodes == 0:
        return True
    paths = set(tree.paths)
    children = Counter(path[:-1] for path in paths)
    levels = Counter(len(path) for path in paths)

    def chosen_first(group: set[tuple[int, ...]]) -> bool:
        return all((*path[:-1], path[-1] - 1) in group for path in group if path[-1])

    most = max(children.values())
    per_level = [{children[path] for path in paths | {()} if len(path) == level} for level in range(tree.depth)]
    return (
        len(paths) <= limits.nodes
        and (limits.sizes is None or len(paths) in limits.sizes)
        and limits.min_depth <= max(levels) <= limits.depth
        and all(max(path) < limits.ranks for path in paths)
        and most <= limits.children
        and all(levels[level] <= limits.level(level) for level in levels)
        and (not limits.contiguous or chosen_first(paths))
        and (not limits.contiguous_root or chosen_first({path for path in paths if len(path) == 1}))
        and (not limits.expand_prefix or chosen_first({path for path in children if path}))
        and (not limits.uniform or all(len(found) == 1 for found in per_level))
        and (not limits.full or len(set().union(*per_level)) == 1)
        and (not limits.pool or len(paths) <= most + (max(levels) - 1) * most**2)
    )
