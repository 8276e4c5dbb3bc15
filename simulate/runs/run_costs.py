"""Seconds of the steps and prompts of a simulated run.

A batch size without a cost may be padded to the next one that has a cost. Lengths and prefill times of prompts
come from the caller, the trace and the profile.
"""

import math
from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from itertools import pairwise
from typing import Any

import numpy as np

from simulate.profiles.profile import Profile
from simulate.runs.timeline import Floats, Ints
from treeopt.cost_model import CostModel
from treeopt.errors import CostError, UsageError
from treeopt.replay.static_tree import step_seconds as price_along
from treeopt.settings import Settings, setting
from treeopt.traces.trace import Trace
from treeopt.tree import Tree

Seconds = Callable[[int, int | None], float]  # batch size, context -> seconds of a step

PAD = 8  # with padding, batch sizes up to this multiple of the batch are tried for a cost
Together = Callable[[Floats], Floats]  # tokens of all prompts that are read at once -> seconds
FEW = 0.05  # share of the trace's prompts that may be shorter or longer than the profile covers
FREE = (
    "prompts cost nothing, so a real server is slower, above all to the first token; give --prompt-tokens with a "
    "profile that covers prefill, or --prefill-s and --prefill-s-per-token"
)


def price_steps(
    tree: Tree | None, cost: CostModel, *, committed: float, drafted: Ints | None = None, pad_to: int = 0
) -> Seconds:
    """Return a function from batch size and context to the seconds of a step.

    A batch size without a cost takes that of the nearest one above, up to `pad_to`.

    Args:
        tree: drafted at every step; None decodes plainly.
        cost: seconds of a step.
        committed: tokens per sequence that every step commits: the mean of the run.
        drafted: steps by the levels that were proposed, see `treeopt.replay.static_tree.step_seconds`.
        pad_to: largest batch size that is tried; 0: no padding.
    """

    def price(batch: int, context: int | None) -> float:
        """Return the seconds of a step at exactly this batch size."""
        if tree is None or tree.nodes == 0:
            return cost.plain_s(batch=batch, context=context)
        return price_along(tree, cost, batch=batch, context=context, committed=committed, drafted=drafted)

    def seconds(batch: int, context: int | None) -> float:
        """Return the seconds of a step, padded if need be."""
        try:
            return price(batch, context)
        except CostError:
            for size in sizes_above(cost, batch, pad_to):
                try:
                    return price(size, context)
                except CostError:
                    continue
            raise

    return seconds


def by_parabolas(seconds: Seconds, cost: CostModel) -> Callable[[int, Ints], Floats]:
    """Return a function from batch size and contexts to the seconds of steps, float64 (contexts,).

    Between two contexts that a profile was measured at, its prices are parabolas, which three prices determine; beyond
    them they are constant. Other cost models price each context.
    """
    low, high = cost.context if isinstance(cost, Profile) else (1, 0)
    ends = {int(end) for times in getattr(cost, "batches", ()) for end in (times.context, math.ceil(times.context))}
    knots = np.array(sorted(min(max(end, low), high) for end in {*ends, low, high}))

    @cache
    def parabolas(batch: int) -> Floats:
        """Return the coefficients between every two knots, from the lower one, float64 (3, knots - 1)."""
        rows = []
        for begin, end in pairwise(knots.tolist()):
            places = sorted({begin, (begin + end) // 2, end})
            fit = np.polyfit(np.array(places) - begin, [known(batch, place) for place in places], len(places) - 1)
            rows.append([0.0] * (3 - len(fit)) + fit.tolist())
        return np.array(rows).T

    known, begins = cache(seconds), knots.tolist()

    def priced(batch: int, contexts: Ints) -> Floats:
        least, most = int(contexts.min()), int(contexts.max())
        if len(begins) < 2 or least < low or most > high:
            return np.array([known(batch, context) for context in contexts.tolist()])
        place: Any = min(bisect(begins, least), len(begins) - 1) - 1
        if most >= begins[place + 1]:  # not all lie between the same two knots
            place = np.clip(np.searchsorted(knots, contexts, side="right") - 1, 0, len(begins) - 2)
        square, slope, start = parabolas(batch)[:, place]
        beyond = contexts - knots[place]
        return np.asarray((square * beyond + slope) * beyond + start)

    return priced


def sizes_above(cost: CostModel, batch: int, pad_to: int) -> Sequence[int]:
    """Return the batch sizes above `batch` that may have a cost, rising, up to `pad_to`."""
    if isinstance(cost, Profile):
        return sorted({times.batch for times in cost.batches if batch < times.batch <= pad_to})
    return range(batch + 1, pad_to + 1)


def step_seconds(occupancy: Ints, context: Ints | None, seconds: Seconds, *, padded: bool = False) -> Floats:
    """Return the seconds of steps, float64 (N,); each distinct step is priced once.

    Args:
        occupancy: requests in each step, (N,).
        context: tokens per sequence in the cache at each step, (N,); None leaves it to the cost model.
        seconds: see `price_steps`.
        padded: `seconds` pads; otherwise an error suggests it.

    Raises:
        CostError: names all batch sizes that have no cost.
    """
    pairs = np.stack([occupancy, np.zeros_like(occupancy) if context is None else context])
    kinds, which = np.unique(pairs, axis=1, return_inverse=True)
    prices, missing, why = np.empty(kinds.shape[1]), dict[int, None](), ""
    for i, (size, length) in enumerate(kinds.T.tolist()):
        try:
            prices[i] = seconds(size, None if context is None else length)
        except CostError as error:
            if size not in missing:
                why = str(error)  # of the largest size: once it is measured, those below it are interpolated
            missing[size] = None
    if missing:
        sizes = ", ".join(map(str, missing))
        others = set(kinds[0].tolist()) - set(missing)
        hint = "; padding takes the nearest batch above" if others and not padded else ""
        raise CostError(f"steps of batch {sizes} have no cost ({why}){hint}")
    return prices[which.ravel()]


def divide_prefill(together: Together, tokens: Floats | Ints, group: Ints, *, padded: bool = False) -> Floats:
    """Return each request's share, by tokens, of the prefill that its group is read in; float64 (R,).

    Args:
        together: seconds by total tokens.
        tokens: prompt tokens of each request, (R,).
        group: requests with the same number are read together, (R,).
        padded: all of a group are read as if they were as long as its longest.

    >>> divide_prefill(lambda tokens: tokens + 4.0, np.array([1, 3, 2]), np.array([0, 0, 1])).tolist()
    [2.0, 6.0, 6.0]
    """
    totals: Floats = np.bincount(group, tokens).astype(np.float64)
    read = totals
    if padded:
        longest = np.zeros_like(totals)
        np.maximum.at(longest, group, tokens)
        read = longest * np.bincount(group)
    seconds = np.zeros_like(totals)
    seconds[totals > 0] = together(read[totals > 0])
    return np.asarray(seconds[group] * tokens / np.maximum(totals, 1.0)[group])


@dataclass(frozen=True, kw_only=True)
class PromptSettings(Settings):
    """The caller's figures; None where the trace and the profile decide."""

    prefill_s: float | None = setting(
        None, least=0, most=1e9, help="Prefill seconds per prompt; default the profile's."
    )
    prefill_s_per_token: float | None = setting(
        None, least=0, most=1e9, help="Additional prefill seconds per prompt token."
    )
    prompt_tokens: int | None = setting(
        None,
        least=1,
        form="tokens",
        help="Prompt length in tokens; also sets the context at which steps are priced. Default: the lengths recorded "
        "in the trace, if any.",
    )

    @property
    def priced(self) -> bool:
        """The caller gave prefill times."""
        return self.prefill_s is not None or self.prefill_s_per_token is not None

    @property
    def settings(self) -> dict[str, Any]:
        """The figures as JSON values."""
        return asdict(self)

    def on(self, trace: Trace, profile: Profile, *, from_file: bool = False) -> "Prompts":
        """Return the prompts of a run of the trace, or of the requests of a file.

        Raises:
            UsageError: the figures contradict each other, or need a number of tokens that is not known.
        """
        if self.prompt_tokens is not None and from_file:
            raise UsageError("give one of --prompt-tokens and --requests-file")
        tokens: int | Ints | None = self.prompt_tokens
        by_context, warnings = True, tuple[str, ...]()
        if tokens is None and not from_file and trace.prompt_tokens is not None:
            tokens, by_context, warnings = _lengths(trace, profile, prefill=not self.priced)
        if self.prefill_s_per_token is not None and tokens is None and not from_file:
            raise UsageError("--prefill-s-per-token needs --prompt-tokens, or --requests-file of a server")
        return Prompts(self, profile, tokens, by_context, from_file=from_file, warnings=warnings)


@dataclass(frozen=True, eq=False)
class Prompts:
    """The prompts of a run.

    Attributes:
        given: the caller's figures.
        profile: prices what the caller left open.
        tokens: length of every prompt, or of the prompt of each of the trace's requests, (R,); None: not known, or in
            a file.
        by_context: steps are priced at the contexts that follow from the lengths.
        from_file: the lengths are in a file of requests.
        warnings: sentences about lengths that the profile does not cover.
    """

    given: PromptSettings
    profile: Profile
    tokens: int | Ints | None
    by_context: bool
    from_file: bool
    warnings: tuple[str, ...]

    @property
    def context(self) -> int | None:
        """The mean prompt length that steps are priced after; None: the profile's own context, or a file's lengths."""
        return None if self.tokens is None or not self.by_context else round(float(np.mean(self.tokens)))

    @property
    def free(self) -> bool:
        """Prompts take no time."""
        if self.given.priced:
            return not (self.given.prefill_s or self.given.prefill_s_per_token)
        return self.profile.prefill is None or (self.tokens is None and not self.from_file)

    def seconds(self, tokens: int | Ints | None, *, drafted: bool) -> "Floats | Together":
        """Return prefill seconds as `simulate.runs.batch_record.run` takes them; 0 where they are not known.

        Args:
            tokens: lengths of the prompts; None: not known.
            drafted: the drafter reads the prompts, too.
        """
        if not self.given.priced and self.profile.prefill is not None and tokens is not None:
            return partial(self.profile.prefill.seconds, drafted=drafted)
        lengths = np.zeros(()) if tokens is None else np.asarray(tokens, dtype=np.float64)
        return (self.given.prefill_s or 0.0) + (self.given.prefill_s_per_token or 0.0) * lengths

    def description(self) -> str:
        """Return lengths and prefill times in words, without a full stop."""
        shortest, longest = (0, 0) if self.tokens is None else (int(np.min(self.tokens)), int(np.max(self.tokens)))
        length = f"{shortest} tokens" if shortest == longest else f"{shortest} to {longest} tokens"
        of = " of the file" if self.from_file else "" if self.tokens is None else f" of {length}"
        mean = "" if shortest == longest else ", on average"
        measured = self.profile.prefill
        if not self.given.priced and measured is None:
            return f"Prefill of prompts{of} costs nothing: the profile does not cover it"
        if self.free and not self.given.priced:
            why = (
                "the profile does not cover their lengths" if self.warnings else "give their length as --prompt-tokens"
            )
            return f"Prefill costs nothing: {why}"
        if self.given.priced or measured is None:
            per_token_ms = 1e3 * (self.given.prefill_s_per_token or 0.0)
            prompt_ms = 1e3 * (self.given.prefill_s or 0.0) + (
                0 if self.tokens is None else per_token_ms * np.mean(self.tokens)
            )
            more = f" and {per_token_ms:.3g} per token" if self.from_file and per_token_ms else ""
            return f"Prefill {prompt_ms:.3g} ms per prompt{of}{mean if per_token_ms else ''}{more}"
        text = f"Prefill of prompts{of}, those that join together read at once, as in the profile"
        if self.tokens is None:
            return text
        plain, drafted = (1e3 * float(np.mean(measured.seconds(self.tokens, drafted=d))) for d in (False, True))
        return f"{text}: {plain:.3g} ms per prompt{mean.removeprefix(',')}, {drafted:.3g} ms with the drafter"


def _lengths(trace: Trace, profile: Profile, *, prefill: bool) -> tuple[Ints | None, bool, tuple[str, ...]]:
    """Return lengths of the trace's prompts, whether steps can be priced by them, and warnings.

    A few lengths outside the profile's range are clamped to it. Where there are more than `FEW`, steps are priced
    without them; where it is prefill that does not cover them, they are not known.
    """
    assert trace.prompt_tokens is not None
    tokens: Ints = trace.prompt_tokens.astype(np.int64)
    warnings = []
    if prefill and profile.prefill is not None:
        shortest, longest = profile.prefill.reach
        tokens, outside = np.clip(tokens, shortest, longest), _share_outside(tokens, shortest, longest)
        if outside > FEW:
            missing = (
                f"the profile covers prefill of {shortest} to {longest} tokens, {outside:.1%} of the trace's prompts"
            )
            return None, False, (f"{missing} lie outside: they cost nothing, and steps are priced at its own contexts",)
        if outside:
            warnings.append(
                f"prefill of {outside:.1%} of the trace's prompts is priced as {shortest} or {longest} tokens"
            )
    low, high = profile.context[0], profile.context[1] - trace.lengths
    outside = _share_outside(tokens, low, high)
    if outside > FEW or (high < low).any():
        uncovered = f"{outside:.1%} of the trace's requests reach contexts that the profile does not cover"
        return tokens, False, (*warnings, f"{uncovered}: steps are priced at its own")
    if outside:
        warnings.append(f"{outside:.1%} of the trace's prompts are clamped to the contexts that the profile covers")
    return np.clip(tokens, low, high), True, tuple(warnings)


def _share_outside(tokens: Ints, low: int | Ints, high: int | Ints) -> float:
    """Return the share of prompts that are shorter or longer."""
    return float(np.mean((tokens < low) | (tokens > high)))
