"""Draft trees, drafted level by level: along a fixed topology, or among candidates that a policy chooses from."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from executor.drafters.base.drafter import Drafter
from executor.verification.acceptance_rules import Rule
from executor.verification.tree_tensors import Draft, Topology
from treeopt.policies import DynamicTree, Policy
from treeopt.policies.beam import Drafting
from treeopt.policies.reranking import Calibration, Shortlists
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

        With `trim` the host reads what a drafter that abstains proposed, and skips levels that no sequence has.
        """
        self.tree = tree
        self.depth, self.count, self.room = tree.depth, tree.nodes + 1, tree.nodes + 1
        self.in_place = tree == Tree.chain(tree.depth)
        self.fed_in_place = max(tree.fed_widths, default=1) == 1
        self.topology = Topology.of(tree, device)
        self.levels, self.fed, self.place = _layout(tree, device)
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


def _layout(tree: Tree, device: torch.device) -> tuple[list[Level], Tensor, Tensor]:
    """Lay out a tree's nodes among the candidates of all levels, which are drafted as rows of equal width.

    Returns:
        The levels; int64 (1, count), per node its place in the order in which the drafter is fed, -1 if it has no
        children; int64 (count,), per node its place among the candidates: the root, then those of each level.
    """

    def tensor(values: Any) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=device)

    parents, depths, ranks = [0, *(parent + 1 for parent in tree.parents)], [0, *tree.depths], [0, *tree.ranks]
    fed, place = [-1] * len(depths), [0] * len(depths)
    levels, order, last, start = list[Level](), count(), 0, 1  # where the candidates of two levels begin
    before = [0]  # the nodes expanded one level above
    for depth in range(1, tree.depth + 1):
        nodes = [node for node, own in enumerate(depths) if own == depth]
        expanded, width = sorted({parents[node] for node in nodes}), 1 + max(ranks[node] for node in nodes)
        for node in expanded:
            fed[node] = next(order)
        for node in nodes:
            place[node] = start + expanded.index(parents[node]) * width + ranks[node]
        chosen = tensor([place[node] - last for node in expanded])
        levels.append(Level(chosen, tensor([before.index(parents[node]) for node in expanded])[None], width))
        before, last, start = expanded, start, start + len(expanded) * width
    return levels, tensor([fed]), tensor(place)


class Chances:
    """A calibration as tables on the device: how often candidates of a depth, rank and probability were right."""

    def __init__(self, calibration: Calibration, drafting: Drafting, device: torch.device) -> None:
        """Keep the depths and ranks that are drafted."""
        curves = [depth[: drafting.width] for depth in calibration[: drafting.depth]]
        knots = 1 + max(len(curve.x) for depth in curves for curve in depth)
        far = float("inf")  # beyond the last knot a curve is flat

        def table(rows: list[list[list[float]]]) -> Tensor:
            return torch.tensor(rows, dtype=torch.float64, device=device)

        self.x = table([[[*c.x, *[far] * (knots - len(c.x))] for c in depth] for depth in curves])
        self.y = table([[[*c.y, *[c.y[-1]] * (knots - len(c.y))] for c in depth] for depth in curves])
        self.last = table([[[c.x[-1]] for c in depth] for depth in curves])

    def logs(self, level: int, logs: Tensor) -> Tensor:
        """Return calibrated log-probabilities given the parent, float32 (batch, e, width), at a level (from 0)."""
        x, y = self.x[level], self.y[level]
        drafted = logs.double().exp().permute(2, 0, 1).flatten(1).contiguous()
        within = drafted.clamp(min=x[:, :1]).clamp(max=self.last[level])
        knot = torch.searchsorted(x, within, right=True) - 1
        y_knot, x_knot = y.gather(1, knot), x.gather(1, knot)
        following = (knot + 1).clamp(max=x.shape[1] - 1)
        slope = (y.gather(1, following) - y_knot) / (x.gather(1, following) - x_knot)
        chance = slope * (within - x_knot) + y_knot
        return chance.log().float().view(len(x), *logs.shape[:2]).permute(1, 2, 0)


@dataclass(frozen=True, eq=False)
class Pool:
    """Candidates of each sequence, in order of depth and rank path, so that a stable sort settles ties.

    Attributes:
        tokens: int64 (batch, size).
        logs: float32 (batch, size), the drafter's log-probability given the parent.
        value: float32 (batch, size), their sum along the path, from the root on: the best are expanded.
        log: float32 (batch, size), the same of calibrated probabilities, else `value` itself: the best are verified.
        above: int64 (batch, size), place of the parent, -1 for the root.
        fed: int64 (batch, fed), places of the nodes that the drafter was fed for them; -1 for the root.
        scores: (batch, fed, vocabulary), the drafter's scores after those; None unless the rule needs them.
    """

    tokens: Tensor
    logs: Tensor
    value: Tensor
    log: Tensor
    above: Tensor
    fed: Tensor
    scores: Tensor | None

    def order(self) -> Tensor:
        """Return the places of all candidates, int64 (batch, size): the most probable first, ties by the drafter."""
        order = sorted_places(self.value)
        if self.log is self.value:
            return order
        return order.gather(1, sorted_places(self.log.gather(1, order)))


def draft_levels(
    drafting: Drafting,
    drafter: Drafter,
    state: Any,
    root: Tensor,
    rule: Rule,
    *,
    chances: Chances | None = None,
) -> Iterator[tuple[Pool, ...]]:
    """Draft the candidates below `root`, int64 (batch,), and yield after each level a tuple of all levels so far.

    A level is drafted when the iterator is advanced. Places count from the first candidate of the first level.
    """
    zero = torch.zeros(len(root), 1, dtype=torch.long, device=root.device)
    tokens, parents, place = root[:, None], zero, zero - 1
    value = log = zero.float()
    levels: tuple[Pool, ...] = ()
    seen = 0
    for depth, expanded in enumerate(drafting.expanded):
        if levels:
            last = levels[-1]
            chosen = sorted_places(last.value)[:, :expanded].sort(1).values  # of equals the first
            tokens, value, log = (part.gather(1, chosen) for part in (last.tokens, last.value, last.log))
            parents, place = chosen // drafting.width, chosen + seen - last.value.shape[1]
        scores = drafter.level(state, tokens, parents).expand(-1, expanded, -1)
        best = rule.candidates(scores, drafting.width)
        logs = scores.log_softmax(-1, dtype=torch.float32).gather(2, best).clamp(max=0)
        values = (value[..., None] + logs).flatten(1)
        trusted = values if chances is None else (log[..., None] + chances.logs(depth, logs)).flatten(1)
        above = place[..., None].expand(-1, -1, drafting.width).flatten(1)
        needed = scores if rule.needs_scores else None
        levels = (*levels, Pool(best.flatten(1), logs.flatten(1), values, trusted, above, place, needed))
        seen += expanded * drafting.width
        yield levels


def join_levels(levels: Sequence[Pool]) -> Pool:
    """Return all levels as one pool."""

    def joined(name: str) -> Tensor:
        return torch.cat([getattr(level, name) for level in levels], 1)

    value = joined("value")
    log = value if levels[0].log is levels[0].value else joined("log")
    scores = None if levels[0].scores is None else joined("scores")
    return Pool(joined("tokens"), joined("logs"), value, log, joined("above"), joined("fed"), scores)


def sorted_places(value: Tensor) -> Tensor:
    """Return places from the largest to the smallest, the first of equals first; int64, as `value` (batch, n)."""
    return value.sort(dim=1, descending=True, stable=True).indices


class PolicyGrowth(ABC):
    """Base of growths that build another tree for each sequence and step, from candidates that a policy chooses."""

    in_place = False

    def __init__(self, policy: Policy, device: torch.device) -> None:
        """Grow trees by `policy`, for a target on `device`."""
        self.policy, self.drafting = policy, policy.drafting
        self.fed_in_place = max(self.drafting.expanded) == 1
        self.depth, self.count = policy.depth, policy.nodes + 1
        self.room = max(self.count, sum(self.drafting.expanded))
        calibration = policy.calibration
        self.chances = None if calibration is None else Chances(calibration, self.drafting, device)

    def draft(
        self, drafter: Drafter | None, state: Any, root: Tensor, rule: Rule, *, idle: Tensor | None = None
    ) -> Draft:
        """See `Growth.draft`."""
        assert drafter is not None
        levels = draft_levels(self.drafting, drafter, state, root, rule, chances=self.chances)
        return self._trees(root, *self._choose(levels, idle))

    @abstractmethod
    def _choose(self, levels: Iterator[tuple[Pool, ...]], idle: Tensor | None) -> tuple[Pool, Tensor, Tensor | None]:
        """Choose the nodes of the trees.

        Args:
            levels: drafts one level more each time it is advanced; see `draft_levels`.
            idle: bool (batch,), rows whose choice does not matter; None: no row.

        Returns:
            The candidates; int64 (batch, n), places of some of them, the best first; bool (batch, n), which of these
            are nodes, None: all.
        """

    def _trees(self, root: Tensor, pool: Pool, best: Tensor, present: Tensor | None) -> Draft:
        """Build trees from the candidates at the places `best`.

        A parent is never less probable than its child, so that it stands before it.
        """
        batch, size = pool.value.shape
        chosen, order = best.sort(1)
        first = torch.zeros_like(root)[:, None]

        def place(values: Tensor, missing: int) -> Tensor:
            """Return each candidate's index in `values` (b, n), or `missing`; the root's at the end."""
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


class DynamicGrowth(PolicyGrowth):
    """Trees of a `DynamicTree`, chosen on the device alone: the shape can be the same in every step."""

    policy: DynamicTree

    def __init__(self, policy: DynamicTree, device: torch.device, *, adaptive: bool = False) -> None:
        """Grow trees by `policy`.

        If `adaptive`, the host reads the probabilities, and skips levels and entries that no sequence needs.
        """
        super().__init__(policy, device)
        self.adaptive = adaptive

    def _choose(self, levels: Iterator[tuple[Pool, ...]], idle: Tensor | None) -> tuple[Pool, Tensor, Tensor | None]:
        policy = self.policy
        for level, drafted in enumerate(levels, 1):
            if self.adaptive and policy.min_probability and level < policy.depth:
                promising = drafted[-1].log >= policy.least
                if not bool((promising if idle is None else promising & ~idle[:, None]).any()):
                    break
        pool = join_levels(drafted)
        best = pool.order()[:, : policy.nodes]
        if not policy.min_probability:
            return pool, best, None
        present = pool.log.gather(1, best) >= policy.least
        if idle is not None:
            present &= ~idle[:, None]
        if self.adaptive:
            largest = int(present.sum(1).max())
            best, present = best[:, :largest], present[:, :largest]
        return pool, best, present


class AskingGrowth(PolicyGrowth):
    """Trees of any policy: after each level the host decides, with the code that also replays the policy on a trace."""

    def _choose(self, levels: Iterator[tuple[Pool, ...]], idle: Tensor | None) -> tuple[Pool, Tensor, Tensor]:
        policy, lists, chosen = self.policy, None, None
        for number, drafted in enumerate(levels):
            pool = join_levels(drafted)
            order = pool.order()
            log = pool.log.gather(1, order[:, : policy.nodes]).cpu().numpy()
            if lists is None:
                lists = Shortlists.blank(len(log), depth=policy.depth, nodes=policy.nodes)  # `best` stays blank
                busy = np.ones(len(log), dtype=bool) if idle is None else ~idle.cpu().numpy()
                busy |= not busy.any()
            lists.log[:, number, : log.shape[1]] = log
            chosen = policy.choose(lists)
            if chosen.levels[busy].max() <= number + 1:
                break
        assert chosen is not None
        # Levels that only other sequences wanted hold none of a row's nodes.
        ends = np.cumsum([level.log.shape[1] for level in drafted])[np.where(busy, chosen.levels, 1) - 1]
        nodes = np.where(busy, chosen.nodes, 0)
        end, count = (torch.from_numpy(part).to(order.device)[:, None] for part in (ends, nodes))
        beyond = (order >= end).to(torch.int8)
        best = order.gather(1, beyond.sort(dim=1, stable=True).indices)[:, : int(nodes.max())]
        return pool, best, torch.arange(best.shape[1], device=order.device) < count
