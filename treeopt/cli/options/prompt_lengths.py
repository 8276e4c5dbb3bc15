"""What the prompts of a simulated run are and cost: as the options say, or as trace and profile know."""

from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from treeopt.cli.options import general
from treeopt.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from simulate.profiles.profile import Profile
    from simulate.profiles.step_tables import Floats, Ints
    from simulate.runs.request_prefill import Together
    from treeopt.traces.trace import Trace

FEW = 0.05  # share of the trace's prompts that may be shorter or longer than what a profile knows
FREE = (
    "prompts cost nothing (--prompt-tokens prices them by a profile that knows prefill, --prefill-s and "
    "--prefill-s-per-token by what they say): a server is slower, above all to the first token"
)


@dataclass(frozen=True)
class Given:
    """What the options say, None where they do not: seconds of prefill, and tokens of every prompt."""

    prefill_s: float | None
    prefill_s_per_token: float | None
    prompt_tokens: int | None

    @property
    def priced(self) -> bool:
        """Whether they say what prefill takes."""
        return self.prefill_s is not None or self.prefill_s_per_token is not None

    @property
    def settings(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    def on(self, trace: "Trace", profile: "Profile", *, file: "Path | None" = None) -> "Prompts":
        """The prompts of a run of the trace, or of the requests of a file.

        Raises:
            UsageError: the options contradict, or say what a token takes where nobody says how many there are.
        """
        if self.prompt_tokens is not None and file is not None:
            raise UsageError("give one of --prompt-tokens and --requests-file")
        tokens: int | Ints | None = self.prompt_tokens
        by_context, warnings = True, tuple[str, ...]()
        if tokens is None and file is None and trace.prompt_tokens is not None:
            tokens, by_context, warnings = _of(trace, profile, prefill=not self.priced)
        if self.prefill_s_per_token is not None and tokens is None and file is None:
            raise UsageError("--prefill-s-per-token needs --prompt-tokens, or --requests-file of a server")
        return Prompts(self, profile, tokens, by_context, from_file=file is not None, warnings=warnings)


@dataclass(frozen=True, eq=False)
class Prompts:
    """The prompts of a run.

    Attributes:
        given: what the options say.
        profile: what is asked for what they do not say.
        tokens: of every prompt, or of that of each of the trace's requests, (R,); None: not known, or a file's.
        by_context: whether steps are priced by them.
        from_file: the lengths are a file's.
        warnings: what to know about them.
    """

    given: Given
    profile: "Profile"
    tokens: "int | Ints | None"
    by_context: bool
    from_file: bool
    warnings: tuple[str, ...]

    @property
    def context(self) -> int | None:
        """Tokens of a prompt that steps are priced behind, the mean; None: the profile's own, or a file's."""
        return None if self.tokens is None or not self.by_context else round(float(np.mean(self.tokens)))

    @property
    def free(self) -> bool:
        """Whether no prompt takes time."""
        if self.given.priced:
            return not (self.given.prefill_s or self.given.prefill_s_per_token)
        return self.profile.prefill is None or (self.tokens is None and not self.from_file)

    def seconds(self, tokens: "int | Ints | None", *, drafted: bool) -> "Floats | Together":
        """Of prefill, as `simulate.runs.batch_run.run` takes them; 0 where nobody says what it takes.

        Args:
            tokens: of the prompts; None: not known.
            drafted: the drafter reads the prompts, too.
        """
        if not self.given.priced and self.profile.prefill is not None and tokens is not None:
            return partial(self.profile.prefill.seconds, drafted=drafted)
        read = np.zeros(()) if tokens is None else np.asarray(tokens, dtype=np.float64)
        return (self.given.prefill_s or 0.0) + (self.given.prefill_s_per_token or 0.0) * read

    def told(self) -> str:
        """What they are and cost, in words."""
        least, most = (0, 0) if self.tokens is None else (int(np.min(self.tokens)), int(np.max(self.tokens)))
        length = f"{least} tokens" if least == most else f"{least} to {most} tokens"
        of = " of the file" if self.from_file else "" if self.tokens is None else f" of {length}"
        mean = "" if least == most else ", in the mean"
        known = self.profile.prefill
        if not self.given.priced and known is None:
            return f"Prefill of prompts{of} costs nothing: the profile does not know it"
        if self.free and not self.given.priced:
            why = "the profile does not reach them" if self.warnings else "--prompt-tokens says how long prompts are"
            return f"Prefill costs nothing: {why}"
        if self.given.priced or known is None:
            a_token = 1e3 * (self.given.prefill_s_per_token or 0.0)
            each_ms = 1e3 * (self.given.prefill_s or 0.0) + (
                0 if self.tokens is None else a_token * np.mean(self.tokens)
            )
            more = f" and {a_token:.3g} a token" if self.from_file and a_token else ""
            return f"Prefill {each_ms:.3g} ms a prompt{of}{mean if a_token else ''}{more}"
        said = f"Prefill of prompts{of}, those that join together read at once, as in the profile"
        if self.tokens is None:
            return said
        plain, drafted = (1e3 * float(np.mean(known.seconds(self.tokens, drafted=each))) for each in (False, True))
        return f"{said}: one {plain:.3g} ms{mean.removeprefix(',')}, with the drafter {drafted:.3g}"


def _of(trace: "Trace", profile: "Profile", *, prefill: bool) -> "tuple[Ints | None, bool, tuple[str, ...]]":
    """Lengths of the trace's prompts, whether steps can be priced by them, and what to know about that.

    A few that the profile does not reach are taken to be as long as it goes. Where there are more, steps are priced
    without them, or, if it is its prefill that does not reach them, they are not known.
    """
    assert trace.prompt_tokens is not None
    found: Ints = trace.prompt_tokens.astype(np.int64)
    warnings = []
    if prefill and profile.prefill is not None:
        least, most = profile.prefill.reach
        found, outside = np.clip(found, least, most), _outside(found, least, most)
        if outside > FEW:
            said = f"the profile knows prefill of {least} to {most} tokens, not of {outside:.1%} of the trace's prompts"
            return None, False, (f"{said}: they cost nothing, and steps are priced at its own contexts",)
        if outside:
            warnings.append(f"prefill of {outside:.1%} of the trace's prompts is taken to be that of {least} or {most}")
    low, high = profile.context[0], profile.context[1] - trace.lengths
    outside = _outside(found, low, high)
    if outside > FEW or (high < low).any():
        said = f"{outside:.1%} of the trace's requests come to other contexts than the profile knows"
        return found, False, (*warnings, f"{said}: steps are priced at its own")
    if outside:
        warnings.append(f"{outside:.1%} of the trace's prompts are taken to be as long as the profile's contexts go")
    return np.clip(found, low, high), True, tuple(warnings)


def _outside(tokens: "Ints", least: "int | Ints", most: "int | Ints") -> float:
    """Share of prompts that are shorter or longer."""
    return float(np.mean((tokens < least) | (tokens > most)))


prompts = general.bundle(
    "prompts",
    Given,
    click.option("--prefill-s", type=general.SECONDS, help="Seconds of every prompt's prefill; default the profile's."),
    click.option("--prefill-s-per-token", type=general.SECONDS, help="More of them for each of its tokens."),
    click.option(
        "--prompt-tokens",
        type=click.IntRange(min=1),
        help="Of every prompt, by which steps are priced too; default the trace's own, if it tells.",
    ),
)
