"""Ways to decode that a profile is measured with: which trees, batch sizes and contexts, in the order of importance."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from executor.profiling.measured_policies import drawn_anew
from treeopt.policies import Policy
from treeopt.tree import EMPTY, Tree
from treeopt.tree_files.paper_trees import MEDUSA, published_trees

TOKENS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 17, 20, 24, 28, 32, 33, 40, 48, 56, 64)
FEWER = (8, 17, 33)  # at further contexts, where the basis tells the rest
EDGES = (16, 32, 64, 128, 256, 512)  # tokens of a batch at which kernels change
WIDTHS = (2, 4, 8, 16)
LEAST = 0  # importance of the ways without which there is no profile


@dataclass(frozen=True)
class Way:
    """One way to decode.

    Attributes:
        batch: sequences.
        context: tokens of each prompt; None: prompts as they are.
        tree: the empty one decodes plainly, a policy draws another at each step.
        kept: drafted tokens that every step keeps, imposed; None: those that the target accepts.
    """

    batch: int
    context: int | None
    tree: Tree | Policy
    kept: int | None = None

    @property
    def widths(self) -> tuple[int, ...]:
        """Nodes that the drafter is fed at each level."""
        return self.tree.fed_widths if isinstance(self.tree, Tree) else self.tree.drafting.expanded

    @property
    def growth(self) -> str | None:
        """How its trees are drawn anew, one of `treeopt.policies.GROWTHS`; None: it is the same in all steps."""
        return None if isinstance(self.tree, Tree) else self.tree.growth

    def __str__(self) -> str:
        """Short and in words."""
        place = f"batch {self.batch}" + ("" if self.context is None else f", context {self.context}")
        kept = "" if self.kept is None else f", {self.kept} kept"
        growth = "" if self.growth is None else f", {self.growth}"
        return f"{place}: {self.tree.nodes + 1} tokens, depth {self.tree.depth}{kept}{growth}"


def ranked_ways(
    batches: Sequence[int],
    contexts: Sequence[int | None],
    *,
    max_nodes: int,
    max_depth: int,
    policies: bool = False,
    verified: Callable[[Tree], bool] = lambda tree: True,
) -> list[tuple[int, Way]]:
    """All ways and how important each is, the most important (`LEAST`) first.

    First what bounds a profile: plain steps, the shortest and deepest chain, the largest tree, everywhere; with
    `policies` trees that are drawn anew, since policies of which some are priced and some not cannot be compared. Then
    both sides of the sizes at which kernels change; trees of wide levels and imposed acceptance; the sizes between. At
    contexts after the first only a few sizes. Trees that are not `verified`, by the rule in use, are left out.
    """
    found: dict[Way, tuple[int, int]] = {}
    prefixes = {tree.nodes + 1: tree for tree in _prefixes(max_nodes, max_depth) if verified(tree)}
    chains = [Tree.chain(depth) for depth in range(1, min(max_depth, max_nodes) + 1)]
    largest = prefixes[max(prefixes)]
    for place, context in enumerate(contexts):
        for batch in batches:
            trees = [(LEAST, tree) for tree in (EMPTY, chains[0], chains[-1], largest)]
            if place == 0:
                edges = {n for edge in EDGES for n in (edge // batch, edge // batch + 1)}
                trees += [(1, prefixes[n]) for n in sorted(edges & set(prefixes))]
                trees += [(2, tree) for tree in _wide(max_nodes, max_depth) if verified(tree)]
                trees += [(3, prefixes[n]) for n in TOKENS if n in prefixes] + [(3, chain) for chain in chains]
            else:
                trees += [(3, prefixes[n]) for n in FEWER if n in prefixes]
            here = [(importance, Way(batch, context, tree)) for importance, tree in trees]
            if place == 0:
                anew = drawn_anew(max_nodes, max_depth) if policies else []
                here += [(LEAST, Way(batch, context, policy)) for policy in anew]
                bounds = dict.fromkeys((chains[-1], largest))
                here += [(2, Way(batch, context, tree, kept)) for tree in bounds for kept in (0, line_of(tree))]
            for turn, (importance, way) in enumerate(here):
                found.setdefault(way, (importance, turn))
    # Batch sizes and contexts take turns, so that none is left out before the others.
    return [(found[way][0], way) for way in sorted(found, key=lambda way: found[way])]


def _prefixes(max_nodes: int, max_depth: int) -> Iterator[Tree]:
    """Trees of all sizes: beginnings of Medusa's, its best paths first."""
    paths = sorted(published_trees()[MEDUSA].paths, key=lambda path: (sum(path) + len(path), path))
    paths = [path for path in paths if len(path) <= max_depth]
    for nodes in range(1, min(max_nodes, len(paths)) + 1):
        yield Tree.from_paths(paths[:nodes])


def _wide(max_nodes: int, max_depth: int) -> Iterator[Tree]:
    """Trees that feed every level after the first with one width."""
    for width in WIDTHS:
        depth = min(max_depth, 4, max_nodes // width)
        if depth >= 2:
            yield Tree.from_paths([(rank, *(0,) * level) for rank in range(width) for level in range(depth)])


def line_of(tree: Tree) -> int:
    """Length of the longest path of first ranks."""
    return max(len(path) for path in tree.paths if not any(path))
