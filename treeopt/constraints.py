"""Rules that engines put on trees, each with its source; which engine has which, the engine's file says."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from treeopt.tree import Path, Tree


class Constraint(Protocol):
    """One rule that an engine puts on trees."""

    @property
    def source(self) -> str:
        """The file or issue of the engine that shows the rule."""

    def check(self, tree: Tree) -> str | None:
        """Why the engine cannot express `tree`, with the first path that breaks the rule; None if it can."""


@dataclass(frozen=True)
class ChainOnly:
    """No path but the best candidate of each depth.

    Siblings differ in rank, so a tree is that chain exactly when all its ranks are 0.

    >>> ChainOnly(source="engine.py").check(Tree.from_paths([(0,), (0, 1)]))
    'path [0, 1] takes candidate 1, only the best of each depth is drafted'
    """

    source: str

    def check(self, tree: Tree) -> str | None:
        """Name the first path with another rank than 0."""
        for path in tree.paths:
            if path[-1] > 0:
                return f"path {_show(path)} takes candidate {path[-1]}, only the best of each depth is drafted"
        return None


@dataclass(frozen=True)
class RanksBelow:
    """Every rank below `limit`, the candidates that the engine keeps of each parent.

    >>> RanksBelow(10, source="engine.py").check(Tree.from_paths([(10,)]))
    'path [10] takes rank 10, ranks must be below 10'
    """

    limit: int
    source: str

    def check(self, tree: Tree) -> str | None:
        """Name the first path that ends in a rank at or above the limit."""
        for path in tree.paths:
            if path[-1] >= self.limit:
                return f"path {_show(path)} takes rank {path[-1]}, ranks must be below {self.limit}"
        return None


@dataclass(frozen=True)
class DepthAtMost:
    """No path longer than `limit`.

    >>> DepthAtMost(2, source="engine.py").check(Tree.chain(3))
    'path [0, 0, 0] has depth 3, at most 2 can be drafted'
    """

    limit: int
    source: str

    def check(self, tree: Tree) -> str | None:
        """Name the first path that is too long."""
        for path in tree.paths:
            if len(path) > self.limit:
                return f"path {_show(path)} has depth {len(path)}, at most {self.limit} can be drafted"
        return None


@dataclass(frozen=True)
class FitsPool:
    """No more nodes than a dynamic tree of the same depth and largest branching has candidates.

    >>> FitsPool(source="engine.py").check(Tree.full(2, 3))
    'path [1, 0, 0] is node 11 of 14, depth 3 and branching 2 offer 10 candidates'
    """

    source: str

    def check(self, tree: Tree) -> str | None:
        """Name the first path beyond the pool."""
        width = branching(tree)
        offered = pool(depth=tree.depth, width=width)
        if tree.nodes <= offered:
            return None
        beyond = _show(tree.paths[offered])
        return (
            f"path {beyond} is node {offered + 1} of {tree.nodes}, "
            f"depth {tree.depth} and branching {width} offer {offered} candidates"
        )


def branching(tree: Tree) -> int:
    """Children of the node that has most of them, the root included; 0 for the empty tree.

    >>> branching(Tree.from_paths([(0, 0), (0, 1), (0, 5), (1,)]))
    3
    """
    return max(Counter(tree.parents).values(), default=0)


def pool(*, depth: int, width: int) -> int:
    """Candidates of an EAGLE-2 style draft: K at the first level, K * K at every further one.

    Source: sglang#24054; SGLang's `organize_draft_results` fails exactly beyond it.

    >>> pool(depth=5, width=4)
    68
    """
    return width + (depth - 1) * width**2 if depth else 0


def broken(tree: Tree, constraints: Iterable[Constraint]) -> str | None:
    """The first rule that `tree` breaks, with its source; None when it keeps them all.

    >>> broken(Tree.chain(3), [ChainOnly(source="a.py"), DepthAtMost(2, source="b.py")])
    'path [0, 0, 0] has depth 3, at most 2 can be drafted (b.py)'
    """
    for constraint in constraints:
        reason = constraint.check(tree)
        if reason is not None:
            return f"{reason} ({constraint.source})"
    return None


def _show(path: Path) -> str:
    return str(list(path))
