"""Trees by size, as `chain:4` or `best:31`: chains, and the best tree of N nodes on given requests."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from treeopt.errors import UsageError
from treeopt.replay.many_trees import Replayer
from treeopt.replay.static_tree import replay_tree
from treeopt.searchers.best_first import count_prefixes, fit_strength
from treeopt.searchers.hydra_growth import grow
from treeopt.traces.trace import Trace
from treeopt.tree import MAX_NODES, Tree

DIGITS = 8  # most of a number of nodes
KINDS = {"chain": "chain of", "best": "best tree of"}


@dataclass(frozen=True)
class Size:
    """A tree size such as `chain:4`, or `best:31`, the tree of 31 drafted nodes with the most tokens per step."""

    kind: str
    nodes: int

    @property
    def name(self) -> str:
        """The name in tables."""
        return f"{KINDS[self.kind]} {self.nodes}"


USUAL = tuple(Size(kind, nodes) for kind, sizes in (("chain", (2, 4)), ("best", (7, 15, 31, 63))) for nodes in sizes)


def parse_sizes(text: str) -> tuple[Size, ...]:
    """Parse sizes between commas.

    Raises:
        UsageError: names the first part that is no size.

    >>> [size.name for size in parse_sizes("chain:2,best:7")]
    ['chain of 2', 'best tree of 7']
    """
    sizes = []
    for word in text.split(","):
        kind, _, nodes = word.strip().partition(":")
        if kind not in KINDS or not nodes.isdecimal() or len(nodes) > DIGITS or not 1 <= int(nodes) <= MAX_NODES:
            raise UsageError(f"a size must be chain:N or best:N, N in 1..{MAX_NODES}, got {word.strip()[:80]!r}")
        sizes.append(Size(kind, int(nodes)))
    return tuple(dict.fromkeys(sizes))


def sized_trees(
    sizes: Sequence[Size], trace: Trace, *, covered: Callable[[Tree], bool] = lambda tree: True
) -> dict[str, Tree]:
    """Return the trees of these sizes, by name.

    The best tree of a size is the one with the most replayed tokens per step among the most frequent rank paths under
    each depth cap; it has fewer nodes where the trace holds no more paths. Where several siblings may be accepted,
    trees are grown by replay under each cap; where none can be grown, sizes have no best tree.

    Args:
        sizes: sizes wanted.
        trace: the requests that the best trees are chosen on.
        covered: True for trees that can be priced; others are taken only where a size has no such tree.

    >>> import numpy as np
    >>> trace = Trace(np.int32([0, 0, 0]), np.int32([0, 1, 2]), np.int16([[0, 1], [1, 0], [0, -2]]), 2)
    >>> sized_trees(parse_sizes("chain:1,best:2"), trace)["best tree of 2"].paths
    ((0,), (1,))
    """
    trees = {size.name: Tree.chain(size.nodes) for size in sizes if size.kind == "chain"}
    largest = max((size.nodes for size in sizes if size.kind == "best"), default=0)
    if largest and trace.tree_kept is not None:
        caps = [grow(trace, nodes=largest, depth=depth) for depth in range(1, trace.depth + 1)]
        for size in sizes:
            if size.kind == "best" and caps[0]:
                capped = [grown[min(size.nodes, len(grown)) - 1] for grown in caps]
                trees[size.name] = _best(capped, covered, lambda tree: replay_tree(tree, trace).tau)
    elif largest:
        shrink = fit_strength(trace, nodes=largest, depth=trace.depth)
        frontier = count_prefixes(trace, nodes=largest, depth=trace.depth, shrink=shrink)
        replayer = Replayer(trace, frontier.tree(largest, trace.depth))
        for size in sizes:
            if size.kind == "best":
                capped = [frontier.tree(size.nodes, depth) for depth in range(1, trace.depth + 1)]
                trees[size.name] = _best(capped, covered, lambda tree: replayer.replay(tree).tau)
    return {size.name: trees[size.name] for size in sizes if size.name in trees}


def _best(capped: Sequence[Tree], covered: Callable[[Tree], bool], tau: Callable[[Tree], float]) -> Tree:
    """Return the tree with the most tokens per step among the largest that can be priced (among all, if none can)."""
    options = [tree for tree in capped if covered(tree)] or list(capped)
    largest = max(tree.nodes for tree in options)
    return max((tree for tree in options if tree.nodes == largest), key=tau)
