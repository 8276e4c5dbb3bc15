"""Expand and re-rank: the most probable of the nodes seen, as the drafter finds them or as it was right."""

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from treeopt.errors import TreeError
from treeopt.policies.beam import Drafting
from treeopt.policies.policy import Chosen, among_best, check_reach, leading
from treeopt.policies.reranking import Calibration, Shortlists


@dataclass(frozen=True)
class DynamicTree:
    """Expand and re-rank, as EAGLE-2 does (Li et al. 2024, arXiv 2406.16858, §4).

    Each level expands the `beam` nodes that the drafter finds most probable, by the product of its probabilities
    along the path; of all nodes seen, the `nodes` most probable are verified. Ties: by depth, then by rank path.
    With a calibration these are the most probable as candidates of their depth, rank and probability were true on
    some requests (`calibrate`); frequencies are those of all positions, not of the walk's. Ties are
    then first settled by what the drafter finds.

    Attributes:
        nodes: drafted nodes of a sequence that are verified, at most.
        depth: levels drafted.
        beam: nodes expanded on each level below the root.
        width: children looked at of each expanded node; None as many as `beam`.
        min_probability: nodes that are found less probable are left out, and a batch without others stops drafting
            (the confidence stop).
        budget: nodes verified in all sequences together, at most; None: `nodes` each.
        calibration: of the probabilities; None: the drafter's own.
    """

    nodes: int
    depth: int
    beam: int = 10
    width: int | None = None
    min_probability: float = 0.0
    budget: int | None = None
    calibration: Calibration | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            TreeError: names the setting that cannot be.
        """
        check_reach(self, "nodes", "depth", "beam", "children", "budget")
        if not 0 <= self.min_probability < 1:
            raise TreeError(f"min_probability must be in [0, 1), got {self.min_probability!r}")

    @property
    def children(self) -> int:
        """Children looked at of each expanded node."""
        return self.beam if self.width is None else self.width

    @property
    def drafting(self) -> Drafting:
        """See `Policy.drafting`."""
        return Drafting(self.depth, self.beam, self.children)

    @property
    def growth(self) -> str:
        """See `Policy.growth`."""
        return "dynamic-tree" if self.calibration is None else "calibrated-tree"

    @property
    def alone(self) -> bool:
        """See `Policy.alone`."""
        return self.budget is None

    @property
    def least(self) -> float:
        """The lowest logarithm of a probability with which a node is verified."""
        return float(np.float32(math.log(self.min_probability))) if self.min_probability else -math.inf

    def choose(self, lists: Shortlists) -> Chosen:
        """See `Policy.choose`."""
        log, best = lists.log[:, :, self.depth - 1, : self.nodes], lists.best[:, :, : self.depth - 1]
        # A child is no more probable than its parent: where no node of a level has the least, none below it does.
        levels = leading(best >= self.least) + 1
        present = ~np.isnan(log) & (log >= self.least)
        if self.budget is not None:
            present &= among_best(log, self.budget)
        return Chosen(levels, present.sum(-1), self._told(lists, levels, log))

    def _told(self, lists: Shortlists, levels: NDArray[np.int64], log: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Whether nothing is in doubt that would be verified or call for another level."""
        if self.calibration is not None:
            return np.asarray(np.take_along_axis(lists.doubt, levels[..., None] - 1, -1)[..., 0] == -np.inf)
        doubt = lists.doubt[:, :, self.depth - 1]
        # With a stop a child that was not recorded could also have called for another level.
        least = self.least if self.min_probability else log[..., self.nodes - 1]
        return np.asarray((doubt < least) | (doubt == -np.inf))
