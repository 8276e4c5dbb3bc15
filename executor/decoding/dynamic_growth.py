"""Dynamic draft trees: candidates are drafted level by level, and a policy chooses each step's tree among them."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from executor.drafters.base.drafter import Drafter
from executor.verification.acceptance_rules import Rule
from executor.verification.tree_tensors import Draft, Topology
from treeopt.policies import Chosen, DynamicTree, Policy
from treeopt.policies.beam import Drafting
from treeopt.policies.reranking import Calibration, Shortlists


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
        """Return calibrated log-probabilities given the parent, in place of `logs`.

        Args:
            level: from 0.
            logs: float32 (batch, e, width).
        """
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
            chosen = best_places(last.value, expanded)
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


def best_places(value: Tensor, count: int) -> Tensor:
    """Return the places of the `count` largest, the first of equals, in ascending order; int64 (batch, count)."""
    return sorted_places(value)[:, :count].sort(1).values


class PolicyGrowth(ABC):
    """Base of growths that build another tree for each sequence and step, from candidates that a policy chooses."""

    in_place = False

    def __init__(self, policy: Policy, device: torch.device) -> None:
        """Grow trees by `policy`, for a target on `device`."""
        self.drafting = policy.drafting
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

    def __init__(self, policy: DynamicTree, device: torch.device, *, adaptive: bool = False) -> None:
        """Grow trees by `policy`.

        Args:
            policy: the settings.
            device: of the target.
            adaptive: read the drafter's probabilities on the host, and skip levels and entries that no sequence needs.
        """
        super().__init__(policy, device)
        self.policy, self.adaptive = policy, adaptive

    def _choose(self, levels: Iterator[tuple[Pool, ...]], idle: Tensor | None) -> tuple[Pool, Tensor, Tensor | None]:
        policy = self.policy
        for level, drafted in enumerate(levels, 1):
            if self.adaptive and policy.min_probability and level < policy.depth:
                promising = drafted[-1].log >= policy.least
                if not bool((promising if idle is None else promising & ~idle[:, None]).any()):
                    break
        pool = join_levels(drafted)
        best = pool.order()[:, : policy.nodes]
        if not policy.min_probability and policy.budget is None:
            return pool, best, None
        log = pool.log.gather(1, best)
        present = log >= policy.least
        if idle is not None:
            present &= ~idle[:, None]
        if policy.budget is not None and policy.budget < log.numel():
            log = log if idle is None else log.masked_fill(idle[:, None], -torch.inf)
            within_budget = torch.zeros_like(present)
            within_budget.view(-1).index_fill_(0, best_places(log.flatten()[None], policy.budget)[0], True)
            present &= within_budget
        if self.adaptive:
            largest = int(present.sum(1).max())
            best, present = best[:, :largest], present[:, :largest]
        return pool, best, present


class AskingGrowth(PolicyGrowth):
    """Trees of any policy: after each level the host decides, with the code that also replays the policy on a trace."""

    def __init__(self, policy: Policy, device: torch.device) -> None:
        """Grow trees by `policy`."""
        super().__init__(policy, device)
        self.policy = policy

    def _choose(self, levels: Iterator[tuple[Pool, ...]], idle: Tensor | None) -> tuple[Pool, Tensor, Tensor]:
        policy, read, busy, chosen = self.policy, list[_HostLevel](), None, None
        for drafted, expandable in zip(levels, self.drafting.expandable, strict=True):
            pool, last = join_levels(drafted), drafted[-1]
            order = pool.order()
            onward = best_places(last.value, expandable)
            read.append(_HostLevel.read(pool.log.gather(1, order[:, : policy.nodes]), last.log.gather(1, onward)))
            busy = _busy_rows(idle, len(order)) if busy is None else busy
            chosen = policy.choose(_shortlists(policy, [level.rows(busy) for level in read]))
            if chosen.levels.max() <= len(read):
                break
        assert busy is not None
        assert chosen is not None
        return pool, *_chosen_places(order, [level.log.shape[1] for level in drafted], busy, chosen)


@dataclass(frozen=True, eq=False)
class _HostLevel:
    """The values that the host has read after a level.

    Attributes:
        log: (batch, n), log-probabilities of the best candidates so far, the best first.
        mass: (batch,), probability of the nodes that the next level would expand.
    """

    log: NDArray[np.float32]
    mass: NDArray[np.float64]

    @classmethod
    def read(cls, best: Tensor, onward: Tensor) -> "_HostLevel":
        both = torch.cat([best, onward], 1).cpu().numpy()  # read at once
        return cls(both[:, : best.shape[1]], np.exp(both[:, best.shape[1] :], dtype=np.float64).sum(1))

    def rows(self, which: NDArray[np.bool_]) -> "_HostLevel":
        return _HostLevel(self.log[which], self.mass[which])


def _busy_rows(idle: Tensor | None, batch: int) -> NDArray[np.bool_]:
    """Return the rows that the choice is made for; all of them if every row is idle."""
    busy = np.ones(batch, dtype=bool) if idle is None else ~idle.cpu().numpy()
    return busy | (not busy.any())


def _chosen_places(
    order: Tensor, sizes: Sequence[int], busy: NDArray[np.bool_], chosen: Chosen
) -> tuple[Tensor, Tensor]:
    """Return the places of the best candidates (batch, n), and which of them are nodes of the trees.

    Args:
        order: int64 (batch, size), places of all candidates, the best first.
        sizes: candidates of each level.
        busy: rows that `chosen` is about.
        chosen: levels and nodes of those rows.
    """
    levels, nodes = np.ones_like(busy, dtype=np.int64), np.zeros_like(busy, dtype=np.int64)
    levels[busy], nodes[busy] = chosen.levels[0], chosen.nodes[0]
    ends = np.cumsum(sizes)[levels - 1]
    end, count = (torch.from_numpy(part).to(order.device)[:, None] for part in (ends, nodes))
    beyond = (order >= end).to(torch.int8)  # on levels that only other sequences wanted
    best = order.gather(1, beyond.sort(dim=1, stable=True).indices)[:, : int(nodes.max())]
    return best, torch.arange(best.shape[1], device=order.device) < count


def _shortlists(policy: Policy, levels: Sequence[_HostLevel]) -> Shortlists:
    """Return what `Policy.choose` reads for one batch; `best` stays blank, since only a `DynamicTree` reads it."""
    lists = Shortlists.blank(1, len(levels[0].log), depth=policy.depth, nodes=policy.nodes)
    for number, level in enumerate(levels):
        lists.log[0, :, number, : level.log.shape[1]] = level.log
        lists.mass[0, :, number] = level.mass
    return lists
