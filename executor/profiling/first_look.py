"""The first look of a measurement: what a block is expected to take, from three short blocks of its place."""

from dataclasses import dataclass

from executor.profiling.measured_shapes import Configuration
from executor.profiling.schedule import TOGETHER
from executor.profiling.timed_block import WARM_UP, Block

DYNAMIC = 1.2  # seconds of a step with a dynamic tree over those with a static one; EAGLE's took 1.06 to 1.39
LONG_S = 0.3  # a block ends after this time: its steps share the machine's drift, so more blocks say more
IMPOSED = 3  # steps of a block whose acceptance is imposed, always, so that all reach one context


@dataclass(frozen=True)
class Look:
    """A first look at one batch size and context.

    Attributes:
        opening_s: seconds before the first step of a block, prompts included.
        own_prompts_s: the same after prompts that only this block has.
        plain_s: seconds of a plain step.
        widest_s: seconds of a step of the largest tree.
        nodes: of the largest tree.
    """

    opening_s: float
    own_prompts_s: float
    plain_s: float
    widest_s: float
    nodes: int

    @classmethod
    def of(cls, plain: Block, first: Block, second: Block, *, sharing: int, nodes: int) -> "Look":
        """Take in short blocks: a plain one, then two of the largest tree after the same prompts.

        Prompts are filled in twice, without and with features; the third time only the drafter reads them.

        Args:
            plain: of plain decoding.
            first: of the largest tree.
            second: of the largest tree again.
            sharing: configurations that share their prompts in a round.
            nodes: of the largest tree.
        """
        once_s, always_s = (max(0.0, block.took_s - (1 + WARM_UP) * block.step_s) for block in (first, second))
        return cls(always_s + 2 * once_s / sharing, always_s + once_s, plain.step_s, second.step_s, nodes)

    def block_s(self, configuration: Configuration, *, steps: int, spare: int) -> float:
        """Return the seconds that one block is expected to take.

        Args:
            configuration: at this batch size and context.
            steps: steps of a block.
            spare: see `BlockPrompts`.
        """
        nodes = configuration.tree.nodes
        if configuration.imposed is not None:  # after prompts of its own length
            return self.own_prompts_s + (WARM_UP + min(steps, IMPOSED)) * self.widest_s

        def steps_s(step_s: float) -> float:
            return WARM_UP * step_s + min(steps * step_s, LONG_S + step_s)

        share = max(nodes, sum(configuration.widths)) / self.nodes
        step_s = self.plain_s + max(0.0, self.widest_s - self.plain_s) * share
        step_s *= 1.0 if configuration.growth is None else DYNAMIC
        opening_s = self.opening_s
        if not nodes:
            opening_s += spare / 2 * self.plain_s  # the part of the texts that is written first
        return opening_s + steps_s(step_s) + (opening_s + steps_s(self.plain_s)) / TOGETHER * bool(nodes)
