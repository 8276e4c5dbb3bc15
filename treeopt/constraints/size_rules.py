"""Constraints on sizes: numbers of nodes, levels, children and candidates."""

from collections import Counter
from dataclasses import dataclass, replace
from itertools import zip_longest

from treeopt.constraints.constraint import Limits, show
from treeopt.errors import UsageError
from treeopt.tree import Tree


@dataclass(frozen=True)
class NodesAtMost:
    """The rule of at most `limit` nodes, such as the 63 that a 64-bit mask holds beside the root.

    >>> NodesAtMost(3, source="engine.py").check(Tree.chain(4))
    'path [0, 0, 0, 0] is node 4, at most 3 can be drafted'
    """

    limit: int
    source: str

    @property
    def name(self) -> str:
        """The name in tables."""
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
    """The rule of a few allowed sizes, for which steps are captured. Verified tokens are nodes + 1, with the root.

    >>> SizesAmong((3, 7), source="engine.py").check(Tree.chain(4))
    'path [0, 0, 0, 0] is node 4, only trees of 3 or 7 nodes can be run'
    """

    nodes: tuple[int, ...]
    source: str

    def __post_init__(self) -> None:
        """Check the sizes.

        Raises:
            UsageError: no size, or a size below 1.
        """
        if min(self.nodes, default=0) < 1:
            raise UsageError(f"sizes must be one or more numbers of at least 1, got {list(self.nodes)}")

    @property
    def name(self) -> str:
        """The name in tables."""
        return f"{self._listed} nodes"

    @property
    def _listed(self) -> str:
        *others, last = map(str, self.nodes)
        return f"{', '.join(others)} or {last}" if others else last

    def check(self, tree: Tree) -> str | None:
        """Name the last path of a tree whose size is not allowed."""
        if tree.nodes in (0, *self.nodes):
            return None
        return f"path {show(tree.paths[-1])} is node {tree.nodes}, only trees of {self._listed} nodes can be run"

    def narrow(self, limits: Limits) -> Limits:
        """See `Constraint.narrow`."""
        sizes = frozenset(self.nodes)
        return replace(limits, sizes=sizes if limits.sizes is None else sizes & limits.sizes)


@dataclass(frozen=True)
class DepthAtMost:
    """The rule that no path is longer than `limit`.

    >>> DepthAtMost(2, source="engine.py").check(Tree.chain(3))
    'path [0, 0, 0] has depth 3, at most 2 can be drafted'
    """

    limit: int
    source: str

    @property
    def name(self) -> str:
        """The name in tables."""
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
    """The rule that some path has `limit` nodes or more.

    >>> DepthAtLeast(2, source="engine.py").check(Tree.from_paths([(0,), (1,)]))
    'path [1] has depth 1, the deepest must have at least 2'
    """

    limit: int
    source: str

    @property
    def name(self) -> str:
        """The name in tables."""
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
    """The rule of at most `widths[d]` nodes at depth d + 1; the last number holds for all deeper levels too.

    >>> LevelsAtMost((2, 1), source="engine.py").check(Tree.full(2, 2))
    'path [0, 1] is node 2 of its level, at most 1 can be drafted there'
    """

    widths: tuple[int, ...]
    source: str

    def __post_init__(self) -> None:
        """Check the widths.

        Raises:
            UsageError: no width, or a width below 1.
        """
        if min(self.widths, default=0) < 1:
            raise UsageError(f"widths must be one or more numbers of at least 1, got {list(self.widths)}")

    @property
    def name(self) -> str:
        """The name in tables."""
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
    """The rule that no node, nor the root, has more than `limit` children.

    >>> ChildrenAtMost(2, source="engine.py").check(Tree.from_paths([(0,), (1,), (5,)]))
    'path [5] is child 3, at most 2 can be drafted'
    """

    limit: int
    source: str

    @property
    def name(self) -> str:
        """The name in tables."""
        return f"children at most {self.limit}"

    def check(self, tree: Tree) -> str | None:
        """Name the first path beyond the limit."""
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
    """The rule of no more nodes than a dynamic tree of the same depth and largest branching has candidates.

    >>> FitsPool(source="engine.py").check(Tree.full(2, 3))
    'path [1, 0, 0] is node 11 of 14, depth 3 and branching 2 offer 10 candidates'
    """

    source: str

    @property
    def name(self) -> str:
        """The name in tables."""
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
