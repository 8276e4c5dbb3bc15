"""A simulated server: a queue of requests, rows that are refilled as requests end, trees that change with the load.

Between two steps the server admits waiting requests to free rows, in the order in which they arrived, and prefills
their prompts, while the others wait. Then it changes the tree if the number of requests asks for it. Then all requests
take one step.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import cache, cached_property, partial
from heapq import heappop, heappush
from itertools import accumulate
from typing import Any

import numpy as np

from simulate.runs.run_costs import PAD, Seconds, Together, by_parabolas, price_steps
from simulate.runs.server_load import Workload
from simulate.runs.timeline import Emissions, Floats, Ints, RequestTimes, Timeline
from simulate.runs.tree_switching import Switching
from treeopt.cost_model import CostModel
from treeopt.errors import CostError, counted
from treeopt.replay.static_tree import accepted_lengths
from treeopt.replay.walk import drafted_counts, walk_steps
from treeopt.traces.trace import Trace
from treeopt.tree import EMPTY, Tree

STRETCH = 64  # steps that are priced together where contexts count


@dataclass(frozen=True, eq=False)
class Served:
    """A simulated server's day.

    Attributes:
        requests: times of all requests, in the order in which they arrived.
        tree_index: int64 (N,), index of the tree of each step.
        switched_s: float64 (changes,), when a change to another tree began.
        idle_s: float64 (stretches, 2), begin and end of each time without requests.
        of_steps: makes the timeline, whose steps and tokens take longer than the day.
    """

    requests: RequestTimes
    tree_index: Ints
    switched_s: Floats
    idle_s: Floats
    of_steps: Callable[[], Timeline]

    @cached_property
    def timeline(self) -> Timeline:
        """Times of all requests and steps."""
        return self.of_steps()

    def running(self, times_s: Floats) -> Ints:
        """Return the number of requests in rows at these times, int64."""
        return _count_inside(self.requests.admitted_s, self.requests.done_s, times_s)

    def waiting(self, times_s: Floats) -> Ints:
        """Return the number of requests in the queue at these times, int64."""
        return _count_inside(self.requests.arrived_s, self.requests.admitted_s, times_s)


@dataclass(frozen=True, eq=False)
class Texts:
    """Where each step leads, in texts that stand one after the other.

    Attributes:
        begins: int64 (n,), first anchor of each text.
        next: int64 (trees, P), the anchor at which the step after the one from each anchor starts, or the text's end.
        left: int64 (trees, P), steps from each anchor to the end of its text.
    """

    begins: Ints
    next: Ints
    left: Ints

    @classmethod
    def of(cls, advance: Ints, lengths: Ints) -> "Texts":
        """Return the texts of these lengths, given the tokens that a step from each anchor commits, (trees, P)."""
        ends = np.cumsum(lengths)
        stops, last = np.repeat(ends, lengths), int(ends[-1])
        goal = np.minimum(np.arange(last) + advance, stops)
        left = np.ones((len(advance), last + 1), dtype=np.int64)
        left[:, last] = 0
        for steps, leads in zip(left, np.where(goal < stops, goal, last), strict=True):
            jump = np.append(leads, last)
            while (jump < last).any():  # doubling: `steps` counts up to twice as many each time
                steps += steps[jump]
                jump = jump[jump]
        return cls(ends - lengths, goal, left)


class Decoding:
    """The trees of a server on the texts of a trace: the steps that they take and what steps cost.

    Days that share it replay each tree and price each step once. `server` takes their steps.
    """

    server: "type[ServerRun]"

    def __init__(self, trace: Trace, switching: Switching, cost: CostModel, *, rows: int, pad: bool = False) -> None:
        """Replay the trees.

        Args:
            trace: the requests' texts, and which drafted tokens are right.
            switching: trees.
            cost: seconds of a step.
            rows: most requests decoded together.
            pad: a step of a batch size that the cost model lacks costs what the nearest one above does, up to `PAD`
                times `rows`.

        Raises:
            TraceError: a tree is deeper or wider than the trace.
        """
        self.trace, self.switching = trace, switching
        by_tree = {tree: accepted_lengths(tree or EMPTY, trace) for tree in {*switching.trees}}
        self._advance = np.array([by_tree[tree] + 1 for tree in switching.trees])
        self.read_s: dict[int, float] = {}  # prefill seconds by tokens that are read together
        pad_to = PAD * rows if pad else 0
        self.seconds = [_seconds_along(t, by_tree[t], trace, cost, pad_to=pad_to) for t in switching.trees]
        self.along = [by_parabolas(known, cost) for known in self.seconds]

    @property
    def drafts(self) -> bool:
        """True if a drafter runs."""
        return any(tree is not None and tree.nodes for tree in self.switching.trees)

    @cached_property
    def whole(self) -> Texts:
        """The trace's texts."""
        return Texts.of(self._advance, self.trace.lengths)

    def texts(self, work: Workload) -> tuple[Texts, Ints]:
        """Return texts that hold those of a workload, and the first anchor of each request, (n,)."""
        if (work.tokens == self.trace.lengths[work.request]).all():
            return self.whole, self.whole.begins[work.request]
        ends = np.cumsum(work.tokens)
        moved = np.repeat(self.trace.starts[work.request] - (ends - work.tokens), work.tokens)
        cut = Texts.of(self._advance[:, moved + np.arange(ends[-1])], work.tokens)
        return cut, cut.begins

    def faster(self, error: Callable[[Tree, int], float], side: int) -> "Decoding":
        """Return the same with steps that are faster (`side` 1) or slower (−1) by an error, those of plain decoding as
        they are.

        Args:
            error: of tree and batch size: half-width of the 95 % interval of plain step / step, as a share.
            side: 1 or −1.
        """
        other = copy(self)

        @cache
        def factor(tree: Tree | None, batch: int) -> float:
            return 1.0 if tree is None or not tree.nodes else 1 + side * error(tree, batch)

        def changed(tree: Tree | None, known: Callable[..., Any]) -> Callable[..., Any]:
            return lambda batch, context: known(batch, context) / factor(tree, batch)

        trees = self.switching.trees
        other.seconds = [cache(changed(tree, known)) for tree, known in zip(trees, self.seconds, strict=True)]
        other.along = [changed(tree, known) for tree, known in zip(trees, self.along, strict=True)]
        return other


def serve_day(
    decoding: Decoding,
    work: Workload,
    *,
    rows: int,
    prefill_s: float | Floats | Together = 0.0,
    by_context: bool = True,
) -> Served:
    """Serve the workload until the last request has its last token.

    Args:
        decoding: trees on the trace.
        work: arrivals.
        rows: most requests decoded together.
        prefill_s: seconds of prefill, of every request or of each, (n,), or of prompts that are read together; see
            `simulate.runs.batch_record.run`.
        by_context: price steps by the lengths of sequences, where prompts are known.

    Raises:
        CostError: names the number of requests that has no cost.
    """
    server = decoding.server(decoding, work, rows, prefill_s, by_context)
    server.run()
    return server.served()


class ServerRun:
    """The state of a run. Steps between which no request comes or goes are one stretch."""

    def __init__(
        self,
        decoding: Decoding,
        work: Workload,
        rows: int,
        prefill_s: float | Floats | Together,
        by_context: bool,
    ) -> None:
        """Lay out the texts."""
        self.work, self.switching, self.rows = work, decoding.switching, rows
        self.together = prefill_s if callable(prefill_s) else None
        self.prefill_s = np.broadcast_to(0.0 if callable(prefill_s) else prefill_s, work.tokens.shape).copy()
        self.by_context = by_context and work.prompt_tokens is not None
        self.seconds, self.along, self.read_s = decoding.seconds, decoding.along, decoding.read_s
        self.texts, self.start = decoding.texts(work)
        self.anchor = self.start.copy()  # of the step `since`
        self.since = np.zeros(len(work.tokens), dtype=np.int64)
        self.joined, self.ended = (np.zeros(len(work.tokens), dtype=np.int64) for _ in range(2))  # steps
        self.arrived_s, self.now = work.arrived_s.tolist(), 0.0
        self.admitted_s, self.first_s, self.done_s = (np.zeros(len(work.tokens)) for _ in range(3))
        self.admitted, self.step = 0, 0  # requests that joined, steps that were taken
        self.due: list[tuple[int, int]] = []  # a heap: the step at which each request in a row has ended, request
        self.log: list[tuple[float, list[float], int, int]] = []  # stretches: start, seconds, steps, tree index
        self.switched_s: list[float] = []
        self.idle_s: list[tuple[float, float]] = []

    def run(self) -> None:
        """Admit requests, change trees and take steps until no request is left."""
        index, left = self.switching.next_tree(0, 0), len(self.work.tokens)
        while left:
            joined = self._admit()
            self.since[joined] = self.step
            index = self._change_tree(index, joined)
            now, wait_s = self.now, math.inf
            if len(self.due) < self.rows and self.admitted < len(self.arrived_s):  # the next may join
                wait_s = max(0.0, self.arrived_s[self.admitted] - now)
            prices, steps = self._prices(index), self.due[0][0] - self.step
            if len(prices) == 1:
                if wait_s < steps * prices[0]:
                    steps = max(1, math.ceil(wait_s / prices[0]))
                lasting_s = steps * prices[0]
            else:
                ends = list(accumulate(prices))
                steps = min(len(ends), 1 + bisect_left(ends, wait_s))
                lasting_s = ends[steps - 1]
            self.log.append((now, prices, steps, index))
            self.step += steps
            for request in joined:
                self.first_s[request] = now + prices[0]
            self.now += lasting_s
            while self.due and self.due[0][0] == self.step:
                request = heappop(self.due)[1]
                self.done_s[request], self.ended[request] = self.now, self.step
                left -= 1

    def _admit(self) -> list[int]:
        """Take waiting requests into free rows and read their prompts; wait for the first if the server is empty."""
        first = self.admitted
        if not self.due and self.arrived_s[first] > self.now:
            self.idle_s.append((self.now, self.arrived_s[first]))
            self.now = self.arrived_s[first]
        waiting = bisect_right(self.arrived_s, self.now, first) - first
        joined = list(range(first, first + min(waiting, self.rows - len(self.due))))
        if joined:
            self.admitted += len(joined)
            self.joined[joined], self.admitted_s[joined] = self.step, self.now
            if self.together is not None:
                self.prefill_s[joined] = self._together_s(self.together, joined)
            self.now += float(self.prefill_s[joined].sum())
        return joined

    def _change_tree(self, index: int, joined: list[int]) -> int:
        """Change to the tree for the requests in rows, know when each has ended with it, and return its index."""
        wanted = self.switching.next_tree(index, len(self.due) + len(joined))
        if wanted != index:
            running = np.array([request for _, request in self.due], dtype=np.int64)
            self._walk(index, running)
            ended = self.step + self.texts.left[wanted][self.anchor[running]]
            self.due = sorted(zip(ended.tolist(), running.tolist(), strict=True))
            self.switched_s.append(self.now)
            self.now += self.switching.switch_s
        for request in joined:
            heappush(self.due, (self.step + self.texts.left.item(wanted, self.start[request]), request))
        return wanted

    def _walk(self, index: int, running: Ints) -> None:
        """Move the anchors of requests to the present step."""
        anchor, behind = self.anchor[running], self.step - self.since[running]
        for steps in range(int(behind.max(initial=0))):
            anchor = np.where(behind > steps, self.texts.next[index][anchor], anchor)
        self.anchor[running], self.since[running] = anchor, self.step

    def _together_s(self, together: Together, joined: list[int]) -> Floats:
        """Return the prefill seconds of each request that joined; an error names the one with the shortest prompt."""
        assert self.work.prompt_tokens is not None
        tokens = self.work.prompt_tokens[joined]
        total = int(tokens.sum())
        try:
            if total not in self.read_s:
                self.read_s[total] = float(together(np.array([total]))[0]) if total else 0.0
            return np.asarray(self.read_s[total] * tokens / max(total, 1))
        except CostError as error:
            source = self.work.source(joined[int(tokens.argmin())])
            raise CostError(f"{source}: {error}" if source else str(error)) from error

    def _prices(self, index: int) -> list[float]:
        """Return the seconds of the next steps with the same requests, a single one for all unless contexts count.

        An error names the number of requests and the longest of them.
        """
        batch = len(self.due)
        running = np.array([request for _, request in self.due]) if self.by_context else None
        if running is not None:
            assert self.work.prompt_tokens is not None
            self._walk(index, running)
            anchors = [self.anchor[running]]
            for _ in range(min(self.due[0][0] - self.step, STRETCH) - 1):
                anchors.append(self.texts.next[index][anchors[-1]])
            cached = np.array(anchors) + (self.work.prompt_tokens - self.start)[running]
        try:
            if running is None:
                return [self.seconds[index](batch, None)]
            return list(self.along[index](batch, np.rint(cached.sum(axis=1) / batch).astype(np.int64)).tolist())
        except CostError as error:
            load = f"{counted(batch, 'request')} came to decode together"
            if running is not None:
                longest = self.work.source(int(running[cached[0].argmax()]))
                load += f" (the longest is that of {longest})" if longest else ""
            raise CostError(f"{load}: {error}") from error

    def served(self) -> Served:
        """Return the record of the run."""
        steps, indices = zip(*((steps, index) for _, _, steps, index in self.log), strict=True)
        tree_index = np.repeat(indices, steps)
        arrived_s = np.array(self.arrived_s)
        of_steps = partial(self._timeline, tree_index, arrived_s)
        requests = RequestTimes(self.work.tokens, arrived_s, self.admitted_s, self.first_s, self.done_s)
        idle_s = np.array(self.idle_s, dtype=np.float64).reshape(-1, 2)
        return Served(requests, tree_index, np.array(self.switched_s), idle_s, of_steps)

    def _timeline(self, tree_index: Ints, arrived_s: Floats) -> Timeline:
        """Return the times of all requests and steps: requests side by side, step after step."""
        step_s = [np.resize(prices, steps) for _, prices, steps, _ in self.log]
        begins = [start + np.cumsum(s) - s for (start, *_), s in zip(self.log, step_s, strict=True)]
        steps = self.ended - self.joined
        offset, order = np.cumsum(steps) - steps, np.argsort(-steps, kind="stable")
        tokens, anchor = np.empty(int(steps.sum()), dtype=np.int64), self.start[order]
        for number in range(int(steps.max())):
            rows = order[: np.searchsorted(-steps[order], -number)]
            before = anchor[: len(rows)]
            anchor = self.texts.next[tree_index[self.joined[rows] + number], before]
            tokens[offset[rows] + number] = anchor - before
        return Timeline.of(
            Emissions(
                np.repeat(np.arange(len(steps)), steps),
                np.repeat(self.joined - offset, steps) + np.arange(len(tokens)),
                tokens,
            ),
            started_s=np.concatenate(begins),
            step_s=np.concatenate(step_s),
            prefill_s=self.prefill_s,
            admitted_s=self.admitted_s,
            arrived_s=arrived_s,
        )


Decoding.server = ServerRun


def _seconds_along(tree: Tree | None, accepted: Ints, trace: Trace, cost: CostModel, *, pad_to: int) -> Seconds:
    """Return seconds by batch size and context of steps that commit and propose what they do along the trace."""
    anchors = walk_steps(accepted, trace).anchors
    drafted = None if tree is None else drafted_counts(anchors, trace, tree.depth)
    return cache(price_steps(tree, cost, committed=trace.anchors / len(anchors), drafted=drafted, pad_to=pad_to))


def _count_inside(begins: Floats, ends: Floats, times_s: Floats) -> Ints:
    """Return the number of intervals [begin, end) that hold each time."""
    begun = np.searchsorted(np.sort(begins), times_s, side="right")
    return np.asarray(begun - np.searchsorted(np.sort(ends), times_s, side="right"))
