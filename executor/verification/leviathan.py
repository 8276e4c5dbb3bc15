"""Leviathan's rule: speculative sampling of a chain (Leviathan et al. 2023, algorithm 1; Chen et al. 2023).

A token x drawn from q is accepted with probability min(1, p(x) / q(x)); after a rejection the bonus is drawn from
norm(max(0, p - q)), after the last accepted token from p. This is multi-round rejection with one sibling per node.
"""

from dataclasses import dataclass

from executor.verification.multi_round_rejection import Rounds, check_ranks
from treeopt.errors import ExecutorError
from treeopt.tree import Tree


@dataclass(frozen=True)
class Leviathan(Rounds):
    """Verify a chain of single draws."""

    def check(self, tree: Tree) -> None:
        """Refuse a tree that is not a chain of first draws.

        Raises:
            ExecutorError: names the first node that breaks the chain.
        """
        check_chain(tree)
        check_ranks(tree)


def check_chain(tree: Tree) -> None:
    """Refuse siblings.

    Raises:
        ExecutorError: names the first node that has one.
    """
    for node, (parent, above) in enumerate(zip(tree.parents[1:], tree.parents, strict=False), 1):
        if parent == above:
            raise ExecutorError(f"this rule verifies chains, but node {node} of the tree is a sibling of {node - 1}")
