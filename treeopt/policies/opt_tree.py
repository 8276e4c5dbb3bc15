"""OPT-Tree's dynamic tree: draft levels while another one adds enough expected tokens."""

import math
from dataclasses import dataclass

import numpy as np

from treeopt.errors import TreeError
from treeopt.policies.beam import Drafting
from treeopt.policies.policy import Chosen, Policy, check_reach, leading
from treeopt.policies.policy_kinds import PolicyKind, Size, Sweep
from treeopt.policies.reranking import Shortlists
from treeopt.storage.typed_records import NotNegative, Record

THRESHOLDS = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7)


@dataclass(frozen=True)
class OptTree:
    """The policy of OPT-Tree (Wang et al. 2025, arXiv 2406.17276): draft levels while they add enough.

    The `nodes` most probable of the drafted nodes are verified. Drafting stops when the sum of their path
    probabilities exceeds that of the level before by no more than `threshold`. With threshold 0 they are the most
    probable nodes of the whole tree of this depth. The level that adds too little has been drafted and may be used;
    the published code discards it.

    Attributes:
        nodes: most drafted nodes verified per sequence.
        depth: most levels drafted.
        threshold: expected accepted tokens that another level must add.
        beam: nodes expanded on each level below the root; None: the same as `nodes`.
        width: children considered per expanded node; None: the same as `beam`.
    """

    nodes: int
    depth: int
    threshold: float
    beam: int | None = None
    width: int | None = None
    growth = "opt-tree"
    calibration = None

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            TreeError: names the invalid setting.
        """
        check_reach(self, "nodes", "depth", "beam", "width")
        if not 0 <= self.threshold < math.inf:
            raise TreeError(f"threshold must be 0 or more, got {self.threshold!r}")

    @property
    def drafting(self) -> Drafting:
        """See `Policy.drafting`."""
        beam = self.nodes if self.beam is None else self.beam
        return Drafting(self.depth, beam, beam if self.width is None else self.width)

    def choose(self, lists: Shortlists) -> Chosen:
        """See `Policy.choose`."""
        log = lists.log[:, : self.depth, : self.nodes]
        gain = np.diff(np.nansum(np.exp(log, dtype=np.float64), -1), prepend=0)
        levels = leading(gain[:, : self.depth - 1] > self.threshold) + 1
        doubt = lists.doubt[:, : self.depth]
        known = (doubt == -np.inf) | (doubt < log[..., -1])
        nodes = np.take_along_axis((~np.isnan(log)).sum(-1), levels[..., None] - 1, -1)[..., 0]
        return Chosen(levels, nodes, leading(known) >= levels)


class OptTreeRecord(Record, frozen=True, tag_field="kind", tag="opt-tree", forbid_unknown_fields=True):
    """Levels are drafted while another adds enough, as OPT-Tree drafts."""

    nodes: Size
    depth: Size
    threshold: NotNegative
    beam: Size | None
    width: Size | None


def sweep_thresholds(sweep: Sweep) -> None:
    """Try sizes, depths and thresholds; a beam wider than the nodes finds nothing that is taken."""
    beam, width = sweep.drafting.beam, sweep.drafting.width
    sweep.prepare()
    sweep.consider_stops(lambda nodes, depth, stop: OptTree(nodes, depth, stop, min(nodes, beam), width), THRESHOLDS)


class _Unstopped(OptTree):
    """Computes what another level adds, and drafts it even if that is nothing; no threshold can express this."""

    def choose(self, lists: Shortlists) -> Chosen:
        stopping = super().choose(lists)
        nodes = (~np.isnan(lists.log[:, self.depth - 1, : self.nodes])).sum(-1)
        return Chosen(np.full_like(stopping.levels, self.depth), nodes, stopping.known)


def _unstopped(nodes: int, drafting: Drafting) -> Policy:
    return _Unstopped(nodes, drafting.depth, 0.0, drafting.beam, drafting.width)


ENTRY = PolicyKind(
    "opt-tree", OptTree, OptTreeRecord, sweeps={"opt-tree": sweep_thresholds}, growths={"opt-tree": _unstopped}
)
