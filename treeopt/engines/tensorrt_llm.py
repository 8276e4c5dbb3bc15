"""The export to TensorRT-LLM (PyTorch backend, 2026): YAML for `trtllm-serve --config`, with `speculative_config`.

A chain is `max_draft_len`, a dynamic tree that and `dynamic_tree_max_topK` and `max_total_draft_tokens`; none counts
the root. `validate_eagle_config` asks for depth <= nodes <= width x depth, fewer than EAGLE-2's candidates.
Static trees (`eagle_choices`) were removed in August 2026 (#18210). Unknown keys raise an error.

`draft_len_schedule` maps batch sizes to lengths, and its meaning changed early in 2026 (#10860) while its form did not:
before, a key was the first batch size of a length, the key 1 had to be there, and the last length held for all larger
batches; since, a key is the last batch size of a length, and beyond the largest key the length is 0, or 1 where the
drafter's cache must stay filled (#16888). Either way the smallest key must have `max_draft_len`, the longest. Methods
follow it whose mode has `support_dynamic_draft_len` (speculative/interface.py). Which of the two is meant cannot be
seen in a file, so the caller must say it.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Literal

from treeopt.constraints import chains_only
from treeopt.engines.dynamic_trees import DynamicTrees
from treeopt.engines.engine import Engine, ExportJob, Method, Option
from treeopt.engines.export import DRAFTER, LONGEST_MATCH, Export, Fit, batch_sizes, match_note, tiers
from treeopt.errors import EngineError, UsageError
from treeopt.traces.importers.sources.prometheus_counters import CounterNames

Bounds = Literal["lower", "upper"]

TITLE = "TensorRT-LLM"
TREES = DynamicTrees(
    TITLE,
    names=("max_draft_len", "dynamic_tree_max_topK", "max_total_draft_tokens"),
    counts_root=False,
    bound="levels",
    fills_levels=True,
    one_size="draft_len_schedule sets only lengths",
    source="validate_eagle_config in llmapi/llm_args.py",
)
SCHEDULED = frozenset({"Eagle3", "MTP", "Draft_Target", "DFlash", "SA"})


def write(job: ExportJob) -> Export:
    """Return the YAML of `speculative_config`: a chain, chains by batch size, or a dynamic tree."""
    method, bounds = str(job.method), job.options.get("schedule_bounds")
    config: dict[str, object] = {"decoding_type": method}
    if METHODS[method].model != "none":
        config["speculative_model"] = job.model or DRAFTER
    triple = job.dynamic()
    if triple is not None:
        config |= {"use_dynamic_tree": True, **TREES.settings(triple)}
    else:
        config |= _chains(job.static(), method, bounds)
        job.notes += _schedule_notes(config, bounds)
    if method == "NGram":
        config["max_matching_ngram_size"] = LONGEST_MATCH
        job.notes += [
            match_note("max_matching_ngram_size"),
            f"{TITLE} matches in a pool of all requests unless is_public_pool is false",
        ]
    launch = f"trtllm-serve {shlex.quote(job.target)} --config {shlex.quote(job.file)}"
    return Export(_yaml(config), ".yaml", launch=launch, file=job.file)


def schedule(fits: Sequence[Fit], bounds: Bounds) -> dict[int, int]:
    """Return `draft_len_schedule`: batch sizes and the lengths that they begin (lower) or end (upper).

    The last length of "upper" ends at the largest planned batch size; a last length of 0 needs no key there.

    >>> from treeopt.tree import Tree
    >>> chains = [Fit(1, Tree.chain(5)), Fit(8, Tree.chain(3)), Fit(32, None)]
    >>> schedule(chains, "lower"), schedule(chains, "upper")
    ({1: 5, 8: 3, 32: 0}, {7: 5, 31: 3})
    """
    steps = tiers(fits)
    if bounds == "lower":
        return {first: length for first, _, length in steps}
    return {last: length for _, last, length in (steps if steps[-1][2] else steps[:-1])}


def _chains(fits: Sequence[Fit], method: str, bounds: Bounds | None) -> dict[str, object]:
    """Return the settings of one length, or of lengths by batch size.

    Raises:
        UsageError: several lengths, and no meaning of the schedule's keys.
        EngineError: a method without a schedule, or lengths of which the first is not the
            longest.
    """
    steps = tiers(fits)
    longest = max(length for *_, length in steps)
    if len(steps) == 1:
        return {"max_draft_len": longest}
    alternative = f"nearest: one batch size of {batch_sizes([at for at in fits if at.tree])} (`--batch`)"
    if method not in SCHEDULED:
        raise EngineError(f"{TITLE} cannot change the length of {method} by batch size; {alternative}")
    if steps[0][2] != longest:
        lengths = ", ".join(f"{length} from batch {start}" for start, _, length in steps)
        raise EngineError(
            f"{TITLE}: draft_len_schedule must begin with its longest length, but the plan has {lengths}; {alternative}"
        )
    if bounds is None:
        raise UsageError(
            f"{TITLE}: the plan has several lengths, and releases read draft_len_schedule in two ways; give "
            "--schedule-bounds lower (1.2 and before: a key is the first batch size of a length) or upper (since "
            "#10860, early in 2026: the last)"
        )
    return {"max_draft_len": longest, "draft_len_schedule": schedule(fits, bounds)}


def _schedule_notes(config: Mapping[str, object], bounds: Bounds | None) -> list[str]:
    keys = config.get("draft_len_schedule")
    if not isinstance(keys, dict):
        return []
    if bounds == "lower":
        return [
            "the keys of draft_len_schedule are the first batch sizes of their lengths, as in releases up to 1.2; a "
            "later release reads another schedule from the same text without an error"
        ]
    return [
        "the keys of draft_len_schedule are the last batch sizes of their lengths, as in releases since #10860 (early "
        "in 2026); an earlier release refuses the schedule unless its first key is 1",
        f"above batch {max(keys)} {TITLE} drafts nothing, or 1 token where the drafter's cache must stay filled "
        "(#16888)",
    ]


def _yaml(config: Mapping[str, object]) -> str:
    """Return the YAML of `speculative_config`; values are numbers, flags, words, and one flow mapping of numbers."""
    lines = ["speculative_config:"]
    for name, value in config.items():
        if isinstance(value, dict):
            text = "{" + ", ".join(f"{key}: {length}" for key, length in value.items()) + "}"
        else:
            text = json.dumps(value)
        lines.append(f"  {name}: {text}")
    return "\n".join(lines)


METHODS = {  # values of `decoding_type`
    "Eagle3": Method.of("eagle3", trees=True),
    "MTP": Method.of("mtp", model="none"),
    "NGram": Method.of("prompt-lookup", model="none"),
    "Draft_Target": Method.of("language-model"),
    "DFlash": Method.of("dflash"),
    "PARD": Method.of("pard"),
    "SA": Method.of("suffix", model="none"),
}
ENTRY = Engine(
    name="tensorrt-llm",
    title=TITLE,
    never_ran=True,
    metrics=CounterNames(
        "trtllm_spec_decode_", "accepted_tokens_total", "token_position", "drafted_tokens_total", steps=None
    ),
    rules=(chains_only(source="static trees removed from speculative_config, #18210"),),
    trees=TREES,
    methods=METHODS,
    write=write,
    devices="--tp_size",
    checked=f"the code of {TITLE} before 1.4 (llmapi/llm_args.py) and its reference of 1.3.0rc27; no engine was run",
    options=(
        Option(
            "schedule_bounds",
            "Meaning of a batch size in TensorRT-LLM's draft_len_schedule: the first of a length (lower, up to 1.2) or "
            "the last (upper, since early 2026); needed for a plan of several lengths.",
            ("lower", "upper"),
        ),
    ),
    file="treeopt_tensorrt_llm.yaml",
)
