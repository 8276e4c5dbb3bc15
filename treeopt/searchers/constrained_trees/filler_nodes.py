"""Filler nodes: nodes without value that fill a tree up to a size or depth that a rule requires, or that costs less.

They take the lowest free ranks, some of which may have value after all.
"""

from collections.abc import Sequence

from treeopt.constraints import Limits
from treeopt.tree import Path, Tree


def filled(tree: Tree, limits: Limits, *, nodes: int, depth: int) -> Tree | None:
    """Return the tree with nodes added up to a size; None where they do not fit, or the tree is larger.

    The minimum depth is reached first. Other nodes are placed where no more nodes are fed to the drafter if possible,
    else as shallow as possible.

    Args:
        tree: a tree within the limits, except for sizes, minimum depth and candidate pools, which the caller checks.
        limits: limits that the rules set; not for uniform trees.
        nodes: size wanted.
        depth: deepest level.

    >>> filled(Tree.chain(1), Limits(min_depth=2), nodes=3, depth=2).paths
    ((0,), (1,), (0, 0))
    """
    depth = min(depth, limits.depth)
    children = min(limits.ranks, limits.children)
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
            added = max(0, min(left, limits.level(level) - width[level], children * above - width[level]))
            width[level] += added
            left -= added
            if added:
                fed[level - 1] = max(fed[level - 1], -(-width[level] // children))
    if left:
        return None
    levels, inner = (*tree.level_widths, *[0] * depth), (*tree.fed_widths, *[0] * depth)
    pads = [width[level] - levels[level - 1] for level in range(1, depth + 1)]
    opened = [0, *(fed[level] - inner[level] for level in range(1, depth))]
    return placed(tree, limits, pads, opened)


def placed(tree: Tree, limits: Limits, pads: Sequence[int], opened: Sequence[int]) -> Tree | None:
    """Return the tree with a given number of nodes added at each level; None where they do not all fit.

    Args:
        tree: a tree within the limits, except for sizes, minimum depth and pools of candidates.
        limits: limits that the rules set.
        pads: number of nodes to add at depth 1, 2, ...
        opened: at depth 0 (the root), 1, ..., number of nodes without children that get some.

    >>> placed(Tree.chain(2), Limits(), [1, 2], [0, 1]).paths
    ((0,), (1,), (0, 0), (0, 1), (1, 0))
    """
    children = min(limits.ranks, limits.children)
    ranks: dict[Path, set[int]] = {(): set()}  # ranks of each node's children
    for path in tree.paths:
        ranks[path] = set()
        ranks[path[:-1]].add(path[-1])
    parents: list[Path] = [()]
    for count, new in zip(pads, opened, strict=True):
        if not _open(parents, ranks, limits, new, count):
            return None
        count -= new
        for path in parents:
            while count and (ranks[path] or not path) and len(ranks[path]) < children:
                _add(path, ranks)
                count -= 1
        if count:
            return None
        parents = sorted((*path, rank) for path in parents for rank in ranks[path])
    return Tree.from_paths(path for path in ranks if path)


def _open(parents: Sequence[Path], ranks: dict[Path, set[int]], limits: Limits, new: int, count: int) -> bool:
    """Give `new` nodes a first child, starting with those that a continued sibling after them requires."""
    if new > count:
        return False
    for _ in range(new):
        ends = [path for path in parents if path and not ranks[path]]
        if limits.expand_prefix:
            ends = [path for path in ends if all(ranks.get((*path[:-1], rank)) for rank in range(path[-1]))]
        if not ends:
            return False
        _add(min(ends, key=lambda path: (not _required(path, ranks), path[-1], path)), ranks)
    return True


def _required(path: Path, ranks: dict[Path, set[int]]) -> bool:
    """Return True if a sibling after this one has children."""
    return any(rank > path[-1] and ranks.get((*path[:-1], rank)) for rank in ranks[path[:-1]])


def _add(path: Path, ranks: dict[Path, set[int]]) -> None:
    rank = next(rank for rank in range(len(ranks[path]) + 1) if rank not in ranks[path])
    ranks[path].add(rank)
    ranks[*path, rank] = set()
