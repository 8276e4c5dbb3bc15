"""A simulated server, or a batch, in which a rule chooses the draft lengths of all requests anew at every step."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np

from simulate.runs.draft_length_rules import LengthRule, Scheduled, best_lengths, length_rule, survivals, times_of
from simulate.runs.run_costs import PAD, Prompts, sizes_above
from simulate.runs.server import Decoding, ServerRun, serve_day
from simulate.runs.server_load import Workload
from simulate.runs.timeline import Emissions, Floats, Ints, Timeline
from simulate.runs.tree_switching import Switching
from treeopt.cost_model import CostModel, Measured, covered_limits
from treeopt.replay.sampled_rules import ranks_for_trees
from treeopt.replay.static_tree import accepted_lengths
from treeopt.traces.trace import Trace
from treeopt.tree import Tree

CONTEXT = 16  # contexts that differ by less share their prices


class LengthRun(ServerRun):
    """The state of a run; each step is a stretch of its own, except with one length and no contexts."""

    def __init__(self, decoding: "LengthDecoding", work: Workload, *rest: Any) -> None:
        """Start before the first arrival."""
        super().__init__(decoding, work, *rest)
        self.decoding, self.rule = decoding, decoding.rule()
        self.begins = decoding.trace.starts[work.request]
        self.written = np.zeros(len(work.tokens), dtype=np.int64)
        self.before = np.full((max(self.rule.age, 1), len(work.tokens)), -1)  # anchors of the last steps, oldest first
        self.emitted: list[tuple[Ints, Ints]] = []

    def run(self) -> None:
        """Admit requests and take steps until no request is left."""
        if self.decoding.length is not None and not self.by_context:
            super().run()
            return
        while (self.written < self.work.tokens).any():
            joined = self._admit()
            self.due += [(0, request) for request in joined]
            running = np.array([request for _, request in self.due])
            seconds, tokens = self._step(running)
            self.log.append((self.now, [seconds], 1, 0))
            self.emitted.append((running, tokens))
            self.step += 1
            self.now += seconds
            self.written[running] += tokens
            self.first_s[joined] = self.now
            ended = running[self.written[running] == self.work.tokens[running]]
            self.done_s[ended], self.ended[ended] = self.now, self.step
            for request in ended.tolist():
                self.rule.ended(int(self.work.tokens[request]), int(self.step - self.joined[request]))
            self.due = [(0, request) for _, request in self.due if self.written[request] < self.work.tokens[request]]

    def _step(self, running: Ints) -> tuple[float, Ints]:
        """Return the seconds of a step, and the tokens that it commits to each request."""
        decoding, rule = self.decoding, self.rule
        anchors, aged = self.begins[running] + self.written[running], self.before[0, running]
        context = None
        if self.by_context:
            assert self.work.prompt_tokens is not None
            cached = int((self.work.prompt_tokens[running] + self.written[running]).mean())
            context = max(cached - cached % CONTEXT, decoding.shortest)
        times = decoding.times(len(running), context)
        survival = decoding.survival
        live = survival[anchors]
        chosen = rule.choose(live, np.where(aged[:, None] < 0, 1.0, survival[aged]) if rule.age else live, times)
        self.before[:, running] = np.concatenate([self.before[1:, running], anchors[None]])
        lengths = np.minimum(chosen.lengths, decoding.proposed[anchors])
        drafted_s = times.draft_s[chosen.levels] + times.verify_s[lengths.sum()]
        seconds = drafted_s if chosen.levels else times.plain_s
        left = self.work.tokens[running] - self.written[running]
        tokens = np.minimum(np.minimum(decoding.accepted[anchors], lengths) + 1, left)
        return float(seconds + chosen.extra_s), tokens

    def _timeline(self, tree_index: Ints, arrived_s: Floats) -> Timeline:
        """Return the times of all requests and steps."""
        if not self.emitted:
            return super()._timeline(tree_index, arrived_s)
        request, tokens = (np.concatenate(part) for part in zip(*self.emitted, strict=True))
        step = np.repeat(np.arange(len(self.emitted)), [len(running) for running, _ in self.emitted])
        order = np.lexsort((step, request))
        return Timeline.of(
            Emissions(request[order], step[order], tokens[order]),
            started_s=np.array([start for start, *_ in self.log]),
            step_s=np.array([seconds[0] for _, seconds, *_ in self.log]),
            prefill_s=self.prefill_s,
            admitted_s=self.admitted_s,
            arrived_s=arrived_s,
        )


class LengthDecoding(Decoding):
    """A rule of draft lengths on the texts of a trace, and what steps cost."""

    server = LengthRun

    def __init__(
        self,
        trace: Trace,
        rule: Callable[[], LengthRule],
        survival: Floats,
        cost: CostModel,
        *,
        rows: int,
        pad: bool = False,
    ) -> None:
        """Prepare the chain that the rule drafts at most; what is not listed is as for `Decoding`.

        Args:
            trace: the requests' texts; its ranks determine acceptance.
            rule: makes the rule of a run.
            survival: float64 (P, K or more), what the rule knows of each chain; see `draft_length_rules.survivals`.

        Raises:
            TraceError: the chain is deeper than the trace.
        """
        known = rule()
        depth = known.depth
        self.length = known.length if isinstance(known, Scheduled) and trace.drafted is None else None
        super().__init__(
            trace, Switching((Tree.chain(depth if self.length is None else self.length),)), cost, rows=rows, pad=pad
        )
        self.rule, self.survival = rule, survival[:, :depth]
        self.accepted = accepted_lengths(Tree.chain(depth), trace)
        self.proposed = np.full(trace.anchors, depth) if trace.drafted is None else trace.drafted.astype(np.int64)
        self.times = times_of(cost, depth, pad_to=PAD * rows if pad else 0)
        self.shortest = int(getattr(cost, "context", (0, 0))[0])
        self.seconds = [cache(self._chain_s)]

    def _chain_s(self, batch: int, context: int | None) -> float:
        """Return the seconds of a step with the rule's one length."""
        times, length = self.times(batch, context), self.length
        return float(times.draft_s[length] + times.verify_s[batch * length]) if length else times.plain_s

    @property
    def drafts(self) -> bool:
        """True if a drafter runs."""
        rule = self.rule()
        return not isinstance(rule, Scheduled) or any(rule.lengths)


def length_decoding(
    trace: Trace,
    text: str,
    cost: CostModel,
    *,
    rows: int,
    pad: bool = False,
    fit: Trace | None = None,
    hysteresis: int = 0,
    switch_s: float = 0.0,
    adaptive_s: float = 0.0,
    seed: int = 0,
) -> tuple[LengthDecoding, str]:
    """Return the decoding with the draft lengths that a text names (`draft_length_rules.FORMS`), and what was assumed.

    Rules without a length draft as deep as the trace and the step times go.

    Args:
        trace: the requests.
        text: the rule.
        cost: seconds of steps.
        rows: most requests decoded together.
        pad: batch sizes without a cost take that of the nearest one above.
        fit: the requests that `schedule` is chosen on; None: the trace itself.
        hysteresis: requests by which a schedule changes back later.
        switch_s: seconds that a change of a schedule takes.
        adaptive_s: seconds that adaptive verification adds to each step.
        seed: of drawn ranks.

    Raises:
        UsageError: no such rule.
        CostError: no chain has a cost at these requests.
        TraceError: the rule needs confidences that the trace lacks.
    """
    trace = ranks_for_trees(trace, [Tree.chain(1)], seed)
    pad_to = PAD * rows if pad else 0
    sizes = (rows, *sizes_above(cost, rows, pad_to))
    size = next((n for n in sizes if not (isinstance(cost, Measured) and cost.outside([n]))), rows)
    depth = min(covered_limits(cost, [size], nodes=trace.depth, depth=trace.depth)) or 1

    def lengths() -> list[int]:
        fitted = trace if fit is None else ranks_for_trees(fit, [Tree.chain(1)], seed)
        return best_lengths(fitted, times_of(cost, depth, pad_to=pad_to), depth, rows)

    asked: dict[str, Any] = {"hysteresis": hysteresis, "switch_s": switch_s, "extra_s": adaptive_s}
    make = partial(length_rule, text, depth=depth, lengths=cache(lengths), **asked)
    survival, assumed = survivals(trace, text, make().depth)
    return LengthDecoding(trace, make, survival, cost, rows=rows, pad=pad), assumed


def run_lengths(decoding: LengthDecoding, prompts: Prompts, *, batch: int, requests: int | None = None) -> Timeline:
    """Return the times of `requests` requests, the trace's in turn, decoded `batch` at a time; rows are refilled."""
    trace = decoding.trace
    request = np.resize(np.arange(trace.requests), requests or trace.requests)
    tokens = None if prompts.tokens is None else np.broadcast_to(prompts.tokens, trace.requests)[request]
    work = Workload(np.zeros(len(request)), request, trace.lengths[request], tokens)
    prefill_s = prompts.seconds(tokens, drafted=decoding.drafts)
    served = serve_day(decoding, work, rows=batch, prefill_s=prefill_s, by_context=prompts.by_context)
    return replace(served.timeline, arrived_s=served.timeline.admitted_s)
