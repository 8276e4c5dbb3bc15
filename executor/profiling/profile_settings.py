"""Settings of a profile measurement: what is measured, how often, and how long it may take."""

from dataclasses import dataclass, replace

from executor.profiling.configurations import TOKENS
from treeopt.defaults import NEW_TOKENS, NODES, STEPS
from treeopt.errors import UsageError


@dataclass(frozen=True)
class Settings:
    """The settings of a measurement.

    Attributes:
        batches: batch sizes.
        contexts: tokens of each prompt, cut from the given prompts side by side; empty: prompts as they are.
        max_nodes: largest tree, at most 63.
        max_depth: deepest tree; None: all levels that the drafter has, at most 8.
        new_tokens: tokens decoded after each prompt, where prompts are as they are.
        rounds: blocks of each configuration, at most; None: as many as usual for what decodes.
        steps: steps of a block, at most.
        seed: of the order of blocks and prompts.
        budget_s: seconds that the measurement may take; None: no limit.
        policies: also measure dynamic trees.
    """

    batches: tuple[int, ...]
    contexts: tuple[int, ...] = ()
    max_nodes: int = NODES
    max_depth: int | None = None
    new_tokens: int = NEW_TOKENS
    rounds: int | None = None
    steps: int = STEPS
    seed: int = 0
    budget_s: float | None = None
    policies: bool = False

    def ordered(self) -> "Settings":
        """Return the same settings with sizes in order.

        Raises:
            UsageError: settings without meaning.
        """
        batches, contexts = sorted(set(self.batches)), sorted(set(self.contexts))
        if not batches or batches[0] < 1:
            raise UsageError(f"batch sizes must be at least 1, got {batches}")
        if contexts and contexts[0] < 2:
            raise UsageError(f"contexts must be at least 2 tokens, got {contexts}")
        if not 1 <= self.max_nodes <= TOKENS[-1] - 1:
            raise UsageError(f"max-nodes must be in 1..{TOKENS[-1] - 1}, got {self.max_nodes}")
        if (self.rounds is not None and self.rounds < 2) or self.steps < 1:
            raise UsageError(f"at least 2 rounds of 1 step are needed, got {self.rounds} of {self.steps}")
        return replace(self, batches=tuple(batches), contexts=tuple(contexts))
