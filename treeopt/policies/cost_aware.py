"""The cost-aware policy: draft and verify while the expected tokens are worth the time."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from treeopt.errors import TreeError
from treeopt.policies.beam import Drafting
from treeopt.policies.policy import Chosen, Policy, among_best, check_reach, leading
from treeopt.policies.policy_kinds import CalibrationRecord, CurveRecord, PolicyKind, Size, unchanged
from treeopt.policies.reranking import Calibration, Shortlists
from treeopt.statistics import Curve
from treeopt.storage.typed_records import Finite, NotNegative, Record


@dataclass(frozen=True)
class CostAware:
    """Maximise expected tokens minus `rate` times the seconds of the step.

    After each drafted level the policy takes the number of nodes that is best over the whole cost table, so a flat
    stair or a bad marginal on the way does not stop it. Whether to draft another level is a problem of optimal
    stopping, solved backwards by regression (Longstaff and Schwartz 2001): the advantage of another level, in tokens,
    is a rising curve in the probability that the text runs through a node that would be expanded. A batch drafts
    another level when the mean of its rows' advantages is not negative.
    `treeopt.searchers.cost_aware_fit` fits it.

    Attributes:
        nodes: most drafted nodes verified per sequence.
        depth: most levels drafted.
        beam: nodes expanded on each level below the root.
        width: children considered per expanded node.
        shared: True if the rows of a batch share its nodes, so that the best are verified in any row; otherwise each
            row verifies the same number.
        rate: tokens per second per sequence that time is worth.
        seconds: seconds of steps by levels and nodes in every row, (depth, nodes).
        advantage: advantage of another level after 1, 2, ... levels, in tokens.
        calibration: curves that calibrate the drafter's probabilities.
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
    growth = "cost-aware"

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            TreeError: names the invalid setting.
        """
        check_reach(self, "nodes", "depth", "beam", "width")
        if not self.rate >= 0:
            raise TreeError(f"rate must be 0 or more, got {self.rate!r}")
        if [len(row) for row in self.seconds] != [self.nodes] * self.depth:
            raise TreeError(f"seconds must have {self.depth} levels of {self.nodes} nodes")
        if len(self.advantage) != self.depth - 1:
            raise TreeError(f"advantage must have {self.depth - 1} curves, got {len(self.advantage)}")

    @cached_property
    def _seconds(self) -> NDArray[np.float64]:
        return np.asarray(self.seconds)

    @property
    def drafting(self) -> Drafting:
        """See `Policy.drafting`."""
        return Drafting(self.depth, self.beam, self.width)

    def choose(self, lists: Shortlists) -> Chosen:
        """See `Policy.choose`."""
        rows = lists.log.shape[1]
        log = lists.log[:, :, : self.depth, : self.nodes]
        _, sizes = self.best(log)
        advantages = [curve.at(lists.mass[:, :, level]).mean(1) for level, curve in enumerate(self.advantage)]
        levels = 1 + leading(np.stack(advantages, -1) >= 0) if advantages else np.ones(len(log), dtype=np.int64)
        batch = np.arange(len(log))
        log, size = log[batch, :, levels - 1], sizes[batch, levels - 1]
        if self.shared and rows > 1:
            present = np.stack([among_best(one[None], int(n))[0] for one, n in zip(log, size * rows, strict=True)])
        else:
            present = (np.arange(self.nodes) < size[:, None, None]) & ~np.isnan(log)
        doubt = lists.doubt[batch, :, levels - 1]
        return Chosen(np.repeat(levels[:, None], rows, 1), present.sum(-1), doubt == -np.inf)

    def best(self, log: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return the best gain per row and the nodes per row that reach it, by batch and levels; both (batches, depth).

        Args:
            log: log-probabilities of the shortlists' candidates, float32 (batches, rows, depth, nodes).
        """
        rows = log.shape[1]
        gain = np.exp(np.nan_to_num(log, nan=-np.inf), dtype=np.float64)
        if self.shared and rows > 1:
            pooled = -np.sort(-np.moveaxis(gain, 1, 2).reshape(*gain.shape[:1], gain.shape[2], -1), axis=-1)
            tokens = 1 + pooled.cumsum(-1)[..., rows - 1 :: rows] / rows
        else:
            tokens = 1 + gain.cumsum(-1).mean(1)
        worth = tokens - self.rate * self._seconds
        best = worth.shape[-1] - 1 - worth[..., ::-1].argmax(-1)  # the most nodes among equals: they cost nothing
        return np.take_along_axis(worth, best[..., None], -1)[..., 0], best + 1


class CostAwareRecord(Record, frozen=True, tag_field="kind", tag="cost-aware", forbid_unknown_fields=True):
    """Levels are drafted and nodes verified while it pays."""

    nodes: Size
    depth: Size
    beam: Size
    width: Size
    shared: bool
    rate: Annotated[NotNegative, Meta(description="tokens per second of each sequence that time is worth")]
    seconds: Annotated[tuple[tuple[Finite, ...], ...], Meta(description="of a step, by levels and nodes of every row")]
    advantage: Annotated[
        tuple[CurveRecord, ...], Meta(description="tokens gained by drafting another level, after 1, 2, ... levels")
    ]
    calibration: CalibrationRecord


def _unstopped(nodes: int, drafting: Drafting) -> Policy:
    onward = (Curve((0.0,), (0.0,)),) * (drafting.depth - 1)
    free = ((0.0,) * nodes,) * drafting.depth
    return CostAware(
        nodes, drafting.depth, drafting.beam, drafting.width, False, 0.0, free, onward, unchanged(drafting)
    )


ENTRY = PolicyKind(
    "cost-aware",
    CostAware,
    CostAwareRecord,
    sweeps={"cost-aware": "treeopt.searchers.cost_aware_fit:sweep_depths"},
    growths={"cost-aware": _unstopped},
)
