"""EAGLE-2's dynamic tree: expand a beam, then re-rank all drafted nodes and verify the most probable.

The ranking of candidates is computed in `treeopt.policies.reranking`.
"""

import math
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from treeopt.errors import TreeError
from treeopt.policies.beam import Drafting
from treeopt.policies.policy import Chosen, Policy, check_reach, leading
from treeopt.policies.policy_kinds import CalibrationRecord, PolicyKind, Probability, Size, Sweep, unchanged
from treeopt.policies.reranking import Calibration, Shortlists, calibrate
from treeopt.storage.typed_records import Record

EAGLE2 = "eagle2"  # the sweep of what inference engines run
DYNAMIC_TREE = "dynamic-tree"  # its growth, by which profiles price it
PROBABILITIES = (0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.18, 0.25, 0.35, 0.5)


@dataclass(frozen=True)
class DynamicTree:
    """The expand-and-re-rank policy of EAGLE-2 (Li et al. 2024, arXiv 2406.16858, §4).

    Each level expands the `beam` nodes that the drafter finds most probable, by the product of its probabilities
    along the path. The `nodes` most probable of all drafted nodes are verified. Ties: by depth, then by rank path.
    With a calibration the verified nodes are those most often right on some requests, as candidates of their depth,
    rank and probability (`calibrate`); frequencies are counted over all positions, not only those of the walk. Ties
    are then settled first by the drafter's own probability.

    Attributes:
        nodes: most drafted nodes verified per sequence.
        depth: levels drafted.
        beam: nodes expanded on each level below the root.
        width: children considered per expanded node; None: the same as `beam`.
        min_probability: less probable nodes are left out, and a batch without others stops drafting (the confidence
            stop).
        calibration: curves that calibrate the drafter's probabilities; None: use them as they are.
    """

    nodes: int
    depth: int
    beam: int = 10
    width: int | None = None
    min_probability: float = 0.0
    calibration: Calibration | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            TreeError: names the invalid setting.
        """
        check_reach(self, "nodes", "depth", "beam", "children")
        if not 0 <= self.min_probability < 1:
            raise TreeError(f"min_probability must be in [0, 1), got {self.min_probability!r}")

    @property
    def children(self) -> int:
        """The number of children considered per expanded node."""
        return self.beam if self.width is None else self.width

    @property
    def drafting(self) -> Drafting:
        """See `Policy.drafting`."""
        return Drafting(self.depth, self.beam, self.children)

    @property
    def growth(self) -> str:
        """See `Policy.growth`."""
        return DYNAMIC_TREE if self.calibration is None else "calibrated-tree"

    @property
    def least(self) -> float:
        """The lowest log-probability at which a node is verified."""
        return float(np.float32(math.log(self.min_probability))) if self.min_probability else -math.inf

    def choose(self, lists: Shortlists) -> Chosen:
        """See `Policy.choose`."""
        log, best = lists.log[:, self.depth - 1, : self.nodes], lists.best[:, : self.depth - 1]
        # A child is no more probable than its parent: if no node of a level reaches the minimum, none below it does.
        levels = leading(best >= self.least) + 1
        present = ~np.isnan(log) & (log >= self.least)
        return Chosen(levels, present.sum(-1), self._recorded(lists, levels, log))

    def _recorded(self, lists: Shortlists, levels: NDArray[np.int64], log: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Return True where no unrecorded candidate could be verified or call for another level."""
        if self.calibration is not None:
            return np.asarray(np.take_along_axis(lists.doubt, levels[..., None] - 1, -1)[..., 0] == -np.inf)
        doubt = lists.doubt[:, self.depth - 1]
        # With a stop a child that was not recorded could also have called for another level.
        least = self.least if self.min_probability else log[:, self.nodes - 1]
        return np.asarray((doubt < least) | (doubt == -np.inf))


class DynamicTreeRecord(Record, frozen=True, tag_field="kind", tag="dynamic-tree", forbid_unknown_fields=True):
    """Expansion and re-ranking, as EAGLE-2 drafts."""

    nodes: Size
    depth: Size
    beam: Size
    width: Size | None
    min_probability: Probability
    calibration: CalibrationRecord | None
    budget: Annotated[None, Meta(description="of a whole batch: in older files, where it must be null")] = None


def sweep_sizes(sweep: Sweep) -> None:
    """Try every size and depth."""
    beam, width = sweep.drafting.beam, sweep.drafting.width
    sweep.prepare()
    for depth in sweep.depths():
        for nodes in sweep.sizes(depth):
            sweep.consider(DynamicTree(nodes, depth, beam, width))


def sweep_stops(sweep: Sweep, *, calibrated: bool = False) -> None:
    """Try sizes, depths and confidence stops."""
    beam, width = sweep.drafting.beam, sweep.drafting.width
    curves = calibrate(sweep.trace, sweep.drafting) if calibrated else None
    sweep.prepare(curves)
    sweep.consider_stops(lambda nodes, depth, stop: DynamicTree(nodes, depth, beam, width, stop, curves), PROBABILITIES)


def _unstopped(nodes: int, drafting: Drafting, calibration: Calibration | None = None) -> Policy:
    return DynamicTree(nodes, drafting.depth, drafting.beam, drafting.width, calibration=calibration)


ENTRY = PolicyKind(
    "dynamic-tree",
    DynamicTree,
    DynamicTreeRecord,
    sweeps={
        EAGLE2: sweep_sizes,
        "best-first": sweep_stops,
        "calibrated": partial(sweep_stops, calibrated=True),
    },
    growths={
        "dynamic-tree": _unstopped,
        "calibrated-tree": lambda nodes, drafting: _unstopped(nodes, drafting, unchanged(drafting)),
    },
)
