"""The Policy protocol: a rule that grows a dynamic tree at run time from the drafter's probabilities."""

from dataclasses import dataclass, fields
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from treeopt.errors import TreeError
from treeopt.policies.beam import Drafting
from treeopt.policies.reranking import Calibration, Shortlists
from treeopt.tree import MAX_NODES


@dataclass(frozen=True, eq=False)
class Chosen:
    """The levels and nodes that a policy chose, for any anchors; all arrays of one shape.

    Attributes:
        levels: int64, levels that the anchor asks for; a batch drafts the most that any of its rows asks for.
        nodes: int64, number of nodes of the shortlist after these levels that are verified.
        known: bool, False where the choice depends on candidates that were not recorded.
    """

    levels: NDArray[np.int64]
    nodes: NDArray[np.int64]
    known: NDArray[np.bool_]

    def __getitem__(self, index: Any) -> "Chosen":
        """Return the choice for some rows."""
        return Chosen(self.levels[index], self.nodes[index], self.known[index])


@runtime_checkable
class Policy(Protocol):
    """A rule that chooses the levels and nodes of each step from the drafter's probabilities; frozen and hashable."""

    @property
    def nodes(self) -> int:
        """The most nodes verified per sequence."""

    @property
    def depth(self) -> int:
        """The most levels drafted."""

    @property
    def drafting(self) -> Drafting:
        """The largest extent to which candidates are drafted."""

    @property
    def calibration(self) -> Calibration | None:
        """The calibration of the shortlists' probabilities; see `shortlists`."""

    @property
    def growth(self) -> str:
        """The kind of drafting, one of `treeopt.policies.growths`."""

    def choose(self, lists: Shortlists) -> Chosen:
        """Choose levels and nodes for anchors (P,), each of its own.

        The choice must not depend on `place`, nor on levels deeper than those drafted.
        """


def setting_names(kind: type) -> tuple[str, ...]:
    """Return the names of the settings that identify a policy among others of its kind.

    >>> from treeopt.policies.opt_tree import OptTree
    >>> setting_names(OptTree)
    ('nodes', 'depth', 'threshold', 'beam', 'width')
    """
    return tuple(f.name for f in fields(kind) if f.repr)


def settings(policy: Policy) -> dict[str, Any]:
    """Return the settings that identify a policy among others of its kind: its fields without the fitted ones.

    >>> from treeopt.policies.opt_tree import OptTree
    >>> settings(OptTree(nodes=8, depth=3, threshold=0.1))
    {'nodes': 8, 'depth': 3, 'threshold': 0.1, 'beam': None, 'width': None}
    """
    values = {name: getattr(policy, name) for name in setting_names(type(policy))}
    return values if policy.calibration is None else {**values, "calibrated": True}


def policy_text(policy: Policy) -> str:
    """Return the policy's kind and settings as readable text.

    >>> from treeopt.policies.opt_tree import OptTree
    >>> policy_text(OptTree(nodes=8, depth=3, threshold=0.1))
    'OptTree(nodes=8, depth=3, threshold=0.1)'
    """
    values = ", ".join(f"{name}={value}" for name, value in settings(policy).items() if value is not None)
    return f"{type(policy).__name__}({values})"


def leading(true: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Count the entries of the last axis that are true before the first false one.

    >>> leading(np.array([[True, True, False, True], [False, True, True, True]])).tolist()
    [2, 0]
    """
    return np.asarray(np.logical_and.accumulate(true, axis=-1).sum(-1))


def check_reach(policy: Policy, *names: str) -> None:
    """Check that settings are counts, that candidates suffice for the nodes, and that the calibration covers them.

    Raises:
        TreeError: names the invalid setting.
    """
    for name in names:
        value = getattr(policy, name)
        if value is not None and (type(value) is not int or not 1 <= value <= MAX_NODES):
            raise TreeError(f"{name} must be an integer in 1..{MAX_NODES}, got {value!r}")
    drafting, calibration = policy.drafting, policy.calibration
    if policy.nodes > drafting.candidates:
        raise TreeError(
            f"nodes must be at most the {drafting.candidates} candidates that are drafted, got {policy.nodes}: "
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
