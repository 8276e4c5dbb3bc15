"""Static draft trees: drafted level by level along a fixed topology, the same in every step."""

from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

import torch
from torch import Tensor

from executor.drafters.base.drafter import Drafter
from executor.verification.acceptance_rules import Rule
from executor.verification.tree_tensors import Draft, Topology
from treeopt.tree import Tree


class Growth(Protocol):
    """Drafts one step's trees with a drafter whose state has been extended.

    Attributes:
        depth: levels drafted.
        count: entries of a tree, the root included.
        room: entries that a step may write into a cache after the committed tokens.
        in_place: accepted nodes always lie where they belong: the cache needs no compaction.
        fed_in_place: so do the nodes that the drafter is fed, in its cache.
    """

    depth: int
    count: int
    room: int
    in_place: bool
    fed_in_place: bool

    def draft(
        self, drafter: Drafter | None, state: Any, root: Tensor, rule: Rule, *, idle: Tensor | None = None
    ) -> Draft:
        """Return the trees below `root`, int64 (batch,).

        The drafter may be None if there are no levels. Rows that are `idle`, bool (batch,), get what is left.
        """


@dataclass(frozen=True, eq=False)
class Level:
    """The drafting of one depth; the root is node 0, node n of the tree is n + 1.

    Attributes:
        expanded: int64 (e,), places among the candidates one depth above of the nodes whose children are drafted.
        parents: int64 (1, e), place of each one's parent among the nodes expanded one level above.
        width: candidates needed of each of them, 1 + the largest rank.
    """

    expanded: Tensor
    parents: Tensor
    width: int


class StaticGrowth:
    """The same tree in every step; a drafter that abstains leaves entries of it empty."""

    def __init__(self, tree: Tree, device: torch.device, *, trim: bool = False) -> None:
        """Lay out the levels of `tree`.

        Args:
            tree: the tree.
            device: of the target.
            trim: if the drafter abstains, read on the host what was proposed, and skip levels that no sequence has.
        """
        self.tree = tree
        self.depth, self.count, self.room = tree.depth, tree.nodes + 1, tree.nodes + 1
        self.in_place = tree == Tree.chain(tree.depth)
        self.fed_in_place = max(tree.fed_widths, default=1) == 1
        self.topology = Topology.of(tree, device)
        layout = _Layout(tree)
        self.levels = layout.levels(device)
        self.fed = torch.tensor([layout.fed], dtype=torch.long, device=device)
        self.place = torch.tensor(layout.place, dtype=torch.long, device=device)
        self.trim = trim
        self._entries = [1 + sum(depth <= deepest for depth in tree.depths) for deepest in range(tree.depth + 1)]

    def draft(
        self, drafter: Drafter | None, state: Any, root: Tensor, rule: Rule, *, idle: Tensor | None = None
    ) -> Draft:
        """See `Growth.draft`."""
        if not self.levels:
            return Draft(root[:, None], self.topology, self.fed)
        candidates, scores_by_level, proposed = [root[:, None]], [], [torch.ones_like(root[:, None], dtype=torch.bool)]
        for level in self.levels:
            assert drafter is not None
            expanded = len(level.expanded)
            scores = drafter.level(state, candidates[-1].index_select(1, level.expanded), level.parents)
            if rule.needs_scores or rule.sampled_candidates:
                scores = scores.expand(-1, expanded, -1)
            best = rule.candidates(scores, level.width)
            candidates.append(best.expand(-1, expanded, -1).flatten(1))
            scores_by_level.append(scores)
            if drafter.abstains:
                proposed.append((scores.gather(-1, best) > -torch.inf).expand(-1, expanded, -1).flatten(1))
        tokens = torch.cat(candidates, 1).index_select(1, self.place)
        needed = torch.cat(scores_by_level, 1) if rule.needs_scores and scores_by_level else None
        if drafter is None or not drafter.abstains:
            return Draft(tokens, self.topology, self.fed, needed)
        topology = self._proposed_trees(torch.cat(proposed, 1).index_select(1, self.place), idle)
        return Draft(tokens[:, : topology.count], topology, self.fed[:, : topology.count], needed)

    def _proposed_trees(self, proposed: Tensor, idle: Tensor | None) -> Topology:
        """Return the trees of the nodes that were proposed, bool (batch, count), and whose ancestors were."""
        whole, count = self.topology, self.count
        present = proposed[:, whole.path[0]].all(-1)
        if self.trim:
            busy = present if idle is None else present & ~idle[:, None]
            count = self._entries[int((whole.depth * busy).max())]
        parent = whole.parent[:, :count].expand(len(present), -1)
        return Topology.from_parents(parent, self.depth, present[:, :count], width=whole.width)


class _Layout:
    """A tree's nodes among the candidates of all levels, which are drafted as rows of equal width.

    Attributes:
        fed: per node its place in the order in which the drafter is fed, -1 if it has no children.
        place: per node its place among the candidates: the root, then those of each level.
    """

    def __init__(self, tree: Tree) -> None:
        self._parents = [0, *(parent + 1 for parent in tree.parents)]
        depths, ranks = [0, *tree.depths], [0, *tree.ranks]
        nodes = [[node for node, d in enumerate(depths) if d == depth] for depth in range(1, tree.depth + 1)]
        self._expanded = [sorted({self._parents[node] for node in level}) for level in nodes]
        self._widths = [1 + max(ranks[node] for node in level) for level in nodes]
        sizes = [len(expanded) * width for expanded, width in zip(self._expanded, self._widths, strict=True)]
        self._starts = [0, *accumulate(sizes, initial=1)]  # of each level's candidates, the root's first
        self.fed, self.place = [-1] * len(depths), [0] * len(depths)
        for order, node in enumerate(node for expanded in self._expanded for node in expanded):
            self.fed[node] = order
        for level, expanded, width, start in zip(nodes, self._expanded, self._widths, self._starts[1:], strict=False):
            for node in level:
                self.place[node] = start + expanded.index(self._parents[node]) * width + ranks[node]

    def levels(self, device: torch.device) -> list[Level]:
        def tensor(values: list[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.long, device=device)

        above = [[0], *self._expanded]  # the nodes expanded one level above
        return [
            Level(
                expanded=tensor([self.place[node] - start for node in expanded]),
                parents=tensor([before.index(self._parents[node]) for node in expanded])[None],
                width=width,
            )
            for expanded, width, start, before in zip(self._expanded, self._widths, self._starts, above, strict=False)
        ]
