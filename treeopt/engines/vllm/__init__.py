"""The export to vLLM 0.33.0: a chain whose length may depend on the batch size, as JSON of `--speculative-config`.

K counts drafted tokens without the root, like `Tree.depth`.

Static trees were removed in 0.21.0 (vllm#42121). Until 0.20.2 `speculative_token_tree` took a list of paths, but gave
each node of a level the same number of children (nodes of the level below over nodes of the level), so that any
non-uniform tree silently became another one. Medusa was removed after 0.32.0.

A schedule is a list of inclusive batch ranges [start, end, K]. Only vLLM's scheduler checks it
(vllm/v1/spec_decode/dynamic/utils.py): the first range starts at 1, ranges are sorted and do not overlap, gaps and the
tail keep the K before them, K above `num_speculative_tokens` is silently clamped. A batch between two planned sizes
uses the smaller one's K, a batch below all planned sizes that of the smallest.

Synthetic acceptance takes `num_speculative_tokens` rates P(the first i are accepted), i = 1 .. K, never rising
(`_resolve_synthetic_acceptance_rates`). Unknown keys raise an error, so provenance goes to the notes.

* `driver`: its servers, launched by draft length.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from treeopt.constraints import ChainOnly, UniformBranching
from treeopt.engines.export import (
    TARGET,
    Export,
    Fit,
    Nearest,
    checked_note,
    coverage_note,
    drafter_notes,
    entries_of,
    fit,
    origin_note,
    refuse_plain,
    refuse_triple,
    tiers,
)
from treeopt.engines.imposed_acceptance import imposed_notes, kept_rates
from treeopt.errors import EngineError, UsageError
from treeopt.plans.plan import Plan
from treeopt.storage.provenance import look
from treeopt.traces.trace import Trace
from treeopt.tree import Tree

ENGINE = "vLLM 0.33.0"
CONSTRAINTS = (ChainOnly(source="static trees removed in 0.21.0, vllm#42121"),)
CHECKED = f"the code of {ENGINE}, and vLLM 0.32.0 itself, its SpeculativeConfig"
ENGINE_WITH_TREES = "vLLM 0.20.2"
RATES = "acceptance by position needs vLLM 0.20 or later"
SCHEDULES = "a length per range of batch sizes needs vLLM 0.24 or later"
TREES = (UniformBranching(source="child_drafts_per_level, 0.10.1 to 0.20.2"),)

METHODS: Mapping[str, frozenset[str]] = {
    "custom_class": frozenset({"custom_class"}),
    "dflash": frozenset({"dflash"}),
    "draft_model": frozenset({"language-model"}),
    "dspark": frozenset({"dspark"}),
    "eagle": frozenset({"eagle"}),
    "eagle3": frozenset({"eagle", "eagle3"}),
    "mtp": frozenset({"mtp"}),
    "ngram": frozenset({"prompt-lookup", "prompt-lookup:vllm"}),
    "ngram_gpu": frozenset({"prompt-lookup", "prompt-lookup:vllm"}),
    "suffix": frozenset({"suffix"}),
}
"""Drafting methods, and the kinds of treeopt's drafters that each runs (vllm/config/speculative.py)."""

WITHOUT_MODEL = frozenset({"dspark", "mtp", "ngram", "ngram_gpu", "suffix"})
"""Methods for which vLLM fills in `model` itself (`SpeculativeConfig.__post_init__`)."""

SCHEDULED_ON_V1 = frozenset({"dflash", "draft_model", "eagle", "eagle3", "mtp", "ngram"})
"""Methods whose schedule model runner V1 follows."""

REMOVED = frozenset({"medusa", "mlp_speculator"})


def export(
    plan: Plan,
    *,
    method: str | None = None,
    model: str | None = None,
    target: str = TARGET,
    batch: int | None = None,
    nearest: Nearest | None = None,
    replay: Trace | None = None,
) -> Export:
    """Return the JSON of `--speculative-config`: one chain length, or one per range of batch sizes.

    Args:
        plan: what to export.
        method: vLLM's drafting method; has no default, because a plan does not name it.
        model: the drafter's checkpoint; optional only for methods that need none.
        target: the target's checkpoint, for the launch line.
        batch: one of the plan's batch sizes; default all of them.
        nearest: "chain" uses the plan's best chain where a tree branches.
        replay: a trace whose acceptance, on the longest chain's walk, is imposed (vllm#40662).

    Raises:
        UsageError: no method, no model, or no such batch size.
        EngineError: a method that vLLM lacks, a branching tree, or a plan without speculation.
        TraceError: a chain that the replayed trace does not cover.
    """
    refuse_triple(ENGINE, nearest)
    method = _known(method, model)
    entries = entries_of(plan, batch=batch)
    fits = [fit(entry, engine=ENGINE, rules=CONSTRAINTS, nearest=nearest) for entry in entries]
    ranges = schedule(fits)
    longest = max(tokens for _, _, tokens in ranges)
    if longest == 0:
        refuse_plain(ENGINE, [at.batch for at in fits])
    config: dict[str, Any] = {"method": method}
    if model is not None:
        config["model"] = model
    config["num_speculative_tokens"] = longest
    notes = [at.note for at in fits if at.note]
    notes += drafter_notes(plan, engine=f"{ENGINE} {method}", kinds=METHODS[method])
    if len(ranges) > 1:
        config["num_speculative_tokens_per_batch_size"] = ranges
        notes.append(f"{SCHEDULES}: earlier releases reject the key; --batch exports one length")
        notes.append(f"{ENGINE} ignores the schedule under data parallelism; K is then always {longest}")
        if method in SCHEDULED_ON_V1:
            notes.append("model runner V1 runs a schedule without full CUDA graphs, V2 with one set of graphs per K")
        else:
            notes.append(f"{ENGINE} ignores the schedule of method {method} on model runner V1")
    if method in ("ngram", "ngram_gpu"):
        notes += _lookup_notes(look(plan.meta, "trace", "drafter", "kind"))
    if method == "mtp":
        notes.append(f"{ENGINE} needs K at most the model's n_predict, or a multiple of it; check {longest}")
    if replay is not None:
        rates = kept_rates(Tree.chain(longest), replay)
        config |= {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": rates}
        notes += [*imposed_notes(entries, fits, replay, rates), f"{RATES}: earlier releases reject the key"]
    notes += [checked_note(CHECKED), coverage_note(fits), origin_note(fits)]
    text = json.dumps(config)
    flags = f"--speculative-config {shlex.quote(text)}"
    return Export(text, ".json", flags, tuple(notes), launch=f"vllm serve {shlex.quote(target)} {flags}")


def schedule(fits: Sequence[Fit]) -> list[list[int]]:
    """Return inclusive ranges [start, end, K] from batch 1 to the largest planned, without gaps.

    >>> from treeopt.tree import Tree
    >>> schedule([Fit(1, Tree.chain(5)), Fit(8, Tree.chain(3)), Fit(32, None)])
    [[1, 7, 5], [8, 31, 3], [32, 32, 0]]
    """
    steps = tiers(fits)
    ends = [start - 1 for _, (start, _) in pairwise(steps)]
    ends.append(max(at.batch for at in fits))
    return [[start, end, tokens] for (start, tokens), end in zip(steps, ends, strict=True)]


def _lookup_notes(kind: object) -> list[str]:
    """Return what to set for vLLM's prompt lookup, and how the plan's drafter differs from it."""
    if kind == "prompt-lookup:vllm":
        return ["set prompt_lookup_min and prompt_lookup_max to MIN and MAX of the drafter's name (default 5 and 5)"]
    return [
        "set prompt_lookup_max to the drafter's longest match (N of prompt-lookup:N, default 3) and "
        "prompt_lookup_min to 1: if one is missing it equals the other, and only matches of that length count",
        f"{ENGINE} drafts nothing where nothing matches, treeopt's prompt lookup always drafts something: record "
        "prompt-lookup:vllm instead",
    ]


def _known(method: str | None, model: str | None) -> str:
    known = ", ".join(METHODS)
    if method is None:
        raise UsageError(f"{ENGINE} needs a method, one of {known}: give --method")
    if method not in METHODS:
        why = "was removed after 0.32.0" if method in REMOVED else "is not one of its methods"
        raise EngineError(f"{ENGINE} cannot run method {method}: it {why}; nearest: {known}")
    if model is None and method not in WITHOUT_MODEL:
        raise UsageError(f"{ENGINE}: method {method} needs a model, the drafter's checkpoint: give --model")
    return method
