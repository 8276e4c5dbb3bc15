"""Settings of a profile measurement: what is measured, how often, and how long it may take."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from executor.drafters.base.drafter import Drafter, usual_depth
from executor.profiling.measured_shapes import TOKENS, Configuration, ranked_configurations
from executor.target.tensor_parallel import processes
from executor.verification.acceptance_rules import Greedy, Rule, rule_meta
from treeopt.defaults import NEW_TOKENS, NODES, ROUNDS, STEPS
from treeopt.errors import ExecutorError, UsageError
from treeopt.tree import Tree

Tokens = Sequence[int]


@dataclass(frozen=True)
class Settings:
    """The settings of a measurement.

    Attributes:
        batches: batch sizes.
        contexts: tokens of each prompt, cut from the given prompts side by side; empty: prompts as they are.
        max_nodes: largest tree, at most 63.
        max_depth: deepest tree; None: all levels that the drafter has, at most 8.
        new_tokens: tokens decoded after each prompt, where prompts are as they are.
        rounds: blocks of each configuration, at most.
        steps: steps of a block, at most.
        seed: of the order of blocks and prompts.
        budget_s: seconds that the measurement may take; None: no limit.
        policies: also measure dynamic trees.
        graphs: replay steps from CUDA graphs.
        rule: of verification, for plain decoding too; trees that it cannot verify are not measured.
    """

    batches: tuple[int, ...]
    contexts: tuple[int, ...] = ()
    max_nodes: int = NODES
    max_depth: int | None = None
    new_tokens: int = NEW_TOKENS
    rounds: int = ROUNDS
    steps: int = STEPS
    seed: int = 0
    budget_s: float | None = None
    policies: bool = False
    graphs: bool = False
    rule: Rule = field(default_factory=Greedy)

    def check(self, drafter: Drafter, prompts: Sequence[Tokens]) -> "Settings":
        """Return the same settings with sizes in order and the depth filled in.

        Raises:
            UsageError: settings without meaning, or too few prompts.
        """
        batches, contexts = sorted(set(self.batches)), sorted(set(self.contexts))
        if not batches or batches[0] < 1:
            raise UsageError(f"batch sizes must be at least 1, got {batches}")
        if contexts and contexts[0] < 2:
            raise UsageError(f"contexts must be at least 2 tokens, got {contexts}")
        if not 1 <= self.max_nodes <= TOKENS[-1] - 1:
            raise UsageError(f"max-nodes must be in 1..{TOKENS[-1] - 1}, got {self.max_nodes}")
        if self.max_depth is not None and not 1 <= self.max_depth <= drafter.max_depth:
            raise UsageError(f"max-depth must be in 1..{drafter.max_depth} (the drafter's), got {self.max_depth}")
        if self.rounds < 2 or self.steps < 1:
            raise UsageError(f"at least 2 rounds of 1 step are needed, got {self.rounds} of {self.steps}")
        if not contexts and len(prompts) < batches[-1]:
            raise UsageError(f"batch {batches[-1]} needs at least that many prompts, got {len(prompts)}")
        if self.policies and self.graphs:
            raise UsageError(
                "some policies ask the host at each step; CUDA graphs cannot: measure policies without them"
            )
        if self.policies and self.rule.sampled_candidates:
            name = rule_meta(self.rule)["verification"]
            raise UsageError(f"rule {name} draws its candidates, which policies would bias: measure without policies")
        if self.budget_s is not None and processes() > 1:
            raise UsageError("several processes cannot share a time budget: omit it")
        depth = usual_depth(drafter) if self.max_depth is None else self.max_depth
        return replace(self, batches=tuple(batches), contexts=tuple(contexts), max_depth=depth)

    @property
    def ranked(self) -> list[tuple[int, Configuration]]:
        """All configurations with their importance, the most important first; the settings must be checked."""
        assert self.max_depth is not None
        return ranked_configurations(
            self.batches,
            self.contexts or (None,),
            max_nodes=self.max_nodes,
            max_depth=self.max_depth,
            policies=self.policies,
            verified=self._verified,
        )

    def _verified(self, tree: Tree) -> bool:
        try:
            self.rule.check(tree)
        except ExecutorError:
            return False
        return True

    @property
    def record(self) -> dict[str, Any]:
        """The settings as JSON values; for the rule, what traces record about it."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "rule"} | rule_meta(self.rule)
