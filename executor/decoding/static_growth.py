"""Static draft trees: drafted level by level along a fixed topology, the same in every step."""

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from executor.drafters.drafter import Drafter
from executor.verification.acceptance_rules import Rule
from executor.verification.tree_tensors import Draft, Topology
from treeopt.tree import Tree


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
    """The same tree in every step."""

    def __init__(self, tree: Tree, device: torch.device) -> None:
        """Lay out the levels of `tree`."""
        self.tree = tree
        self.depth, self.count, self.room = tree.depth, tree.nodes + 1, tree.nodes + 1
        self.in_place = tree == Tree.chain(tree.depth)
        self.fed_in_place = max(tree.fed_widths, default=1) == 1
        self.topology = Topology.of(tree, device)
        layout = _Layout(tree)
        self.levels = layout.levels(device)
        self.fed = torch.tensor([layout.fed], dtype=torch.long, device=device)
        self.place = torch.tensor(layout.place, dtype=torch.long, device=device)

    def draft(
        self, drafter: Drafter | None, state: Any, root: Tensor, rule: Rule, *, idle: Tensor | None = None
    ) -> Draft:
        """See `Growth.draft`."""
        candidates, scores_by_level = [root[:, None]], []
        for level in self.levels:
            assert drafter is not None
            expanded = len(level.expanded)
            scores = drafter.level(state, candidates[-1].index_select(1, level.expanded), level.parents)
            if rule.needs_scores or rule.sampled_candidates:
                scores = scores.expand(-1, expanded, -1)
            candidates.append(rule.candidates(scores, level.width).expand(-1, expanded, -1).flatten(1))
            scores_by_level.append(scores)
        tokens = torch.cat(candidates, 1).index_select(1, self.place)
        needed = torch.cat(scores_by_level, 1) if rule.needs_scores and scores_by_level else None
        return Draft(tokens, self.topology, self.fed, needed)


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
