"""How a step's trees come about: level by level along a fixed topology, or by expanding and re-ranking."""

import math
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from executor.acceptance import Rule
from executor.drafters.base import Drafter
from executor.topology import Draft, Topology
from treeopt.policy import DynamicTree
from treeopt.tree import Tree


class Growth(Protocol):
    """Draws one step's trees from a drafter whose state has been extended.

    Attributes:
        depth: levels drafted.
        count: entries of a tree, the root included.
        room: entries that a step may write into a cache behind the committed tokens.
        in_place: accepted nodes always lie where they belong: the cache needs no compaction.
        fed_in_place: so do the nodes that the drafter is fed, in its cache.
    """

    depth: int
    count: int
    room: int
    in_place: bool
    fed_in_place: bool

    def draft(self, drafter: Drafter | None, state: Any, root: Tensor, rule: Rule) -> Draft:
        """The trees below `root`, int64 (batch,); the drafter may be missing where there are no levels."""


@dataclass(frozen=True, eq=False)
class Level:
    """How one depth is drafted; the root is node 0, node n of the tree is n + 1.

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
        parents = [0, *(parent + 1 for parent in tree.parents)]
        depths, ranks = [0, *tree.depths], [0, *tree.ranks]
        fed, place = [-1] * self.count, [0] * self.count
        above, start, end = [0], 0, 1  # the nodes expanded last; where candidates of the level above begin and end
        self.levels: list[Level] = []

        def tensor(values: list[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.long, device=device)

        for depth in range(1, tree.depth + 1):
            nodes = [node for node, d in enumerate(depths) if d == depth]
            expanded = sorted({parents[node] for node in nodes})
            for node in expanded:
                fed[node] = 1 + max(fed)
            width = 1 + max(ranks[node] for node in nodes)
            for node in nodes:
                place[node] = end + expanded.index(parents[node]) * width + ranks[node]
            self.levels.append(
                Level(
                    expanded=tensor([place[node] - start for node in expanded]),
                    parents=tensor([above.index(parents[node]) for node in expanded])[None],
                    width=width,
                )
            )
            above, start, end = expanded, end, end + len(expanded) * width
        self.fed, self.place = tensor(fed)[None], tensor(place)

    def draft(self, drafter: Drafter | None, state: Any, root: Tensor, rule: Rule) -> Draft:
        """See `Growth.draft`."""
        candidates, kept = [root[:, None]], []  # of each depth
        for level in self.levels:
            assert drafter is not None
            expanded = len(level.expanded)
            scores = drafter.level(state, candidates[-1].index_select(1, level.expanded), level.parents)
            if rule.needs_scores or rule.sampled_candidates:
                scores = scores.expand(-1, expanded, -1)
            candidates.append(rule.candidates(scores, level.width).expand(-1, expanded, -1).flatten(1))
            kept.append(scores)
        tokens = torch.cat(candidates, 1).index_select(1, self.place)
        return Draft(tokens, self.topology, self.fed, torch.cat(kept, 1) if rule.needs_scores and kept else None)


@dataclass(frozen=True, eq=False)
class Pool:
    """All candidates of each sequence, in order of depth and rank path, so that a stable sort settles ties.

    Attributes:
        tokens: int64 (batch, size).
        logs: float32 (batch, size), the drafter's log-probability given the parent.
        value: float32 (batch, size), their sum along the path, from the root on.
        above: int64 (batch, size), place of the parent, -1 for the root.
        fed: int64 (batch, fed), places of the nodes that the drafter was fed, the root's -1 first.
        scores: the drafter's scores after those, level by level; empty unless the rule needs them.
    """

    tokens: Tensor
    logs: Tensor
    value: Tensor
    above: Tensor
    fed: Tensor
    scores: tuple[Tensor, ...]


class DynamicGrowth:
    """Another tree for each sequence and step, of one shape: the drafter's most probable nodes."""

    in_place = False

    def __init__(self, policy: DynamicTree, *, adaptive: bool = False) -> None:
        """Grow as `policy` says.

        Args:
            policy: the settings.
            adaptive: look at the drafter's probabilities from the host, draft no level and verify no entry that no
                sequence needs. Without it the shape is the same in every step.
        """
        self.policy, self.adaptive = policy, adaptive
        self.fed_in_place = max(policy.expanded) == 1
        self.depth, self.count = policy.depth, policy.nodes + 1
        self.room = max(self.count, sum(policy.expanded))

    def draft(self, drafter: Drafter | None, state: Any, root: Tensor, rule: Rule) -> Draft:
        """See `Growth.draft`."""
        assert drafter is not None
        return self._selected(root, self.pool(drafter, state, root, rule))

    def pool(self, drafter: Drafter, state: Any, root: Tensor, rule: Rule) -> Pool:
        """The candidates that the trees below `root`, int64 (batch,), are chosen from."""
        policy, batch = self.policy, len(root)
        levels: list[tuple[Tensor, ...]] = []  # tokens, logs, values, parents' places of each level
        kept = []
        zero = torch.zeros(batch, 1, dtype=torch.long, device=root.device)
        tokens, value, parents, place = root[:, None], zero.float(), zero, zero - 1
        fed: list[Tensor] = []
        seen = 0
        for level, expanded in enumerate(policy.expanded):
            if level:
                drafted, _, values, _ = levels[-1]
                chosen = _best(values, expanded)
                tokens, value = drafted.gather(1, chosen), values.gather(1, chosen)
                parents, place = chosen // policy.children, chosen + seen - values.shape[1]
                if self.adaptive and not bool((value >= self._least).any()):
                    break
            fed.append(place)
            scores = drafter.level(state, tokens, parents).expand(-1, expanded, -1)
            best = rule.candidates(scores, policy.children)
            logs = scores.log_softmax(-1, dtype=torch.float32).gather(2, best).clamp(max=0)
            above = place[..., None].expand(-1, -1, policy.children)
            levels.append(tuple(part.flatten(1) for part in (best, logs, value[..., None] + logs, above)))
            if rule.needs_scores:
                kept.append(scores)
            seen += expanded * policy.children
        drafted, logs, values, above = (torch.cat(part, 1) for part in zip(*levels, strict=True))
        return Pool(drafted, logs, values, above, torch.cat(fed, 1), tuple(kept))

    def _selected(self, root: Tensor, pool: Pool) -> Draft:
        """The most probable candidates; a parent is never less probable than its child and stands before it."""
        value, above = pool.value, pool.above
        batch, size = value.shape
        best = value.sort(dim=1, descending=True, stable=True).indices[:, : self.policy.nodes]
        present = self._present(value.gather(1, best))
        if self.adaptive and present is not None:
            most = int(present.sum(1).max())
            best, present = best[:, :most], present[:, :most]
        chosen, order = best.sort(1)
        first = torch.zeros_like(root)[:, None]

        def place(values: Tensor, missing: int) -> Tensor:
            """Of every candidate its index in `values` (b, n), or `missing`; the root's at the end."""
            table = torch.full((batch, size + 1), missing, dtype=torch.long, device=root.device)
            index = torch.arange(values.shape[1], device=root.device).expand(batch, -1)
            return table.scatter_(1, values % (size + 1), index)

        parent = place(torch.cat([first - 1, chosen], 1), 0).gather(1, above.gather(1, chosen) % (size + 1))
        nodes_fed = place(pool.fed, -1).gather(1, chosen)
        if present is not None:
            present = torch.cat([first == 0, present.gather(1, order)], 1)
        topology = Topology.from_parents(torch.cat([first, parent], 1), self.depth, present, width=self.policy.children)
        drafted = torch.cat([root[:, None], pool.tokens.gather(1, chosen)], 1)
        scores = torch.cat(pool.scores, 1) if pool.scores else None
        return Draft(drafted, topology, torch.cat([first, nodes_fed], 1), scores)

    @property
    def _least(self) -> float:
        """The lowest log-probability of a node that is verified."""
        return math.log(self.policy.min_probability) if self.policy.min_probability else -math.inf

    def _present(self, value: Tensor) -> Tensor | None:
        """Which nodes, log-probabilities (batch, nodes) best first, are verified; None: all."""
        policy = self.policy
        if not policy.min_probability and policy.budget is None:
            return None
        present = value >= self._least
        if policy.budget is not None and policy.budget < value.numel():
            shared = torch.zeros_like(present)
            shared.view(-1)[_best(value.flatten()[None], policy.budget)[0]] = True
            present &= shared
        return present


def _best(value: Tensor, count: int) -> Tensor:
    """Places of the `count` largest, the first of equals, in their own order; int64 (batch, count)."""
    return value.sort(dim=1, descending=True, stable=True).indices[:, :count].sort(1).values
