"""Settings of a profile: sizes, rounds and the time that measuring may take."""

from dataclasses import dataclass

from treeopt import defaults
from treeopt.defaults import BUDGET_S, ENGINE_LENGTH, ENGINE_ROUNDS, NODES, POLICIES_S, ROUNDS, STEPS
from treeopt.settings import Settings, setting


@dataclass(frozen=True, kw_only=True)
class Measuring(Settings):
    """The settings of a measurement of step times."""

    batch: tuple[int, ...] = setting((1, 2, 4, 8), least=1, help="Batch sizes; 1-32 doubles from 1 to 32.")
    context: tuple[int, ...] = setting(
        (),
        least=2,
        form="context lengths",
        help="Prompt lengths in tokens, such as 64,512, cut from the given prompts. Default: prompts as they are.",
    )
    new_tokens: int = defaults.new_tokens()
    max_nodes: int = setting(NODES, least=1, most=NODES, help="Largest tree, in nodes.")
    max_depth: int | None = setting(
        None,
        least=1,
        help="Deepest tree; default all levels that the drafter has, at most 8. With --engine: the longest draft; "
        f"default {ENGINE_LENGTH}.",
    )
    rounds: int | None = setting(
        None,
        least=2,
        help=f"Maximum number of blocks per tree and batch size; default {ROUNDS}, with --engine {ENGINE_ROUNDS}.",
    )
    steps: int = setting(STEPS, least=1, help="Maximum number of steps per block.")
    budget_s: float | None = setting(
        None,
        above=0,
        option="--budget",
        help="Seconds that measuring may take: fewer rounds, then the least important sizes are left out. Default "
        f"{BUDGET_S:g}, with --policies {BUDGET_S + POLICIES_S:g}; no limit with several processes.",
    )
    policies: bool = setting(False, help="Also measure dynamic trees, for `treeopt search --policy` to price them.")
    seed: int = defaults.seed()

    def ordered(self) -> "Measuring":
        """Return the same settings with sizes in order."""
        return self.changed(batch=tuple(sorted(set(self.batch))), context=tuple(sorted(set(self.context))))
