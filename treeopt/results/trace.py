"""Traces: their size and origin, how well the drafter ranks, and the same figures as JSON values."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treeopt.acceptance_rule_entries import takes_chains_only
from treeopt.errors import counted
from treeopt.planning.held_out_split import MIN_REQUESTS
from treeopt.planning.learning_curve import WIDE, LearningCurve
from treeopt.replay.sampled_rules import with_drawn_ranks
from treeopt.replay.static_tree import accepted_lengths, plain_share, replay_tree
from treeopt.results.kinds import ResultKind
from treeopt.results.tables_and_numbers import Block, Column, Line, Table, warnings_of
from treeopt.results.words import describe_models, interval, shown
from treeopt.searchers.best_first import count_prefixes
from treeopt.statistics import Estimate, ratio
from treeopt.storage.provenance import look
from treeopt.traces.confidence_reliability import reliability
from treeopt.traces.trace import OPTIONAL, PAST_END, Trace
from treeopt.tree import Tree

TOPS = (1, 2, 4, 8)
NODES = 8  # of trees that the summary compares
COLUMNS = (
    Column("depth", key=True, meaning="Tokens further on.", field="depth"),
    *(
        Column(
            f"top {top}",
            meaning=f"Share of positions whose token is among the first {top}.",
            field=f"top_{top}",
            digits=3,
        )
        for top in TOPS
    ),
)

RELIABILITY = (
    Column(
        "confidence",
        key=True,
        meaning="Mean confidence of the drafted tokens in a range.",
        field="confidence",
        digits=3,
    ),
    Column("right", meaning="Share of these tokens that the target accepted.", field="right", digits=3),
    Column("tokens", drop=1, meaning="Drafted tokens whose ancestors were right.", field="tokens"),
)

CURVE = (
    Column("requests", key=True, meaning="Requests that the trees were chosen on.", field="requests"),
    Column("anchors", drop=2, meaning="Text positions of these requests.", field="anchors"),
    Column(
        "tau where chosen",
        drop=1,
        meaning="Tokens per step on the requests that the tree was chosen on.",
        field="fitted",
        digits=3,
    ),
    Column("tau held out", meaning="Tokens per step on other requests.", field="held_out", digits=3),
)


def describe(trace: Trace) -> dict[str, Any]:
    """Return the content of a trace as JSON values; acceptance by depth is over all anchors, unconditional."""
    return {
        "anchors": trace.anchors,
        "requests": trace.requests,
        "depth": trace.depth,
        "width": trace.width,
        "tokens_a_request": _spread(trace.lengths),
        **({} if trace.prompt_tokens is None else {"tokens_a_prompt": _spread(trace.prompt_tokens)}),
        "optional": [name for name in OPTIONAL if getattr(trace, name) is not None],
        "domains": len(trace.domain_names),
        "top_1_2_4_8_by_depth": _tops(trace),
        **({} if trace.tree is None else {"kept_by_depth": _accepted_by_depth(trace)}),
        **({} if trace.drafted is None else {"drafted": _drafted(trace, trace.drafted)}),
        **({} if (curve := reliability(trace)) is None else {"calibration": curve.as_json()}),
        "distinct_rank_paths": len(np.unique(trace.rank, axis=0)),
        "meta": dict(trace.meta),
    }


def _tops(trace: Trace) -> list[list[float | None]]:
    """Return for each depth the shares of positions whose true token is among the first 1, 2, 4 and 8 candidates."""
    shares = [[share_within(trace, depth, top) for top in TOPS] for depth in range(trace.depth)]
    return [[None if share is None else round(share, 4) for share in at_depth] for at_depth in shares]


def share_within(trace: Trace, depth: int, top: int) -> float | None:
    """Return the share of positions whose true token is among the best candidates; None where no text is left."""
    rank = trace.rank[:, depth]
    known = rank[rank != PAST_END]
    return float(((known >= 0) & (known < top)).mean()) if len(known) else None


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


def _tables(trace: Trace, **_: Any) -> Iterator[Block]:
    """Yield how well the drafter ranks, and notes."""
    columns, rows = COLUMNS, list(_rows(trace))
    if any(row["accepted"] is not None for row in rows):
        name = f"accepted by the recorded tree of {len(trace.meta['tree'])}"
        columns += (Column(name, field="accepted", digits=3),)
    true = "true" if trace.tree is None else "written"
    title = f"{true} token among the drafter's best, share of all positions (tau needs a replay)"
    yield Table.of(title, columns, rows)
    if (curve := reliability(trace)) is not None:
        title = f"calibration of confidences: off by {curve.error:.1%} on average"
        yield Table.of(title, RELIABILITY, curve.as_json()["bins"])
    written, given = (look(trace.meta, "repeated_4grams", part) for part in ("written", "prompts"))
    if isinstance(written, float) and isinstance(given, float):
        yield Line("note", f"repeated 4-grams: {written:.1%} of the target's text, {given:.1%} of the prompts")
    if trace.drafted is not None:
        mean, nothing, walk = _drafted(trace, trace.drafted).values()
        steps = f"{walk:.1%} of steps of {'the recorded tree' if trace.tree else f'a chain of {trace.depth}'}"
        proposed = f"{mean:.2f} on average, none at {nothing:.1%} of positions and in {steps}"
        yield Line("note", f"tokens proposed: {proposed}")


def _next(trace: Trace, *, file: str | None = None, **_: Any) -> Iterator[Line]:
    """Yield the command that chooses trees of a file, with measured step times, or predicted ones if it is imported.

    None where there are too few requests to choose on.
    """
    if file is None or trace.requests < MIN_REQUESTS:
        return
    if look(trace.meta, "imported") is None:
        command = f"treeopt search --trace {shlex.quote(file)} --batch 1,4 --output plan.json"
        yield Line("next", "Next: choose the tree of each batch size:", command)
        return
    kind = "" if look(trace.meta, "drafter", "kind") else " --kind KIND"
    command = f"treeopt whatif --trace {shlex.quote(file)} --target TARGET --hardware DEVICE{kind}"
    yield Line("next", "Next: choose for each batch size, with step times from a data sheet:", command)


def _size(trace: Trace) -> str:
    """Return how much was recorded, in one sentence."""
    prompts = ""
    if trace.prompt_tokens is not None:
        prompts = f" after prompts of {trace.prompt_tokens.min()} to {trace.prompt_tokens.max()}"
    shortest, longest = trace.lengths.min(), trace.lengths.max()
    length = str(shortest) if shortest == longest else f"{shortest} to {longest}"
    domains = f", {counted(len(trace.domain_names), 'domain')}" if trace.domain_names else ""
    return (
        f"{counted(trace.anchors, 'anchor')} of {counted(trace.requests, 'request')} ({length} tokens{prompts}), "
        f"depth {trace.depth}, width {trace.width}{domains}."
    )


def _origin(meta: Mapping[str, Any]) -> str:
    """Return the models and the settings that a trace was recorded with."""
    settings = {"": look(meta, "verification"), "temperature ": look(meta, "temperature"), "seed ": look(meta, "seed")}
    if look(meta, "imported") is not None:
        settings = {name: value for name, value in settings.items() if value is not None}
    line = ", ".join(f"{name}{shown(value)}" for name, value in settings.items())
    return f"{describe_models(meta)}{line and '; '}{line}."


def _rows(trace: Trace) -> Iterator[dict[str, Any]]:
    """Yield for each depth the shares of positions whose true token is among the best candidates."""
    accepted = {} if trace.tree is None else dict(enumerate(_accepted_by_depth(trace), 1))
    for depth, shares in enumerate(_tops(trace), 1):
        known = {f"top_{top}": share for top, share in zip(TOPS, shares, strict=True) if top <= trace.width}
        yield {"depth": depth, **known, "accepted": accepted.get(depth)}


def _remarks(
    trace: Trace, *, beware: Sequence[str] = (), curves: Sequence[LearningCurve] = (), **_: Any
) -> Iterator[Block]:
    """Yield what to beware of, sentences without a full stop, and learning curves."""
    yield from warnings_of(beware)
    for curve in curves:
        *points, last = map(asdict, curve.points)
        loss = "Tokens per step lost to the tree chosen on the most requests."
        columns = (*CURVE, Column(f"loss against {last['requests']}", meaning=loss, field="loss", digits=3))
        yield Table.of(f"best trees of {curve.nodes} nodes", columns, [*points, last | {"loss": None}])
        yield Line("note", _verdict(curve))


def curve_record(curve: LearningCurve) -> dict[str, Any]:
    """Return a learning curve as JSON values."""
    points = [asdict(point) | {"tree": [list(path) for path in point.tree.paths]} for point in curve.points]
    flat_from = None if curve.flat is None else curve.flat.requests
    return {"nodes": curve.nodes, "flat_from": flat_from, "vague": curve.vague, "points": points}


def _verdict(curve: LearningCurve) -> str:
    *_, last = curve.points
    if curve.vague:
        loss = curve.points[-2].loss
        return (
            "The trace is too small to show whether the curve is flat: the interval of the last loss is "
            f"{(loss.high - loss.low) / last.held_out.value:.1%} of tau wide, more than {WIDE:.0%}. Record more."
        )
    if curve.flat is None:
        return f"Not flat: {last.requests:,} requests find better trees than fewer do. Record more."
    gain = max(point.loss.high for point in curve.points[curve.points.index(curve.flat) : -1])
    return (
        f"Flat from {counted(curve.flat.requests, 'request')}: the gain from more requests, up to {last.requests:,}, "
        f"is within the noise (at most {max(gain, 0) / last.held_out.value:.1%} of tau)."
    )


def _summary(trace: Trace, **_: Any) -> Iterator[str]:
    """Yield how often the best candidate is right, and what trees of one size commit, where ranks determine it."""
    shares = [row[0] for row in _tops(trace) if row[0] is not None]
    if shares:
        last = f", {shares[-1]:.0%} at depth {len(shares)}" if shares[1:] else ""
        yield f"The drafter's best candidate is right at {shares[0]:.0%} of positions at depth 1{last}."
    if not replayable(trace):
        return
    replayed = with_drawn_ranks(trace, 0)
    chain = Tree.chain(min(trace.depth, NODES))
    tree = count_prefixes(replayed, nodes=NODES, depth=replayed.depth).tree(NODES, replayed.depth)
    shapes = [f"{interval(tau_of(chain, replayed))} with a chain of {chain.nodes}"]
    if not tree.is_chain:
        shapes.append(f"{interval(tau_of(tree, replayed))} with the best tree of {tree.nodes} nodes")
    yield f"Tokens per step, replayed: {', '.join(shapes)}."


def tau_of(tree: Tree, trace: Trace) -> Estimate:
    """Return the replayed tau of a tree, with its interval.

    Raises:
        TraceError: the trace does not cover the tree.
    """
    counts = replay_tree(tree, trace)
    return ratio(counts.committed, counts.steps, trace.domain)


def replayable(trace: Trace) -> bool:
    """Return True if ranks, recorded or drawn, say what any tree gets accepted."""
    return trace.tree_kept is None and not takes_chains_only(trace.meta.get("verification"))


ENTRY = ResultKind(
    name="trace",
    title="Trace",
    models=lambda trace: trace.meta,
    question="Which tokens does the drafter get right?",
    place=5,
    command="trace collect",
    value="treeopt.traces.trace:Trace",
    read="treeopt.traces.resumable_shards:ranks_of",
    write="treeopt.traces.trace_files:save_trace",
    charts={
        "tau": "treeopt.charts.trace_charts:tau",
        "acceptance": "treeopt.charts.trace_charts:acceptance_by_depth",
        "domains": "treeopt.charts.trace_charts:domains",
        "calibration": "treeopt.charts.trace_charts:calibration",
    },
    rows=_rows,
    columns=COLUMNS,
    answers=lambda trace: (_size(trace), _origin(trace.meta)),
    summary=_summary,
    next_lines=_next,
    tables=_tables,
    remarks=_remarks,
    page_charts="treeopt.charts.trace_charts:charts_of_trace",
    beside="treeopt.api.report_files:beside_trace",
)
