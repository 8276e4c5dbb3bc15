"""How tokens are chosen, as a command line says it: the rule of verification, temperature, top-k and top-p."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from treeopt.cli.options import general
from treeopt.errors import UsageError

if TYPE_CHECKING:
    from executor.target.target_model import Target
    from executor.verification.acceptance_rules import Rule

# As executor.verification.acceptance_rules has them, which would load torch.
RULES = ("greedy", "sample-and-match", "point-mass", "leviathan", "block", "specinfer", "sequoia", "typical")


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen."""

    rule: str | None
    temperature: float
    top_k: int | None
    top_p: float
    seed: int

    @property
    def name(self) -> str:
        """The rule's."""
        return self.rule or ("greedy" if self.temperature == 0 else "sample-and-match")

    def check(self) -> None:
        """Refuse settings that do not go together.

        Raises:
            UsageError: names them.
        """
        if self.temperature == 0 and (self.top_k is not None or self.top_p < 1):
            raise UsageError("--top-k and --top-p are for sampling: give --temperature")
        if (self.temperature == 0) != (self.name == "greedy"):
            raise UsageError("--rule greedy is for --temperature 0, and every other rule for one above it")

    def made(self, target: "Target") -> "Rule":
        """The rule."""
        from executor.verification.acceptance_rules import make_rule
        from executor.verification.temperature_top_k_top_p import Warp, seeded

        if self.temperature == 0:
            return make_rule(self.name)
        warp = Warp(self.temperature, self.top_k, self.top_p)
        return make_rule(self.name, warp=warp, generator=seeded(target.device, self.seed))


sampling = general.bundle(
    "sampling",
    Sampling,
    click.option("--rule", type=click.Choice(RULES), help="Verification; default greedy, or sample-and-match."),
    click.option("--temperature", type=general.Real(min=0), default=0.0, show_default=True, help="0: greedy."),
    click.option("--top-k", type=click.IntRange(min=1), help="Sample from so many tokens."),
    click.option(
        "--top-p",
        type=general.Real(0, 1, min_open=True),
        default=1.0,
        show_default=True,
        help="Sample from the best tokens of so much mass.",
    ),
    general.seed,
)
