"""Rules that count: nodes, levels, children, candidates."""

from collections import Counter
from dataclasses import dataclass, replace
from itertools import zip_longest

from treeopt.constraints.constraint import Limits, show
from treeopt.errors import UsageError
from treeopt.tree import Tree


@dataclass(frozen=True)
class NodesAtMost:
    """No more than `limit` nodes, such as the 63 that a mask of 64 bits holds beside the root.

    >>> NodesAtMost(3, source="engine.py").check(Tree.chain(4))
    'path [0, 0, 0, 0] is node 4, at most 3 can be drafted'
    """

    limit: int
    source: str

    @property
    def name(self) -> str:
        """For tables."""
        return f"nodes at most {self.limit}"

    def check(self, tree: Tree) -> str | None:
        """Name the first path beyond the limit."""
        if tree.nodes <= self.limit:
            return None
        return f"path {show(tree.paths[self.limit])} is node {self.limit + 1}, at most {self.limit} can be drafted"

    def narrow(self, limits: Limits) -> Limits:
        """See `Constraint.narrow`."""
        return replace(limits, nodes=min(limits.nodes, self.limit))


@dataclass(frozen=True)
class SizesAmong:
    """Only these numbers of nodes: steps are captured for them alone. The verified tokens are one more, the root.

    >>> SizesAmong((3, 7), source="engine.py").check(Tree.chain(4))
    'path [0, 0, 0, 0] is node 4, only trees of 3 or 7 nodes can be run'
    """

    nodes: tuple[int, ...]
    source: str

    def __post_init__(self) -> None:
        """Check that there is a size.

        Raises:
            UsageError: none, or one below 1.
        """
        if min(self.nodes, default=0) < 1:
            raise UsageError(f"sizes must be numbers of at least 1, got {list(self.nodes)}")

    @property
    def name(self) -> str:
        """For tables."""
        return f"{self._listed} nodes"

    @property
    def _listed(self) -> str:
        *most, last = map(str, self.nodes)
        return f"{', '.join(most)} or {last}" if most else last

    def check(self, tree: Tree) -> str | None:
        """Name the last path of a tree of another size."""
        if tree.nodes in (0, *self.nodes):
            return None
        return f"path {show(tree.paths[-1])} is node {tree.nodes}, only trees of {self._listed} nodes can be run"

    def narrow(self, limits: Limits) -> Limits:
        """See `Constraint.narrow`."""
        sizes = frozenset(self.nodes)
        return replace(limits, sizes=sizes if limits.sizes is None else sizes & limits.sizes)


@dataclass(frozen=True)
class DepthAtMost:
    """No path longer than `limit`.

    >>> DepthAtMost(2, source="engine.py").check(Tree.chain(3))
    'path [0, 0, 0] has depth 3, at most 2 can be drafted'
    """

    limit: int
    source: str

    @property
    def name(self) -> str:
        """For tables."""
        return f"depth at most {self.limit}"

    def check(self, tree: Tree) -> str | None:
        """Name the first path that is too long."""
        for path in tree.paths:
            if len(path) > self.limit:
                return f"path {show(path)} has depth {len(path)}, at most {self.limit} can be drafted"
        return None

    def narrow(self, limits: Limits) -> Limits:
        """See `Constraint.narrow`."""
        return replace(limits, depth=min(limits.depth, self.limit))


@dataclass(frozen=True)
class DepthAtLeast:
    """A path of `limit` nodes or more.

    >>> DepthAtLeast(2, source="engine.py").check(Tree.from_paths([(0,), (1,)]))
    'path [1] has depth 1, the deepest must have at least 2'
    """

    limit: int
    source: str

    @property
    def name(self) -> str:
        """For tables."""
        return f"depth at least {self.limit}"

    def check(self, tree: Tree) -> str | None:
        """Name the longest path of a tree that is too flat."""
        if tree.nodes == 0 or tree.depth >= self.limit:
            return None
        return f"path {show(tree.paths[-1])} has depth {tree.depth}, the deepest must have at least {self.limit}"

    def narrow(self, limits: Limits) -> Limits:
        """See `Constraint.narrow`."""
        return replace(limits, min_depth=max(limits.min_depth, self.limit))


@dataclass(frozen=True)
class LevelsAtMost:
    """At most `widths[d]` nodes at depth d + 1; the last number holds for all deeper levels too.

    >>> LevelsAtMost((2, 1), source="engine.py").check(Tree.full(2, 2))
    'path [0, 1] is node 2 of its level, at most 1 can be drafted there'
    """

    widths: tuple[int, ...]
    source: str

    def __post_init__(self) -> None:
        """Check that there is a width.

        Raises:
            UsageError: none, or one below 1.
        """
        if min(self.widths, default=0) < 1:
            raise UsageError(f"widths must be numbers of at least 1, got {list(self.widths)}")

    @property
    def name(self) -> str:
        """For tables."""
        return f"levels at most {', '.join(map(str, self.widths))}"

    def check(self, tree: Tree) -> str | None:
        """Name the first path beyond a level's limit."""
        at: Counter[int] = Counter()
        for path in tree.paths:
            at[len(path)] += 1
            limit = self.widths[min(len(path), len(self.widths)) - 1]
            if at[len(path)] > limit:
                return f"path {show(path)} is node {limit + 1} of its level, at most {limit} can be drafted there"
        return None

    def narrow(self, limits: Limits) -> Limits:
        """See `Constraint.narrow`."""
        if not limits.levels:
            return replace(limits, levels=self.widths)
        both = zip_longest(limits.levels, self.widths)
        levels = tuple(min(a or limits.levels[-1], b or self.widths[-1]) for a, b in both)
        return replace(limits, levels=levels)


@dataclass(frozen=True)
class ChildrenAtMost:
    """No node, nor the root, has more than `limit` children.

    >>> ChildrenAtMost(2, source="engine.py").check(Tree.from_paths([(0,), (1,), (5,)]))
    'path [5] is child 3, at most 2 can be drafted'
    """

    limit: int
    source: str

    @property
    def name(self) -> str:
        """For tables."""
        return f"children at most {self.limit}"

    def check(self, tree: Tree) -> str | None:
        """Name the first path that is one child too many."""
        children: Counter[int] = Counter()
        for path, parent in zip(tree.paths, tree.parents, strict=True):
            children[parent] += 1
            if children[parent] > self.limit:
                return f"path {show(path)} is child {self.limit + 1}, at most {self.limit} can be drafted"
        return None

    def narrow(self, limits: Limits) -> Limits:
        """See `Constraint.narrow`."""
        return replace(limits, children=min(limits.children, self.limit))


@dataclass(frozen=True)
class FitsPool:
    """No more nodes than a dynamic tree of the same depth and largest branching has candidates.

    >>> FitsPool(source="engine.py").check(Tree.full(2, 3))
    'path [1, 0, 0] is node 11 of 14, depth 3 and branching 2 offer 10 candidates'
    """

    source: str

    @property
    def name(self) -> str:
        """For tables."""
        return "no more nodes than candidates"

    def check(self, tree: Tree) -> str | None:
        """Name the first path beyond the pool."""
        width = branching(tree)
        offered = pool(depth=tree.depth, width=width)
        if tree.nodes <= offered:
            return None
        beyond = show(tree.paths[offered])
        return (
            f"path {beyond} is node {offered + 1} of {tree.nodes}, "
            f"depth {tree.depth} and branching {width} offer {offered} candidates"
        )

    def narrow(self, limits: Limits) -> Limits:
        """See `Constraint.narrow`."""
        return replace(limits, pool=True)


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
