"""A trace from an engine's chain counts: the steps that accepted the first draft, the first two drafts, and so on.

Such counts cover rank 0 only, at the positions that the running chain visited. A trace made of them replays that chain
to its own figures; everything else in it is assumed, and its `meta` lists the assumptions.

Counts say nothing about texts. Few steps in many texts make texts of one to three steps, whose ends cut the steps of
shorter chains; one text has no interval. So each text holds some of the steps, as few as a ratio can bear, and repeats
them until its end does not count: an interval that compares texts is then that of the counted steps.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treeopt.defaults import IMPORTED_REQUESTS
from treeopt.errors import TraceError, UsageError
from treeopt.traces.importers.synthetic_trace import (
    MAX_BYTES,
    apportion,
    drawn_by_text,
    shuffled_outcomes,
    trace_from_ranks,
)
from treeopt.traces.trace import MAX_DEPTH, MISSED, Trace

MAX_STEPS = 10**6
UNKNOWN_STEPS = 10_000
TOLERATED = 0.02  # share of draft tokens that may be missing: ends of texts shorten a few drafts of every engine
LIKE_ALL = 10.0  # steps like those of all requests that are added to a request's own rates
END_BIAS = 0.0025  # share by which the ends of texts may lower tau of shorter chains
STEPS_PER_TEXT = 25  # counted steps that a text stands for, at least: ratios of fewer are biased
FEWEST_TEXTS = 10  # fewest texts or windows, where there are that many steps: half of them are held out
SHARE_OF_MEMORY = 4  # texts are repeated up to this part of the largest trace
Histogram = NDArray[np.int64]  # steps that accept 0, 1, ... drafts
ASSUMED = (
    "only rank 0 was counted: this trace describes chains, and no tree can be chosen on it",
    "the chain counted only the positions that it visited, and all others are taken to be like them: tau of shorter "
    "chains is a guess, on public records up to 5 % off for EAGLE-3 and 13 % for n-grams; measure the length that is "
    "chosen",
    "steps are independent of each other, and texts do not differ beyond what was counted",
    "where a tree ran instead of a chain, these are depths within that tree, and say nothing about another tree",
)
LONGEST = "the longest draft that a step accepted is taken to be the length of the chain; give another with --depth"
DRAFTING = (
    "engines count the steps that drafted: where a drafter often has nothing to draft (engines' n-grams, suffixes and "
    "prompt lookup), tau over all steps is lower"
)
VISITED = "the run visited {} of the trace's {} anchors, and these are as recorded{}; the others are assumed"
NONE_ACCEPTED = "NO DRAFT WAS ACCEPTED"
BY_STEP = "intervals include chance between the counted steps and no difference between texts"
BY_WINDOW = "intervals include the differences between the {} windows of the source, and not those between texts"
REPEATED = "each counted step stands {} times in the trace, in texts that are long enough for their ends not to count"


@dataclass(frozen=True)
class Chain:
    """The counts of a chain.

    Attributes:
        survival: P(the first i + 1 drafts are accepted), which never rises.
        steps: verify steps counted; None where the source gives rates only.
        requests: drafts accepted in each step of each request, if the source records them; in order if `ordered`.
        ordered: True if the steps of a request are in their order.
        drafted: tokens drafted in each step of each request, as in `requests`, if the source records them; 0 where
            the drafter proposed nothing.
        windows: how many steps accepted 0, 1, ... drafts in each window of time, if the source has several.
        engine: the engine that counted, where the source names it.
        assumed: assumptions behind these figures, as sentences.
        undrafted: share of the steps in which nothing was drafted, where totals tell.
    """

    survival: tuple[float, ...]
    steps: int | None = None
    requests: tuple[tuple[int, ...], ...] = ()
    ordered: bool = False
    assumed: tuple[str, ...] = ()
    drafted: tuple[tuple[int, ...], ...] = ()
    windows: tuple[tuple[int, ...], ...] = ()
    engine: str | None = None
    undrafted: float = 0.0

    def __post_init__(self) -> None:
        """Check the figures.

        Raises:
            TraceError: names the position and the figure.
        """
        if not 1 <= len(self.survival) <= MAX_DEPTH:
            raise TraceError(f"a chain has 1 to {MAX_DEPTH} positions, found {len(self.survival)}")
        before = 1.0
        for position, rate in enumerate(self.survival):
            if not 0 <= rate <= 1:
                raise TraceError(f"position {position} must have a rate in [0, 1], found {rate:.6g}")
            if rate > before:
                raise TraceError(
                    f"position {position} is accepted more often ({rate:.6g}) than the one before it ({before:.6g}): "
                    "rates must be shares of all steps, not of the steps that accepted the position before"
                )
            before = rate
        if self.steps is not None and self.steps < 1:
            raise TraceError("no step was counted: did the engine speculate?")
        self._check_requests()

    def _check_requests(self) -> None:
        """Check the steps of each request.

        Raises:
            TraceError: names the request and the step.
        """
        if self.drafted and [len(part) for part in self.drafted] != [len(part) for part in self.requests]:
            raise TraceError("`drafted` must have one entry for each step of each request")
        for number, request in enumerate(self.requests):
            for step, accepted in enumerate(request):
                drafted = self.drafted[number][step] if self.drafted else len(self.survival)
                if not 0 <= accepted <= drafted <= len(self.survival):
                    raise TraceError(
                        f"request {number}, step {step} accepted {accepted} of {drafted} drafts; the chain has "
                        f"{len(self.survival)}"
                    )
            if not request:
                raise TraceError(f"request {number} has no step")

    @property
    def tau(self) -> float:
        """The tokens per step of this chain, bonus counted.

        >>> Chain((0.5, 0.25)).tau
        1.75
        """
        return 1 + sum(self.survival)


def chain_from_steps(
    requests: Sequence[Sequence[int]],
    *,
    drafted: Sequence[Sequence[int]] = (),
    depth: int | None = None,
    assumed: Sequence[str] = (),
) -> Chain:
    """Return the chain of a record of steps in their order: drafts accepted in each step of each request.

    The bonus is not counted.

    Args:
        requests: drafts accepted in each step; requests without steps are left out.
        drafted: tokens drafted in each step, 0 where the drafter proposed nothing.
        depth: longest draft that the engine was set to; default the longest that was drafted or, unknown, accepted.
        assumed: assumptions behind these figures, as sentences.

    >>> chain_from_steps([(2, 0, 1), (3,)], depth=4).survival
    (0.75, 0.5, 0.25, 0.0)

    Raises:
        TraceError: no step, or steps that contradict each other or the depth.
    """
    if drafted and len(drafted) != len(requests):
        raise TraceError("`drafted` must have one entry for each step of each request")
    present = [i for i, request in enumerate(requests) if len(request)]
    steps = tuple(tuple(int(n) for n in requests[i]) for i in present)
    tried = tuple(tuple(int(n) for n in drafted[i]) for i in present) if drafted else ()
    if not steps:
        raise TraceError("no step was counted: did the engine speculate?")
    longest = max(max(part) for part in (*steps, *tried))
    length = max(longest, 1) if depth is None else depth
    if length > MAX_DEPTH or longest > length:
        raise TraceError(f"a step has {longest} drafts, more than the depth of {min(length, MAX_DEPTH)}")
    if any(min(request) < 0 for request in steps):
        raise TraceError("a step accepted fewer than 0 drafts")
    accepted = np.concatenate([np.array(request, dtype=np.int64) for request in steps])
    survival = survival_counts(accepted, length) / len(accepted)
    return Chain(tuple(survival.tolist()), len(accepted), steps, True, tuple(assumed), tried)


def with_windows(chain: Chain, windows: Sequence[tuple[Sequence[float], int]]) -> Chain:
    """Return the chain with the counts of each window of time: its rates by position, in its number of steps.

    >>> with_windows(Chain((0.75,), 8), [((0.5,), 4), ((1.0,), 4)]).windows
    ((2, 2), (0, 4))

    Raises:
        TraceError: a window's rates rise, or are not in 0..1.
    """
    parts = []
    for rates, steps in windows:
        shares = -np.diff([1.0, *Chain(tuple(rates)).survival, 0.0])
        parts.append(tuple(apportion(shares, steps).tolist()))
    return replace(chain, windows=tuple(parts))


def with_undrafted(chain: Chain, steps: int) -> Chain:
    """Return the chain over all steps, given the number of those that drafted nothing; few are the ends of requests.

    >>> with_undrafted(Chain((0.75,), 6), 2).survival
    (0.5625,)
    """
    if chain.steps is None or steps <= TOLERATED * chain.steps:
        return chain
    every, share = chain.steps + steps, chain.steps / (chain.steps + steps)
    rates = tuple(rate * share for rate in chain.survival)
    idle = f"{steps} of {every} steps drafted nothing: tokens that were written, less those of drafts and of prefill"
    return replace(chain, survival=rates, steps=every, undrafted=1 - share, assumed=(*chain.assumed, idle))


def chain_from_counts(
    accepted: Sequence[float],
    *,
    steps: int,
    drafted: Sequence[int] | None = None,
    draft_tokens: int | None = None,
    uneven: bool = False,
    assumed: Sequence[str] = (),
) -> Chain:
    """Return a chain from counts.

    Args:
        accepted: steps that accepted at least i + 1 drafts.
        steps: all steps.
        drafted: steps that drafted at least i + 1 tokens, if counted.
        draft_tokens: tokens drafted in all steps together, if only these are counted.
        uneven: allow drafts of different lengths even if the positions left out are unknown; tokens that were not
            drafted count as rejected.
        assumed: assumptions behind these figures, as sentences.

    >>> chain_from_counts([4, 2, 1], steps=5, draft_tokens=15).survival
    (0.8, 0.4, 0.2)

    Raises:
        TraceError: counts that contradict each other, or that leave the positions open.
    """
    if steps < 1:
        raise TraceError("no step was counted: did the engine speculate?")
    if drafted is not None:
        return _by_position([int(count) for count in accepted], drafted, steps, uneven)
    counts = list(accepted)
    if draft_tokens is not None:
        if draft_tokens > MAX_DEPTH * steps:
            raise TraceError(f"{draft_tokens} tokens drafted in {steps} steps are more than {MAX_DEPTH} per step")
        counts += [0] * (-(-draft_tokens // steps) - len(counts))
    lengths: tuple[str, ...] = ()
    full = steps * len(counts)  # tokens, if every step drafted the full length
    if draft_tokens is not None and draft_tokens < full:
        missing = 1 - draft_tokens / full
        if missing > TOLERATED and not uneven:
            raise TraceError(
                f"{draft_tokens} tokens were drafted in {steps} steps of up to {len(counts)}: lengths differed, and "
                "the positions left out are unknown. Take counts while the length is constant, or statistics of "
                "requests; --uneven counts tokens that were not drafted as rejected"
            )
        lengths = (
            f"drafts had different lengths, {missing:.1%} of the tokens that steps of {len(counts)} would have were "
            "not drafted: they count as rejected",
        )
    return Chain(tuple(count / steps for count in counts), steps, assumed=(*assumed, *lengths))


def _by_position(accepted: Sequence[int], drafted: Sequence[int], steps: int, uneven: bool) -> Chain:
    """Return the chain whose rate at each position is a share of the steps that drafted it."""
    counts = [*accepted, *[0] * (len(drafted) - len(accepted))]
    if len(counts) > len(drafted) or not any(drafted):
        raise TraceError(f"{len(counts)} positions are accepted, {len([n for n in drafted if n])} drafted")
    before = steps
    for position, (number, tried) in enumerate(zip(counts, drafted, strict=True)):
        if number > tried or tried > before:
            limit, verb = (tried, "accepted") if number > tried else (before, "drafted")
            raise TraceError(f"position {position}: at most {limit} can be {verb}, found {max(number, tried)}")
        before = tried
    tries = [tried for tried in drafted if tried]
    if uneven or tries[-1] == steps:
        return chain_from_counts(counts[: len(tries)], steps=steps, draft_tokens=sum(tries), uneven=uneven)
    rates = [number / tried for number, tried in zip(counts, tries, strict=False)]
    if any(later > earlier for earlier, later in pairwise(rates)):
        raise TraceError(
            f"the positions' rates, as shares of the steps that drafted them, are "
            f"{', '.join(f'{rate:.3f}' for rate in rates)}: "
            "drafts were longer where they were better; --uneven counts tokens that were not drafted as rejected"
        )
    assumption = (
        "drafts had different lengths: each position's rate is a share of the steps that drafted it, taken to be as "
        "good as the others, so the chain that ran accepted less than the trace does"
    )
    return Chain(tuple(rates), steps, assumed=(assumption,))


def chain_trace(
    chain: Chain,
    *,
    rng: np.random.Generator,
    meta: Mapping[str, Any],
    requests: int = IMPORTED_REQUESTS,
    steps: int | None = None,
) -> Trace:
    """Return a trace of width 1 on which the whole chain accepts exactly as often as was counted.

    Where the source records the steps of each request, the trace has these requests, and the anchors that the run
    visited hold what it accepted there; in their order if the chain is `ordered`. Where it records counts, texts are
    made up: each stands for some of the steps, or for a window, and repeats them until its end no longer shortens the
    steps of shorter chains. So intervals, which compare texts, are those of the steps or windows that were counted.
    All other anchors are drawn from the rates of their text. `meta["visited"]` says how many are recorded.

    Args:
        chain: the counts.
        rng: draws orders, and everything that was not counted.
        meta: `meta` of the trace; its `assumed` is extended.
        requests: largest number of texts to make up, if the source does not record requests.
        steps: number of steps to draw, if the source does not record it.

    >>> chain = chain_from_steps([(2, 0, 1), (3,)], depth=3)
    >>> trace = chain_trace(chain, rng=np.random.default_rng(0), meta={})
    >>> trace.rank[[0, 3, 4], 0].tolist(), trace.lengths.tolist()
    ([0, -1, 0], [6, 4])

    Raises:
        TraceError: `steps` differs from the number that the source records.
        UsageError: `steps` exceeds the largest number that can be drawn.
    """
    plain_counted = any(0 in part for part in chain.drafted) or chain.undrafted > 0
    assumed = [*_none_accepted(chain), *chain.assumed, *ASSUMED, *([] if plain_counted else [DRAFTING])]
    depth = len(chain.survival)
    tried: NDArray[np.int64] | None = None
    if chain.requests:
        orders = [np.arange(len(r)) if chain.ordered else rng.permutation(len(r)) for r in chain.requests]
        texts = [np.array(request)[order] for request, order in zip(chain.requests, orders, strict=True)]
        if chain.drafted:
            tried = np.concatenate([np.array(d)[order] for d, order in zip(chain.drafted, orders, strict=True)])
        weight = LIKE_ALL
    else:
        groups, notes = _texts(chain, requests, steps, rng)
        repeats = repetitions(groups)
        assumed += [*notes, *([REPEATED.format(repeats)] if repeats > 1 else [])]
        texts = [rng.permutation(np.repeat(np.arange(depth + 1), group * repeats)) for group in groups]
        weight = 0.0
        if chain.undrafted:
            flat = np.concatenate(texts)
            tried, nothing = np.full(len(flat), depth), rng.permutation(np.flatnonzero(flat == 0))
            tried[nothing[: round(chain.undrafted * len(flat))]] = 0
    counts = np.array([np.bincount(text, minlength=depth + 1) for text in texts])
    visited = np.concatenate(texts)
    lengths = (counts @ np.arange(1, depth + 2)).tolist()
    accepted = drawn_by_text(counts + weight * counts.sum(axis=0) / counts.sum(), lengths, rng)
    starts = np.cumsum(visited + 1) - (visited + 1)
    accepted[starts] = visited
    drafted = None
    if tried is not None and (tried < depth).any():
        drafted = _drafted_like(accepted, visited, tried, rng)
        drafted[starts] = tried
    rank = np.where(np.arange(depth) < accepted[:, None], np.int16(0), np.int16(MISSED))
    if chain.requests:
        order = "" if chain.ordered else ", in an order within each request that was drawn"
        assumed.append(VISITED.format(len(visited), len(accepted), order))
    recorded = {"length": depth, "anchors": len(visited), "ordered": bool(chain.requests) and chain.ordered}
    described = {**meta, "visited": recorded, "assumed": [*meta.get("assumed", ()), *assumed]}
    return trace_from_ranks(rank, lengths, width=1, meta=described, drafted=drafted)


def _drafted_like(
    accepted: NDArray[np.int64], visited: NDArray[np.int64], tried: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return tokens drafted at every anchor, drawn from those of the recorded steps that accepted as many."""
    drafted = np.empty_like(accepted)
    for number in np.unique(accepted):
        alike = accepted == number
        drafted[alike] = rng.choice(tried[visited == number], int(alike.sum()))
    return drafted


def _none_accepted(chain: Chain) -> list[str]:
    """Return a loud sentence if no draft was ever accepted."""
    if any(chain.survival):
        return []
    number = "" if chain.steps is None else f" in {chain.steps} steps"
    return [
        f"{NONE_ACCEPTED}{number}: the engine loaded a drafter that was not trained for this target, "
        "or loaded it wrongly; speculation only costs time until that is repaired"
    ]


def _texts(
    chain: Chain, requests: int, steps: int | None, rng: np.random.Generator
) -> tuple[list[Histogram], list[str]]:
    """Return the histograms of the texts that stand for the counted steps, and sentences for `assumed`."""
    number, notes = _steps(chain, steps)
    if FEWEST_TEXTS <= len(chain.windows) <= number / STEPS_PER_TEXT and not notes:
        return [np.array(window) for window in chain.windows], [BY_WINDOW.format(len(chain.windows))]
    texts = max(min(requests, max(number // STEPS_PER_TEXT, min(number, FEWEST_TEXTS))), 1)
    outcomes = shuffled_outcomes(-np.diff([1.0, *chain.survival, 0.0]), number, rng)
    parts = np.array_split(outcomes, texts)
    return [np.bincount(part, minlength=len(chain.survival) + 1) for part in parts], [*notes, BY_STEP]


def _steps(chain: Chain, requested: int | None) -> tuple[int, list[str]]:
    """Return the number of steps to draw, and sentences about it for `assumed`."""
    limit = min(MAX_STEPS, int(MAX_BYTES / (2 * len(chain.survival) * chain.tau)))
    if chain.steps is None:
        if requested is not None and requested > limit:
            raise UsageError(f"--steps {requested}: at most {limit} can be drawn for this chain")
        number = UNKNOWN_STEPS if requested is None else requested
        return number, [f"the source does not record how many steps its rates cover; {number} were drawn"]
    if requested not in (None, chain.steps):
        raise TraceError(f"the source counts {chain.steps} steps, --steps asks for {requested}")
    if chain.steps <= limit:
        return chain.steps, []
    return limit, [f"{limit} of {chain.steps} steps were drawn: intervals are wider than with all of them"]


def survival_counts(accepted: NDArray[np.int64], depth: int) -> NDArray[np.int64]:
    """Count the steps that accepted at least 1, 2, ..., depth drafts, from the drafts accepted in each step.

    >>> survival_counts(np.array([0, 2, 1]), 2).tolist()
    [2, 1]
    """
    counts = np.bincount(accepted, minlength=depth + 1)
    at_least: NDArray[np.int64] = np.cumsum(counts[::-1])[::-1][1:]
    return at_least


def repetitions(texts: Sequence[Histogram]) -> int:
    """Return how often each text must hold its steps so that ends bias shorter chains by `END_BIAS` at most.

    The last step of a shorter chain's walk passes the end by at most E[a (a + 1)] / (2 E[a + 1]) tokens on average, the
    mean residual life of a renewal process, where a is the number of drafts that a step accepts.
    """
    steps = np.sum(texts, axis=0)
    accepted = np.arange(len(steps))
    tokens = float(steps @ (accepted + 1))
    passed = float(steps @ (accepted * (accepted + 1))) / (2 * tokens)
    needed = passed / END_BIAS * len(texts) / tokens
    affordable = MAX_BYTES / SHARE_OF_MEMORY / (tokens * (2 * len(steps) + 6))
    return max(math.ceil(min(needed, affordable)), 1)
