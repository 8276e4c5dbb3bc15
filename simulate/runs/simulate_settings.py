"""The settings of `simulate`: what decodes, its prompts, and the load of a server."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulate.runs.run_costs import PromptSettings
from simulate.runs.server_load import Load
from treeopt import defaults
from treeopt.errors import UsageError
from treeopt.plans.plan import Plan
from treeopt.settings import Settings, group, setting
from treeopt.tree import Tree


@dataclass(frozen=True, kw_only=True)
class SimulateSettings(Settings):
    """The settings of `simulate`."""

    plan: Plan | Path | str | None = setting(None, help="Decode with the plan's trees for the batch size.")
    tree: Tree | None = setting(
        None, help="A static tree: the length of a chain, rank paths, FILE[:NAME], or a published tree."
    )
    batch: int | None = setting(None, least=1, help="Maximum number of requests decoded together; default the plan's.")
    prompts: PromptSettings = group(PromptSettings)
    pad: bool = setting(
        True,
        option="--pad/--no-pad",
        help="Price batch sizes below the profile's smallest as that one, or raise an error. Sizes between two "
        "profiled ones are interpolated.",
    )
    load: Load = group(Load)
    seed: int = defaults.seed()

    def check(self) -> None:
        """Raise UsageError where two settings are the same choice."""
        if self.plan is not None and self.tree is not None:
            raise UsageError("give one of --plan and --tree")

    def recorded(self) -> dict[str, Any]:
        """Return the settings as the record holds them."""
        load = self.load.settings if self.load.given else {}
        return self.prompts.settings | {"pad": self.pad} | load | {"seed": self.seed}
