"""How a tree may grow at run time: settings of dynamic trees, and what they choose from a shortlist of candidates."""

import math
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from treeopt.drafting import Drafting
from treeopt.errors import TreeError
from treeopt.shortlist import Calibration, Shortlists
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


class Policy(Protocol):
    """Chooses levels and nodes of each step by what the drafter said; frozen, and hashable."""

    @property
    def nodes(self) -> int:
        """Nodes of a sequence that are verified, at most."""

    @property
    def drafting(self) -> Drafting:
        """How far candidates are drafted, at most."""

    @property
    def calibration(self) -> Calibration | None:
        """What the probabilities of its shortlists are; see `shortlists`."""

    @property
    def alone(self) -> bool:
        """Whether the choice for a row does not depend on the others of its batch."""

    def choose(self, lists: Shortlists) -> Chosen:
        """Levels and nodes of the rows of batches (batches, rows); nothing depends on `place`, nor on deeper levels."""


def settings(policy: Policy) -> dict[str, Any]:
    """What tells a policy from others of its kind: its fields but those that were fitted.

    >>> settings(OptTree(nodes=8, depth=3, threshold=0.1))
    {'nodes': 8, 'depth': 3, 'threshold': 0.1, 'beam': None, 'width': None}
    """
    return {f.name: getattr(policy, f.name) for f in fields(policy) if f.repr}  # type: ignore[arg-type]


@dataclass(frozen=True)
class DynamicTree:
    """Expand and re-rank, as EAGLE-2 does (Li et al. 2024, arXiv 2406.16858, §4).

    Each level expands the `beam` nodes that the drafter finds most probable, by the product of its probabilities
    along the path; of all nodes seen, the `nodes` most probable are verified. Ties: by depth, then by rank path.

    Attributes:
        nodes: drafted nodes of a sequence that are verified, at most.
        depth: levels drafted.
        beam: nodes expanded on each level below the root.
        width: children looked at of each expanded node; None as many as `beam`.
        min_probability: nodes that the drafter finds less probable are left out (the confidence stop).
        budget: nodes verified in all sequences together, at most; None: `nodes` each.
    """

    nodes: int
    depth: int
    beam: int = 10
    width: int | None = None
    min_probability: float = 0.0
    budget: int | None = None

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            TreeError: names the setting that cannot be.
        """
        _check_counts(self, "nodes", "depth", "beam", "children", "budget")
        if not 0 <= self.min_probability < 1:
            raise TreeError(f"min_probability must be in [0, 1), got {self.min_probability!r}")
        _check_room(self.nodes, self.drafting)

    @property
    def children(self) -> int:
        """Children looked at of each expanded node."""
        return self.beam if self.width is None else self.width

    @property
    def drafting(self) -> Drafting:
        """See `Policy.drafting`."""
        return Drafting(self.depth, self.beam, self.children)

    @property
    def expanded(self) -> tuple[int, ...]:
        """Nodes expanded on each level, the root's first.

        >>> DynamicTree(nodes=8, depth=3, beam=4, width=2).expanded
        (1, 2, 4)
        """
        return self.drafting.expanded

    @property
    def candidates(self) -> int:
        """Nodes seen of each sequence.

        >>> DynamicTree(nodes=8, depth=3, beam=4, width=2).candidates
        14
        """
        return self.drafting.candidates

    @property
    def calibration(self) -> None:
        """See `Policy.calibration`."""
        return None

    @property
    def alone(self) -> bool:
        """See `Policy.alone`."""
        return self.budget is None

    def choose(self, lists: Shortlists) -> Chosen:
        """See `Policy.choose`."""
        levels, present = confident(lists, self.depth, self.nodes, self.min_probability)
        if self.budget is not None:
            present &= among_best(lists.log[:, :, self.depth - 1, : self.nodes], self.budget)
        doubt = lists.doubt[:, :, self.depth - 1]
        if self.min_probability:  # a child that was not recorded could also have called for another level
            told = doubt < np.float32(math.log(self.min_probability))
        else:
            told = doubt < lists.log[:, :, self.depth - 1, self.nodes - 1]
        return Chosen(levels, present.sum(-1), told | (doubt == -np.inf))


@dataclass(frozen=True)
class OptTree:
    """Levels are drafted while they add enough (OPT-Tree, Wang et al. 2025, arXiv 2406.17276).

    The `nodes` most probable of the nodes seen are verified. When their probabilities along the path sum to no more
    than `threshold` above what the level before gave, no further level is drafted. With threshold 0 they are the most
    probable of the whole tree of this depth. The level that adds too little has been drafted and may be used; the
    published code discards it.

    Attributes:
        nodes: drafted nodes of a sequence that are verified, at most.
        depth: levels drafted, at most.
        threshold: what another level must add to the expected number of accepted tokens.
        beam: nodes expanded on each level below the root; None as many as `nodes`.
        width: children looked at of each expanded node; None as many as `beam`.
    """

    nodes: int
    depth: int
    threshold: float
    beam: int | None = None
    width: int | None = None

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            TreeError: names the setting that cannot be.
        """
        _check_counts(self, "nodes", "depth", "beam", "width")
        if not 0 <= self.threshold < math.inf:
            raise TreeError(f"threshold must be 0 or more, got {self.threshold!r}")
        _check_room(self.nodes, self.drafting)

    @property
    def drafting(self) -> Drafting:
        """See `Policy.drafting`."""
        beam = self.nodes if self.beam is None else self.beam
        return Drafting(self.depth, beam, beam if self.width is None else self.width)

    @property
    def calibration(self) -> None:
        """See `Policy.calibration`."""
        return None

    @property
    def alone(self) -> bool:
        """See `Policy.alone`."""
        return True

    def choose(self, lists: Shortlists) -> Chosen:
        """See `Policy.choose`."""
        log = lists.log[:, :, : self.depth, : self.nodes]
        gain = np.diff(np.nansum(np.exp(log, dtype=np.float64), -1), prepend=0)
        levels = leading(gain[:, :, : self.depth - 1] > self.threshold) + 1
        doubt = lists.doubt[:, :, : self.depth]
        told = (doubt == -np.inf) | (doubt < log[..., -1])
        nodes = np.take_along_axis((~np.isnan(log)).sum(-1), levels[..., None] - 1, -1)[..., 0]
        return Chosen(levels, nodes, leading(told) >= levels)


def confident(lists: Shortlists, depth: int, nodes: int, least: float) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Levels (batches, rows) drafted while some node has at least a probability, and which nodes have it.

    A child is no more probable than its parent: where no node of a level reaches `least`, none below it does.
    """
    log, best = lists.log[:, :, depth - 1, :nodes], lists.best[:, :, : depth - 1]
    if not least:
        return np.full(log.shape[:2], depth), ~np.isnan(log)
    low = np.float32(math.log(least))
    return leading(best >= low) + 1, log >= low


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


def _check_counts(policy: Any, *names: str) -> None:
    for name in names:
        value = getattr(policy, name)
        if value is not None and (type(value) is not int or not 1 <= value <= MAX_NODES):
            raise TreeError(f"{name} must be an integer in 1..{MAX_NODES}, got {value!r}")


def _check_room(nodes: int, drafting: Drafting) -> None:
    if nodes > drafting.candidates:
        raise TreeError(
            f"{nodes} nodes are wanted of {drafting.candidates} candidates: "
            "ask for fewer, or raise depth, beam or width"
        )
