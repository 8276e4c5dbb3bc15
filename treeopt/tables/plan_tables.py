"""Plans as tables on the terminal: a table for each batch size, then what holds for all of them, each line once."""

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from treeopt.planning.proof import NOT_PROVED, PROVED, SEARCHED
from treeopt.plans.plan import Plan, PlanEntry
from treeopt.storage.provenance import look
from treeopt.tables.terminal_text import (
    describe_measurement,
    describe_models,
    describe_rule,
    interval,
    percent,
    shown,
    terminal,
)

PATHS_SHOWN = 12
LABELS = (SEARCHED, PROVED, NOT_PROVED)
UNLABELLED = "Proof"  # label for the statement of plans that earlier versions wrote


def show_plan(plan: Plan, console: Console | None = None, *, checks: Mapping[int, str] | None = None) -> None:
    """Print a table for each batch size with the live check of its choice, then proof, warnings and conditions."""
    console = console or terminal()
    for entry in plan.entries:
        console.print(_plan_table(entry))
        console.print(_verdict(entry), soft_wrap=True, markup=False)
        if checks and entry.batch in checks:
            console.print(checks[entry.batch], soft_wrap=True, markup=False)
        console.print()
    for lines in (_together(plan), [f"Warning: {warning}." for warning in plan.warnings]):
        for line in [*lines, ""] if lines else ():
            console.print(line, soft_wrap=True, markup=False)
    console.print(_conditions(plan), style="dim", soft_wrap=True, markup=False)


def _plan_table(entry: PlanEntry) -> Table:
    table = Table(title=f"batch {entry.batch}", title_justify="left", title_style="bold")
    table.add_column("configuration")
    for name in ("nodes", "depth", "tau", "step ms", "tokens/s", "speedup", "% behind"):
        table.add_column(name, justify="right")
    for choice in (entry.choice, *entry.compared):
        table.add_row(
            Text(choice.name),
            f"{choice.nodes:.3g}",
            f"{choice.depth:.3g}",
            "1" if choice.plain else interval(choice.tau),
            f"{choice.step_s * 1e3:.2f}",
            f"{choice.tokens_s(entry.batch):.0f}",
            "1" if choice.plain else interval(choice.speedup),
            "" if choice.behind is None else percent(choice.behind),
            style="bold green" if choice is entry.choice else None,
        )
    return table


def _verdict(entry: PlanEntry) -> str:
    choice, lines = entry.choice, []
    if choice.grown is not None:
        settings = (_setting(key, value) for key, value in choice.grown.settings.items() if value is not None)
        lines.append(f"Dynamic tree, built at each step: {choice.grown.kind} with {', '.join(settings)}")
    elif choice.tree is None:
        lines.append("Do not speculate: no tree or chain tried is predicted to be faster.")
    else:
        paths = [list(path) for path in choice.tree.paths[:PATHS_SHOWN]]
        more = "" if choice.tree.nodes <= PATHS_SHOWN else f" and {choice.tree.nodes - PATHS_SHOWN} more"
        lines.append(f"Tree {choice.tree.id}, levels {'/'.join(map(str, choice.tree.level_widths))}: {paths}{more}")
    if entry.gain is not None:
        meaning = ": within the noise, the chain may be as good"
        if entry.gain.low > 0:
            meaning = ""
        elif entry.gain.high < 0:
            meaning = ": fewer tokens per step, in shorter steps"
        lines.append(
            f"tau over the best chain: {entry.gain.value:+.3f} [{entry.gain.low:+.3f}, {entry.gain.high:+.3f}]{meaning}"
        )
    for price in entry.prices:
        lines.append(f"{price.rule} ({price.source}) alone costs {percent(price.share)} % of tokens per second")
    return "\n".join(lines)


def _setting(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return name if value else f"not {name}"
    return f"{name}={value:g}"


def _together(plan: Plan) -> list[str]:
    """Return the lines about several batch sizes or all of them."""
    lines = []
    if plan.best is not None:
        lines.append(_preferred(plan, next(entry for entry in plan.entries if entry.batch == plan.best)))
    if plan.switches:
        points = (f"to batch {s.large}'s at {s.up}, back to batch {s.small}'s at {s.down}" for s in plan.switches)
        lines.append(
            f"Switch as the batch size varies (in between keep the running configuration): {'; '.join(points)}"
        )
    if len(plan.entries) > 1:
        shapes = ", ".join(f"{batch} x {tokens}" for batch, tokens in plan.captures)
        lines.append(f"Verify forwards to capture (batch x tokens per sequence): {shapes}")
    return [*lines, *_not_compared(plan), *_proof(plan)]


def _not_compared(plan: Plan) -> list[str]:
    """Return a line for each baseline that could not be evaluated, with its batch sizes unless these are all."""
    lines = ((entry.batch, f"{name}: {why}") for entry in plan.entries for name, why in entry.skipped.items())
    return [f"Not compared{batches}: {line}" for line, batches in _once(lines, plan)]


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


def _preferred(plan: Plan, entry: PlanEntry) -> str:
    objective, ceiling = (look(plan.meta, "search", key) for key in ("objective", "max_tpot_s"))
    preferred = "Most tokens per second" if objective == "throughput" else f"Best for {shown(objective)}"
    below = f" below {ceiling * 1e3:g} ms per token" if ceiling else ""
    return (
        f"{preferred}{below}: batch {entry.batch}, {entry.batch / entry.tpot_s:.0f} tokens/s, "
        f"{entry.tpot_s * 1e3:.2f} ms per token and sequence"
    )


def _conditions(plan: Plan) -> str:
    """Return the conditions of the predictions, one labelled line each."""

    def show(*keys: str) -> str:
        return shown(look(plan.meta, *keys))

    objective = look(plan.meta, "search", "objective")
    counted = ""
    if objective not in (None, "throughput"):
        counted = f"; tokens counted for {objective}, tau and tokens/s of the tables over all requests"
    dynamic = any(choice.grown for entry in plan.entries for choice in (entry.choice, *entry.compared))
    return "\n".join(
        [
            f"Predictions: by replay on {show('search', 'requests_judged_on')} requests held out, trees chosen on "
            f"{show('search', 'requests_chosen_on')} others (seed {show('search', 'seed')}){counted}.",
            "Intervals: 95 %, clustered by request; those of speedups include the error of step times.",
            "% behind: tokens per second lost to the first line, paired by request.",
            *(["Dynamic trees: nodes and depth are means."] if dynamic else []),
            f"Trace: {describe_models(look(plan.meta, 'trace'))}; {describe_rule(look(plan.meta, 'trace'))}; "
            f"{show('trace', 'new_tokens')} new tokens per request.",
            f"Step times: {describe_measurement(look(plan.meta, 'cost'))}.",
        ]
    )
