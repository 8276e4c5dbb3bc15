"""A server that requests come to: a queue, rows that are refilled as requests end, plans that change with the load.

Time passes in a discrete-event simulation (simpy). Between two steps the server takes waiting requests into free
rows and prefills their prompts, while those who decode wait; then, if the number of requests
asks for another way to decode, it changes to it; then all of them take one step.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulate.runs.batch_run import PAD, Seconds, Together, each, pricing, shared
from simulate.runs.plan_switching import Switching
from simulate.runs.timeline import Emissions, Floats, Ints, Timeline
from simulate.runs.workload import Workload
from treeopt.cost_model import CostModel
from treeopt.errors import CostError, UsageError
from treeopt.replay.static_tree import accepted_lengths
from treeopt.replay.walk import walked
from treeopt.traces.trace import Trace
from treeopt.tree import EMPTY, Tree


@dataclass(frozen=True, eq=False)
class Served:
    """A simulated server's day.

    Attributes:
        timeline: of all requests, in the order in which they arrived.
        way: int64 (N,), of each step the index of its tree.
        switched_s: float64 (changes,), when a change to another way began.
        idle_s: float64 (stretches, 2), from when until when nobody was there.
    """

    timeline: Timeline
    way: Ints
    switched_s: Floats
    idle_s: Floats

    def running(self, times_s: Floats) -> Ints:
        """Requests in rows at these times, int64."""
        return _inside(self.timeline.admitted_s, self.timeline.done_s, times_s)

    def waiting(self, times_s: Floats) -> Ints:
        """Requests in the queue at these times, int64."""
        return _inside(self.timeline.arrived_s, self.timeline.admitted_s, times_s)


def serve(
    trace: Trace,
    work: Workload,
    switching: Switching,
    cost: CostModel,
    *,
    rows: int,
    prefill_s: float | Floats | Together = 0.0,
    by_context: bool = True,
    accepted: Mapping[Tree | None, Ints] | None = None,
    pad: bool = False,
) -> Served:
    """The workload, until the last request has its last token.

    Args:
        trace: its requests' texts, and what is right of what was drafted.
        work: arrivals.
        switching: trees.
        cost: seconds of a step.
        rows: requests decoded together, at most.
        prefill_s: seconds of prefill, of every request or of each, (n,), or of prompts that are read together; see
            `simulate.runs.batch_run.run`.
        by_context: steps are priced by the lengths of sequences, where prompts are known.
        accepted: by tree the drafted tokens that a step from each anchor keeps, int64 (P,); default what ranks say.
        pad: a step of a batch that the cost model lacks costs what the nearest batch above does, up to `PAD` times
            `rows`.

    Raises:
        UsageError: rows below 1, a workload of other requests or longer texts than the trace's, negative prefill, or
            prefill by tokens that the workload does not tell.
        TraceError: a tree is deeper or wider than the trace.
        CostError: names the number of requests that has no cost.
    """
    import simpy

    if rows < 1:
        raise UsageError(f"rows must be at least 1, got {rows}")
    _check(trace, work)
    together = prefill_s if callable(prefill_s) else None
    if together is not None and work.prompt_tokens is None:
        raise UsageError("prefill by tokens needs prompt_tokens")
    known_s = each(0.0 if callable(prefill_s) else prefill_s, len(work.tokens), "prefill_s")
    server = _Server(trace, work, switching, cost, rows, known_s, together, by_context, accepted, pad)
    environment = simpy.Environment()
    queue = simpy.Store(environment)
    environment.process(server.arrive(environment, queue))
    environment.process(server.run(environment, queue))
    environment.run()
    return server.served()


class _Server:
    """The state of a run, and its two processes."""

    def __init__(
        self,
        trace: Trace,
        work: Workload,
        switching: Switching,
        cost: CostModel,
        rows: int,
        prefill_s: Floats,
        together: Together | None,
        by_context: bool,
        accepted: Mapping[Tree | None, Ints] | None,
        pad: bool,
    ) -> None:
        """Look up what each tree keeps and costs."""
        self.work, self.switching, self.rows, self.prefill_s = work, switching, rows, prefill_s.copy()
        self.together, self.by_context = together, by_context
        known = dict(accepted or {})
        for tree in switching.trees:
            if tree not in known:
                known[tree] = accepted_lengths(tree or EMPTY, trace)
        self.advance = [known[tree] + 1 for tree in switching.trees]
        pad_to = PAD * rows if pad else 0
        self.seconds = [
            _once(pricing(tree, cost, committed=_mean_committed(known[tree], trace), pad_to=pad_to))
            for tree in switching.trees
        ]
        self.start = trace.starts[work.request]
        self.stop = self.start + work.tokens
        self.arrived_s, self.admitted_s = work.arrived_s.copy(), np.zeros(len(work.tokens))
        self.log: list[tuple[float, float, int, Ints, Ints]] = []  # started, seconds, way, requests, tokens
        self.switched_s: list[float] = []
        self.idle_s: list[tuple[float, float]] = []

    def arrive(self, environment: Any, queue: Any) -> Generator[Any, Any, None]:
        """Requests come in."""
        for number, due in enumerate(self.work.arrived_s.tolist()):
            if due > environment.now:
                yield environment.timeout(due - environment.now)
            self.arrived_s[number] = environment.now
            queue.put(number)

    def run(self, environment: Any, queue: Any) -> Generator[Any, Any, None]:
        """The server, until nobody is left."""
        inside = np.empty(0, dtype=np.int64)
        here = inside
        way, left = self.switching.way(0, 0), len(self.work.tokens)
        while left:
            joined = []
            if not len(inside) and not queue.items:
                began = environment.now
                joined.append((yield queue.get()))
                self.idle_s.append((began, environment.now))
            while queue.items and len(inside) + len(joined) < self.rows:
                joined.append((yield queue.get()))
            if joined:
                self.admitted_s[joined] = environment.now
                inside, here = np.append(inside, joined), np.append(here, self.start[joined])
                if self.together is not None:
                    self.prefill_s[joined] = self._together_s(self.together, joined)
                prefill_s = float(self.prefill_s[joined].sum())
                if prefill_s:
                    yield environment.timeout(prefill_s)
            due = self.switching.way(way, len(inside))
            if due != way:
                self.switched_s.append(environment.now)
                way = due
                if self.switching.switch_s:
                    yield environment.timeout(self.switching.switch_s)
            step_s = self._step_s(way, inside, here)
            started = environment.now
            yield environment.timeout(step_s)
            taken = np.minimum(self.advance[way][here], self.stop[inside] - here)
            self.log.append((started, step_s, way, inside, taken))
            here = here + taken
            going = here < self.stop[inside]
            if not going.all():
                left -= len(going) - int(going.sum())
                inside, here = inside[going], here[going]

    def _together_s(self, together: Together, joined: list[int]) -> Floats:
        """Seconds of prefill of each that joined; an error says which has the shortest prompt."""
        assert self.work.prompt_tokens is not None
        tokens = self.work.prompt_tokens[joined]
        try:
            return shared(together, tokens, np.zeros(len(joined), dtype=np.int64))
        except CostError as error:
            source = self.work.source(joined[int(tokens.argmin())])
            raise CostError(f"{source}: {error}" if source else str(error)) from error

    def _step_s(self, way: int, inside: Ints, here: Ints) -> float:
        """Seconds of a step; an error says that it was the load that led there, and which request is the longest."""
        context = self._context(inside, here)
        try:
            return self.seconds[way](len(inside), context)
        except CostError as error:
            said = f"{len(inside)} requests came to decode together"
            if context is not None:
                longest = self.work.source(int(inside[self._contexts(inside, here).argmax()]))
                said += f" (the longest is that of {longest})" if longest else ""
            raise CostError(f"{said}: {error}") from error

    def _context(self, inside: Ints, here: Ints) -> int | None:
        """Tokens a sequence in the cache, the mean, rounded."""
        if self.work.prompt_tokens is None or not self.by_context:
            return None
        return round(float(self._contexts(inside, here).mean()))

    def _contexts(self, inside: Ints, here: Ints) -> Ints:
        """Tokens of each in the cache."""
        assert self.work.prompt_tokens is not None
        return np.asarray(self.work.prompt_tokens[inside] + here - self.start[inside])

    def served(self) -> Served:
        """What happened."""
        started, seconds, ways, requests, tokens = zip(*self.log, strict=True)
        flat = np.concatenate(requests)
        step = np.repeat(np.arange(len(requests)), [len(each) for each in requests])
        order = flat.argsort(kind="stable")
        timeline = Timeline.of(
            Emissions(flat[order], step[order], np.concatenate(tokens)[order]),
            started_s=np.array(started),
            step_s=np.array(seconds),
            prefill_s=self.prefill_s,
            admitted_s=self.admitted_s,
            arrived_s=self.arrived_s,
        )
        idle_s = np.array(self.idle_s, dtype=np.float64).reshape(-1, 2)
        return Served(timeline, np.array(ways), np.array(self.switched_s), idle_s)


def _mean_committed(accepted: Ints, trace: Trace) -> float:
    return trace.anchors / len(walked(accepted, trace).anchors)


def _once(seconds: Seconds) -> Seconds:
    """The same, each price asked for once."""
    known: dict[tuple[int, int | None], float] = {}

    def remembered(batch: int, context: int | None) -> float:
        if (batch, context) not in known:
            known[batch, context] = seconds(batch, context)
        return known[batch, context]

    return remembered


def _inside(begins: Floats, ends: Floats, times_s: Floats) -> Ints:
    """How many of the intervals [begin, end) each time lies in."""
    begun = np.searchsorted(np.sort(begins), times_s, side="right")
    return np.asarray(begun - np.searchsorted(np.sort(ends), times_s, side="right"))


def _check(trace: Trace, work: Workload) -> None:
    if work.request.min() < 0 or work.request.max() >= trace.requests:
        raise UsageError(f"the workload's requests must be among the trace's {trace.requests}")
    longer = work.tokens > trace.lengths[work.request]
    if longer.any():
        raise UsageError(f"tokens[{longer.argmax()}] must not exceed its text, got {work.tokens[longer][0]}")
