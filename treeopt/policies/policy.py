"""What a policy is: how a tree may grow at run time, by what the drafter said of its candidates."""

from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from treeopt.errors import TreeError
from treeopt.policies.beam import Drafting
from treeopt.policies.reranking import Calibration, Shortlists
from treeopt.tree import MAX_NODES


@dataclass(frozen=True, eq=False)
class Chosen:
    """What is drafted and verified, of rows of batches or of any anchors; all of one shape.

    Attributes:
        levels: int64, levels that the row wants drafted; the batch drafts the most that any row wants.
        nodes: int64, of the row's shortlist after these levels so many are verified.
        known: bool, False where the recording cannot tell.
    """

    levels: NDArray[np.int64]
    nodes: NDArray[np.int64]
    known: NDArray[np.bool_]

    def __getitem__(self, index: Any) -> "Chosen":
        """That of some rows."""
        return Chosen(self.levels[index], self.nodes[index], self.known[index])


# How the decoding loop draws trees anew: each takes a time of its own.
GROWTHS = ("dynamic-tree", "calibrated-tree", "opt-tree", "cost-aware")


class Policy(Protocol):
    """Chooses levels and nodes of each step by what the drafter said; frozen, and hashable."""

    @property
    def nodes(self) -> int:
        """Nodes of a sequence that are verified, at most."""

    @property
    def depth(self) -> int:
        """Levels drafted, at most."""

    @property
    def drafting(self) -> Drafting:
        """How far candidates are drafted, at most."""

    @property
    def calibration(self) -> Calibration | None:
        """What the probabilities of its shortlists are; see `shortlists`."""

    @property
    def growth(self) -> str:
        """Which of `GROWTHS` it is."""

    @property
    def alone(self) -> bool:
        """Whether the choice for a row does not depend on the others of its batch."""

    def choose(self, lists: Shortlists) -> Chosen:
        """Levels and nodes of the rows of batches (batches, rows); nothing depends on `place`, nor on deeper levels."""


def settings(policy: Policy) -> dict[str, Any]:
    """What tells a policy from others of its kind: its fields but those that were fitted.

    >>> from treeopt.policies.opt_tree import OptTree
    >>> settings(OptTree(nodes=8, depth=3, threshold=0.1))
    {'nodes': 8, 'depth': 3, 'threshold': 0.1, 'beam': None, 'width': None}
    """
    found = {f.name: getattr(policy, f.name) for f in fields(policy) if f.repr}  # type: ignore[arg-type]
    return found if policy.calibration is None else {**found, "calibrated": True}


def named(policy: Policy) -> str:
    """Kind and settings, for people."""
    told = ", ".join(f"{name}={value}" for name, value in settings(policy).items() if value is not None)
    return f"{type(policy).__name__}({told})"


def among_best(log: NDArray[np.float32], count: int) -> NDArray[np.bool_]:
    """Which of the nodes (batches, rows, n) are among the best `count` of their batch, the first of equals."""
    flat = log.reshape(len(log), -1)
    best = (-flat).argsort(1, kind="stable")[:, :count]
    found = np.zeros(flat.shape, dtype=bool)
    np.put_along_axis(found, best, True, 1)
    return (found & ~np.isnan(flat)).reshape(log.shape)


def leading(true: NDArray[np.bool_]) -> NDArray[np.int64]:
    """How many entries of the last axis are true before the first that is not.

    >>> leading(np.array([[True, True, False, True], [False, True, True, True]])).tolist()
    [2, 0]
    """
    return np.asarray(np.logical_and.accumulate(true, axis=-1).sum(-1))


def check_reach(policy: Policy, *names: str) -> None:
    """Refuse counts that are none, more nodes than candidates, and a calibration that does not reach as far.

    Raises:
        TreeError: names the setting that cannot be.
    """
    for name in names:
        value = getattr(policy, name)
        if value is not None and (type(value) is not int or not 1 <= value <= MAX_NODES):
            raise TreeError(f"{name} must be an integer in 1..{MAX_NODES}, got {value!r}")
    drafting, calibration = policy.drafting, policy.calibration
    if policy.nodes > drafting.candidates:
        raise TreeError(
            f"{policy.nodes} nodes are wanted of {drafting.candidates} candidates: "
            "ask for fewer, or raise depth, beam or width"
        )
    if calibration is not None and (
        len(calibration) < drafting.depth or min(map(len, calibration), default=0) < drafting.width
    ):
        raise TreeError(
            f"the calibration must have curves for {drafting.depth} depths and {drafting.width} ranks, "
            f"it has {[len(curves) for curves in calibration]} ranks"
        )
    if any(not 0 <= curve.y[0] <= curve.y[-1] <= 1 for curves in calibration or () for curve in curves):
        raise TreeError("the curves of a calibration must be probabilities, within 0 and 1")
