"""Constraints that engines put on trees, each with its source; `treeopt.engines` lists those of each engine."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

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

    def broken_by(self, tree: Tree) -> str | None:
        """Return the first path of a tree that breaks a limit, and how; None if it meets them all."""
        paths = set(tree.paths) if self.contiguous else set()
        for number, path in enumerate(tree.paths, 1):
            place, rank = f"path {list(path)}", path[-1]
            if rank >= self.ranks == 1:
                return f"{place} takes candidate {rank}, only the best of each depth is drafted"
            if rank >= self.ranks:
                return f"{place} takes rank {rank}, ranks must be below {self.ranks}"
            skipped = [better for better in range(rank if self.contiguous else 0) if (*path[:-1], better) not in paths]
            if skipped:
                return f"{place} skips rank {skipped[0]}, siblings must have the ranks 0, 1, 2, ..."
            if number > self.nodes:
                return f"{place} is node {number}, at most {self.nodes} can be drafted"
            if len(path) > self.depth:
                return f"{place} has depth {len(path)}, at most {self.depth} can be drafted"
        if 0 < tree.depth < self.min_depth:
            flat = f"path {list(tree.paths[-1])} has depth {tree.depth}"
            return f"{flat}, the deepest must have at least {self.min_depth}"
        return None


@dataclass(frozen=True)
class Constraint:
    """A rule that an engine puts on trees.

    Attributes:
        name: a few words for a table.
        source: the file or issue of the engine that shows the rule.
        limits: the trees that it allows.
    """

    name: str
    source: str
    limits: Limits

    def check(self, tree: Tree) -> str | None:
        """Return the reason why the engine cannot express `tree`, with the first path that breaks the rule, or None."""
        return self.limits.broken_by(tree)


def chains_only(source: str) -> Constraint:
    """Return the rule that only the best candidate of each depth is drafted.

    Siblings differ in rank, so a tree is that chain exactly if all its ranks are 0.

    >>> chains_only(source="engine.py").check(Tree.from_paths([(0,), (0, 1)]))
    'path [0, 1] takes candidate 1, only the best of each depth is drafted'
    """
    return Constraint("chains only", source, Limits(ranks=1))


def ranks_below(limit: int, source: str) -> Constraint:
    """Return the rule that every rank is below `limit`, the number of candidates that the engine keeps per parent.

    >>> ranks_below(10, source="engine.py").check(Tree.from_paths([(10,)]))
    'path [10] takes rank 10, ranks must be below 10'
    """
    return Constraint(f"ranks below {limit}", source, Limits(ranks=limit))


def contiguous_ranks(source: str) -> Constraint:
    """Return the rule that siblings take the best candidates: a node of rank r has siblings of all ranks below r.

    >>> contiguous_ranks(source="engine.py").check(Tree.from_paths([(0,), (0, 0), (0, 2)]))
    'path [0, 2] skips rank 1, siblings must have the ranks 0, 1, 2, ...'
    """
    return Constraint("contiguous ranks", source, Limits(contiguous=True))


def nodes_at_most(limit: int, source: str) -> Constraint:
    """Return the rule of at most `limit` nodes, such as the 63 that a 64-bit mask holds beside the root.

    >>> nodes_at_most(3, source="engine.py").check(Tree.chain(4))
    'path [0, 0, 0, 0] is node 4, at most 3 can be drafted'
    """
    return Constraint(f"nodes at most {limit}", source, Limits(nodes=limit))


def depth_at_most(limit: int, source: str) -> Constraint:
    """Return the rule that no path is longer than `limit`.

    >>> depth_at_most(2, source="engine.py").check(Tree.chain(3))
    'path [0, 0, 0] has depth 3, at most 2 can be drafted'
    """
    return Constraint(f"depth at most {limit}", source, Limits(depth=limit))


def depth_at_least(limit: int, source: str) -> Constraint:
    """Return the rule that some path has `limit` nodes or more.

    >>> depth_at_least(2, source="engine.py").check(Tree.from_paths([(0,), (1,)]))
    'path [1] has depth 1, the deepest must have at least 2'
    """
    return Constraint(f"depth at least {limit}", source, Limits(min_depth=limit))


def joined(constraints: Iterable[Constraint]) -> Limits:
    """Return the limits that all rules leave together.

    >>> limits = joined([nodes_at_most(63, source="a.py"), chains_only(source="b.py")])
    >>> limits.nodes, limits.ranks
    (63, 1)
    """
    every = [Limits(), *(rule.limits for rule in constraints)]
    return Limits(
        nodes=min(each.nodes for each in every),
        depth=min(each.depth for each in every),
        min_depth=max(each.min_depth for each in every),
        ranks=min(each.ranks for each in every),
        contiguous=any(each.contiguous for each in every),
    )


def broken(tree: Tree, constraints: Iterable[Constraint]) -> str | None:
    """Return the first rule that `tree` breaks, with its source, or None if it meets them all.

    >>> broken(Tree.chain(3), [chains_only(source="a.py"), depth_at_most(2, source="b.py")])
    'path [0, 0, 0] has depth 3, at most 2 can be drafted (b.py)'
    """
    for constraint in constraints:
        reason = constraint.check(tree)
        if reason is not None:
            return f"{reason} ({constraint.source})"
    return None


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
