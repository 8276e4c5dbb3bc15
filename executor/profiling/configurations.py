"""The configurations that a profile measures: batch size, context, and a tree or policy, in order of importance."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from treeopt.constraints import pool
from treeopt.errors import UsageError
from treeopt.policies import POLICIES, DynamicTree, Policy
from treeopt.policies.beam import Drafting
from treeopt.tree import EMPTY, Tree
from treeopt.tree_files.choice_lists import MEDUSA, published_trees

TOKENS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 17, 20, 24, 28, 32, 33, 40, 48, 56, 64)
FEWER = (8, 17, 33)  # at further contexts, where the fit supplies the rest
EDGES = (16, 32, 64, 128, 256, 512)  # tokens of a batch at which kernels change
WIDTHS = (2, 4, 8, 16)
REQUIRED = 0  # importance of the configurations without which there is no profile
POLICY_WIDTH = 8  # children of each expanded node of a policy, or as many as nodes are expanded
TREE_NODES = (8, 16, 32, 64)  # sizes of the dynamic trees that are measured in engines
BEAMS = (2, 4)


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
        """The kind of its dynamic trees, one of `treeopt.policies.growths`; None: the tree is static."""
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
    With `policies` dynamic trees come with them, since policies can only be compared if all of them are priced, and the
    widest static tree, without which they cannot be. Then come both sides of the sizes at which kernels change; trees
    of wide levels and imposed acceptance; the sizes between. Contexts after the first get only a few sizes. Trees that
    are not `verified`, by the rule in use, are left out.
    """
    ranked: dict[Configuration, tuple[int, int]] = {}
    paths = sorted(published_trees()[MEDUSA].paths, key=lambda path: (sum(path) + len(path), path))
    paths = [path for path in paths if len(path) <= max_depth]  # beginnings of Medusa's tree are trees of all sizes
    starts = (Tree.from_paths(paths[:nodes]) for nodes in range(1, min(max_nodes, len(paths)) + 1))
    prefixes = {tree.nodes + 1: tree for tree in starts if verified(tree)}
    chains = [Tree.chain(depth) for depth in range(1, min(max_depth, max_nodes) + 1)]
    largest = prefixes[max(prefixes)]
    wide = [tree for tree in _wide(max_nodes, max_depth) if verified(tree)]
    for place, context in enumerate(contexts):
        for batch in batches:
            trees = [(REQUIRED, tree) for tree in (EMPTY, chains[0], chains[-1], largest)]
            if place == 0:
                edges = {n for edge in EDGES for n in (edge // batch, edge // batch + 1)}
                trees += [(1, prefixes[n]) for n in sorted(edges & set(prefixes))]
                trees += [(REQUIRED if policies and tree is wide[-1] else 2, tree) for tree in wide]
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


def _wide(max_nodes: int, max_depth: int) -> list[Tree]:
    """Return trees that feed every level after the first with the same width, the widest last."""
    depths = {width: min(max_depth, 4, max_nodes // width) for width in WIDTHS}
    return [
        Tree.from_paths([(rank, *(0,) * level) for rank in range(width) for level in range(depth)])
        for width, depth in depths.items()
        if depth >= 2
    ]


def first_rank_depth(tree: Tree) -> int:
    """Return the length of the longest path of first ranks.

    >>> first_rank_depth(Tree.from_paths([(0, 0), (1, 0, 0)]))
    2
    """
    return max(len(path) for path in tree.paths if not any(path))


def chain_configurations(
    batches: Sequence[int],
    contexts: Sequence[int | None],
    *,
    max_nodes: int,
    max_depth: int,
    policies: bool = False,
) -> list[tuple[int, Configuration]]:
    """Return plain decoding, all chains and, with `policies`, dynamic trees: what engines run. All are required."""
    chains: list[Tree | Policy] = [EMPTY, *(Tree.chain(depth) for depth in range(1, max_depth + 1))]
    trees = dynamic_trees(max_nodes=max_nodes, max_depth=max_depth) if policies else ()
    return [
        (REQUIRED, Configuration(batch, context, tree))
        for context in contexts
        for batch in batches
        for tree in (*chains, *trees)
    ]


def dynamic_trees(*, max_nodes: int, max_depth: int) -> tuple[DynamicTree, ...]:
    """Return dynamic trees of several sizes, depths and beams, from which the times of others are estimated.

    All have more nodes than the longest chain, so that the steps of chains keep their own times.

    Raises:
        UsageError: no dynamic tree has more than `max_depth` and at most `max_nodes` nodes.

    >>> [(tree.nodes, tree.depth, tree.beam) for tree in dynamic_trees(max_nodes=8, max_depth=3)]
    [(4, 2, 2), (6, 2, 2), (4, 2, 4), (8, 2, 4), (4, 3, 2), (8, 3, 2), (4, 3, 4), (8, 3, 4)]
    """
    depths = sorted({max(1, max_depth // 2 + max_depth % 2), max_depth})
    sizes = [max_depth + 1, *(size for size in TREE_NODES if max_depth + 1 < size < max_nodes), max_nodes]
    trees = {
        DynamicTree(nodes, depth, beam): None
        for depth in depths
        for beam in BEAMS
        for nodes in (min(size, max_nodes, pool(depth=depth, width=beam)) for size in sizes)
        if nodes > max_depth
    }
    if not trees:
        raise UsageError(f"--policies with chains of up to {max_depth} needs --max-nodes {max_depth + 1} or more")
    return tuple(trees)


def unstopped_policies(max_nodes: int, max_depth: int) -> list[Policy]:
    """Return the same few policies for each of `treeopt.policies.growths`: shallow and deep, narrow and wide.

    None is deeper or wider than the static trees of `max_nodes` nodes, against which its steps are priced.
    """
    max_depth = min(max_depth, max_nodes)
    widest = max((tree.fed_widths[-1] for tree in _wide(max_nodes, max_depth)), default=1)
    sizes = (  # nodes, depth, beam
        (1, 1, 1),
        (8, max_depth, 1),
        (8, max_depth, 16),
        (48, max_depth, 16),
        (16, 2, 4),
        (32, max_depth, 4),
    )
    policies: dict[Policy, None] = {}
    for make in (make for kind in POLICIES.values() for make in kind.growths.values()):
        for nodes, depth, beam in sizes:
            drafting = Drafting(min(depth, max_depth), min(beam, widest), max(beam, POLICY_WIDTH))
            policies[make(min(nodes, max_nodes, drafting.candidates), drafting)] = None
    return list(policies)
