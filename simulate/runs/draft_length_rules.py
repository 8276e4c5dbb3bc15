"""Rules of draft length while serving: how many tokens of each drafted chain the next step verifies, and its seconds.

* `Scheduled`: none, a fixed length, a length by running requests with hysteresis, and TensorRT-LLM's switch, which
  turns speculation off for good when the last requests accepted too little.
* `Confident`: llama.cpp drafts on while the drafter's probability is at least `--spec-draft-conf-min`.
* `Budgeted`: adaptive verification of vLLM (PR 47808, blog of 2026-08-14) and SGLang's DSpark planner. Each request
  drafts K tokens; S(r, k) is the product of its confidences up to k. The budget B maximises (requests + the sum of the
  B largest S) / (draft_s[requests] + verify_s[requests + B]) by the confidences of an earlier step, because the host
  learns them late; the B largest by the present ones are verified. A new request counts as certain.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from simulate.runs.run_costs import sizes_above
from simulate.runs.timeline import Floats, Ints
from simulate.runs.tree_switching import Switching
from treeopt.cost_model import CostModel
from treeopt.errors import CostError, TraceError, UsageError
from treeopt.replay.static_tree import replay_tree
from treeopt.traces.confidence_reliability import confidences
from treeopt.traces.trace import Trace
from treeopt.tree import Tree

FORMS = (
    "none, fixed:K, schedule (the best for each number of requests), schedule:K@N,K@N,K (K up to N requests), "
    "switch:K,TAU@W (fixed, and off for good once W requests committed fewer than TAU tokens a step), conf-min:P, "
    "adaptive (vLLM), adaptive:sglang, or oracle (adaptive, knowing which tokens are right); adaptive@K drafts K tokens"
)
AGE = {"adaptive": 1, "adaptive:sglang": 2, "oracle": 0}  # steps by which the confidences of the budget are old


@dataclass(frozen=True, eq=False)
class StepTimes:
    """Seconds of the steps of some requests.

    Attributes:
        plain_s: a step without drafter.
        draft_s: float64 (K + 1,), drafting 0, 1, ... levels.
        verify_s: float64 (n K + 1,), the rest of a step that verifies 0, 1, ... drafted tokens of n requests together.
    """

    plain_s: float
    draft_s: Floats
    verify_s: Floats


Times = Callable[[int, int | None], StepTimes]  # requests, context


def times_of(cost: CostModel, depth: int, *, pad_to: int = 0) -> Times:
    """Return the seconds of steps by requests and context; chains of different lengths cost what their tokens do.

    Between tokens per request that have a cost, seconds lie on straight lines; totals are padded to captured graphs.

    Args:
        cost: seconds of steps.
        depth: tokens drafted, K.
        pad_to: largest batch size that is tried where one has no cost; 0: no padding.
    """
    captured = np.array([*getattr(cost, "captured", ()), np.inf])

    @cache
    def times(requests: int, context: int | None) -> StepTimes:
        failed: CostError | None = None
        for size in (requests, *sizes_above(cost, requests, pad_to)):
            try:
                parts = cost.parts(batch=size, tokens=depth + 1, depth=depth, width=1, context=context)
                plain_s = cost.plain_s(batch=size, context=context)
                verify, draft = parts.verify_s[1:].copy(), np.append(0.0, parts.draft_s[:, 1].cumsum())
                verify[0] = verify[0] if np.isfinite(verify[0]) else plain_s
                if np.isfinite([verify[-1], draft[-1]]).all():
                    break
                why = f"a chain of {depth} tokens at batch {size} has no cost: give a shorter one, as in fixed:3"
                raise CostError(why)
            except CostError as error:
                failed = failed or error
        else:
            assert failed is not None
            raise failed
        known = np.flatnonzero(np.isfinite(verify))
        total = requests + np.arange(requests * depth + 1)
        padded = captured[np.searchsorted(captured, total)]
        tokens = np.where(np.isinf(padded), total, padded) / requests
        return StepTimes(plain_s, draft, np.interp(tokens, known + 1, verify[known]))

    return times


@dataclass(frozen=True, eq=False)
class Verified:
    """The choice for a step: drafted tokens verified of each request, (n,), levels drafted, and seconds on top."""

    lengths: Ints
    levels: int
    extra_s: float = 0.0


class LengthRule(ABC):
    """A rule that chooses draft lengths; it may hold a state, so each run needs its own.

    Attributes:
        depth: the most tokens drafted, K; at least 1.
        age: steps by which the confidences that `choose` receives as `aged` are old.
    """

    depth: int
    age: int = 0

    @abstractmethod
    def choose(self, live: Floats, aged: Floats, times: StepTimes) -> Verified:
        """Return the choice for requests whose chains survive with these probabilities, (n, K)."""

    def ended(self, tokens: int, steps: int) -> None:  # noqa: B027 - most rules learn nothing
        """Learn that a request ended after so many tokens and steps."""


@dataclass(eq=False)
class Scheduled(LengthRule):
    """Lengths by the number of running requests.

    Attributes:
        lengths: from few requests to many.
        switching: where they change.
        tau: mean tokens per step of the last `window` requests below which speculation goes off for good.
        window: number of these requests; 0: never.
    """

    lengths: tuple[int, ...]
    switching: Switching
    tau: float = 0.0
    window: int = 0

    def __post_init__(self) -> None:
        """Start with the fewest requests."""
        self.depth, self.index = max(*self.lengths, 1), 0
        self.last: deque[tuple[int, int]] = deque()

    @property
    def length(self) -> int | None:
        """The length of all steps; None if it may change."""
        return self.lengths[0] if len(self.lengths) == 1 and not self.window and self.tau >= 0 else None

    def choose(self, live: Floats, aged: Floats, times: StepTimes) -> Verified:
        """See `LengthRule.choose`."""
        index = self.switching.next_tree(self.index, len(live))
        extra_s = 0.0 if index == self.index else self.switching.switch_s
        self.index = index
        length = self.lengths[index] if self.tau >= 0 else 0
        return Verified(np.full(len(live), length), length, extra_s)

    def ended(self, tokens: int, steps: int) -> None:
        """See `LengthRule.ended`."""
        if self.window:
            self.last.append((tokens, steps))
            if len(self.last) >= self.window:
                total, taken = np.sum(self.last, axis=0)
                self.tau = -1.0 if total < self.tau * taken else self.tau
                self.last.popleft()


@dataclass(eq=False)
class Confident(LengthRule):
    """Drafting goes on while the confidence in the next token is at least `least`; all drafted tokens are verified."""

    depth: int
    least: float

    def choose(self, live: Floats, aged: Floats, times: StepTimes) -> Verified:
        """See `LengthRule.choose`."""
        before = np.concatenate([np.ones((len(live), 1)), live[:, :-1]], axis=1)
        enough = (live >= self.least * before) & (live > 0)
        lengths = np.logical_and.accumulate(enough, axis=1).sum(axis=1)
        return Verified(lengths, min(int(lengths.max()) + 1, self.depth))


@dataclass(eq=False)
class Budgeted(LengthRule):
    """Adaptive verification. `extra_s`: seconds that its own work adds to each step."""

    depth: int
    age: int
    extra_s: float = 0.0

    def choose(self, live: Floats, aged: Floats, times: StepTimes) -> Verified:
        """See `LengthRule.choose`."""
        worth = np.sort(aged, axis=None)[::-1]
        tokens = np.cumsum(np.append(float(len(live)), worth))
        seconds = times.draft_s[self.depth] + np.maximum.accumulate(times.verify_s)
        budget = int(np.argmax(tokens / seconds))
        best = np.argsort(-live, axis=None, kind="stable")[:budget]
        return Verified(np.bincount(best // self.depth, minlength=len(live)), self.depth, self.extra_s)


def survivals(trace: Trace, text: str, depth: int) -> tuple[Floats, str]:
    """Return P(the chain from each anchor survives up to each token) as the rule of this text knows it, (P, depth).

    Also return what was assumed. The drafter's probabilities go through a logistic curve of their log-odds with an
    intercept for each position, as vLLM estimates online; it is fitted to the trace. Those of a confidence head are
    taken as they are, and so is what `conf-min` compares.

    Raises:
        TraceError: the rule needs confidences, and the trace has none.
    """
    right, text = trace.rank[:, :depth] == 0, text.partition("@")[0]
    if text == "oracle":
        return np.cumprod(right, axis=1, dtype=np.float64), ""
    if text in AGE or text.startswith("conf-min"):
        if (known := confidences(trace)) is None:
            raise TraceError(
                f"{text} needs the drafter's confidences, which the trace lacks: record them with `trace collect "
                "--confidences`, or give oracle, the most that they can be worth"
            )
        given = known[0][:, :depth]
        if text in AGE and trace.meta.get("confidence") != "head":
            given = _logistic(given, right, trace.left)
        return np.asarray(np.cumprod(given, axis=1)), known[1]
    return np.ones(right.shape), ""


def _logistic(given: Floats, right: NDArray[np.bool_], left: Ints) -> Floats:
    """Return given probabilities, calibrated by a slope and an intercept for each position (maximum likelihood)."""
    from scipy.optimize import minimize
    from scipy.special import expit, logit

    odds = logit(given.clip(1e-4, 1 - 1e-4))
    below = np.cumprod(np.pad(right, ((0, 0), (1, 0)), constant_values=True)[:, :-1], axis=1, dtype=bool)
    counted = below & (np.arange(odds.shape[1]) < left[:, None])

    def loss(values: Floats) -> tuple[float, Floats]:
        z = values[0] * odds + values[1:]
        missed = np.where(counted, expit(z) - right, 0.0)
        entropy = np.where(counted, np.logaddexp(0, z) - right * z, 0.0)
        gradient = np.append((missed * odds).sum(), missed.sum(axis=0))
        # A weak pull to the cold start keeps positions that were never reached finite.
        pull = values - np.append(0.5, np.full(odds.shape[1], -0.2))
        return float(entropy.sum() + 0.5 * pull @ pull), gradient + pull

    fit = minimize(loss, np.append(0.5, np.full(odds.shape[1], -0.2)), jac=True, method="L-BFGS-B").x
    return np.asarray(expit(fit[0] * odds + fit[1:]))


def best_lengths(trace: Trace, times: Times, depth: int, rows: int) -> list[int]:
    """Return the fastest fixed length at 1, 2, ..., `rows` running requests, by replayed tokens per step."""
    tau = chain_tau(trace, depth)
    return [int(np.argmax(fixed_speeds(tau, times(requests, None), requests))) for requests in range(1, rows + 1)]


def chain_tau(trace: Trace, depth: int) -> Floats:
    """Return the replayed tokens per step of chains of 0, 1, ..., `depth` tokens, float64 (depth + 1,)."""
    return np.array([1.0, *(replay_tree(Tree.chain(length), trace).tau for length in range(1, depth + 1))])


def fixed_speeds(tau: Floats, times: StepTimes, requests: int) -> Floats:
    """Return tokens per second and request of chains of 0, 1, ... tokens, given their tokens per step."""
    drafted_s = times.draft_s + times.verify_s[::requests]
    return np.asarray(tau / np.append(times.plain_s, drafted_s[1:]))


def length_rule(
    text: str,
    *,
    depth: int,
    lengths: Callable[[], list[int]],
    hysteresis: int = 0,
    switch_s: float = 0.0,
    extra_s: float = 0.0,
) -> LengthRule:
    """Return the rule that a text of `FORMS` names.

    Args:
        text: the rule.
        depth: tokens that rules without a length draft.
        lengths: makes the lengths of `schedule`, see `best_lengths`.
        hysteresis: requests by which a schedule changes back later.
        switch_s: seconds that a change takes.
        extra_s: seconds that adaptive verification adds to each step.

    Raises:
        UsageError: another text.
    """
    kind, _, rest = text.partition(":")
    adaptive, _, drafted = text.partition("@")

    def by_requests(parts: list[tuple[int, int]]) -> Scheduled:
        """Return the schedule of lengths and the most requests that each holds for, but the last."""
        ups = tuple(until + 1 for _, until in parts[:-1])
        downs = tuple(max(0, up - 1 - hysteresis) for up in ups)
        trees = tuple(Tree.chain(length) if length else None for length, _ in parts)
        return Scheduled(tuple(length for length, _ in parts), Switching(trees, ups, downs, switch_s))

    try:
        if adaptive in AGE:
            return Budgeted(max(_count(drafted or str(depth), depth), 1), AGE[adaptive], extra_s)
        if text == "none":
            return by_requests([(0, 0)])
        if kind == "fixed":
            return by_requests([(_count(rest, depth), 0)])
        if kind == "conf-min" and 0 <= float(rest) <= 1:
            return Confident(depth, float(rest))
        if kind == "switch":
            length, _, limits = rest.partition(",")
            tau, _, window = limits.partition("@")
            rule = by_requests([(_count(length, depth), 0)])
            rule.tau, rule.window = float(tau), int(window)
            if 0 <= rule.tau < np.inf and rule.window >= 1:
                return rule
        if text == "schedule":
            best = lengths()
            ends = [n for n in range(1, len(best)) if best[n] != best[n - 1]]
            return by_requests([(best[end - 1], end) for end in (*ends, len(best))])
        if kind == "schedule":
            steps = [part.partition("@") for part in rest.split(",")]
            ends = [0, *(int(until) for _, _, until in steps[:-1])]
            if not steps[-1][2] and (np.diff(ends) > 0).all():
                return by_requests([(_count(step[0], depth), n) for step, n in zip(steps, [*ends[1:], 0], strict=True)])
    except ValueError:
        pass
    raise UsageError(f"a draft length is {FORMS}, got {text!r:.60}")


def _count(text: str, depth: int) -> int:
    """Return a draft length; UsageError beyond the tokens that are known."""
    if not 0 <= int(text) <= depth:
        raise UsageError(f"a draft length must be 0 to {depth}, the depth of trace and step times, got {text}")
    return int(text)
