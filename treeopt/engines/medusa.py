"""The export to Medusa, the reference code at FasterDecoding/Medusa@e2a5d20: a static list of rank paths.

The list excludes the root, like `Tree`, and must hold every prefix, like `Tree.paths`; order is free.
Rank r at depth d becomes candidate r + 10 * (d - 1) + 1 of the heads' concatenated top tens
(`generate_medusa_buffers`), so rank 10 would silently be the next head's best token.
"""

import json

from treeopt.constraints import depth_at_most, ranks_below
from treeopt.engines.engine import Engine, ExportJob, Method, Option
from treeopt.engines.export import DRAFTER, Export, batch_sizes
from treeopt.errors import UsageError
from treeopt.storage.provenance import look

TITLE = "Medusa e2a5d20"
RULES = (ranks_below(10, source="medusa/model/utils.py, TOPK"),)


def write(job: ExportJob) -> Export:
    """Return the list to pass as `medusa_choices` to `medusa_generate`, as JSON.

    Raises:
        UsageError: several batch sizes, or no heads.
        EngineError: a rank of 10 or more, or a path longer than the number of heads.
    """
    recorded = look(job.plan.meta, "trace", "drafter", "heads")
    heads = job.options.get("heads") or (recorded if type(recorded) is int else None)
    if heads is not None and heads < 1:
        raise UsageError(f"{TITLE}: heads must be at least 1, got {heads}")
    if len(job.entries) > 1:
        raise UsageError(
            f"{TITLE} takes one topology: choose one batch size of {batch_sizes(job.entries)} with --batch"
        )
    (at,) = job.static(RULES if heads is None else (*RULES, depth_at_most(heads, source="one head a depth, Medusa#63")))
    if heads is None:
        job.notes.append(f"the number of heads is not recorded: use a checkpoint with at least {at.depth}")
    if at.batch > 1:
        job.notes.append(f"planned for batch {at.batch}, but Medusa's own code decodes one sequence at a time")
    text = json.dumps(() if at.tree is None else at.tree.paths)
    return Export(text, ".json", launch=_launch(text, job.model or DRAFTER))


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


ENTRY = Engine(
    name="medusa",
    title=TITLE,
    rules=RULES,
    methods={"medusa": Method.of("medusa")},
    write=write,
    checked=f"the code of {TITLE}",
    takes=("batch", "model", "nearest"),
    options=(Option("heads", "Number of heads in the checkpoint (medusa)."),),
    sequences=1,
)
