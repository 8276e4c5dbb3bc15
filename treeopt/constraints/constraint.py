"""The Constraint protocol: a check of one tree, and the limits that it leaves to a search; no rules of an engine."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Protocol

from treeopt.tree import MAX_NODES, MAX_RANK, Path, Tree


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


def hereditary(constraint: Constraint) -> bool:
    """Return True if a tree built node by node, siblings by rank, meets the rule at every step if it does at the end.

    >>> from treeopt.constraints import ContiguousRanks, DepthAtLeast
    >>> hereditary(ContiguousRanks(source="a.py")), hereditary(DepthAtLeast(2, source="b.py"))
    (True, False)
    """
    return not constraint.narrow(Limits()).min_depth


def joined(constraints: Iterable[Constraint]) -> Limits:
    """Return the limits that all rules leave together.

    >>> from treeopt.constraints import ChainOnly, NodesAtMost
    >>> limits = joined([NodesAtMost(63, source="a.py"), ChainOnly(source="b.py")])
    >>> limits.nodes, limits.ranks
    (63, 1)
    """
    return reduce(lambda limits, rule: rule.narrow(limits), constraints, Limits())


def broken(tree: Tree, constraints: Iterable[Constraint]) -> str | None:
    """Return the first rule that `tree` breaks, with its source, or None if it meets them all.

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
    """Return a path as text for messages.

    >>> show((0, 2))
    '[0, 2]'
    """
    return str(list(path))
