"""The export to transformers 5.23.0: settings of `GenerationConfig` for a chain, at batch 1.

An assistant drafts `num_assistant_tokens` tokens without the root, like `Tree.depth`, but only if the schedule is
"constant" and the confidence threshold is 0: by default a draft ends at a token below 0.4. Prompt lookup drafts
`prompt_lookup_num_tokens`, and by default matches at most 2 tokens. `GenerationConfig` accepts any value of these,
even a negative number. `GenerationMixin` refuses more than one sequence (generation/utils.py).
"""

import json
from collections.abc import Mapping
from typing import Any

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
    listed,
    one_chain,
    origin_note,
    refuse_triple,
)
from treeopt.errors import EngineError, UsageError
from treeopt.plans.plan import Plan

ENGINE = "transformers 5.23.0"
CHECKED = f"{ENGINE}, its GenerationConfig and runs of its generate"
CONSTRAINTS = (ChainOnly(source="num_assistant_tokens of GenerationConfig"),)

LONGEST_MATCH = 3  # tokens that treeopt's prompt lookup matches at most, by default

METHODS: Mapping[str, frozenset[str]] = {
    "assistant": frozenset({"language-model"}),
    "prompt-lookup": frozenset({"prompt-lookup"}),
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
    """Return the settings as JSON: for the assistant's `GenerationConfig`, or for `generate` with prompt lookup.

    Args:
        plan: what to export.
        method: "assistant" or "prompt-lookup"; default by the plan's drafter.
        model: checkpoint of the assistant, for the launch lines.
        target: the target's checkpoint, for the launch lines.
        batch: 1, which is also the default.
        nearest: "chain" uses the plan's best chain where the tree branches.

    Raises:
        UsageError: no method, no such batch size, or an assistant for prompt lookup.
        EngineError: a batch size above 1, a method that transformers lacks, a branching tree, or a plan without
            speculation.
    """
    refuse_triple(ENGINE, nearest)
    method = chosen_method(method, plan, engine=ENGINE, methods=METHODS)
    if method == "prompt-lookup" and model is not None:
        raise UsageError(f"{ENGINE}: prompt lookup reads no assistant, so it takes no model: omit --model")
    held = entries_of(plan, batch=batch)
    if held[0].batch > 1:
        raise EngineError(
            f"{ENGINE} decodes one sequence at a time when it speculates, but the plan holds batch {listed(held)}; "
            "nearest: a plan for batch 1"
        )
    fits = one_chain(held[:1], engine=ENGINE, rules=CONSTRAINTS, nearest=nearest)
    settings = _settings(method, fits[0].depth)
    notes = [fits[0].note] if fits[0].note else []
    notes += drafter_notes(plan, engine=f"{ENGINE} {method}", kinds=METHODS[method])
    if method == "prompt-lookup":
        notes.append(
            f"max_matching_ngram_size {LONGEST_MATCH} is that of the drafter prompt-lookup; set it to N for "
            "prompt-lookup:N"
        )
        notes.append(f"{ENGINE} drafts nothing where nothing matches, treeopt's prompt lookup always drafts something")
    else:
        notes.append("settings belong to the assistant's generation_config, not to the target's")
    if len(held) > 1:
        notes.append(f"only batch 1 of {listed(held)} was exported: {ENGINE} decodes one sequence when it speculates")
    notes += [checked_note(CHECKED), coverage_note(fits), origin_note(fits)]
    launch = _launch(settings, target, model or DRAFTER, assisted=method == "assistant")
    return Export(json.dumps(settings), ".json", "", tuple(notes), launch=launch)


def _settings(method: str, length: int) -> dict[str, Any]:
    if method == "prompt-lookup":
        return {"prompt_lookup_num_tokens": length, "max_matching_ngram_size": LONGEST_MATCH}
    return {
        "num_assistant_tokens": length,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": 0.0,
    }


def _launch(settings: Mapping[str, Any], target: str, model: str, *, assisted: bool) -> str:
    """Return the lines of Python that decode one prompt with these settings."""
    words = ", ".join(f"{name}={value!r}" for name, value in settings.items())
    lines = [
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        "",
        f"tokenizer = AutoTokenizer.from_pretrained({json.dumps(target)})",
        f"target = AutoModelForCausalLM.from_pretrained({json.dumps(target)})",
    ]
    if assisted:
        lines.append(f"assistant = AutoModelForCausalLM.from_pretrained({json.dumps(model)})")
        lines.append(f"assistant.generation_config.update({words})")
    drafted = "assistant_model=assistant" if assisted else words
    lines.append('prompt = tokenizer("PROMPT", return_tensors="pt")')
    lines.append(f"output = target.generate(**prompt, {drafted}, do_sample=False, max_new_tokens=256)")
    lines.append("print(tokenizer.decode(output[0]))")
    return "\n".join(lines)
