"""Traces as a table on the terminal, and the same figures as records for JSON."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from treeopt.replay.priced_walk import plain_share
from treeopt.replay.static_tree import accepted_lengths, replay_tree
from treeopt.storage.provenance import look
from treeopt.tables.terminal_text import describe_models, shown, terminal
from treeopt.traces.trace import OPTIONAL, PAST_END, Trace
from treeopt.tree import Tree

TOPS = (1, 2, 4, 8)


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


def show_trace(trace: Trace, console: Console | None = None) -> None:
    """Print the content of a trace."""
    console = console or terminal()
    facts = describe(trace)
    meta, prompts = facts["meta"], ""
    if trace.prompt_tokens is not None:
        prompts = f" after prompts of {trace.prompt_tokens.min()} to {trace.prompt_tokens.max()}"
    console.print(
        f"{facts['anchors']} anchors of {facts['requests']} requests "
        f"({facts['tokens_a_request']['min']} to {facts['tokens_a_request']['max']} tokens{prompts}), "
        f"depth {facts['depth']}, width {facts['width']}"
        + (f", {facts['domains']} domains" if facts["domains"] else "")
    )
    settings = {"": look(meta, "verification"), "temperature ": look(meta, "temperature"), "seed ": look(meta, "seed")}
    if look(meta, "imported") is not None:
        settings = {name: value for name, value in settings.items() if value is not None}
    line = ", ".join(f"{name}{shown(value)}" for name, value in settings.items())
    console.print(f"{describe_models(meta)}{line and '; '}{line}", soft_wrap=True, markup=False)
    written, given = (look(meta, "repeated_4grams", part) for part in ("written", "prompts"))
    if isinstance(written, float) and isinstance(given, float):
        console.print(
            f"repeated 4-grams: {written:.1%} of the target's text, {given:.1%} of the prompts",
            soft_wrap=True,
        )
    if trace.drafted is not None:
        mean, nothing, walk = facts["drafted"].values()
        console.print(
            f"tokens proposed: {mean:.2f} on average, none at {nothing:.1%} of positions and in {walk:.1%} of steps of "
            f"{'the recorded tree' if trace.tree else f'a chain of {trace.depth}'}",
            soft_wrap=True,
        )
    true = "true" if trace.tree is None else "written"
    console.print(f"{true} token among the drafter's best, over all positions (tau needs a replay):")
    table = Table()
    table.add_column("depth")
    for top in TOPS:
        table.add_column(f"top {top}", justify="right")
    accepted = facts.get("kept_by_depth", [])
    if accepted:
        table.add_column(f"accepted by the recorded tree of {len(meta['tree'])}", justify="right")
    for depth, shares in enumerate(facts["top_1_2_4_8_by_depth"], 1):
        cells = [*shares, *([accepted[depth - 1] if depth <= len(accepted) else None] if accepted else [])]
        table.add_row(str(depth), *("" if share is None else f"{share:.3f}" for share in cells))
    console.print(table)
