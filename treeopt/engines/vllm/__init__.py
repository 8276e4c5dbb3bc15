"""The export to vLLM 0.33.0: a chain whose length may depend on the batch size, as JSON of `--speculative-config`.

K counts drafted tokens without the root, like `Tree.depth`.

Static trees were removed in 0.21.0 (vllm#42121), Medusa after 0.32.0.

A schedule is a list of inclusive batch ranges [start, end, K]. Only vLLM's scheduler checks it
(vllm/v1/spec_decode/dynamic/utils.py): the first range starts at 1, ranges are sorted and do not overlap, gaps and the
tail keep the K before them, K above `num_speculative_tokens` is silently clamped. A batch between two planned sizes
uses the smaller one's K, a batch below all planned sizes that of the smallest.

Synthetic acceptance takes `num_speculative_tokens` rates P(the first i are accepted), i = 1 .. K, never rising
(`_resolve_synthetic_acceptance_rates`). Unknown keys raise an error, so provenance goes to the notes.

* `driver`: its servers, launched by draft length.
* `in_process`: an engine that treeopt steps itself, on a CPU.
* `worker`: the program that steps it.
"""

import json
import shlex
from typing import Any

from treeopt.constraints import chains_only
from treeopt.engines.engine import SHARED, Engine, ExportJob, Method
from treeopt.engines.export import Export, tiers
from treeopt.storage.provenance import look
from treeopt.traces.importers.sources.prometheus_counters import CounterNames

TITLE = "vLLM 0.33.0"
RATES = "acceptance by position needs vLLM 0.20 or later"
SCHEDULES = "a length per range of batch sizes needs vLLM 0.24 or later"
PARALLEL = ("p-eagle", "pard")  # kinds of drafters that eagle3 and draft_model run with parallel_drafting
SCHEDULED_ON_V1 = frozenset({"dflash", "draft_model", "eagle", "eagle3", "mtp", "ngram"})
"""Methods whose schedule model runner V1 follows."""


def write(job: ExportJob) -> Export:
    """Return the JSON of `--speculative-config`: one chain length, or one per range of batch sizes.

    Acceptance is imposed on the longest chain's walk (vllm#40662).
    """
    ranges = [list(tier) for tier in tiers(job.static())]
    longest = max(tokens for _, _, tokens in ranges)
    config: dict[str, Any] = {"method": job.method}
    if job.model is not None:
        config["model"] = job.model
    if job.kind in PARALLEL:
        config["parallel_drafting"] = True
    config["num_speculative_tokens"] = longest
    if len(ranges) > 1:
        config["num_speculative_tokens_per_batch_size"] = ranges
        job.notes.append(f"{SCHEDULES}: earlier releases reject the key; --batch exports one length")
        job.notes.append(f"{TITLE} ignores the schedule under data parallelism; K is then always {longest}")
        if job.kind in PARALLEL:
            job.notes.append("vLLM 0.32 ends at the first step of another length with parallel_drafting: use --batch")
        if job.method in SCHEDULED_ON_V1:
            job.notes.append(
                "model runner V1 runs a schedule without full CUDA graphs, V2 with one set of graphs per K"
            )
        else:
            job.notes.append(f"{TITLE} ignores the schedule of method {job.method} on model runner V1")
    if job.method in ("ngram", "ngram_gpu"):
        job.notes += _lookup_notes(job.kind)
    if job.method == "suffix":
        kept = look(job.plan.meta, "trace", "drafter", "cached_requests") or 0
        job.notes.append(
            f"the trace was recorded with suffix_decoding_max_cached_requests {kept}: give it to vLLM, which otherwise "
            "reads 10000 earlier outputs"
        )
    if job.method == "dflash":
        job.note_block(longest)
    if job.method == "mtp":
        job.notes.append(f"{TITLE} needs K at most the model's n_predict, or a multiple of it; check {longest}")
    if job.replay is not None:
        rates = job.imposed_rates(longest)
        config |= {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": rates}
        job.notes.append(f"{RATES}: earlier releases reject the key")
    text = json.dumps(config)
    flags = f"--speculative-config {shlex.quote(text)}"
    return Export(text, ".json", flags, launch=f"vllm serve {shlex.quote(job.target)} {flags}")


def _lookup_notes(kind: object) -> list[str]:
    """Return what to set for vLLM's prompt lookup, and how the plan's drafter differs from it."""
    if kind == "prompt-lookup:vllm":
        return ["set prompt_lookup_min and prompt_lookup_max to MIN and MAX of the drafter's name (default 5 and 5)"]
    return [
        "set prompt_lookup_max to the drafter's longest match (N of prompt-lookup:N, default 3) and "
        "prompt_lookup_min to 1: if one is missing it equals the other, and only matches of that length count",
        f"{TITLE} drafts nothing where nothing matches, treeopt's prompt lookup always drafts something: record "
        "prompt-lookup:vllm instead",
    ]


ENTRY = Engine(
    name="vllm",
    title=TITLE,
    metrics=CounterNames(
        "vllm:spec_decode_",
        latency="vllm:inter_token_latency_seconds",  # one for each output, however many tokens it holds
        iterations="vllm:iteration_tokens_total_count",
        generated="vllm:generation_tokens_total",
        ended="vllm:request_success_total",
    ),
    rules=(chains_only(source="static trees removed in 0.21.0, vllm#42121"),),
    methods={  # vllm/config/speculative.py; it fills in `model` itself where none is required (`__post_init__`)
        "custom_class": Method.of("custom_class", model="required"),
        "dflash": Method.of("dflash", model="required"),
        "draft_model": Method.of("language-model", "pard", model="required"),
        "dspark": Method.of("dspark"),
        "eagle": Method.of("eagle", model="required"),
        "eagle3": Method.of("eagle", "eagle3", "p-eagle", model="required"),
        "mtp": Method.of("mtp"),
        "ngram": Method.of("prompt-lookup", "prompt-lookup:vllm"),
        "ngram_gpu": Method.of("prompt-lookup", "prompt-lookup:vllm"),
        "suffix": Method.of("suffix"),
    },
    default_method="required",
    removed=dict.fromkeys(("medusa", "mlp_speculator"), "was removed after 0.32.0"),
    write=write,
    devices="--tensor-parallel-size",
    checked=f"the code of {TITLE}, and vLLM 0.32.0 itself, its SpeculativeConfig",
    takes=(*SHARED, "replay"),
    driver="treeopt.engines.vllm.in_process:start",
)
