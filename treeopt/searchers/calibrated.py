"""Policies that trust the drafter as far as it was right: a confidence stop, and a stop where time is worth more.

Both replace the drafter's probabilities by the frequencies with which such candidates were true on some requests
(`treeopt.shortlist.calibrate`). Neither proves anything: frequencies are those of all positions, not of the walk's.
"""

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from treeopt.curve import Curve, isotonic
from treeopt.drafting import Drafting
from treeopt.growth import CHUNK, Batches
from treeopt.policy import Chosen, among_best, confident, leading
from treeopt.searchers.pricing import Prices, Timed, timed
from treeopt.shortlist import Calibration, Shortlists

ROUNDS = 8
SETTLED = 1e-4  # of the rate


@dataclass(frozen=True)
class Calibrated:
    """As `DynamicTree`, with calibrated probabilities in the place of the drafter's.

    Attributes:
        nodes: drafted nodes of a sequence that are verified, at most.
        depth: levels drafted, at most.
        beam: nodes expanded on each level below the root.
        width: children looked at of each expanded node.
        min_probability: nodes that are found less probable are left out, and a batch without others stops drafting.
        calibration: of the probabilities.
        budget: nodes verified in all sequences together, at most; None: `nodes` each.
    """

    nodes: int
    depth: int
    beam: int
    width: int
    min_probability: float
    calibration: Calibration = field(repr=False)
    budget: int | None = None

    @property
    def alone(self) -> bool:
        """See `Policy.alone`."""
        return self.budget is None

    @property
    def drafting(self) -> Drafting:
        """See `Policy.drafting`."""
        return Drafting(self.depth, self.beam, self.width)

    def choose(self, lists: Shortlists) -> Chosen:
        """See `Policy.choose`."""
        levels, present = confident(lists, self.depth, self.nodes, self.min_probability)
        if self.budget is not None:
            present &= among_best(lists.log[:, :, self.depth - 1, : self.nodes], self.budget)
        doubt = np.take_along_axis(lists.doubt, levels[..., None] - 1, -1)[..., 0]
        return Chosen(levels, present.sum(-1), doubt == -np.inf)


@dataclass(frozen=True)
class CostAware:
    """Drafts and verifies while it pays: the most expected tokens minus the going rate times the step's seconds.

    After each drafted level the number of nodes is taken that is best over the whole cost table, so a flat stair or a
    bad marginal in the way stops nothing. Whether another level is drafted is a problem of optimal stopping, solved
    backwards by regression as Longstaff and Schwartz (2001) do: the advantage of going on, in tokens, is a rising
    curve in the probability that the text runs through a node that would be expanded. A batch goes on when the mean
    of its rows' advantages is not negative.

    Attributes:
        nodes: drafted nodes of a sequence that are verified, at most.
        depth: levels drafted, at most.
        beam: nodes expanded on each level below the root.
        width: children looked at of each expanded node.
        shared: the rows of a batch share its nodes, and the best are verified wherever they are; otherwise each row
            verifies equally many.
        rate: tokens a second of each sequence that time is worth.
        seconds: of steps by levels and nodes in every row, (depth, nodes).
        advantage: of drafting another level after 1, 2, ... levels, in tokens.
        calibration: of the probabilities.
    """

    nodes: int
    depth: int
    beam: int
    width: int
    shared: bool
    rate: float
    seconds: tuple[tuple[float, ...], ...] = field(repr=False)
    advantage: tuple[Curve, ...] = field(repr=False)
    calibration: Calibration = field(repr=False)
    alone = False

    @property
    def drafting(self) -> Drafting:
        """See `Policy.drafting`."""
        return Drafting(self.depth, self.beam, self.width)

    def choose(self, lists: Shortlists) -> Chosen:
        """See `Policy.choose`."""
        rows = lists.log.shape[1]
        log = lists.log[:, :, : self.depth, : self.nodes]
        _, sizes = self.best(log)
        more = [curve.at(lists.mass[:, :, level]).mean(1) for level, curve in enumerate(self.advantage)]
        levels = 1 + leading(np.stack(more, -1) >= 0) if more else np.ones(len(log), dtype=np.int64)
        batch = np.arange(len(log))
        log, size = log[batch, :, levels - 1], sizes[batch, levels - 1]
        if self.shared and rows > 1:
            present = np.stack([among_best(own[None], int(n))[0] for own, n in zip(log, size * rows, strict=True)])
        else:
            present = (np.arange(self.nodes) < size[:, None, None]) & ~np.isnan(log)
        doubt = lists.doubt[batch, :, levels - 1]
        return Chosen(np.repeat(levels[:, None], rows, 1), present.sum(-1), doubt == -np.inf)

    def best(self, log: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Of each batch and number of levels, (batches, depth), what a row gains, and the nodes a row that gain it.

        Args:
            log: of the shortlists' candidates, float32 (batches, rows, depth, nodes).
        """
        rows = log.shape[1]
        gain = np.exp(np.nan_to_num(log, nan=-np.inf), dtype=np.float64)
        if self.shared and rows > 1:
            pooled = -np.sort(-np.moveaxis(gain, 1, 2).reshape(*gain.shape[:1], gain.shape[2], -1), axis=-1)
            tokens = 1 + pooled.cumsum(-1)[..., rows - 1 :: rows] / rows
        else:
            tokens = 1 + gain.cumsum(-1).mean(1)
        worth = tokens - self.rate * np.asarray(self.seconds)
        most = worth.shape[-1] - 1 - worth[..., ::-1].argmax(-1)  # of equals the most nodes: they cost nothing
        return np.take_along_axis(worth, most[..., None], -1)[..., 0], most + 1


def cost_aware(
    batches: Batches,
    lists: Shortlists,
    prices: Prices,
    *,
    nodes: int,
    drafting: Drafting,
    calibration: Calibration,
) -> tuple[CostAware, Timed]:
    """The policy of the best rate met, replayed: time is worth what the policy itself earns (Dinkelbach 1967).

    Args:
        batches: of the requests that it is fitted to.
        lists: of all their anchors, calibrated.
        prices: of steps.
        nodes: of a sequence, at most.
        drafting: how far candidates are drafted, at most.
        calibration: of the lists.

    Raises:
        CostError: steps that the cost model does not cover.
        TraceError: candidates that were not recorded.
    """
    table = prices.table(drafting, nodes)
    if prices.padding == "full":
        table = np.full_like(table, table[-1, -1])
    seconds = tuple(map(tuple, table.tolist()))
    always = (Curve((0.0,), (0.0,)),) * (drafting.depth - 1)
    reach = (drafting.depth, drafting.beam, drafting.width)
    policy = CostAware(nodes, *reach, prices.padding == "none", 0.0, seconds, always, calibration)
    best: tuple[CostAware, Timed] | None = None
    for _ in range(ROUNDS):
        found = timed(batches.trace, batches.steps(policy, lists), policy, prices)
        if best is None or found.rate > best[1].rate:
            best = policy, found
        if abs(found.rate - policy.rate) <= SETTLED * found.rate:
            break
        policy = replace(policy, rate=found.rate)
        policy = replace(policy, advantage=_advantage(policy, lists))
    assert best is not None
    return best


def _advantage(policy: CostAware, lists: Shortlists) -> tuple[Curve, ...]:
    """Of drafting another level after 1, 2, ... levels, with later stops as good as these curves make them."""
    depth, anchors = policy.depth, len(lists.log)
    size = max(1, CHUNK // max(1, lists.log[0].size))
    worth = np.concatenate(
        [
            policy.best(lists.log[start : start + size, None, :depth, : policy.nodes])[0]
            for start in range(0, anchors, size)
        ]
    )
    curves: list[Curve] = []
    ahead = worth[:, depth - 1]
    for level in range(depth - 1, 0, -1):
        mass, here = lists.mass[:, level - 1], worth[:, level - 1]
        curve = isotonic(mass, ahead - here)
        ahead = np.where(curve.at(mass) >= 0, ahead, here)
        curves.append(curve)
    return tuple(reversed(curves))
