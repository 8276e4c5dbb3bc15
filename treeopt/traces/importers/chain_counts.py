"""What an engine counts of a chain of drafts: how many steps kept the first, the first two, ... and no more than that.

Such counts know rank 0 only, at the positions that the chain which ran has visited. A trace made of them replays that
chain to its own figures; what else it holds is assumed, and said.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treeopt.errors import TraceError, UsageError
from treeopt.traces.importers.synthetic_trace import MAX_BYTES, dealt, with_lengths
from treeopt.traces.trace import Trace
from treeopt.traces.trace_checks import MAX_DEPTH, MISSED

MAX_STEPS = 10**6
UNKNOWN_STEPS = 10_000
TOLERATED = 0.02  # of the draft tokens: ends of texts shorten a few drafts of every engine
ASSUMED = (
    "only rank 0 was counted: this trace tells of chains, and no tree can be chosen on it",
    "the chain counted only the positions that it visited; all others are taken to be like them, so that tau of "
    "shorter chains comes out too low: on shipped traces by up to 3 % for trained drafters, 8 % for prompt lookup",
    "steps are independent of each other, and texts of one kind",
    "engines count the steps that drafted: where a drafter often has nothing to draft (engines' n-grams, suffixes and "
    "prompt lookup), tau over all steps is lower",
    "where a tree ran instead of a chain, these are depths within that tree, and no other can be told from them",
)
DRAWN = "requests are drawn, so intervals know of chance between steps and of nothing between texts"


@dataclass(frozen=True)
class Chain:
    """Counts of a chain.

    Attributes:
        survival: P(the first i + 1 drafts are accepted), which never rises.
        steps: verify steps counted; None where the source gives rates only.
        requests: drafts accepted in each step of each request, where the source tells; in order if `ordered`.
        ordered: whether the steps of a request are in their order.
        assumed: what had to be assumed to come to these figures.
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
                    "rates must be of all steps, not given the position before"
                )
            before = rate
        if self.steps is not None and self.steps < 1:
            raise TraceError("no step was counted: did the engine speculate?")

    @property
    def tau(self) -> float:
        """Tokens a step of this chain, bonus counted.

        >>> Chain((0.5, 0.25)).tau
        1.75
        """
        return 1 + sum(self.survival)


def counted(
    accepted: Sequence[int],
    *,
    steps: int,
    drafted: Sequence[int] | None = None,
    draft_tokens: int | None = None,
    uneven: bool = False,
) -> Chain:
    """A chain from counts.

    Args:
        accepted: steps that kept at least i + 1 drafts.
        steps: all steps.
        drafted: steps that drafted at least i + 1, where that is counted.
        draft_tokens: drafted by all steps together, where only that is.
        uneven: accept drafts of different lengths though the positions do not tell; what was not drafted counts as
            rejected.

    >>> counted([4, 2, 1], steps=5, draft_tokens=15).survival
    (0.8, 0.4, 0.2)

    Raises:
        TraceError: counts that contradict each other, or that do not tell.
    """
    if steps < 1:
        raise TraceError("no step was counted: did the engine speculate?")
    if drafted is not None:
        return _by_position(accepted, drafted, steps, uneven)
    kept = list(accepted)
    if draft_tokens is not None:
        if draft_tokens > MAX_DEPTH * steps:
            raise TraceError(f"{draft_tokens} tokens drafted in {steps} steps are more than {MAX_DEPTH} a step")
        kept += [0] * (-(-draft_tokens // steps) - len(kept))
    assumed: tuple[str, ...] = ()
    due = steps * len(kept)
    if draft_tokens is not None and draft_tokens < due:
        missing = 1 - draft_tokens / due
        if missing > TOLERATED and not uneven:
            raise TraceError(
                f"{draft_tokens} tokens were drafted in {steps} steps of up to {len(kept)}: lengths differed, and "
                "which positions were left out is not told. Take counts while the length is constant, or statistics of "
                "requests; --uneven counts what was not drafted as rejected"
            )
        assumed = (
            f"drafts were of different lengths, {missing:.1%} of the tokens that steps of {len(kept)} would have were "
            "not drafted: they count as rejected",
        )
    return Chain(tuple(count / steps for count in kept), steps, assumed=assumed)


def _by_position(accepted: Sequence[int], drafted: Sequence[int], steps: int, uneven: bool) -> Chain:
    """Of each position, the rate among the steps that drafted it."""
    kept = [*accepted, *[0] * (len(drafted) - len(accepted))]
    if len(kept) > len(drafted) or not any(drafted):
        raise TraceError(f"{len(kept)} positions are accepted, {len([n for n in drafted if n])} drafted")
    before = steps
    for position, (number, tried) in enumerate(zip(kept, drafted, strict=True)):
        if number > tried or tried > before:
            most, what = (tried, "accepted") if number > tried else (before, "drafted")
            raise TraceError(f"position {position}: at most {most} can be {what}, found {max(number, tried)}")
        before = tried
    tries = [tried for tried in drafted if tried]
    if uneven or tries[-1] == steps:
        return counted(kept[: len(tries)], steps=steps, draft_tokens=sum(tries), uneven=uneven)
    rates = [number / tried for number, tried in zip(kept, tries, strict=False)]
    if any(later > earlier for earlier, later in pairwise(rates)):
        raise TraceError(
            f"of the steps that drafted them, positions are accepted {', '.join(f'{rate:.3f}' for rate in rates)}: "
            "drafts were longer where they were better; --uneven counts what was not drafted as rejected"
        )
    said = (
        "drafts were of different lengths: each position's rate is of the steps that drafted it, taken to be as good "
        "as those that did not, so the chain that ran kept less than the trace"
    )
    return Chain(tuple(rates), steps, assumed=(said,))


def chain_trace(
    chain: Chain, *, requests: int, rng: np.random.Generator, meta: Mapping[str, Any], steps: int | None = None
) -> Trace:
    """A trace of width 1 whose steps, walked by the whole chain, accept exactly as often as was counted.

    Shorter chains also start where the whole one does not; what they find there is drawn from the same figures.

    Args:
        chain: the counts.
        requests: how many to divide the steps among, where the source does not say.
        rng: draws orders and what was not counted.
        meta: of the trace; `assumed` is added to.
        steps: how many to draw where the source does not say.

    Raises:
        TraceError: the source tells the number of steps, and another was asked for.
        UsageError: more steps asked for than are drawn.
    """
    assumed = [*chain.assumed, *ASSUMED]
    shares = -np.diff([1.0, *chain.survival, 0.0])
    if chain.requests:
        lengths = [np.array(request) if chain.ordered else rng.permutation(request) for request in chain.requests]
    else:
        number, said = _steps(chain, steps)
        assumed += [*said, DRAWN]
        lengths = np.array_split(dealt(shares, number, rng), min(requests, number))
    kept = np.concatenate(lengths)
    tokens = kept + 1
    first = np.cumsum(tokens) - tokens
    accepted = np.empty(int(tokens.sum()), dtype=np.int64)
    between = np.ones(len(accepted), dtype=bool)
    between[first] = False
    accepted[between] = dealt(shares, int(between.sum()), rng)
    accepted[first] = kept
    rank = np.where(np.arange(len(chain.survival)) < accepted[:, None], np.int16(0), np.int16(MISSED))
    sizes = [int((part + 1).sum()) for part in lengths]
    return with_lengths(rank, sizes, width=1, meta={**meta, "assumed": [*meta.get("assumed", ()), *assumed]})


def _steps(chain: Chain, asked: int | None) -> tuple[int, list[str]]:
    """Steps to draw, and what must be said of their number."""
    most = min(MAX_STEPS, int(MAX_BYTES / (2 * len(chain.survival) * chain.tau)))
    if chain.steps is None:
        if asked is not None and asked > most:
            raise UsageError(f"--steps {asked}: at most {most} are drawn of this chain")
        number = UNKNOWN_STEPS if asked is None else asked
        return number, [f"the source does not say of how many steps its rates are; {number} were drawn"]
    if asked not in (None, chain.steps):
        raise TraceError(f"the source counts {chain.steps} steps, asked for {asked}")
    if chain.steps <= most:
        return chain.steps, []
    return most, [f"{most} steps were drawn of {chain.steps}: intervals are wider than theirs"]


def histogram_of(lengths: NDArray[np.int64], depth: int) -> NDArray[np.int64]:
    """Steps that kept at least 1, 2, ..., depth drafts, of the lengths kept."""
    counts = np.bincount(lengths, minlength=depth + 1)
    found: NDArray[np.int64] = np.cumsum(counts[::-1])[::-1][1:]
    return found
