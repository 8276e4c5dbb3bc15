"""Comparisons of drafters as tables on the terminal, and as records for JSON."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from treeopt.comparison.compare_drafters import Comparison, Standing
from treeopt.statistics.clustered_estimate import Estimate
from treeopt.tables.terminal_text import describe_measurement, describe_models, describe_rule, interval, terminal

SCHEMA = "treeopt.comparison/1"
PAIRED = {
    "texts": "paired by request: the target wrote the same texts",
    "prompts": "paired by prompt; texts may differ between drafters",
    "told": "paired by request",
    None: "not paired",
}


def comparison_record(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison as JSON values."""
    contests = [
        {
            "name": contest.name,
            "batch": contest.batch,
            "standings": [_standing(standing) for standing in contest.standings],
            "skipped": dict(contest.skipped),
        }
        for contest in comparison.contests
    ]
    return {
        "schema": SCHEMA,
        "first": comparison.first,
        "pairing": comparison.pairing,
        "contests": contests,
        "warnings": list(comparison.warnings),
        "meta": dict(comparison.meta),
    }


def _standing(standing: Standing) -> dict[str, Any]:
    tree = standing.tree
    record = None if tree is None else {"id": tree.id, "nodes": tree.nodes, "depth": tree.depth, "paths": tree.paths}
    return asdict(standing) | {"tree": record}


def show_comparison(record: Mapping[str, Any], console: Console | None = None) -> None:
    """Print a table for each contest, warnings and conditions; `record` is what `comparison_record` returns."""
    console = console or terminal()
    for contest in record["contests"]:
        console.print(_table(contest))
        console.print()
    for warning in record["warnings"]:
        console.print(f"Warning: {warning}.", markup=False, soft_wrap=True)
    if record["warnings"]:
        console.print()
    console.print(Text(_conditions(record)), style="dim", soft_wrap=True)


def _table(contest: Mapping[str, Any]) -> Table:
    priced = contest["batch"] is not None
    table = Table(title=contest["name"], title_justify="left", title_style="bold")
    table.add_column("drafter", overflow="fold")
    times = ("step ms", "plain ms", "speedup") if priced else ()
    for name in ("nodes", "depth", "tau", *times, f"{'speedup' if priced else 'tau'}\nover the first's"):
        table.add_column(name, justify="right")
    for standing in contest["standings"]:
        plain, tree = not standing["tree"], standing["tree"] or {"nodes": 0, "depth": 0}
        cells = [standing["drafter"], str(tree["nodes"]), str(tree["depth"]), _estimate(standing["tau"], plain=plain)]
        if priced:
            cells += [f"{standing[name] * 1e3:.2f}" for name in ("step_s", "plain_s")]
            cells.append(_estimate(standing["speedup"], plain=plain))
        table.add_row(*map(Text, cells), "" if standing["over"] is None else _estimate(standing["over"]))
    for drafter, reason in contest["skipped"].items():
        table.add_row(Text(drafter), *[""] * (len(table.columns) - 2), Text(f"not compared: {reason}"), style="dim")
    return table


def _estimate(estimate: Mapping[str, float], *, plain: bool = False) -> str:
    return "1" if plain else interval(Estimate(**estimate))


def _conditions(record: Mapping[str, Any]) -> str:
    meta, text = record["meta"], record["meta"]["trace"][record["first"]]
    lines = [
        f"By replay on {meta['requests_judged_on']} requests held out, trees chosen on {meta['requests_chosen_on']} "
        f"others (seed {meta['seed']}).",
        f"Intervals: 95 %, clustered by request; ratios to the first drafter are {PAIRED[record['pairing']]}.",
        f"Texts: {describe_rule(text)}; {text.get('new_tokens', '?')} new tokens per request.",
        *(f"{name}: {describe_models(trace)}." for name, trace in meta["trace"].items()),
        *(
            f"Step times of {name}: {describe_measurement(cost)}; "
            f"priced at {cost.get('priced_at') or '?'} tokens of context."
            for name, cost in meta["cost"].items()
        ),
    ]
    if meta["cost"]:
        lines.append(
            "Speedups are over plain decoding with the drafter's own step times and include their error; ratios of "
            "speedups include both errors as if independent."
        )
    return "\n".join(lines)
