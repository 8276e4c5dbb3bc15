"""Constraints that engines put on trees, each with its source; `treeopt.engines` lists those of each engine."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce
from typing import ClassVar, Protocol

from treeopt.tree import MAX_NODES, MAX_RANK, Tree


@dataclass(frozen=True)
class Limits:
    """The trees that constraints allow, in terms that every search knows.

    A tree meets the constraints exactly if it meets these limits. The empty tree, which drafts nothing, meets them all.

    Attributes:
        nodes: most nodes.
        depth: deepest level.
        min_depth: smallest depth of the tree.
        ranks: every rank is below this number; 1 leaves chains.
        contiguous: siblings have the ranks 0, 1, 2, ...
    """

    nodes: int = MAX_NODES
    depth: int = MAX_NODES
    min_depth: int = 0
    ranks: int = MAX_RANK + 1
    contiguous: bool = False


class Constraint(Protocol):
    """A rule that an engine puts on trees."""

    @property
    def source(self) -> str:
        """The file or issue of the engine that shows the rule."""

    @property
    def name(self) -> str:
        """A few words for a table."""

    def check(self, tree: Tree) -> str | None:
        """Return the reason why the engine cannot express `tree`, with the first path that breaks the rule, or None."""

    def narrow(self, limits: Limits) -> Limits:
        """Return the limits with this rule added to them."""


def joined(constraints: Iterable[Constraint]) -> Limits:
    """Return the limits that all rules leave together.

    >>> limits = joined([NodesAtMost(63, source="a.py"), ChainOnly(source="b.py")])
    >>> limits.nodes, limits.ranks
    (63, 1)
    """
    return reduce(lambda limits, rule: rule.narrow(limits), constraints, Limits())


def broken(tree: Tree, constraints: Iterable[Constraint]) -> str | None:
    """Return the first rule that `tree` breaks, with its source, or None if it meets them all.

    >>> broken(Tree.chain(3), [ChainOnly(source="a.py"), DepthAtMost(2, source="b.py")])
    'path [0, 0, 0] has depth 3, at most 2 can be drafted (b.py)'
    """
    for constraint in constraints:
        reason = constraint.check(tree)
        if reason is not None:
            return f"{reason} ({constraint.source})"
    return None


@dataclass(frozen=True)
class ChainOnly:
    """The rule that only the best candidate of each depth is drafted.

    Siblings differ in rank, so a tree is that chain exactly if all its ranks are 0.

    >>> ChainOnly(source="engine.py").check(Tree.from_paths([(0,), (0, 1)]))
    'path [0, 1] takes candidate 1, only the best of each depth is drafted'
    """

    source: str
    name = "chains only"

    def check(self, tree: Tree) -> str | None:
        """Name the first path whose rank is not 0."""
        for path in tree.paths:
            if path[-1] > 0:
                return f"path {list(path)} takes candidate {path[-1]}, only the best of each depth is drafted"
        return None

    def narrow(self, limits: Limits) -> Limits:
        """See `Constraint.narrow`."""
        return replace(limits, ranks=min(limits.ranks, 1))


@dataclass(frozen=True)
class _Limit:
    """A rule that one number states."""

    limit: int
    source: str
    words: ClassVar[str]
    field: ClassVar[str]  # of `Limits`

    @property
    def name(self) -> str:
        """The name in tables."""
        return f"{self.words} {self.limit}"

    def narrow(self, limits: Limits) -> Limits:
        """See `Constraint.narrow`."""
        return replace(limits, **{self.field: min(getattr(limits, self.field), self.limit)})


@dataclass(frozen=True)
class RanksBelow(_Limit):
    """The rule that every rank is below `limit`, the number of candidates that the engine keeps per parent.

    >>> RanksBelow(10, source="engine.py").check(Tree.from_paths([(10,)]))
    'path [10] takes rank 10, ranks must be below 10'
    """

    words: ClassVar = "ranks below"
    field: ClassVar = "ranks"

    def check(self, tree: Tree) -> str | None:
        """Name the first path that ends in a rank at or above the limit."""
        for path in tree.paths:
            if path[-1] >= self.limit:
                return f"path {list(path)} takes rank {path[-1]}, ranks must be below {self.limit}"
        return None


@dataclass(frozen=True)
class ContiguousRanks:
    """The rule that siblings take the best candidates: a node of rank r has siblings of all ranks below r.

    >>> ContiguousRanks(source="engine.py").check(Tree.from_paths([(0,), (0, 0), (0, 2)]))
    'path [0, 2] skips rank 1, siblings must have the ranks 0, 1, 2, ...'
    """

    source: str
    name = "contiguous ranks"

    def check(self, tree: Tree) -> str | None:
        """Name the first path that skips a better sibling."""
        paths = set(tree.paths)
        for path in tree.paths:
            for rank in range(path[-1]):
                if (*path[:-1], rank) not in paths:
                    return f"path {list(path)} skips rank {rank}, siblings must have the ranks 0, 1, 2, ..."
        return None

    def narrow(self, limits: Limits) -> Limits:
        """See `Constraint.narrow`."""
        return replace(limits, contiguous=True)


@dataclass(frozen=True)
class NodesAtMost(_Limit):
    """The rule of at most `limit` nodes, such as the 63 that a 64-bit mask holds beside the root.

    >>> NodesAtMost(3, source="engine.py").check(Tree.chain(4))
    'path [0, 0, 0, 0] is node 4, at most 3 can be drafted'
    """

    words: ClassVar = "nodes at most"
    field: ClassVar = "nodes"

    def check(self, tree: Tree) -> str | None:
        """Name the first path beyond the limit."""
        if tree.nodes <= self.limit:
            return None
        return f"path {list(tree.paths[self.limit])} is node {self.limit + 1}, at most {self.limit} can be drafted"


@dataclass(frozen=True)
class DepthAtMost(_Limit):
    """The rule that no path is longer than `limit`.

    >>> DepthAtMost(2, source="engine.py").check(Tree.chain(3))
    'path [0, 0, 0] has depth 3, at most 2 can be drafted'
    """

    words: ClassVar = "depth at most"
    field: ClassVar = "depth"

    def check(self, tree: Tree) -> str | None:
        """Name the first path that is too long."""
        for path in tree.paths:
            if len(path) > self.limit:
                return f"path {list(path)} has depth {len(path)}, at most {self.limit} can be drafted"
        return None


@dataclass(frozen=True)
class DepthAtLeast(_Limit):
    """The rule that some path has `limit` nodes or more.

    >>> DepthAtLeast(2, source="engine.py").check(Tree.from_paths([(0,), (1,)]))
    'path [1] has depth 1, the deepest must have at least 2'
    """

    words: ClassVar = "depth at least"
    field: ClassVar = "min_depth"

    def check(self, tree: Tree) -> str | None:
        """Name the longest path of a tree that is too flat."""
        if tree.nodes == 0 or tree.depth >= self.limit:
            return None
        return f"path {list(tree.paths[-1])} has depth {tree.depth}, the deepest must have at least {self.limit}"

    def narrow(self, limits: Limits) -> Limits:
        """See `Constraint.narrow`."""
        return replace(limits, min_depth=max(limits.min_depth, self.limit))


def branching(tree: Tree) -> int:
    """Return the most children of any node, the root included; 0 for the empty tree.

    >>> branching(Tree.from_paths([(0, 0), (0, 1), (0, 5), (1,)]))
    3
    """
    return max(Counter(tree.parents).values(), default=0)


def pool(*, depth: int, width: int) -> int:
    """Return the number of candidates of an EAGLE-2 style draft: K at the first level, K * K at every further one.

    Source: sglang#24054; SGLang's `organize_draft_results` fails exactly beyond it.

    >>> pool(depth=5, width=4)
    68
    """
    return width + (depth - 1) * width**2 if depth else 0
