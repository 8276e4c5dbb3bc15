"""What a rule is: a check of one tree, and what it leaves for searches to choose from; no rule of an engine."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Protocol

from treeopt.tree import MAX_NODES, MAX_RANK, Path, Tree


@dataclass(frozen=True)
class Limits:
    """What rules leave of all trees, in the terms that every search knows: a tree keeps the rules if it keeps these.

    The empty tree, which drafts nothing, keeps them all.

    Attributes:
        nodes: most nodes.
        sizes: the numbers of nodes that are allowed; None allows every one.
        depth: deepest level.
        min_depth: the depth that must be reached.
        ranks: every rank is below it; 1 leaves chains.
        children: most children of a node or of the root.
        levels: most nodes of each level, the last number for all deeper ones too; empty allows any.
        contiguous: siblings have the ranks 0, 1, 2, ...
        contiguous_root: children of the root do.
        expand_prefix: siblings that have children have the ranks 0, 1, 2, ...
        uniform: all nodes of a level have equally many children, and contiguous ranks.
        full: all nodes above the deepest level have equally many children, and contiguous ranks.
        pool: no more nodes than `treeopt.constraints.pool` of the tree's depth and branching.
    """

    nodes: int = MAX_NODES
    sizes: frozenset[int] | None = None
    depth: int = MAX_NODES
    min_depth: int = 0
    ranks: int = MAX_RANK + 1
    children: int = MAX_NODES
    levels: tuple[int, ...] = ()
    contiguous: bool = False
    contiguous_root: bool = False
    expand_prefix: bool = False
    uniform: bool = False
    full: bool = False
    pool: bool = False

    def level(self, depth: int) -> int:
        """Most nodes at a depth, the children of the root standing at depth 1.

        >>> [Limits(levels=(4, 2)).level(depth) for depth in (1, 2, 3)]
        [4, 2, 2]
        """
        return self.levels[min(depth, len(self.levels)) - 1] if self.levels else self.nodes


class Constraint(Protocol):
    """One rule that an engine puts on trees."""

    @property
    def source(self) -> str:
        """The file or issue of the engine that shows the rule."""

    @property
    def name(self) -> str:
        """A few words for a table."""

    def check(self, tree: Tree) -> str | None:
        """Why the engine cannot express `tree`, with the first path that breaks the rule; None if it can."""

    def narrow(self, limits: Limits) -> Limits:
        """The limits with this rule added to them."""


def hereditary(constraint: Constraint) -> bool:
    """Whether a tree that is built node by node, siblings by rank, keeps the rule all along if it does in the end.

    >>> from treeopt.constraints import ContiguousRanks, DepthAtLeast
    >>> hereditary(ContiguousRanks(source="a.py")), hereditary(DepthAtLeast(2, source="b.py"))
    (True, False)
    """
    limits = constraint.narrow(Limits())
    return limits.sizes is None and not (limits.min_depth or limits.uniform or limits.full or limits.pool)


def joined(constraints: Iterable[Constraint]) -> Limits:
    """What all rules together leave.

    >>> from treeopt.constraints import ChainOnly, NodesAtMost
    >>> limits = joined([NodesAtMost(63, source="a.py"), ChainOnly(source="b.py")])
    >>> limits.nodes, limits.ranks
    (63, 1)
    """
    return reduce(lambda limits, rule: rule.narrow(limits), constraints, Limits())


def broken(tree: Tree, constraints: Iterable[Constraint]) -> str | None:
    """The first rule that `tree` breaks, with its source; None when it keeps them all.

    >>> from treeopt.constraints import ChainOnly, DepthAtMost
    >>> broken(Tree.chain(3), [ChainOnly(source="a.py"), DepthAtMost(2, source="b.py")])
    'path [0, 0, 0] has depth 3, at most 2 can be drafted (b.py)'
    """
    for constraint in constraints:
        reason = constraint.check(tree)
        if reason is not None:
            return f"{reason} ({constraint.source})"
    return None


def show(path: Path) -> str:
    """A path as messages name it.

    >>> show((0, 2))
    '[0, 2]'
    """
    return str(list(path))
