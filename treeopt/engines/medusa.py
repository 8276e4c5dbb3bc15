"""The export to Medusa, the reference code at FasterDecoding/Medusa@e2a5d20: a static list of rank paths.

The list excludes the root, like `Tree`, and must hold every prefix, like `Tree.paths`; order is free.
Rank r at depth d becomes candidate r + 10 * (d - 1) + 1 of the heads' concatenated top tens
(`generate_medusa_buffers`), so rank 10 would silently be the next head's best token.
"""

import json

from treeopt.constraints import Constraint, DepthAtMost, RanksBelow
from treeopt.engines.export import (
    DRAFTER,
    Export,
    Nearest,
    checked_note,
    drafter_notes,
    entry_of,
    fit,
    origin_note,
    refuse_plain,
    refuse_triple,
)
from treeopt.errors import UsageError
from treeopt.plans.plan import Plan
from treeopt.storage.provenance import look

ENGINE = "Medusa e2a5d20"
CHECKED = f"the code of {ENGINE}"
KINDS = frozenset({"medusa"})
RANKS = RanksBelow(10, source="medusa/model/utils.py, TOPK")


def constraints(*, heads: int | None) -> tuple[Constraint, ...]:
    """Return the rules of a checkpoint with `heads` heads; None if the number is not known.

    >>> [type(rule).__name__ for rule in constraints(heads=4)]
    ['RanksBelow', 'DepthAtMost']
    """
    return (RANKS,) if heads is None else (RANKS, DepthAtMost(heads, source="one head a depth, Medusa#63"))


def export(
    plan: Plan,
    *,
    batch: int | None = None,
    heads: int | None = None,
    model: str = DRAFTER,
    nearest: Nearest | None = None,
) -> Export:
    """Return the list to pass as `medusa_choices` to `medusa_generate`, as JSON.

    Args:
        plan: what to export.
        batch: one of the plan's batch sizes; needed when there are several.
        heads: heads of the checkpoint; default the number recorded in the plan's trace.
        model: the checkpoint of the heads, which names its target, for the launch lines.
        nearest: "chain" uses the plan's best chain where the tree breaks a rule.

    Raises:
        UsageError: no such batch size, or a setting without meaning.
        EngineError: a rank of 10 or more, a path longer than the number of heads, or a plan without speculation.
    """
    refuse_triple(ENGINE, nearest)
    if heads is None:
        recorded = look(plan.meta, "trace", "drafter", "heads")
        heads = recorded if type(recorded) is int else None
    if heads is not None and heads < 1:
        raise UsageError(f"{ENGINE}: heads must be at least 1, got {heads}")
    entry = entry_of(plan, batch=batch, engine=ENGINE)
    fitted = fit(entry, engine=ENGINE, rules=constraints(heads=heads), nearest=nearest)
    if fitted.tree is None:
        refuse_plain(ENGINE, [entry.batch])
    notes = [fitted.note] if fitted.note else []
    notes += drafter_notes(plan, engine=ENGINE, kinds=KINDS)
    if heads is None:
        notes.append(f"the number of heads is not recorded: use a checkpoint with at least {fitted.depth}")
    if entry.batch > 1:
        notes.append(f"planned for batch {entry.batch}, but Medusa's own code decodes one sequence at a time")
    notes += [checked_note(CHECKED), origin_note([fitted])]
    text = json.dumps(fitted.tree.paths)
    return Export(text, ".json", "", tuple(notes), launch=_launch(text, model))


def _launch(choices: str, model: str) -> str:
    """Return the lines of Python that decode one prompt with these choices."""
    return f"""\
import torch
from medusa.model.medusa_model import MedusaModel

model = MedusaModel.from_pretrained({json.dumps(model)}, torch_dtype=torch.float16, device_map="auto")
tokens = model.get_tokenizer()("PROMPT", return_tensors="pt").input_ids.to(model.base_model.device)
with torch.inference_mode():
    for step in model.medusa_generate(tokens, temperature=0.0, max_steps=512, medusa_choices={choices}):
        text = step["text"]
print(text)"""
