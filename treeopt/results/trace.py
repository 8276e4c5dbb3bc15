"""Traces as a sentence and a table, and the same figures as records for JSON."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treeopt.errors import counted
from treeopt.replay.priced_walk import plain_share
from treeopt.replay.static_tree import accepted_lengths, replay_tree
from treeopt.results.blocks import Block, Blocks, Column, Line, Row, Table, number
from treeopt.results.words import describe_models, shown
from treeopt.storage.provenance import look
from treeopt.traces.trace import OPTIONAL, PAST_END, Trace
from treeopt.tree import Tree

TOPS = (1, 2, 4, 8)
COLUMNS = (
    Column("depth", key=True, meaning="Tokens further on."),
    *(Column(f"top {top}", meaning=f"Share of positions whose token is among the first {top}.") for top in TOPS),
)


def describe(trace: Trace) -> dict[str, Any]:
    """Return the content of a trace as JSON values; acceptance by depth is over all anchors, unconditional."""
    tops = []
    for depth in range(trace.depth):
        rank = trace.rank[:, depth]
        known = rank[rank != PAST_END]
        tops.append([round(float(((known >= 0) & (known < top)).mean()), 4) if len(known) else None for top in TOPS])
    return {
        "anchors": trace.anchors,
        "requests": trace.requests,
        "depth": trace.depth,
        "width": trace.width,
        "tokens_a_request": _spread(trace.lengths),
        **({} if trace.prompt_tokens is None else {"tokens_a_prompt": _spread(trace.prompt_tokens)}),
        "optional": [name for name in OPTIONAL if getattr(trace, name) is not None],
        "domains": len(trace.domain_names),
        "top_1_2_4_8_by_depth": tops,
        **({} if trace.tree is None else {"kept_by_depth": _accepted_by_depth(trace)}),
        **({} if trace.drafted is None else {"drafted": _drafted(trace, trace.drafted)}),
        "distinct_rank_paths": len(np.unique(trace.rank, axis=0)),
        "meta": dict(trace.meta),
    }


def _drafted(trace: Trace, drafted: NDArray[np.int16]) -> dict[str, float]:
    """Return the mean of tokens proposed, and the shares of positions, and of steps of the longest chain, without any.

    Where texts depend on the tree that they were recorded with, steps are those of this tree.
    """
    walk = replay_tree(trace.tree or Tree.chain(trace.depth), trace)
    return {
        "mean": round(float(drafted.mean()), 4),
        "nothing": round(float((drafted == 0).mean()), 4),
        "nothing_in_steps": round(plain_share(walk.drafted_counts), 4),
    }


def _spread(tokens: NDArray[Any]) -> dict[str, float]:
    return {"min": int(tokens.min()), "mean": float(tokens.mean()), "max": int(tokens.max())}


def _accepted_by_depth(trace: Trace) -> list[float]:
    """Return for each depth d the share of positions with d tokens left at which d or more would be accepted."""
    assert trace.tree is not None
    accepted = accepted_lengths(trace.tree, trace)
    return [
        round(float((accepted[trace.left >= depth] >= depth).mean()), 4)
        for depth in range(1, trace.tree.depth + 1)
        if (trace.left >= depth).any()
    ]


def trace_blocks(trace: Trace, *, file: str | None = None, beware: Sequence[str] = ()) -> Blocks:
    """Return the size of a trace, the next command, how well the drafter ranks, and what to beware of.

    Args:
        trace: the trace.
        file: the file or folder that holds it, for the next command.
        beware: sentences, without a full stop.
    """
    facts = describe(trace)
    blocks: list[Block] = [Line("answer", _size(trace, facts)), Line("answer", _origin(facts["meta"]))]
    if file is not None:
        blocks.append(_next(trace, shlex.quote(file)))
    blocks += [_table(trace, facts), *(Line("note", text) for text in _notes(trace, facts))]
    return (*blocks, *(Line("warning", f"{warning}.") for warning in beware))


def _next(trace: Trace, file: str) -> Line:
    """Return the command that chooses trees: with measured step times, or for an imported trace with predicted ones."""
    if look(trace.meta, "imported") is None:
        command = f"treeopt search --trace {file} --batch 1,4 --output plan.json"
        return Line("next", "Next: choose the tree of each batch size:", command)
    kind = "" if look(trace.meta, "drafter", "kind") else " --kind KIND"
    command = f"treeopt whatif --trace {file} --target TARGET --hardware DEVICE{kind}"
    return Line("next", "Next: choose for each batch size, with step times from a data sheet:", command)


def _size(trace: Trace, facts: Mapping[str, Any]) -> str:
    """Return how much was recorded, in one sentence."""
    prompts = ""
    if trace.prompt_tokens is not None:
        prompts = f" after prompts of {trace.prompt_tokens.min()} to {trace.prompt_tokens.max()}"
    tokens = facts["tokens_a_request"]
    length = str(tokens["min"]) if tokens["min"] == tokens["max"] else f"{tokens['min']} to {tokens['max']}"
    domains = f", {counted(facts['domains'], 'domain')}" if facts["domains"] else ""
    return (
        f"{counted(facts['anchors'], 'anchor')} of {counted(facts['requests'], 'request')} "
        f"({length} tokens{prompts}), "
        f"depth {facts['depth']}, width {facts['width']}{domains}."
    )


def _origin(meta: Mapping[str, Any]) -> str:
    """Return the models and the settings that a trace was recorded with."""
    settings = {"": look(meta, "verification"), "temperature ": look(meta, "temperature"), "seed ": look(meta, "seed")}
    if look(meta, "imported") is not None:
        settings = {name: value for name, value in settings.items() if value is not None}
    line = ", ".join(f"{name}{shown(value)}" for name, value in settings.items())
    return f"{describe_models(meta)}{line and '; '}{line}."


def _table(trace: Trace, facts: Mapping[str, Any]) -> Table:
    """Return the shares of positions by depth whose true token is among the best candidates."""
    accepted, columns = facts.get("kept_by_depth", []), COLUMNS
    if accepted:
        columns += (Column(f"accepted by the recorded tree of {len(facts['meta']['tree'])}"),)
    rows = []
    for depth, shares in enumerate(facts["top_1_2_4_8_by_depth"], 1):
        known = [share if top <= trace.width else None for top, share in zip(TOPS, shares, strict=True)]
        cells = [*known, *([accepted[depth - 1] if depth <= len(accepted) else None] if accepted else [])]
        rows.append(Row((number(depth), *(number(share, 3) for share in cells))))
    true = "true" if trace.tree is None else "written"
    title = f"{true} token among the drafter's best, share of all positions (tau needs a replay)"
    return Table(title, columns, tuple(rows))


def _notes(trace: Trace, facts: Mapping[str, Any]) -> list[str]:
    """Return how often text repeats, and how much was proposed."""
    lines = []
    written, given = (look(facts["meta"], "repeated_4grams", part) for part in ("written", "prompts"))
    if isinstance(written, float) and isinstance(given, float):
        lines.append(f"repeated 4-grams: {written:.1%} of the target's text, {given:.1%} of the prompts")
    if trace.drafted is not None:
        mean, nothing, walk = facts["drafted"].values()
        tree = "the recorded tree" if trace.tree else f"a chain of {trace.depth}"
        lines.append(
            f"tokens proposed: {mean:.2f} on average, none at {nothing:.1%} of positions and in {walk:.1%} of steps of "
            f"{tree}"
        )
    return lines
