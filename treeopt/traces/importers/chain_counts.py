"""A trace from an engine's chain counts: the steps that accepted the first draft, the first two drafts, and so on.

Such counts cover rank 0 only, at the positions that the running chain visited. A trace made of them replays that chain
to its own figures; everything else in it is assumed, and its `meta` lists the assumptions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treeopt.errors import TraceError, UsageError
from treeopt.traces.importers.synthetic_trace import MAX_BYTES, shuffled_outcomes, trace_from_ranks
from treeopt.traces.trace import Trace
from treeopt.traces.trace_checks import MAX_DEPTH, MISSED

MAX_STEPS = 10**6
UNKNOWN_STEPS = 10_000
TOLERATED = 0.02  # share of draft tokens that may be missing: ends of texts shorten a few drafts of every engine
ASSUMED = (
    "only rank 0 was counted: this trace describes chains, and no tree can be chosen on it",
    "the chain counted only the positions that it visited; all others are taken to be like them, so that tau of "
    "shorter chains comes out too low: on shipped traces by up to 3 % for trained drafters, 8 % for prompt lookup",
    "steps are independent of each other, and texts do not differ",
    "engines count the steps that drafted: where a drafter often has nothing to draft (engines' n-grams, suffixes and "
    "prompt lookup), tau over all steps is lower",
    "where a tree ran instead of a chain, these are depths within that tree, and say nothing about another tree",
)
DRAWN = "requests are drawn, so intervals include chance between steps and no difference between texts"


@dataclass(frozen=True)
class Chain:
    """The counts of a chain.

    Attributes:
        survival: P(the first i + 1 drafts are accepted), which never rises.
        steps: verify steps counted; None where the source gives rates only.
        requests: drafts accepted in each step of each request, if the source records them; in order if `ordered`.
        ordered: True if the steps of a request are in their order.
        assumed: assumptions behind these figures, as sentences.
    """

    survival: tuple[float, ...]
    steps: int | None = None
    requests: tuple[tuple[int, ...], ...] = ()
    ordered: bool = False
    assumed: tuple[str, ...] = ()

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

    @property
    def tau(self) -> float:
        """The tokens per step of this chain, bonus counted.

        >>> Chain((0.5, 0.25)).tau
        1.75
        """
        return 1 + sum(self.survival)


def chain_from_counts(
    accepted: Sequence[int],
    *,
    steps: int,
    drafted: Sequence[int] | None = None,
    draft_tokens: int | None = None,
    uneven: bool = False,
) -> Chain:
    """Return a chain from counts.

    Args:
        accepted: steps that accepted at least i + 1 drafts.
        steps: all steps.
        drafted: steps that drafted at least i + 1 tokens, if counted.
        draft_tokens: tokens drafted in all steps together, if only these are counted.
        uneven: allow drafts of different lengths even if the positions left out are unknown; tokens that were not
            drafted count as rejected.

    >>> chain_from_counts([4, 2, 1], steps=5, draft_tokens=15).survival
    (0.8, 0.4, 0.2)

    Raises:
        TraceError: counts that contradict each other, or that leave the positions open.
    """
    if steps < 1:
        raise TraceError("no step was counted: did the engine speculate?")
    if drafted is not None:
        return _by_position(accepted, drafted, steps, uneven)
    counts = list(accepted)
    if draft_tokens is not None:
        if draft_tokens > MAX_DEPTH * steps:
            raise TraceError(f"{draft_tokens} tokens drafted in {steps} steps are more than {MAX_DEPTH} per step")
        counts += [0] * (-(-draft_tokens // steps) - len(counts))
    assumed: tuple[str, ...] = ()
    full = steps * len(counts)  # tokens, if every step drafted the full length
    if draft_tokens is not None and draft_tokens < full:
        missing = 1 - draft_tokens / full
        if missing > TOLERATED and not uneven:
            raise TraceError(
                f"{draft_tokens} tokens were drafted in {steps} steps of up to {len(counts)}: lengths differed, and "
                "the positions left out are unknown. Take counts while the length is constant, or statistics of "
                "requests; --uneven counts tokens that were not drafted as rejected"
            )
        assumed = (
            f"drafts had different lengths, {missing:.1%} of the tokens that steps of {len(counts)} would have were "
            "not drafted: they count as rejected",
        )
    return Chain(tuple(count / steps for count in counts), steps, assumed=assumed)


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
    chain: Chain, *, requests: int, rng: np.random.Generator, meta: Mapping[str, Any], steps: int | None = None
) -> Trace:
    """Return a trace of width 1 on which the whole chain accepts exactly as often as was counted.

    Shorter chains also start at positions where the whole one does not; there acceptance is drawn from the same rates.

    Args:
        chain: the counts.
        requests: number of requests to divide the steps among, if the source does not record it.
        rng: draws orders, and everything that was not counted.
        meta: `meta` of the trace; its `assumed` is extended.
        steps: number of steps to draw, if the source does not record it.

    Raises:
        TraceError: `steps` differs from the number that the source records.
        UsageError: `steps` exceeds the largest number that can be drawn.
    """
    assumed = [*chain.assumed, *ASSUMED]
    shares = -np.diff([1.0, *chain.survival, 0.0])
    if chain.requests:
        lengths = [np.array(request) if chain.ordered else rng.permutation(request) for request in chain.requests]
    else:
        number, notes = _steps(chain, steps)
        assumed += [*notes, DRAWN]
        lengths = np.array_split(shuffled_outcomes(shares, number, rng), min(requests, number))
    on_walk = np.concatenate(lengths)
    tokens = on_walk + 1
    first = np.cumsum(tokens) - tokens
    accepted = np.empty(int(tokens.sum()), dtype=np.int64)
    between = np.ones(len(accepted), dtype=bool)
    between[first] = False
    accepted[between] = shuffled_outcomes(shares, int(between.sum()), rng)
    accepted[first] = on_walk
    rank = np.where(np.arange(len(chain.survival)) < accepted[:, None], np.int16(0), np.int16(MISSED))
    sizes = [int((part + 1).sum()) for part in lengths]
    return trace_from_ranks(rank, sizes, width=1, meta={**meta, "assumed": [*meta.get("assumed", ()), *assumed]})


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
