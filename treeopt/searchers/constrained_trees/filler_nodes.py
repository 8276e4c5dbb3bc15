"""Nodes without value that fill a tree up to what a rule asks for, or to a size that costs less; no search.

They take the lowest ranks that are free. Where that is the rank of a node with some value, so much the better.
"""

from collections.abc import Sequence

from treeopt.constraints import Limits
from treeopt.tree import Path, Tree


def filled(tree: Tree, limits: Limits, *, nodes: int, depth: int) -> Tree | None:
    """The tree with nodes added up to a size; None where they find no place, or the tree is larger.

    The least depth is reached first. The others stand where no more nodes are fed to the drafter, as far as they can,
    else as shallow as they can.

    Args:
        tree: keeps the limits, but for sizes, the least depth and pools of candidates, which are for the caller.
        limits: what the rules leave, uniform trees aside.
        nodes: size wanted.
        depth: deepest level.

    >>> filled(Tree.chain(1), Limits(min_depth=2), nodes=3, depth=2).paths
    ((0,), (1,), (0, 0))
    """
    depth = min(depth, limits.depth)
    most = min(limits.ranks, limits.children)
    width, fed = [1, *tree.level_widths], [*tree.fed_widths, 0]
    reached = max(tree.depth, limits.min_depth)
    width += [0] * (depth + 1 - len(width))
    fed += [0] * (depth + 1 - len(fed))
    fed[0] = 1
    left = nodes - tree.nodes
    if left < 0 or reached > depth:
        return None
    for level in range(tree.depth + 1, reached + 1):
        width[level] = 1
        fed[level - 1] = 1
        left -= 1
    if left < 0:
        return None
    for deeper in (False, True):
        for level in range(1, depth + 1):
            above = width[level - 1] if deeper else fed[level - 1]
            more = max(0, min(left, limits.level(level) - width[level], most * above - width[level]))
            width[level] += more
            left -= more
            if more:
                fed[level - 1] = max(fed[level - 1], -(-width[level] // most))
    if left:
        return None
    levels, inner = (*tree.level_widths, *[0] * depth), (*tree.fed_widths, *[0] * depth)
    pads = [width[level] - levels[level - 1] for level in range(1, depth + 1)]
    opened = [0, *(fed[level] - inner[level] for level in range(1, depth))]
    return placed(tree, limits, pads, opened)


def placed(tree: Tree, limits: Limits, pads: Sequence[int], opened: Sequence[int]) -> Tree | None:
    """The tree with so many nodes added at each level; None where they cannot all be placed.

    Args:
        tree: keeps the limits, but for sizes, the least depth and pools of candidates.
        limits: as above.
        pads: nodes to add at depth 1, 2, ...
        opened: at depth 0 (the root), 1, ..., how many nodes that have no children are to get some.

    >>> placed(Tree.chain(2), Limits(), [1, 2], [0, 1]).paths
    ((0,), (1,), (0, 0), (0, 1), (1, 0))
    """
    most = min(limits.ranks, limits.children)
    ranks: dict[Path, set[int]] = {(): set()}  # of the children of each node
    for path in tree.paths:
        ranks[path] = set()
        ranks[path[:-1]].add(path[-1])
    parents: list[Path] = [()]
    for count, new in zip(pads, opened, strict=True):
        if not _open(parents, ranks, limits, new, count):
            return None
        count -= new
        for path in parents:
            while count and (ranks[path] or not path) and len(ranks[path]) < most:
                _add(path, ranks)
                count -= 1
        if count:
            return None
        parents = sorted((*path, rank) for path in parents for rank in ranks[path])
    return Tree.from_paths(path for path in ranks if path)


def _open(parents: Sequence[Path], ranks: dict[Path, set[int]], limits: Limits, new: int, count: int) -> bool:
    """Give so many nodes a first child, those first that better continued siblings ask for."""
    if new > count:
        return False
    for _ in range(new):
        ends = [path for path in parents if path and not ranks[path]]
        if limits.expand_prefix:
            ends = [path for path in ends if all(ranks.get((*path[:-1], rank)) for rank in range(path[-1]))]
        if not ends:
            return False
        _add(min(ends, key=lambda path: (not _asked(path, ranks), path[-1], path)), ranks)
    return True


def _asked(path: Path, ranks: dict[Path, set[int]]) -> bool:
    """Whether a sibling after this one has children."""
    return any(rank > path[-1] and ranks.get((*path[:-1], rank)) for rank in ranks[path[:-1]])


def _add(path: Path, ranks: dict[Path, set[int]]) -> None:
    rank = next(rank for rank in range(len(ranks[path]) + 1) if rank not in ranks[path])
    ranks[path].add(rank)
    ranks[*path, rank] = set()
