"""How a step's trees come about: level by level along a fixed topology, or by expanding and re-ranking."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from executor.decoding.candidate_pool import Chances, Pool, best_places, drawn, joined
from executor.drafters.drafter import Drafter
from executor.verification.acceptance_rules import Rule
from executor.verification.tree_tensors import Draft, Topology
from treeopt.policies import DynamicTree, Policy
from treeopt.policies.reranking import Shortlists
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

    def draft(
        self, drafter: Drafter | None, state: Any, root: Tensor, rule: Rule, *, idle: Tensor | None = None
    ) -> Draft:
        """The trees below `root`, int64 (batch,).

        The drafter may be missing where there are no levels. Rows that are `idle`, bool (batch,), get what is left.
        """


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

    def draft(
        self, drafter: Drafter | None, state: Any, root: Tensor, rule: Rule, *, idle: Tensor | None = None
    ) -> Draft:
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


class DrawnGrowth(ABC):
    """Another tree for each sequence and step, of the candidates that a policy chooses."""

    in_place = False

    def __init__(self, policy: Policy, device: torch.device) -> None:
        """Grow as `policy` says, for a target on `device`."""
        self.drafting = policy.drafting
        self.fed_in_place = max(self.drafting.expanded) == 1
        self.depth, self.count = policy.depth, policy.nodes + 1
        self.room = max(self.count, sum(self.drafting.expanded))
        fitted = policy.calibration
        self.chances = None if fitted is None else Chances(fitted, self.drafting, device)

    def draft(
        self, drafter: Drafter | None, state: Any, root: Tensor, rule: Rule, *, idle: Tensor | None = None
    ) -> Draft:
        """See `Growth.draft`."""
        assert drafter is not None
        found = drawn(self.drafting, drafter, state, root, rule, chances=self.chances)
        return self._laid_out(root, *self._chosen(found, idle))

    @abstractmethod
    def _chosen(self, found: Iterator[tuple[Pool, ...]], idle: Tensor | None) -> tuple[Pool, Tensor, Tensor | None]:
        """Candidates, places of some of them (batch, n), the best first, and which of these are wanted; None: all."""

    def _laid_out(self, root: Tensor, pool: Pool, best: Tensor, present: Tensor | None) -> Draft:
        """Trees of the candidates at some places; a parent is never less probable than its child and stands before."""
        batch, size = pool.value.shape
        chosen, order = best.sort(1)
        first = torch.zeros_like(root)[:, None]

        def place(values: Tensor, missing: int) -> Tensor:
            """Of every candidate its index in `values` (b, n), or `missing`; the root's at the end."""
            table = torch.full((batch, size + 1), missing, dtype=torch.long, device=root.device)
            index = torch.arange(values.shape[1], device=root.device).expand(batch, -1)
            return table.scatter_(1, values % (size + 1), index)

        parent = place(torch.cat([first - 1, chosen], 1), 0).gather(1, pool.above.gather(1, chosen) % (size + 1))
        nodes_fed = place(pool.fed, -1).gather(1, chosen)
        if present is not None:
            present = torch.cat([first == 0, present.gather(1, order)], 1)
        topology = Topology.from_parents(torch.cat([first, parent], 1), self.depth, present, width=self.drafting.width)
        drafted = torch.cat([root[:, None], pool.tokens.gather(1, chosen)], 1)
        return Draft(drafted, topology, torch.cat([first, nodes_fed], 1), pool.scores)


class DynamicGrowth(DrawnGrowth):
    """As a `DynamicTree` says, on the device alone: the shape can be the same in every step."""

    def __init__(self, policy: DynamicTree, device: torch.device, *, adaptive: bool = False) -> None:
        """Grow as `policy` says.

        Args:
            policy: the settings.
            device: of the target.
            adaptive: look at the drafter's probabilities from the host, draft no level and verify no entry that no
                sequence needs.
        """
        super().__init__(policy, device)
        self.policy, self.adaptive = policy, adaptive

    def _chosen(self, found: Iterator[tuple[Pool, ...]], idle: Tensor | None) -> tuple[Pool, Tensor, Tensor | None]:
        policy = self.policy
        for level, levels in enumerate(found, 1):
            if self.adaptive and policy.min_probability and level < policy.depth:
                promising = levels[-1].log >= policy.least
                if not bool((promising if idle is None else promising & ~idle[:, None]).any()):
                    break
        pool = joined(levels)
        best = pool.order()[:, : policy.nodes]
        if not policy.min_probability and policy.budget is None:
            return pool, best, None
        log = pool.log.gather(1, best)
        present = log >= policy.least
        if idle is not None:
            present &= ~idle[:, None]
        if policy.budget is not None and policy.budget < log.numel():
            log = log if idle is None else log.masked_fill(idle[:, None], -torch.inf)
            shared = torch.zeros_like(present)
            shared.view(-1).index_fill_(0, best_places(log.flatten()[None], policy.budget)[0], True)
            present &= shared
        if self.adaptive:
            most = int(present.sum(1).max())
            best, present = best[:, :most], present[:, :most]
        return pool, best, present


class AskingGrowth(DrawnGrowth):
    """As any policy says: the host is asked after each level, by the very code that replays the policy."""

    def __init__(self, policy: Policy, device: torch.device) -> None:
        """Grow as `policy` says."""
        super().__init__(policy, device)
        self.policy = policy

    def _chosen(self, found: Iterator[tuple[Pool, ...]], idle: Tensor | None) -> tuple[Pool, Tensor, Tensor]:
        policy, told, busy, chosen = self.policy, list[_Told](), None, None
        for drafted, expandable in zip(found, self.drafting.expandable, strict=True):
            pool, last = joined(drafted), drafted[-1]
            order = pool.order()
            onward = best_places(last.value, expandable)
            told.append(_Told.of(pool.log.gather(1, order[:, : policy.nodes]), last.log.gather(1, onward)))
            if busy is None:
                busy = np.ones(len(order), dtype=bool) if idle is None else ~idle.cpu().numpy()
                busy |= not busy.any()  # then it matters to nobody
            chosen = policy.choose(_shortlists(policy, [each.rows(busy) for each in told]))
            if chosen.levels.max() <= len(told):
                break
        assert busy is not None
        assert chosen is not None
        levels, nodes = np.ones_like(busy, dtype=np.int64), np.zeros_like(busy, dtype=np.int64)
        levels[busy], nodes[busy] = chosen.levels[0], chosen.nodes[0]
        ends = np.cumsum([level.log.shape[1] for level in drafted])[levels - 1]
        end, wanted = (torch.from_numpy(part).to(order.device)[:, None] for part in (ends, nodes))
        late = (order >= end).to(torch.int8)  # of levels that other sequences wanted
        best = order.gather(1, late.sort(dim=1, stable=True).indices)[:, : int(nodes.max())]
        return pool, best, torch.arange(best.shape[1], device=order.device) < wanted


@dataclass(frozen=True, eq=False)
class _Told:
    """What the host is told after a level: (batch, n) logarithms, the best first, and the mass that goes on."""

    log: NDArray[np.float32]
    mass: NDArray[np.float64]

    @classmethod
    def of(cls, best: Tensor, onward: Tensor) -> "_Told":
        both = torch.cat([best, onward], 1).cpu().numpy()  # read at once
        return cls(both[:, : best.shape[1]], np.exp(both[:, best.shape[1] :], dtype=np.float64).sum(1))

    def rows(self, which: NDArray[np.bool_]) -> "_Told":
        return _Told(self.log[which], self.mass[which])


def _shortlists(policy: Policy, told: Sequence[_Told]) -> Shortlists:
    """Of one batch, as far as its levels were drafted; `best` is left out: only a `DynamicTree` looks at it."""
    lists = Shortlists.blank(1, len(told[0].log), depth=policy.depth, nodes=policy.nodes)
    for level, each in enumerate(told):
        lists.log[0, :, level, : each.log.shape[1]] = each.log
        lists.mass[0, :, level] = each.mass
    return lists
