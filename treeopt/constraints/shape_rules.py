"""Constraints that allow one kind of tree: chains, uniform branching per level, full trees."""

from collections import Counter
from dataclasses import dataclass, replace

from treeopt.constraints.constraint import Limits, show
from treeopt.constraints.rank_rules import ContiguousRanks
from treeopt.tree import Tree


@dataclass(frozen=True)
class ChainOnly:
    """The rule that only the best candidate of each depth is drafted.

    Siblings differ in rank, so a tree is that chain exactly if all its ranks are 0.

    >>> ChainOnly(source="engine.py").check(Tree.from_paths([(0,), (0, 1)]))
    'path [0, 1] takes candidate 1, only the best of each depth is drafted'
    """

    source: str

    @property
    def name(self) -> str:
        """The name in tables."""
        return "chains only"

    def check(self, tree: Tree) -> str | None:
        """Name the first path whose rank is not 0."""
        for path in tree.paths:
            if path[-1] > 0:
                return f"path {show(path)} takes candidate {path[-1]}, only the best of each depth is drafted"
        return None

    def narrow(self, limits: Limits) -> Limits:
        """See `Constraint.narrow`."""
        return replace(limits, ranks=min(limits.ranks, 1))


@dataclass(frozen=True)
class UniformBranching:
    """The rule that all nodes of a level have the same number of children, the best ones: `Tree.cartesian`.

    >>> UniformBranching(source="engine.py").check(Tree.from_paths([(0, 0), (1,)]))
    'path [1] has 0 children, others of its level have 1'
    """

    source: str

    @property
    def name(self) -> str:
        """The name in tables."""
        return "same number of children within a level"

    def check(self, tree: Tree) -> str | None:
        """Name the first path that skips a rank, or whose number of children differs from the first of its level."""
        skipped = ContiguousRanks(self.source).check(tree)
        if skipped is not None:
            return skipped
        children, first = Counter(tree.parents), dict[int, int]()
        for node, path in enumerate(tree.paths):
            expected = first.setdefault(len(path), children[node])
            if children[node] != expected:
                return f"path {show(path)} has {children[node]} children, others of its level have {expected}"
        return None

    def narrow(self, limits: Limits) -> Limits:
        """See `Constraint.narrow`."""
        return replace(limits, uniform=True, contiguous=True)


@dataclass(frozen=True)
class FullTree:
    """The rule that every node above the deepest level has the same number of children, the best ones: `Tree.full`.

    >>> FullTree(source="engine.py").check(Tree.cartesian((2, 1)))
    'path [0] has 1 children, the root has 2'
    """

    source: str

    @property
    def name(self) -> str:
        """The name in tables."""
        return "same number of children everywhere"

    def check(self, tree: Tree) -> str | None:
        """Name the first path that skips a rank, or an inner node whose number of children differs from the root's."""
        skipped = ContiguousRanks(self.source).check(tree)
        if skipped is not None:
            return skipped
        children = Counter(tree.parents)
        for node, path in enumerate(tree.paths):
            if len(path) < tree.depth and children[node] != children[-1]:
                return f"path {show(path)} has {children[node]} children, the root has {children[-1]}"
        return None

    def narrow(self, limits: Limits) -> Limits:
        """See `Constraint.narrow`."""
        return replace(limits, full=True, uniform=True, contiguous=True)
