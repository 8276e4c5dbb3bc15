"""What the prompts of a simulated run are and cost: as the options say, or as the profile knows."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from treeopt.cli import options
from treeopt.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from simulate.profile import Profile
    from simulate.tables import Floats, Ints

FREE = (
    "prompts cost nothing (--prompt-tokens prices them by a profile that knows prefill, --prefill-s and "
    "--prefill-s-per-token by what they say): a server is slower, above all to the first token"
)


@dataclass(frozen=True)
class Prompts:
    """Their tokens, and seconds of their prefill; None: not given."""

    prefill_s: float | None
    prefill_s_per_token: float | None
    prompt_tokens: int | None

    def check(self, requests_file: "Path | None") -> None:
        """Refuse what contradicts, or says nothing.

        Raises:
            UsageError: names the options.
        """
        if self.prompt_tokens is not None and requests_file is not None:
            raise UsageError("give one of --prompt-tokens and --requests-file")
        if self.prefill_s_per_token is not None and self.prompt_tokens is None and requests_file is None:
            raise UsageError("--prefill-s-per-token needs --prompt-tokens, or --requests-file of a server")

    @property
    def priced(self) -> bool:
        """Whether the options say what prefill takes."""
        return self.prefill_s is not None or self.prefill_s_per_token is not None

    def free(self, profile: "Profile", *, file: bool) -> bool:
        """Whether no prompt takes time; `file` tells whether prompts are those of a file."""
        if self.priced:
            return not (self.prefill_s or self.prefill_s_per_token)
        return profile.prefill is None or (self.prompt_tokens is None and not file)

    def seconds(self, tokens: "int | Ints | None", profile: "Profile", *, drafted: bool) -> "Floats":
        """Of prefill, float64, of the shape of `tokens`; 0 where nobody says what it takes.

        Args:
            tokens: of the prompts; None: not known.
            profile: is asked where the options say nothing.
            drafted: the drafter reads the prompts, too.

        Raises:
            CostError: the profile knows prefill, but not of such prompts.
        """
        if not self.priced and profile.prefill is not None and tokens is not None:
            return profile.prefill.seconds(tokens, drafted=drafted)
        read = np.zeros(()) if tokens is None else np.asarray(tokens, dtype=np.float64)
        return (self.prefill_s or 0.0) + (self.prefill_s_per_token or 0.0) * read

    def told(self, profile: "Profile", *, file: bool) -> str:
        """The same in words; `file` tells whether prompts are those of a file."""
        tokens = self.prompt_tokens
        of = " of the file" if file else "" if tokens is None else f" of {tokens} tokens"
        if self.priced or self.free(profile, file=file):
            each_s = float(self.seconds(tokens, profile, drafted=False))
            more = f" and {1e3 * self.prefill_s_per_token:.3g} a token" if file and self.prefill_s_per_token else ""
            return f"Prefill {1e3 * each_s:.3g} ms a prompt{of}{more}"
        known = f"Prefill of prompts{of}, one at a time, as in the profile"
        if file:
            return known
        plain, drafted = (1e3 * float(self.seconds(tokens, profile, drafted=each)) for each in (False, True))
        return f"{known}: {plain:.3g} ms, with the drafter {drafted:.3g}"

    @property
    def settings(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


prompts = options.bundle(
    "prompts",
    Prompts,
    click.option("--prefill-s", type=options.SECONDS, help="Seconds of every prompt's prefill; default the profile's."),
    click.option("--prefill-s-per-token", type=options.SECONDS, help="More of them for each of its tokens."),
    click.option(
        "--prompt-tokens", type=click.IntRange(min=1), help="Of every prompt; steps are then priced by context."
    ),
)
