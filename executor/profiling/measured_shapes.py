"""The shapes that a profile measures: configurations of tree, batch size and context, in the order of importance."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from executor.profiling.measured_policies import unstopped_policies
from treeopt.policies import Policy
from treeopt.tree import EMPTY, Tree
from treeopt.tree_files.paper_trees import MEDUSA, published_trees

TOKENS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 17, 20, 24, 28, 32, 33, 40, 48, 56, 64)
FEWER = (8, 17, 33)  # at further contexts, where the fit supplies the rest
EDGES = (16, 32, 64, 128, 256, 512)  # tokens of a batch at which kernels change
WIDTHS = (2, 4, 8, 16)
REQUIRED = 0  # importance of the configurations without which there is no profile


@dataclass(frozen=True)
class Configuration:
    """A configuration of the decoding loop.

    Attributes:
        batch: sequences.
        context: tokens of each prompt; None: prompts as they are.
        tree: the empty tree decodes plainly, a policy makes a dynamic tree.
        imposed: drafted tokens that every step accepts, imposed; None: those that the target accepts.
    """

    batch: int
    context: int | None
    tree: Tree | Policy
    imposed: int | None = None

    @property
    def widths(self) -> tuple[int, ...]:
        """Nodes that the drafter is fed at each level."""
        return self.tree.fed_widths if isinstance(self.tree, Tree) else self.tree.drafting.expanded

    @property
    def growth(self) -> str | None:
        """The kind of its dynamic trees, one of `treeopt.policies.GROWTHS`; None: the tree is static."""
        return None if isinstance(self.tree, Tree) else self.tree.growth

    def __str__(self) -> str:
        """Return a short description."""
        place = f"batch {self.batch}" + ("" if self.context is None else f", context {self.context}")
        imposed = "" if self.imposed is None else f", {self.imposed} accepted"
        growth = "" if self.growth is None else f", {self.growth}"
        return f"{place}: {self.tree.nodes + 1} tokens, depth {self.tree.depth}{imposed}{growth}"


def ranked_configurations(
    batches: Sequence[int],
    contexts: Sequence[int | None],
    *,
    max_nodes: int,
    max_depth: int,
    policies: bool = False,
    verified: Callable[[Tree], bool] = lambda tree: True,
) -> list[tuple[int, Configuration]]:
    """Return all configurations with the importance of each, the most important (`REQUIRED`) first.

    First come the bounds of a profile, everywhere: plain steps, the shortest and the deepest chain, the largest tree.
    With `policies` dynamic trees come with them, since policies can only be compared if all of them are priced. Then
    come both sides of the sizes at which kernels change; trees of wide levels and imposed acceptance; the sizes
    between. Contexts after the first get only a few sizes. Trees that are not `verified`, by the rule in use, are left
    out.
    """
    ranked: dict[Configuration, tuple[int, int]] = {}
    prefixes = {tree.nodes + 1: tree for tree in _prefixes(max_nodes, max_depth) if verified(tree)}
    chains = [Tree.chain(depth) for depth in range(1, min(max_depth, max_nodes) + 1)]
    largest = prefixes[max(prefixes)]
    for place, context in enumerate(contexts):
        for batch in batches:
            trees = [(REQUIRED, tree) for tree in (EMPTY, chains[0], chains[-1], largest)]
            if place == 0:
                edges = {n for edge in EDGES for n in (edge // batch, edge // batch + 1)}
                trees += [(1, prefixes[n]) for n in sorted(edges & set(prefixes))]
                trees += [(2, tree) for tree in _wide(max_nodes, max_depth) if verified(tree)]
                trees += [(3, prefixes[n]) for n in TOKENS if n in prefixes] + [(3, chain) for chain in chains]
            else:
                trees += [(3, prefixes[n]) for n in FEWER if n in prefixes]
            configurations = [(importance, Configuration(batch, context, tree)) for importance, tree in trees]
            if place == 0:
                dynamic = unstopped_policies(max_nodes, max_depth) if policies else []
                configurations += [(REQUIRED, Configuration(batch, context, policy)) for policy in dynamic]
                configurations += [
                    (2, Configuration(batch, context, tree, imposed))
                    for tree in dict.fromkeys((chains[-1], largest))
                    for imposed in (0, first_rank_depth(tree))
                ]
            for turn, (importance, configuration) in enumerate(configurations):
                ranked.setdefault(configuration, (importance, turn))
    # Batch sizes and contexts take turns, so that none is left out before the others.
    return [(ranked[configuration][0], configuration) for configuration in sorted(ranked, key=lambda key: ranked[key])]


def _prefixes(max_nodes: int, max_depth: int) -> Iterator[Tree]:
    """Yield trees of all sizes: beginnings of Medusa's tree, its best paths first."""
    paths = sorted(published_trees()[MEDUSA].paths, key=lambda path: (sum(path) + len(path), path))
    paths = [path for path in paths if len(path) <= max_depth]
    for nodes in range(1, min(max_nodes, len(paths)) + 1):
        yield Tree.from_paths(paths[:nodes])


def _wide(max_nodes: int, max_depth: int) -> Iterator[Tree]:
    """Yield trees that feed every level after the first with the same width."""
    for width in WIDTHS:
        depth = min(max_depth, 4, max_nodes // width)
        if depth >= 2:
            yield Tree.from_paths([(rank, *(0,) * level) for rank in range(width) for level in range(depth)])


def first_rank_depth(tree: Tree) -> int:
    """Return the length of the longest path of first ranks.

    >>> first_rank_depth(Tree.from_paths([(0, 0), (1, 0, 0)]))
    2
    """
    return max(len(path) for path in tree.paths if not any(path))
