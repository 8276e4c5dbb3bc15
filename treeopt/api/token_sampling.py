"""How a run chooses tokens: the verification rule, temperature, top-k and top-p."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from treeopt.errors import UsageError

if TYPE_CHECKING:
    from executor.target.target_model import Target
    from executor.verification.acceptance_rules import Rule

# As executor.verification.acceptance_rules has them, which would load torch.
RULES = ("greedy", "sample-and-match", "point-mass", "leviathan", "block", "specinfer", "sequoia", "typical")


@dataclass(frozen=True)
class Sampling:
    """Settings of verification.

    Attributes:
        rule: one of `RULES`; None: greedy at temperature 0, else sample-and-match.
        temperature: 0 is greedy.
        top_k: sample from the K most likely tokens; None: from all.
        top_p: sample from the smallest set of tokens whose probabilities sum to at least P.
        seed: of the samples.
    """

    rule: str | None = None
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 0

    @property
    def name(self) -> str:
        """The rule's name."""
        return self.rule or ("greedy" if self.temperature == 0 else "sample-and-match")

    def check(self) -> None:
        """Check that the settings go together.

        Raises:
            UsageError: names those that do not.
        """
        if self.name not in RULES:
            raise UsageError(f"rule must be one of {', '.join(RULES)}, got {self.name!r}")
        if self.temperature == 0 and (self.top_k is not None or self.top_p < 1):
            raise UsageError("--top-k and --top-p are for sampling: give --temperature")
        if (self.temperature == 0) != (self.name == "greedy"):
            raise UsageError("--rule greedy needs --temperature 0, and every other rule a temperature above 0")

    def rule_for(self, target: "Target") -> "Rule":
        """Return the rule, with a generator on the target's device."""
        from executor.verification.acceptance_rules import make_rule
        from executor.verification.temperature_top_k_top_p import Warp, seeded_generator

        if self.temperature == 0:
            return make_rule(self.name)
        warp = Warp(self.temperature, self.top_k, self.top_p)
        return make_rule(self.name, warp=warp, generator=seeded_generator(target.device, self.seed))
