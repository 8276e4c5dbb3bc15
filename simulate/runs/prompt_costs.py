"""Prompts of a simulated run: their lengths and their prefill times, from the caller, the trace and the profile."""

from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from simulate.profiles.profile import Profile
from simulate.profiles.step_tables import Floats, Ints
from treeopt.errors import UsageError
from treeopt.settings import Settings, setting
from treeopt.traces.trace import Trace

if TYPE_CHECKING:
    from simulate.runs.priced_steps import Together

FEW = 0.05  # share of the trace's prompts that may be shorter or longer than the profile covers
FREE = (
    "prompts cost nothing, so a real server is slower, above all to the first token; give --prompt-tokens with a "
    "profile that covers prefill, or --prefill-s and --prefill-s-per-token"
)


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
        """Return prefill seconds as `simulate.runs.batch_run.run` takes them; 0 where they are not known.

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
