"""The export to OpenVINO GenAI 2026.4.1: settings of `GenerationConfig` for a chain or a dynamic tree.

`num_assistant_tokens` counts drafted nodes without the root, like `Tree.nodes`; `tree_depth` levels and
`branching_factor` nodes per level make a dynamic tree of EAGLE-2, which only an EAGLE-3 drafter has and only greedy
decoding verifies, one request at a time: with several the engine fails where one of them ends.
`GenerationConfig.validate` refuses fewer nodes than levels and a confidence threshold beside `num_assistant_tokens`. It
does not refuse more nodes than candidates, a negative number or an unknown name.
Settings belong to one call of `generate`, so a batch size can have its own: export one at a time.

* `driver`: a worker under the engine's own Python.
* `worker`: the program that this Python runs.
"""

import json
from collections.abc import Mapping

from treeopt.constraints import ChainOnly
from treeopt.engines.dynamic_trees import DynamicTrees, asked_for, describe, dynamic_tree
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
)
from treeopt.errors import EngineError, UsageError
from treeopt.plans.plan import Plan
from treeopt.storage.provenance import look

ENGINE = "OpenVINO GenAI 2026.4.1"
CHECKED = f"{ENGINE}, its GenerationConfig.validate"
CONSTRAINTS = (ChainOnly(source="GenerationConfig has no static tree"),)
TREES = DynamicTrees(
    ENGINE,
    names=("tree_depth", "branching_factor", "num_assistant_tokens"),
    counts_root=False,
    bound="pool",
    fills_levels=True,
    one_size="a GenerationConfig holds one",
    source="src/cpp/src/generation_config.cpp",
    requests=1,
)

LONGEST_MATCH = 3  # tokens that treeopt's prompt lookup matches at most, by default

METHODS: Mapping[str, frozenset[str]] = {
    "draft-model": frozenset({"language-model"}),
    "eagle3": frozenset({"eagle3"}),
    "prompt-lookup": frozenset({"prompt-lookup", "prompt-lookup:vllm"}),
}
"""Drafting methods, and the kinds of treeopt's drafters that each runs."""


def export(
    plan: Plan,
    *,
    method: str | None = None,
    model: str | None = None,
    target: str = TARGET,
    batch: int | None = None,
    nearest: Nearest | None = None,
) -> Export:
    """Return the settings as JSON: one chain length, or the three settings of a dynamic tree.

    Args:
        plan: what to export.
        method: "draft-model", "eagle3" or "prompt-lookup"; default by the plan's drafter.
        model: folder of the drafter, for the launch lines.
        target: folder of the target, for the launch lines.
        batch: one of the plan's batch sizes; needed when their chains differ, or with a dynamic tree.
        nearest: "chain" uses the plan's best chain where the tree branches; "triple" a dynamic tree of the same
            depth, width and size.

    Raises:
        UsageError: no method, no such batch size, or a drafter for prompt lookup.
        EngineError: a method that OpenVINO lacks, a tree that it cannot run, a dynamic tree without EAGLE-3, chains
            of several lengths, or a plan without speculation.
    """
    method = chosen_method(method, plan, engine=ENGINE, methods=METHODS)
    if method == "prompt-lookup" and model is not None:
        raise UsageError(f"{ENGINE}: prompt lookup reads no drafter, so it takes no model: omit --model")
    entries = entries_of(plan, batch=batch)
    notes = drafter_notes(plan, engine=f"{ENGINE} {method}", kinds=METHODS[method])
    if asked_for(entries, nearest):
        if method != "eagle3":
            raise EngineError(f"{ENGINE} drafts trees only with method eagle3, not {method}; nearest: `chain`")
        triple, planned = dynamic_tree(entries, TREES, nearest=nearest)
        settings = TREES.settings(triple)
        notes = [*planned, *notes, "trees are verified only by greedy decoding: leave do_sample False"]
    else:
        fits = one_chain(
            entries,
            engine=ENGINE,
            rules=CONSTRAINTS,
            nearest=nearest,
            others=lambda entry: describe(entry, TREES) if method == "eagle3" else (),
        )
        settings = {"num_assistant_tokens": fits[0].depth}
        notes = [*(at.note for at in fits if at.note), *notes, coverage_note(fits), origin_note(fits)]
    if method == "prompt-lookup":
        settings["max_ngram_size"] = LONGEST_MATCH
    notes += [*_method_notes(method, look(plan.meta, "trace", "drafter", "kind")), checked_note(CHECKED)]
    launch = _launch(settings, target, model or DRAFTER, method)
    return Export(json.dumps(settings), ".json", "", tuple(notes), launch=launch)


def _method_notes(method: str, kind: object) -> list[str]:
    if method == "eagle3":
        return [
            "OpenVINO may feed an EAGLE-3 drafter other layers of the target than it was trained on (the exported "
            "target decides); compare its acceptance with the trace before you trust the prediction"
        ]
    if method == "prompt-lookup" and kind == "prompt-lookup:vllm":
        return ["set max_ngram_size to MAX of the drafter's name; OpenVINO matches that many tokens, down to 1"]
    if method == "prompt-lookup":
        return [
            f"max_ngram_size {LONGEST_MATCH} is that of the drafter prompt-lookup; set it to N for prompt-lookup:N",
            f"{ENGINE} drafts nothing where nothing matches, treeopt's prompt lookup always drafts something",
        ]
    return []


def _launch(settings: Mapping[str, int], target: str, model: str, method: str) -> str:
    """Return the lines of Python that decode one prompt with these settings."""
    drafting = (
        "prompt_lookup=True"
        if method == "prompt-lookup"
        else f'draft_model=openvino_genai.draft_model({json.dumps(model)}, "CPU")'
    )
    words = ", ".join(f"{name}={value}" for name, value in settings.items())
    return f"""\
import openvino_genai

pipeline = openvino_genai.LLMPipeline({json.dumps(target)}, "CPU", {drafting})
config = openvino_genai.GenerationConfig(max_new_tokens=256, {words})
config.validate()
print(pipeline.generate("PROMPT", config))"""
