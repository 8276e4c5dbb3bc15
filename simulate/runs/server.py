"""A simulated server: a queue of requests, rows that are refilled as requests end, trees that change with the load.

Time passes in a discrete-event simulation (simpy). Between two steps the server admits waiting requests to free rows
and prefills their prompts, while the others wait. Then it changes the tree if the number of requests asks for it.
Then all requests take one step.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from simulate.runs.run_costs import PAD, Seconds, Together, divide_prefill, per_request, price_steps
from simulate.runs.server_load import Workload
from simulate.runs.timeline import Emissions, Floats, Ints, Timeline
from treeopt.cost_model import CostModel
from treeopt.errors import CostError, PlanError, UsageError, counted
from treeopt.planning.baselines import STATIC
from treeopt.plans.plan import Plan, PlanEntry
from treeopt.replay.static_tree import accepted_lengths
from treeopt.replay.walk import drafted_counts, walk_steps
from treeopt.traces.trace import Trace
from treeopt.tree import EMPTY, Tree


@dataclass(frozen=True)
class Switching:
    """The trees that are drafted, by the number of requests that decode.

    Attributes:
        trees: trees from few requests to many; None: plain decoding.
        up: up[i]: change from trees[i] to the next when this number of requests decode, or more.
        down: down[i]: change back to trees[i] when this number of requests decode, or fewer.
        switch_s: seconds that a change takes.
    """

    trees: tuple[Tree | None, ...]
    up: tuple[int, ...] = ()
    down: tuple[int, ...] = ()
    switch_s: float = 0.0

    def __post_init__(self) -> None:
        """Check the changes.

        Raises:
            UsageError: the number of changes is not one between every two trees, or a change would be undone at once.
        """
        if len(self.trees) - 1 != len(self.up) or len(self.up) != len(self.down):
            raise UsageError(f"{len(self.trees)} trees need a change between every two, got {self.up} and {self.down}")
        for i, (up, down) in enumerate(zip(self.up, self.down, strict=True)):
            if down >= up:
                raise UsageError(f"down[{i}] must be below up[{i}], got {down} and {up}")
        if not 0 <= self.switch_s < np.inf:
            raise UsageError(f"switch_s must be 0 or more and finite, got {self.switch_s}")

    @classmethod
    def of(cls, plan: Plan, *, switch_s: float = 0.0) -> "Switching":
        """Return the changes of a plan; if it lists none, each entry holds up to its batch size.

        Args:
            plan: a plan of static trees; leave out entries of dynamic ones before.
            switch_s: seconds that a change takes.

        Raises:
            UsageError: an entry has a dynamic tree.
        """
        entries = {entry.batch: entry.choice for entry in sorted(plan.entries, key=lambda entry: entry.batch)}
        for batch, choice in entries.items():
            if choice.grown is not None:
                raise UsageError(
                    f"the plan has a dynamic tree at batch {batch}; a server drafts only static trees: search "
                    "without --policy"
                )
        sizes = list(entries)
        changes = [(s.large, s.up, s.down) for s in plan.switches] or [
            (large, small + 1, small) for small, large in pairwise(sizes) if entries[small].tree != entries[large].tree
        ]
        # No change waits for one that lies beyond it: otherwise the trees after both would start later than planned.
        ups = list(accumulate((up for _, up, _ in reversed(changes)), min))[::-1]
        downs = accumulate((down for _, _, down in changes), max)
        return cls(
            (entries[sizes[0]].tree, *(entries[large].tree for large, _, _ in changes)),
            tuple(ups),
            tuple(downs),
            switch_s,
        )

    def next_tree(self, index: int, running: int) -> int:
        """Return the index of the tree for `running` requests, coming from the tree with `index`.

        >>> Switching((None, Tree.chain(1)), up=(3,), down=(1,)).next_tree(0, 2)
        0
        """
        while index < len(self.up) and running >= self.up[index]:
            index += 1
        while index > 0 and running <= self.down[index - 1]:
            index -= 1
        return index


def static_entry(entry: PlanEntry) -> tuple[PlanEntry, str | None]:
    """Return the entry; a dynamic choice gives way to the best static tree beside it, and a note says so.

    Raises:
        PlanError: the entry holds no static tree.
    """
    if entry.choice.grown is None:
        return entry, None
    dynamic = f"the plan's choice {entry.choice.name!r} for batch {entry.batch} grows a tree at each step"
    for choice in entry.compared:
        if choice.name == STATIC:
            note = f"Note: {dynamic}; runs are simulated with static trees, so its {STATIC} is used."
            return replace(entry, choice=choice), note
    raise PlanError(
        f"{dynamic}; runs are simulated with static trees, and the plan holds no {STATIC}: search without --policy"
    )


@dataclass(frozen=True, eq=False)
class Served:
    """A simulated server's day.

    Attributes:
        timeline: times of all requests, in the order in which they arrived.
        tree_index: int64 (N,), index of the tree of each step.
        switched_s: float64 (changes,), when a change to another tree began.
        idle_s: float64 (stretches, 2), begin and end of each time without requests.
    """

    timeline: Timeline
    tree_index: Ints
    switched_s: Floats
    idle_s: Floats

    def running(self, times_s: Floats) -> Ints:
        """Return the number of requests in rows at these times, int64."""
        return _count_inside(self.timeline.admitted_s, self.timeline.done_s, times_s)

    def waiting(self, times_s: Floats) -> Ints:
        """Return the number of requests in the queue at these times, int64."""
        return _count_inside(self.timeline.arrived_s, self.timeline.admitted_s, times_s)


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
    """Serve the workload until the last request has its last token.

    Args:
        trace: the requests' texts, and which drafted tokens are right.
        work: arrivals.
        switching: trees.
        cost: seconds of a step.
        rows: maximum number of requests decoded together.
        prefill_s: seconds of prefill, of every request or of each, (n,), or of prompts that are read together; see
            `simulate.runs.batch_run.run`.
        by_context: price steps by the lengths of sequences, where prompts are known.
        accepted: for each tree the drafted tokens that a step from each anchor accepts, int64 (P,); default: from the
            ranks.
        pad: a step of a batch size that the cost model lacks costs what the nearest one above does, up to `PAD` times
            `rows`.

    Raises:
        UsageError: rows below 1, a workload with other requests or longer texts than the trace's, negative prefill, or
            prefill by tokens for a workload without prompt lengths.
        TraceError: a tree is deeper or wider than the trace.
        CostError: names the number of requests that has no cost.
    """
    import simpy

    if rows < 1:
        raise UsageError(f"rows must be at least 1, got {rows}")
    _check_workload(trace, work)
    together = prefill_s if callable(prefill_s) else None
    if together is not None and work.prompt_tokens is None:
        raise UsageError("prefill by tokens needs prompt_tokens")
    known_s = per_request(0.0 if callable(prefill_s) else prefill_s, len(work.tokens), "prefill_s")
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
        """Prepare the accepted tokens and the step prices of each tree."""
        self.work, self.switching, self.rows, self.prefill_s = work, switching, rows, prefill_s.copy()
        self.together, self.by_context = together, by_context
        by_tree = dict(accepted or {})
        for tree in switching.trees:
            if tree not in by_tree:
                by_tree[tree] = accepted_lengths(tree or EMPTY, trace)
        self.advance = [by_tree[tree] + 1 for tree in switching.trees]
        pad_to = PAD * rows if pad else 0
        self.seconds = [
            _with_cache(
                price_steps(
                    tree,
                    cost,
                    committed=_mean_committed(by_tree[tree], trace),
                    drafted=_proposed_levels(tree, by_tree[tree], trace),
                    pad_to=pad_to,
                )
            )
            for tree in switching.trees
        ]
        self.start = trace.starts[work.request]
        self.stop = self.start + work.tokens
        self.arrived_s, self.admitted_s = work.arrived_s.copy(), np.zeros(len(work.tokens))
        self.log: list[tuple[float, float, int, Ints, Ints]] = []  # started, seconds, tree index, requests, tokens
        self.switched_s: list[float] = []
        self.idle_s: list[tuple[float, float]] = []

    def arrive(self, environment: Any, queue: Any) -> Generator[Any, Any, None]:
        """Put requests into the queue as they arrive."""
        for number, arrival_s in enumerate(self.work.arrived_s.tolist()):
            if arrival_s > environment.now:
                yield environment.timeout(arrival_s - environment.now)
            self.arrived_s[number] = environment.now
            queue.put(number)

    def run(self, environment: Any, queue: Any) -> Generator[Any, Any, None]:
        """Admit requests, change trees and take steps until no request is left."""
        running = np.empty(0, dtype=np.int64)  # requests in rows
        anchor = running  # the position of each
        index, left = self.switching.next_tree(0, 0), len(self.work.tokens)
        while left:
            joined = yield from self._admit(environment, queue, len(running))
            if joined:
                running, anchor = np.append(running, joined), np.append(anchor, self.start[joined])
                yield from self._prefill(environment, joined)
            index = yield from self._change_tree(environment, index, len(running))
            step_s = self._step_s(index, running, anchor)
            started = environment.now
            yield environment.timeout(step_s)
            taken = np.minimum(self.advance[index][anchor], self.stop[running] - anchor)
            self.log.append((started, step_s, index, running, taken))
            anchor = anchor + taken
            unfinished = anchor < self.stop[running]
            if not unfinished.all():
                left -= len(unfinished) - int(unfinished.sum())
                running, anchor = running[unfinished], anchor[unfinished]

    def _admit(self, environment: Any, queue: Any, running: int) -> Generator[Any, Any, list[int]]:
        """Take waiting requests into free rows; wait for the first if the server is empty."""
        joined: list[int] = []
        if not running and not queue.items:
            began = environment.now
            joined.append((yield queue.get()))
            self.idle_s.append((began, environment.now))
        while queue.items and running + len(joined) < self.rows:
            joined.append((yield queue.get()))
        return joined

    def _prefill(self, environment: Any, joined: list[int]) -> Generator[Any, Any, None]:
        """Read the prompts of requests that joined."""
        self.admitted_s[joined] = environment.now
        if self.together is not None:
            self.prefill_s[joined] = self._together_s(self.together, joined)
        prefill_s = float(self.prefill_s[joined].sum())
        if prefill_s:
            yield environment.timeout(prefill_s)

    def _change_tree(self, environment: Any, index: int, running: int) -> Generator[Any, Any, int]:
        """Change to the tree for this number of requests, and return its index."""
        wanted = self.switching.next_tree(index, running)
        if wanted != index:
            self.switched_s.append(environment.now)
            if self.switching.switch_s:
                yield environment.timeout(self.switching.switch_s)
        return wanted

    def _together_s(self, together: Together, joined: list[int]) -> Floats:
        """Return the prefill seconds of each request that joined; an error names the one with the shortest prompt."""
        assert self.work.prompt_tokens is not None
        tokens = self.work.prompt_tokens[joined]
        try:
            return divide_prefill(together, tokens, np.zeros(len(joined), dtype=np.int64))
        except CostError as error:
            source = self.work.source(joined[int(tokens.argmin())])
            raise CostError(f"{source}: {error}" if source else str(error)) from error

    def _step_s(self, index: int, running: Ints, anchor: Ints) -> float:
        """Return the seconds of a step; an error names the number of requests and the longest of them."""
        context = self._mean_context(running, anchor)
        try:
            return self.seconds[index](len(running), context)
        except CostError as error:
            load = f"{counted(len(running), 'request')} came to decode together"
            if context is not None:
                longest = self.work.source(int(running[self._contexts(running, anchor).argmax()]))
                load += f" (the longest is that of {longest})" if longest else ""
            raise CostError(f"{load}: {error}") from error

    def _mean_context(self, running: Ints, anchor: Ints) -> int | None:
        """Return the mean tokens per sequence in the cache, rounded; None if steps are not priced by it."""
        if self.work.prompt_tokens is None or not self.by_context:
            return None
        return round(float(self._contexts(running, anchor).mean()))

    def _contexts(self, running: Ints, anchor: Ints) -> Ints:
        """Return the tokens of each sequence in the cache."""
        assert self.work.prompt_tokens is not None
        return np.asarray(self.work.prompt_tokens[running] + anchor - self.start[running])

    def served(self) -> Served:
        """Return the record of the run."""
        started, seconds, indices, requests, tokens = zip(*self.log, strict=True)
        flat = np.concatenate(requests)
        step = np.repeat(np.arange(len(requests)), [len(running) for running in requests])
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
        return Served(timeline, np.array(indices), np.array(self.switched_s), idle_s)


def _mean_committed(accepted: Ints, trace: Trace) -> float:
    """Return the mean tokens that a step commits along the trace."""
    return trace.anchors / len(walk_steps(accepted, trace).anchors)


def _proposed_levels(tree: Tree | None, accepted: Ints, trace: Trace) -> Ints | None:
    """Return the steps along the trace by the levels that were proposed; None where it does not record them."""
    if tree is None or trace.drafted is None:
        return None
    return drafted_counts(walk_steps(accepted, trace).anchors, trace, tree.depth)


def _with_cache(seconds: Seconds) -> Seconds:
    """Return the same function, which computes each price once."""
    prices: dict[tuple[int, int | None], float] = {}

    def lookup(batch: int, context: int | None) -> float:
        if (batch, context) not in prices:
            prices[batch, context] = seconds(batch, context)
        return prices[batch, context]

    return lookup


def _count_inside(begins: Floats, ends: Floats, times_s: Floats) -> Ints:
    """Return the number of intervals [begin, end) that hold each time."""
    begun = np.searchsorted(np.sort(begins), times_s, side="right")
    return np.asarray(begun - np.searchsorted(np.sort(ends), times_s, side="right"))


def _check_workload(trace: Trace, work: Workload) -> None:
    """Raise UsageError unless the workload's requests and texts are those of the trace."""
    if work.request.min() < 0 or work.request.max() >= trace.requests:
        raise UsageError(f"the workload's requests must be among the trace's {trace.requests}")
    longer = work.tokens > trace.lengths[work.request]
    if longer.any():
        raise UsageError(f"tokens[{longer.argmax()}] must not exceed its text, got {work.tokens[longer][0]}")
