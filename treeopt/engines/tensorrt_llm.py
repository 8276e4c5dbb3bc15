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
from itertools import pairwise
from typing import Literal

from treeopt.constraints import ChainOnly
from treeopt.engines.dynamic_trees import DynamicTrees, asked_for, describe, dynamic_tree
from treeopt.engines.export import (
    DRAFTER,
    TARGET,
    Export,
    Fit,
    Nearest,
    checked_note,
    chosen_method,
    coverage_note,
    drafter_notes,
    entries_of,
    fit,
    listed,
    origin_note,
    refuse_plain,
    tiers,
)
from treeopt.errors import EngineError, UsageError
from treeopt.plans.plan import Plan

Bounds = Literal["lower", "upper"]

ENGINE = "TensorRT-LLM"
CHECKED = f"the code of {ENGINE} before 1.4 (llmapi/llm_args.py) and its reference of 1.3.0rc27; no engine was run"
CONSTRAINTS = (ChainOnly(source="static trees removed from speculative_config, #18210"),)
TREES = DynamicTrees(
    ENGINE,
    names=("max_draft_len", "dynamic_tree_max_topK", "max_total_draft_tokens"),
    counts_root=False,
    bound="levels",
    fills_levels=True,
    one_size="draft_len_schedule sets only lengths",
    source="validate_eagle_config in llmapi/llm_args.py",
)

METHODS: Mapping[str, frozenset[str]] = {
    "Eagle3": frozenset({"eagle3"}),
    "MTP": frozenset({"mtp"}),
    "NGram": frozenset({"prompt-lookup"}),
    "Draft_Target": frozenset({"language-model"}),
    "DFlash": frozenset({"dflash"}),
    "SA": frozenset({"suffix"}),
}
"""Values of `decoding_type`, and the kinds of treeopt's drafters that each runs."""

WITHOUT_MODEL = frozenset({"MTP", "NGram", "SA"})
SCHEDULED = frozenset({"Eagle3", "MTP", "Draft_Target", "DFlash", "SA"})
LONGEST_MATCH = 3  # tokens that treeopt's prompt lookup matches at most, by default


def export(
    plan: Plan,
    *,
    method: str | None = None,
    model: str | None = None,
    target: str = TARGET,
    batch: int | None = None,
    nearest: Nearest | None = None,
    schedule_bounds: Bounds | None = None,
    file: str = "treeopt_tensorrt_llm.yaml",
) -> Export:
    """Return the YAML of `speculative_config`: a chain, chains by batch size, or a dynamic tree.

    Args:
        plan: what to export.
        method: a value of `decoding_type`; default by the plan's drafter.
        model: the drafter's checkpoint; not for methods that need none.
        target: the target's checkpoint, for the launch line.
        batch: one of the plan's batch sizes; default all of them.
        nearest: "chain" uses the plan's best chain where the tree branches; "triple" a dynamic tree of the same
            depth, width and size.
        schedule_bounds: meaning of the schedule's keys in the release that runs: "lower" for the first batch size of
            a length, "upper" for the last; needed for several lengths.
        file: path of the YAML, for the launch line.

    Raises:
        UsageError: no method, a missing or useless model, no such batch size, or several lengths without
            `schedule_bounds`.
        EngineError: a method that TensorRT-LLM lacks, a tree or a schedule that it cannot run, or a plan without
            speculation.
    """
    method = chosen_method(method, plan, engine=ENGINE, methods=METHODS)
    if model is not None and method in WITHOUT_MODEL:
        raise UsageError(f"{ENGINE}: method {method} reads no drafter, so it takes no model: omit --model")
    entries = entries_of(plan, batch=batch)
    notes = drafter_notes(plan, engine=f"{ENGINE} {method}", kinds=METHODS[method])
    config: dict[str, object] = {"decoding_type": method}
    if method not in WITHOUT_MODEL:
        config["speculative_model"] = model or DRAFTER
    if asked_for(entries, nearest):
        if method != "Eagle3":
            raise EngineError(f"{ENGINE} drafts dynamic trees only with method Eagle3, not {method}; nearest: `chain`")
        triple, planned = dynamic_tree(entries, TREES, nearest=nearest)
        config |= {"use_dynamic_tree": True, **TREES.settings(triple)}
        notes = [*planned, *notes]
    else:
        fits = [
            fit(
                entry,
                engine=ENGINE,
                rules=CONSTRAINTS,
                nearest=nearest,
                others=describe(entry, TREES) if method == "Eagle3" else (),
            )
            for entry in entries
        ]
        config |= _chains(fits, method, schedule_bounds)
        notes = [*(at.note for at in fits if at.note), *notes, *_schedule_notes(config, schedule_bounds)]
        notes += [coverage_note(fits), origin_note(fits)]
    if method == "NGram":
        config["max_matching_ngram_size"] = LONGEST_MATCH
        notes.append(
            f"max_matching_ngram_size {LONGEST_MATCH} is that of the drafter prompt-lookup; set it to N for "
            "prompt-lookup:N"
        )
        notes.append(f"{ENGINE} matches in a pool of all requests unless is_public_pool is false")
    notes.append(checked_note(CHECKED))
    launch = f"trtllm-serve {shlex.quote(target)} --config {shlex.quote(file)}"
    return Export(_yaml(config), ".yaml", "", tuple(notes), launch=launch, file=file)


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
        return dict(steps)
    ends = [start - 1 for _, (start, _) in pairwise(steps)]
    ends.append(max(at.batch for at in fits))
    upper = {end: length for end, (_, length) in zip(ends, steps, strict=True)}
    if steps[-1][1] == 0:
        del upper[ends[-1]]
    return upper


def _chains(fits: Sequence[Fit], method: str, bounds: Bounds | None) -> dict[str, object]:
    """Return the settings of one length, or of lengths by batch size.

    Raises:
        UsageError: several lengths, and no meaning of the schedule's keys.
        EngineError: no speculation at all, a method without a schedule, or lengths of which the first is not the
            longest.
    """
    steps = tiers(fits)
    longest = max(length for _, length in steps)
    if longest == 0:
        refuse_plain(ENGINE, [at.batch for at in fits])
    if len(steps) == 1:
        return {"max_draft_len": longest}
    alternative = f"nearest: one batch size of {listed([at for at in fits if at.tree])} (`--batch`)"
    if method not in SCHEDULED:
        raise EngineError(f"{ENGINE} cannot change the length of {method} by batch size; {alternative}")
    if steps[0][1] != longest:
        lengths = ", ".join(f"{length} from batch {start}" for start, length in steps)
        raise EngineError(
            f"{ENGINE}: draft_len_schedule must begin with its longest length, but the plan has {lengths}; "
            f"{alternative}"
        )
    if bounds is None:
        raise UsageError(
            f"{ENGINE}: the plan has several lengths, and releases read draft_len_schedule in two ways; give "
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
        f"above batch {max(keys)} {ENGINE} drafts nothing, or 1 token where the drafter's cache must stay filled "
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
