"""The settings of a search: the trees that it considers, how it chooses among them, and what it compares them with."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from treeopt import defaults
from treeopt.constraints import Constraint
from treeopt.defaults import HELD_OUT, NODES
from treeopt.errors import UsageError
from treeopt.policies import Policy, policy_text
from treeopt.policies.policy_kinds import sweeps
from treeopt.replay.objective import OBJECTIVES, THROUGHPUT, Objective
from treeopt.searchers.integer_programme import WORK
from treeopt.searchers.step_prices import Padding
from treeopt.settings import Settings, setting
from treeopt.tree import MAX_NODES, Tree

Method = Literal["renewal", "best-first", "hydra"]


def largest_tree() -> Any:
    """Return the setting of the largest tree that is tried."""
    help_text = f"Largest tree tried, in nodes; default {NODES}, or the largest that the step times cover."
    return setting(None, least=1, most=MAX_NODES, help=help_text)


def deepest_tree() -> Any:
    """Return the setting of the deepest tree that is tried."""
    help_text = "Deepest tree tried; default the trace's depth, or the deepest that the step times cover."
    return setting(None, least=1, help=help_text)


def context() -> Any:
    """Return the setting of the tokens in the cache."""
    help_text = (
        "Tokens in the cache per sequence, such as 512 or 8k; default as profiled, the shortest of several contexts."
    )
    return setting(None, least=0, form="tokens", help=help_text)


def limiting_engine(more: str = "") -> Any:
    """Return the setting of the engine that limits the trees; its help ends with `more`."""
    help_text = f"Only trees that this engine can run; plans record the cost of each rule that binds.{more}"
    return setting(None, option="--for", help=help_text)


@dataclass(frozen=True, kw_only=True)
class SearchSettings(Settings):
    """The settings of `search`."""

    batch: tuple[int, ...] = setting((1,), least=1, help="Batch sizes, such as 4 or 1,2,4,8.")
    max_nodes: int | None = largest_tree()
    max_depth: int | None = deepest_tree()
    method: Method = setting("renewal", help="How trees are proposed.")
    objective: Objective | str = setting(
        THROUGHPUT.name,
        choices=tuple(OBJECTIVES),
        help="Tokens over all requests, request by request, or in the worst domain.",
    )
    max_tpot_s: float | None = defaults.max_tpot()
    near: float = setting(
        0.01,
        least=0,
        below=1,
        help="Take the tree with the highest lower bound of those within this share of the fastest or within the "
        "error, or a smaller one within this share of it; 0: the fastest.",
    )
    shrink: float | None = setting(
        None,
        least=0,
        help="Strength of shrinkage towards similar paths, in pseudo-anchors; 0: none. Default: fitted to requests.",
    )
    engine: str | None = limiting_engine()
    rules: tuple[Constraint, ...] = setting((), option="", help="Further rules that trees must keep.")
    policies: tuple[str, ...] = setting(
        (),
        choices=lambda: (*sweeps(), "all"),
        option="--policy",
        help="Also sweep this kind of dynamic policy, on a trace with candidates; may be given several times.",
    )
    dynamic: tuple[Policy, ...] = setting(
        (),
        help="Also judge this dynamic tree, such as the one that your engine runs: nodes=16,depth=5,beam=4,width=4, "
        "on a trace with candidates; may be given several times.",
    )
    padding: Padding | None = setting(
        None,
        help="With --policy or --dynamic: pad the batch's trees to the largest possible (full; CUDA graphs), to the "
        "widest of the batch (widest; treeopt's loop; the default), or not at all (none).",
    )
    target_interval: float | None = setting(
        None,
        above=0,
        help="Print how many more requests make the intervals of tau this narrow: 0.01 for 1 %.",
    )
    compare: Mapping[str, Tree] | None = setting(
        None, option="", help="Further trees to judge, by name; default Medusa's and EAGLE-1's."
    )
    held_out: float = setting(HELD_OUT, above=0, below=1, help="Share of requests that predictions are made on.")
    context: int | None = context()
    solver_work: float = setting(
        WORK,
        least=0,
        option="",
        help="Work of an integer programme per batch size, in CP-SAT's deterministic time; 0 for none.",
    )
    seed: int = defaults.seed()

    def check(self) -> None:
        """Raise UsageError where batch sizes are missing or repeat, or where a setting lacks what it is for."""
        if not self.batch:
            raise UsageError("at least one batch size is needed")
        if len(set(self.batch)) < len(self.batch):
            raise UsageError(f"batch sizes must differ, got {', '.join(map(str, self.batch))}")
        if (self.policies or self.dynamic) and self.judged_by is not THROUGHPUT:
            option = "--policy" if self.policies else "--dynamic"
            raise UsageError(
                f"dynamic trees are judged by throughput, not by {self.judged_by.name}: omit {option} or --objective"
            )
        if self.padding is not None and not self.policies and not self.dynamic:
            raise UsageError("--padding applies only to dynamic policies; add --policy")

    @property
    def judged_by(self) -> Objective:
        """The objective."""
        return OBJECTIVES[self.objective] if isinstance(self.objective, str) else self.objective

    @property
    def padded(self) -> Padding:
        """The padding of dynamic trees."""
        return self.padding or "widest"

    @property
    def nodes(self) -> int:
        """The size of the largest tree."""
        return self.max_nodes or NODES

    @property
    def depth(self) -> int:
        """The depth of the deepest tree; known once the search has read the trace."""
        assert self.max_depth is not None
        return self.max_depth

    def recorded(self) -> dict[str, Any]:
        """Return the settings as the plan's `meta["search"]` holds them."""
        others = ("batch", "compare", "target_interval")
        values = {each.name: getattr(self, each.name) for each in fields(SearchSettings) if each.name not in others}
        return values | {
            "objective": self.judged_by.name,
            "rules": [f"{rule.name} ({rule.source})" for rule in self.rules],
            "policies": list(self.policies),
            "dynamic": [policy_text(policy) for policy in self.dynamic],
            "padding": self.padded if self.policies or self.dynamic else None,
        }
