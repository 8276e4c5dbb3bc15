"""The export to transformers 5.23.0: settings of `GenerationConfig` for a chain, at batch 1.

An assistant drafts `num_assistant_tokens` tokens without the root, like `Tree.depth`, but only if the schedule is
"constant" and the confidence threshold is 0: by default a draft ends at a token below 0.4. Prompt lookup drafts
`prompt_lookup_num_tokens`, and by default matches at most 2 tokens. `GenerationConfig` accepts any value of these,
even a negative number. `GenerationMixin` refuses more than one sequence (generation/utils.py).
"""

import json
from collections.abc import Mapping
from typing import Any

from treeopt.constraints import chains_only
from treeopt.engines.engine import Engine, ExportJob, Method
from treeopt.engines.export import DRAFTER, LONGEST_MATCH, NOTHING_MATCHES, Export, batch_sizes, match_note
from treeopt.errors import EngineError

TITLE = "transformers 5.23.0"


def write(job: ExportJob) -> Export:
    """Return the settings as JSON: for the assistant's `GenerationConfig`, or for `generate` with prompt lookup.

    Raises:
        EngineError: a batch size above 1.
    """
    held = job.entries
    if held[0].batch > 1:
        raise EngineError(
            f"{TITLE} decodes one sequence at a time when it speculates, but the plan holds batch {batch_sizes(held)}; "
            "nearest: a plan for batch 1"
        )
    job.entries = held[:1]
    settings = _settings(str(job.method), job.length())
    if job.method == "prompt-lookup":
        job.notes += [
            match_note("max_matching_ngram_size"),
            f"{TITLE} {NOTHING_MATCHES}",
        ]
    else:
        job.notes.append("settings belong to the assistant's generation_config, not to the target's")
    if len(held) > 1:
        job.notes.append(
            f"only batch 1 of {batch_sizes(held)} was exported: {TITLE} decodes one sequence when it speculates"
        )
    launch = _launch(settings, job.target, job.model or DRAFTER, assisted=job.method == "assistant")
    return Export(json.dumps(settings), ".json", launch=launch)


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


ENTRY = Engine(
    name="transformers",
    title=TITLE,
    rules=(chains_only(source="num_assistant_tokens of GenerationConfig"),),
    methods={
        "assistant": Method.of("language-model"),
        "prompt-lookup": Method.of("prompt-lookup", model="none"),
    },
    write=write,
    checked=f"{TITLE}, its GenerationConfig and runs of its generate",
    sequences=1,
)
