"""Plans: the choice for each batch size, why a slower line was preferred, configurations side by side, conditions."""

import math
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

from treeopt.engines import ENGINES
from treeopt.planning.baselines import CHAIN
from treeopt.planning.proof_sentences import NOT_PROVED, PROVED, SEARCHED
from treeopt.plans import Choice, Plan, PlanEntry
from treeopt.results.kinds import ResultKind
from treeopt.results.tables_and_numbers import (
    DEPTH,
    NODES,
    SPEEDUP,
    STEP,
    TAU,
    TOKENS_S,
    Block,
    Cell,
    Column,
    Line,
    Table,
    conditions,
    ranged,
    warnings_of,
)
from treeopt.results.words import (
    CLUSTERED,
    describe_measurement,
    describe_models,
    describe_rule,
    export_command,
    interval,
    method_advice,
    near_limit,
    never_ran,
    other_model,
    replayed_on,
    shape_words,
    shown,
    unsure,
)
from treeopt.statistics import Estimate
from treeopt.storage.provenance import look

PATHS_SHOWN = 12
SEEN = 0.0005  # share of the speed that is no 0.0 %
LABELS = (SEARCHED, PROVED, NOT_PROVED)
UNLABELLED = "Proof"  # label for the statement of plans that earlier versions wrote
MEAN = "; the mean for dynamic trees."
COLUMNS = (
    Column("configuration", align="left", key=True, field="name"),
    replace(NODES, digits=None, meaning=NODES.meaning.removesuffix(".") + MEAN),
    replace(DEPTH, digits=None, meaning=DEPTH.meaning.removesuffix(".") + MEAN),
    TAU,
    STEP,
    TOKENS_S,
    replace(SPEEDUP, meaning="Time per token of plain decoding over that of this configuration."),
    Column(
        "behind",
        "%",
        drop=5,
        meaning="Tokens per second lost to the first row, paired by request.",
        show=lambda row: Cell() if row["chosen"] else ranged(row["behind"], 1, scale=100),
    ),
)


def rows(plan: Plan) -> Iterator[dict[str, Any]]:
    """Yield each configuration of each batch size, the chosen one first."""
    for entry in plan.entries:
        for choice in (entry.choice, *entry.compared):
            yield {
                "batch": entry.batch,
                "name": choice.name,
                "chosen": choice is entry.choice,
                "tree": choice.tree.id if choice.tree else math.nan,
                "nodes": choice.nodes,
                "depth": choice.depth,
                "tau": asdict(choice.tau),
                "step_s": choice.step_s,
                "tokens_s": choice.tokens_s(entry.batch),
                "speedup": asdict(choice.speedup),
                "behind": asdict(choice.behind or Estimate(0.0, 0.0, 0.0)),
            }


def answers(plan: Plan) -> Iterator[str]:
    """Yield the choice for each batch size, the one that the objective prefers, and why slower ones were preferred."""
    yield from map(_answer, plan.entries)
    yield from other_model(look(plan.meta, "trace"))
    yield from never_ran(look(plan.meta, "search", "engine"))
    if plan.best is not None or look(plan.meta, "search", "max_tpot_s") is not None:
        yield _preferred(plan, plan.entries[0] if plan.best is None else plan.entry(plan.best))
    yield from _near_rule(plan)
    yield from _faster_lines(plan)


def _answer(entry: PlanEntry) -> str:
    """Return the choice for a batch size and its speed in one sentence."""
    choice, rate = entry.choice, f"{entry.choice.tokens_s(entry.batch):,.0f} tokens/s"
    if choice.plain:
        return f"Batch {entry.batch}: do not speculate: no tree or chain tried is predicted to be faster; {rate}."
    speedup = f"{interval(choice.speedup)} times plain decoding{unsure(choice.speedup)}"
    return f"Batch {entry.batch}: {describe_choice(choice)}, {speedup}, {rate}."


def _near_rule(plan: Plan) -> Iterator[str]:
    """Yield why a slower line was preferred, for each batch size where the rule of `near` bound."""
    faster, near = look(plan.meta, "search", "faster") or {}, look(plan.meta, "search", "near")
    for entry in plan.entries:
        best = faster.get(str(entry.batch))
        if best is not None and best["gain"] >= SEEN and entry.choice.grown is None:
            same = best["nodes"] == entry.choice.nodes
            kind = "chain" if best["nodes"] == best["depth"] else "tree"
            other = f"{'another' if same else 'a'} {kind} of {best['nodes']:.0f}"
            yield (
                f"Batch {entry.batch}: {other} was {best['gain']:.1%} faster on the requests that trees were chosen "
                f"on; within the error or {near:.0%} (--near), the highest lower bound is preferred, then the "
                f"{'shallower' if same else 'smaller'} tree."
            )


def _faster_lines(plan: Plan) -> Iterator[str]:
    """Yield the line that is faster than the choice where no rule explains it: choices are made on other requests."""
    if look(plan.meta, "search", "rules") or look(plan.meta, "search", "objective") not in (None, "throughput"):
        return
    explained = look(plan.meta, "search", "faster") or {}
    for entry in plan.entries:
        running = [choice for choice in entry.compared if choice.grown is None or choice.grown.policy is not None]
        best = max(running, key=lambda choice: choice.tokens_s(entry.batch), default=entry.choice)
        gain = best.tokens_s(entry.batch) / entry.choice.tokens_s(entry.batch) - 1
        if gain >= SEEN and str(entry.batch) not in explained:
            yield (
                f"Batch {entry.batch}: {best.name} is {gain:.1%} faster on the requests held out; the choice was made "
                "on the others, which keeps its prediction fair."
            )


def describe_choice(choice: Choice) -> str:
    """Return a configuration in words, such as `a chain of 3`."""
    if choice.grown is not None:
        return f"a dynamic tree ({choice.grown.kind}) of {choice.nodes:.3g} nodes on average"
    if choice.tree is None:
        return "no speculation"
    return f"a {shape_words(choice.tree.nodes, choice.tree.depth)}"


def _preferred(plan: Plan, entry: PlanEntry) -> str:
    """Return the batch size that the objective prefers, with its speed, in one sentence."""
    objective, ceiling = (look(plan.meta, "search", key) for key in ("objective", "max_tpot_s"))
    most = "Most tokens per second" if objective == "throughput" else f"Best for {shown(objective)}"
    below = f" below {ceiling * 1e3:g} ms per token" if ceiling else ""
    near = near_limit(entry.tpot_s, asdict(entry.choice.speedup), ceiling)
    return (
        f"{most}{below}: batch {entry.batch}, {entry.batch / entry.tpot_s:,.0f} tokens/s, "
        f"{entry.tpot_s * 1e3:.2f} ms per token and sequence{near}."
    )


def next_lines(plan: Plan, *, file: str | None = None, **_: Any) -> Iterator[Line]:
    """Yield what to do with a plan that speculates, and what prices batch sizes that have no answer.

    It is exported to its engine, or checked where no engine is known.
    """
    keep = "" if file else "keep the plan with --output plan.json, and "
    engine, outside = (look(plan.meta, "search", key) for key in ("engine", "outside"))
    if all(entry.choice.plain for entry in plan.entries):
        pass
    elif engine in ENGINES.exporting():
        kind = look(plan.meta, "trace", "drafter", "kind")
        text = f"Next: {keep}write the configuration of {engine}{method_advice(engine, kind=kind)}:"
        yield Line("next", text, export_command(file, engine, kind=kind))
    else:
        path = shlex.quote(file or "plan.json")
        command = f"treeopt validate --plan {path} --target TARGET --drafter DRAFTER --prompts PROMPTS"
        yield Line("next", f"Next: {keep}check it on your machine:", command)
    if outside is not None:
        advice, command = str(outside["way"]), str(outside["command"])
        yield Line("next", f"No answer: {advice}{':' if command else '.'}", command)


def tables(plan: Plan, *, checks: Mapping[int, str] | None = None, **_: Any) -> Iterator[Block]:
    """Yield a table for each batch size with its notes; `checks` has sentences about live runs, by batch size."""
    first = {entry.choice.tree: entry.batch for entry in reversed(plan.entries) if entry.choice.tree is not None}
    for entry in plan.entries:
        before = None if entry.choice.tree is None else first[entry.choice.tree]
        of_batch = [row for row in rows(plan) if row["batch"] == entry.batch]
        yield Table.of(f"batch {entry.batch}", COLUMNS, of_batch, lambda row: "chosen" if row["chosen"] else "")
        yield from (Line("note", text) for text in _notes(entry, before))
        if checks and entry.batch in checks:
            yield Line("note", checks[entry.batch])


def remarks(plan: Plan, **_: Any) -> Iterator[Line]:
    """Yield what concerns several batch sizes, warnings, and conditions."""
    yield from (Line("condition", text, detail=True) for text in _together(plan))
    # The first warning begins with what `next_lines` says of batch sizes without an answer.
    unanswered = look(plan.meta, "search", "outside") is not None
    yield from warnings_of(plan.warnings[1 if unanswered else 0 :])
    yield from _conditions(plan)


def summary(plan: Plan, *, measured: Mapping[int, Estimate] | None = None, **_: Any) -> Iterator[str]:
    """Yield the answer for each batch size, with the speedup that a live run measured."""
    for entry in plan.entries:
        choice = entry.choice
        if choice.plain:
            yield f"Batch {entry.batch}: do not speculate."
            continue
        live = (measured or {}).get(entry.batch)
        checked = "" if live is None else f", checked: {live.value:.2f}"
        yield f"Batch {entry.batch}: {describe_choice(choice)}, {interval(choice.speedup)} times{checked}."


def _notes(entry: PlanEntry, first: int | None) -> Iterator[str]:
    """Yield tree, gain over chains and cost of rules of a batch size; `first` is the first one with its tree."""
    choice = entry.choice
    if choice.grown is not None:
        settings = (
            f"{key}={value:g}" if not isinstance(value, bool) else key if value else f"not {key}"
            for key, value in choice.grown.settings.items()
            if value is not None
        )
        yield f"Dynamic tree, built at each step: {choice.grown.kind} with {', '.join(settings)}"
    elif choice.tree is not None and first != entry.batch:
        yield f"Tree {choice.tree.id}, as at batch {first}"
    elif choice.tree is not None:
        paths = [list(path) for path in choice.tree.paths[:PATHS_SHOWN]]
        more = "" if choice.tree.nodes <= PATHS_SHOWN else f" and {choice.tree.nodes - PATHS_SHOWN} more"
        yield f"Tree {choice.tree.id}, levels {'/'.join(map(str, choice.tree.level_widths))}: {paths}{more}"
    if entry.gain is not None:
        meaning = ": within the noise, the chain may be as good"
        if entry.gain.low > 0:
            meaning = ""
        elif entry.gain.high < 0:
            meaning = ": fewer tokens per step, in shorter steps"
        elif any(other.name == CHAIN and other.behind is not None and other.behind.low > 0 for other in entry.compared):
            meaning = ": as many tokens per step, in shorter steps"
        yield (
            f"tau over the best chain: {entry.gain.value:+.3f} [{entry.gain.low:+.3f}, {entry.gain.high:+.3f}]{meaning}"
        )
    for price in entry.prices:
        yield (
            f"{price.rule} ({price.source}) alone costs {ranged(price.share, 1, scale=100).text} % of tokens per second"
        )


def _together(plan: Plan) -> list[str]:
    """Return the lines about several batch sizes or all of them."""
    lines = []
    if plan.switches:
        points = (f"to batch {s.large}'s at {s.up}, back to batch {s.small}'s at {s.down}" for s in plan.switches)
        lines.append(
            f"Switch as the batch size varies (in between keep the running configuration): {'; '.join(points)}"
        )
    if len(plan.entries) > 1:
        shapes = ", ".join(f"{batch} x {tokens}" for batch, tokens in plan.captures)
        lines.append(f"Verify forwards to capture (batch x tokens per sequence): {shapes}")
    skipped = ((entry.batch, f"{name}: {why}") for entry in plan.entries for name, why in entry.skipped.items())
    return [*lines, *(f"Not compared{batches}: {line}" for line, batches in _once(skipped, plan)), *_proof(plan)]


def _proof(plan: Plan) -> list[str]:
    """Return the proof's lines, those of one label together, with their batch sizes unless these are all."""
    lines = ((entry.batch, line) for entry in plan.entries for line in entry.proof.statement.split("\n"))
    proof = []
    for line, batches in _once(lines, plan):
        label = next((label for label in LABELS if line.startswith(label)), "")
        if label:
            proof.append((LABELS.index(label), f"{label.removesuffix(': ')}{batches}: {line.removeprefix(label)}"))
        else:
            proof.append((len(LABELS), f"{UNLABELLED}{batches}: {line}."))
    return [line for _, line in sorted(proof, key=lambda ranked: ranked[0])]


def _once(lines: Iterable[tuple[int, str]], plan: Plan) -> list[tuple[str, str]]:
    """Return each line once with its batch sizes, such as ` (batch 1, 4)`; empty if it holds for all."""
    batches: dict[str, list[int]] = {}
    for batch, line in lines:
        batches.setdefault(line, []).append(batch)
    return [
        (line, "" if len(sizes) == len(plan.entries) else f" (batch {', '.join(map(str, sizes))})")
        for line, sizes in batches.items()
    ]


def _conditions(plan: Plan) -> list[Line]:
    """Return the conditions of the predictions, one line each."""

    def show(*keys: str) -> str:
        return shown(look(plan.meta, *keys))

    objective, context = (look(plan.meta, "search", key) for key in ("objective", "context"))
    priced = "" if context is None else f"; priced at {context} tokens of context"
    counted = ""
    if objective not in (None, "throughput"):
        counted = f"; tokens counted for {objective}, tau and tokens/s of the tables over all requests"
    dynamic = any(choice.grown for entry in plan.entries for choice in (entry.choice, *entry.compared))
    visible = [
        f"{replayed_on(look(plan.meta, 'trace'), look(plan.meta, 'search'))}{counted}.",
        f"Intervals: 95 %, {CLUSTERED}; those of speedups include the error of step times.",
        f"Step times: {describe_measurement(look(plan.meta, 'cost'))}{priced}.",
        *(look(plan.meta, "missing") or ()),
    ]
    if (holds := look(plan.meta, "holds")) is not None:  # the plan was made for a device
        visible.append(
            f"{holds['device']}: at {holds['context']} tokens of context {holds['share']:.0%} of the memory holds up "
            f"to batch {holds['batch']} with the largest of these trees."
        )
    detail = [
        "% behind: tokens per second lost to the first line, paired by request.",
        *(["Dynamic trees: nodes and depth are means."] if dynamic else []),
        f"Trace: {describe_models(look(plan.meta, 'trace'))}; {describe_rule(look(plan.meta, 'trace'))}; "
        f"{show('trace', 'new_tokens')} new tokens per request.",
    ]
    return conditions(visible, detail)


ENTRY = ResultKind(
    name="plan",
    title=lambda plan: f"Plan for batch {', '.join(str(entry.batch) for entry in plan.entries)}",
    models=lambda plan: look(plan.meta, "trace"),
    question="Which tree, and how fast?",
    place=1,
    command="search",
    schema="treeopt.plan/3",
    record="treeopt.plans:PlanRecord",
    value="treeopt.plans:Plan",
    read="treeopt.plans:load_plan",
    write="treeopt.plans:save_plan",
    rows=rows,
    columns=COLUMNS,
    answers=answers,
    summary=summary,
    next_lines=next_lines,
    tables=tables,
    remarks=remarks,
    charts={
        "speedup": "treeopt.charts.speed_charts:speedups",
        "latency": "treeopt.charts.speed_charts:throughput_and_latency",
    },
    page_charts="treeopt.charts.trace_charts:plan_charts",
    beside="treeopt.api.report_files:beside_plan",
)
