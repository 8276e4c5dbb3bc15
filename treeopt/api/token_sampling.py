"""How a run chooses tokens: the verification rule, temperature, top-k and top-p."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from treeopt.acceptance_rules import RULES
from treeopt.errors import UsageError
from treeopt.settings import Settings, setting

if TYPE_CHECKING:
    from executor.target.target_model import Target
    from executor.verification.acceptance_rules import Rule


@dataclass(frozen=True, kw_only=True)
class Sampling(Settings):
    """Settings of verification."""

    rule: str | None = setting(
        None,
        choices=lambda: tuple(RULES),
        help="Verification rule; default greedy, or sample-and-match at a temperature above 0.",
    )
    temperature: float = setting(0.0, least=0, help="Sampling temperature; 0: greedy.")
    top_k: int | None = setting(None, least=1, help="Sample from the K most likely tokens.")
    top_p: float = setting(
        1.0,
        above=0,
        most=1,
        help="Sample from the smallest set of tokens whose probabilities sum to at least P.",
    )
    seed: int = setting(0, least=0, most=2**63 - 1, help="Seed of every random choice.")

    @property
    def name(self) -> str:
        """The rule's name."""
        return self.rule or ("greedy" if self.temperature == 0 else "sample-and-match")

    def check(self) -> None:
        """Raise UsageError where settings do not go together."""
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
