"""Replay of a dynamic policy along a trace: the recorded candidates that it would have verified at each step.

Shortlists equal those of the live loop (see `treeopt.policies.reranking`), so on a greedy trace replayed and live steps
are identical. Nothing is guessed: a replay that needs candidates that were not recorded raises TraceError.

Rows of a batch depend on each other: levels are drafted for all of them or for none, and their trees are padded.
`Batches` replays policies in running batches, each with its own queue of requests: when a request ends, the next
takes its row. An empty queue begins again; its repeated requests fill rows but are not counted. So every counted step
is a step of a full batch.
"""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treeopt.errors import TraceError
from treeopt.policies import Chosen, Policy
from treeopt.policies.beam import Drafted, drafted_candidates
from treeopt.policies.reranking import Shortlists, ranked_places, shortlists
from treeopt.traces.trace import Trace
from treeopt.tree import Path, Tree

CHUNK = 2**22  # entries of shortlists processed together
ROUNDS = 2  # approximate number of requests per row of a running batch


def choose(policy: Policy, lists: Shortlists) -> Chosen:
    """Return the policy's choice for each anchor of (P,) shortlists; all arrays (P,)."""
    size = max(1, CHUNK // max(1, lists.log[0].size))
    parts = [policy.choose(lists[start : start + size]) for start in range(0, len(lists.log), size)]
    return Chosen(*(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(Chosen)))


@dataclass(frozen=True, eq=False)
class Steps:
    """The steps of running batches: `time` steps of `batches` batches with `rows` rows.

    Attributes:
        anchors: int64 (time, batches, rows), the anchor of each row.
        counted: bool (time, batches, rows), False where a row repeats a request to fill the batch.
        accepted: int64 (time, batches, rows), drafted tokens accepted.
        nodes: int64 (time, batches, rows), nodes verified.
        levels: int64 (time, batches), levels drafted for the batch.
    """

    anchors: NDArray[np.int64]
    counted: NDArray[np.bool_]
    accepted: NDArray[np.int64]
    nodes: NDArray[np.int64]
    levels: NDArray[np.int64]


class Batches:
    """Running batches of a trace's requests, in which any policy can be replayed."""

    def __init__(self, trace: Trace, *, batch: int, seed: int = 0) -> None:
        """Deal the requests to queues at random.

        Args:
            trace: a trace with candidates.
            batch: rows per batch.
            seed: seed of the order of the requests.
        """
        self.trace, self.batch = trace, batch
        order = np.random.default_rng(seed).permutation(trace.requests)
        queues = np.array_split(order, max(1, trace.requests // (ROUNDS * batch)))
        self.lengths = np.array([len(queue) for queue in queues])
        longest = self.lengths.max()
        self.queues = np.stack([np.resize(queue, longest) for queue in queues])

    def steps(self, policy: Policy, lists: Shortlists) -> Steps:
        """Return the steps of a policy, from the shortlists of all anchors.

        Args:
            policy: the policy.
            lists: shortlists (P,), which may be longer and deeper than the policy needs.

        Raises:
            TraceError: candidates that the policy needs were not recorded.
        """
        everywhere = choose(policy, lists)
        accepted_everywhere = lists.accepted(everywhere.levels, everywhere.nodes)
        lane = np.arange(len(self.queues))[:, None]
        turn = np.tile(np.arange(self.batch), (len(lane), 1))  # queue index of each row's request
        request = self._request(lane, turn)
        anchors = self.trace.starts[request]
        log: list[tuple[Any, ...]] = []
        while (turn < self.lengths[:, None]).any():
            chosen, accepted = everywhere[anchors], accepted_everywhere[anchors]
            if not chosen.known.all():
                raise not_recorded(int(anchors[~chosen.known][0]))
            log.append((anchors, turn < self.lengths[:, None], accepted, chosen.nodes, chosen.levels.max(1)))
            anchors = anchors + accepted + 1
            ended = anchors >= self.trace.stops[request]
            turn = np.where(ended, turn.max(1, keepdims=True) + ended.cumsum(1), turn)
            request = self._request(lane, turn)
            anchors = np.where(ended, self.trace.starts[request], anchors)
        return Steps(*(np.stack(part) for part in zip(*log, strict=True)))

    def _request(self, lane: NDArray[np.int64], turn: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.asarray(self.queues[lane, turn % self.lengths[:, None]])


def not_recorded(anchor: int) -> TraceError:
    """Return the error of a step whose candidates were not all recorded."""
    return TraceError(
        f"anchor {anchor}: the policy expands a candidate whose children were not recorded; record candidates at "
        "every position, as deep and as wide as the policy, with a larger beam"
    )


def first_tree(policy: Policy, trace: Trace) -> tuple[Tree, int]:
    """Return the tree at the first position at which its candidates were recorded, and the position (anchor).

    The sequence is decoded alone.

    Raises:
        TraceError: the trace holds no candidates, or too few everywhere in its first request.
    """
    first = trace.select(np.array([0]))
    chosen = choose(policy, shortlists(first, policy.drafting, nodes=policy.nodes, calibration=policy.calibration))
    found: list[tuple[int, Tree]] = []
    for anchors, trees in drafted_candidates(first, policy.drafting):
        for row in np.flatnonzero(chosen.known[anchors])[:1].tolist():
            anchor = int(anchors[row])
            level = int(chosen.levels[anchor])
            places = ranked_places(trees, policy.calibration, level)[row, : int(chosen.nodes[anchor])]
            kept = places[trees.within(level)[row, places]]
            found.append((anchor, Tree.from_paths(_path(trees, row, place) for place in kept.tolist())))
    if not found:
        raise TraceError("no position of the first request has the candidates that the policy chooses from")
    anchor, tree = min(found, key=lambda pair: pair[0])
    return tree, anchor


def _path(trees: Drafted, row: int, place: int) -> Path:
    path: list[int] = []
    while place >= 0:
        path.append(int(trees.rank[row, place]))
        place = int(trees.parent[row, place])
    return tuple(reversed(path))
