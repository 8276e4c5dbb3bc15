"""The export to LMDeploy 0.18.0: options of `lmdeploy serve api_server` for a chain, one length for all batch sizes.

`--speculative-num-draft-tokens` counts drafted tokens without the root, like `Tree.depth`. LMDeploy itself accepts any
length, even a negative one. DFlash drafts one token fewer than its block size, which must be at least 2.
"""

import shlex
from collections.abc import Mapping

from treeopt.constraints import ChainOnly
from treeopt.engines.export import (
    DRAFTER,
    TARGET,
    Export,
    Nearest,
    checked_note,
    chosen_method,
    coverage_note,
    drafter_notes,
    entries_of,
    one_chain,
    origin_note,
    refuse_triple,
)
from treeopt.plans.plan import Plan

ENGINE = "LMDeploy 0.18.0"
CHECKED = f"the code of {ENGINE}, SpeculativeConfig; no engine was run"
CONSTRAINTS = (ChainOnly(source="num_speculative_tokens of SpeculativeConfig"),)

METHODS: Mapping[str, frozenset[str]] = {
    "eagle": frozenset({"eagle"}),
    "eagle3": frozenset({"eagle3"}),
    "deepseek_mtp": frozenset({"mtp"}),
    "hy3_mtp": frozenset({"mtp"}),
    "qwen3_5_mtp": frozenset({"mtp"}),
    "dflash": frozenset({"dflash"}),
}
"""Values of `--speculative-algorithm`, and the kinds of treeopt's drafters that each runs."""


def export(
    plan: Plan,
    *,
    method: str | None = None,
    model: str | None = None,
    target: str = TARGET,
    batch: int | None = None,
    nearest: Nearest | None = None,
) -> Export:
    """Return options of `lmdeploy serve api_server` that draft the planned chain.

    Args:
        plan: what to export.
        method: a value of `--speculative-algorithm`; default by the plan's drafter.
        model: the drafter's checkpoint; default none, to be added by the caller.
        target: the target's checkpoint, for the launch line.
        batch: one of the plan's batch sizes; needed when their chains differ.
        nearest: "chain" uses the plan's best chain where the tree branches.

    Raises:
        UsageError: no method, or no such batch size.
        EngineError: a method that LMDeploy lacks, a branching tree, chains of several lengths, or a plan without
            speculation.
    """
    refuse_triple(ENGINE, nearest)
    method = chosen_method(method, plan, engine=ENGINE, methods=METHODS)
    fits = one_chain(entries_of(plan, batch=batch), engine=ENGINE, rules=CONSTRAINTS, nearest=nearest)
    length = fits[0].depth
    words = ["--speculative-algorithm", method]
    if model is not None:
        words += ["--speculative-draft-model", model]
    words += ["--speculative-num-draft-tokens", str(length)]
    if method == "dflash":
        words += ["--speculative-dflash-block-size", str(length + 1)]
    notes = [at.note for at in fits if at.note]
    notes += drafter_notes(plan, engine=f"{ENGINE} {method}", kinds=METHODS[method])
    notes += [checked_note(CHECKED), coverage_note(fits), origin_note(fits)]
    drafter = [] if model is not None or method.endswith("_mtp") else ["--speculative-draft-model", DRAFTER]
    launch = shlex.join(["lmdeploy", "serve", "api_server", target, *words, *drafter])
    return Export(shlex.join(words), ".txt", "", tuple(notes), launch=launch)
