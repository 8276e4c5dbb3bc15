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

from treeopt.constraints import chains_only
from treeopt.engines.dynamic_trees import DynamicTrees
from treeopt.engines.engine import Engine, ExportJob, Method
from treeopt.engines.export import DRAFTER, LONGEST_MATCH, NOTHING_MATCHES, Export, match_note

TITLE = "OpenVINO GenAI 2026.4.1"
TREES = DynamicTrees(
    TITLE,
    names=("tree_depth", "branching_factor", "num_assistant_tokens"),
    counts_root=False,
    bound="pool",
    fills_levels=True,
    one_size="a GenerationConfig holds one",
    source="src/cpp/src/generation_config.cpp",
    requests=1,
)


def write(job: ExportJob) -> Export:
    """Return the settings as JSON: one chain length, or the three settings of a dynamic tree."""
    triple, method = job.dynamic(), str(job.method)
    if triple is not None:
        settings = TREES.settings(triple)
        job.notes.append("trees are verified only by greedy decoding: leave do_sample False")
    else:
        settings = {"num_assistant_tokens": job.length()}
    if method == "prompt-lookup":
        settings["max_ngram_size"] = LONGEST_MATCH
    job.notes += _method_notes(method, job.kind)
    launch = _launch(settings, job.target, job.model or DRAFTER, method)
    return Export(json.dumps(settings), ".json", launch=launch)


def _method_notes(method: str, kind: object) -> list[str]:
    if method == "eagle3":
        return [
            "OpenVINO may feed an EAGLE-3 drafter other layers of the target than it was trained on (the exported "
            "target decides); compare its acceptance with the trace before you trust the prediction"
        ]
    if method == "dflash":
        return [f"{TITLE} runs DFlash greedily, one request at a time, with K below the block_size of its file"]
    if method == "prompt-lookup" and kind == "prompt-lookup:vllm":
        return ["set max_ngram_size to MAX of the drafter's name; OpenVINO matches that many tokens, down to 1"]
    if method == "prompt-lookup":
        return [
            match_note("max_ngram_size"),
            f"{TITLE} {NOTHING_MATCHES}",
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


ENTRY = Engine(
    name="openvino",
    title=TITLE,
    rules=(chains_only(source="GenerationConfig has no static tree"),),
    trees=TREES,
    methods={
        "draft-model": Method.of("language-model"),
        "eagle3": Method.of("eagle3", trees=True),
        "dflash": Method.of("dflash"),
        "prompt-lookup": Method.of("prompt-lookup", "prompt-lookup:vllm", model="none"),
    },
    write=write,
    checked=f"{TITLE}, its GenerationConfig.validate",
    driver="treeopt.engines.openvino.driver:OpenVino",
)
