"""The settings of `simulate`: what decodes, its prompts, and the load of a server."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulate.runs.draft_length_rules import FORMS
from simulate.runs.run_costs import PromptSettings
from simulate.runs.server_load import Load
from treeopt import defaults
from treeopt.errors import UsageError
from treeopt.plans import Plan
from treeopt.settings import Settings, group, setting
from treeopt.tree import Tree

ADAPTIVE_S = 0.001
ADAPTIVE = "Seconds that adaptive verification adds to each step by its own work; 1 ms in vLLM on MI355X (#52362)."


@dataclass(frozen=True, kw_only=True)
class SimulateSettings(Settings):
    """The settings of `simulate`."""

    plan: Plan | Path | str | None = setting(None, help="Decode with the plan's trees for the batch size.")
    tree: Tree | None = setting(
        None, help="A static tree: the length of a chain, rank paths, FILE[:NAME], or a published tree."
    )
    length: str | None = setting(None, help=f"Draft lengths of a chain, in place of a tree: {FORMS}.")
    hysteresis: int = setting(0, least=0, help="Requests by which a schedule of --length changes back later.")
    adaptive_s: float = setting(ADAPTIVE_S, least=0, most=1, help=ADAPTIVE)
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
        if sum(choice is not None for choice in (self.plan, self.tree, self.length)) > 1:
            raise UsageError("give one of --plan, --tree and --length")
        if self.length is not None and self.load.capacity is not None:
            raise UsageError("--capacity is for trees and plans: give --arrivals with --length")
        if self.length is None and self.hysteresis:
            raise UsageError("--hysteresis is for schedules of draft lengths: give --length schedule")

    def lengths(self) -> dict[str, Any]:
        """Return what `simulate.runs.length_server.length_decoding` takes of these settings."""
        names = ("pad", "hysteresis", "adaptive_s", "seed")
        return {name: getattr(self, name) for name in names} | {"switch_s": self.load.settings["switch_s"]}

    def recorded(self) -> dict[str, Any]:
        """Return the settings as the record holds them."""
        load = self.load.settings if self.load.given else {}
        chosen = {} if self.length is None else {"length": self.length, **self.lengths()}
        return self.prompts.settings | chosen | {"pad": self.pad} | load | {"seed": self.seed}


@dataclass(frozen=True, kw_only=True)
class VerdictSettings(Settings):
    """The settings of `verdict`."""

    batch: tuple[int, ...] = setting((), least=1, help="Running requests; default the profile's batch sizes.")
    running: Path | None = setting(
        None,
        form="file",
        help="The distribution of running requests: a CSV `requests,share`, scrapes of /metrics, or vLLM's log.",
    )
    arms: Path | None = setting(
        None,
        form="file",
        help="In place of a profile, two measured arms: a table batch,drafted,tokens_s with drafted 0 and one length, "
        "at two batch sizes or more.",
    )
    cost_table: Path | None = setting(
        None, form="file", help="Also write the step times to this file, as the cost table of SGLang's DSpark planner."
    )
    prompts: PromptSettings = group(PromptSettings)
    adaptive_s: float = setting(ADAPTIVE_S, least=0, most=1, help=ADAPTIVE)
    pad: bool = setting(True, option="--pad/--no-pad", help="Price batch sizes below the profile's smallest as that.")
    seed: int = defaults.seed()

    def check(self) -> None:
        """Raise UsageError where two settings are the same choice."""
        if self.batch and self.running is not None:
            raise UsageError("give one of --batch and --running")
