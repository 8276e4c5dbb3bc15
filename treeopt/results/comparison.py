"""Comparisons of drafters as tables, the fastest drafter first in words, and as records for JSON."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from treeopt.comparison.compare_drafters import Comparison, Standing
from treeopt.errors import counted
from treeopt.results.blocks import ONE, Block, Blocks, Cell, Column, Line, Row, Table, conditions, number, ranged, word
from treeopt.results.words import describe_measurement, describe_models, describe_rule

Contests = Sequence[Mapping[str, Any]]
SCHEMA = "treeopt.comparison/1"
PAIRED = {
    "texts": "paired by request: the target wrote the same texts",
    "prompts": "paired by prompt; texts may differ between drafters",
    "told": "paired by request",
    None: "not paired",
}
DRAFTER = Column("drafter", align="left", key=True)
NODES = Column("nodes", drop=2, meaning="Drafted tokens in the tree.")
DEPTH = Column("depth", drop=5, meaning="Drafted tokens on the longest path.")
TAU = Column("tau", drop=1, meaning="Tokens committed per step and sequence, bonus counted.")
JUDGED = (  # with trees of one size
    Column("trees", align="left", key=True),
    DRAFTER,
    NODES,
    DEPTH,
    replace(TAU, drop=0),
    Column("tau over the first's", meaning="Ratio of tau to that of the first drafter."),
)
PRICED = (  # each with its own best tree
    Column("batch", key=True),
    DRAFTER,
    NODES,
    DEPTH,
    TAU,
    Column("step", "ms", drop=4, meaning="Time of one step: draft, verify, accept."),
    Column("plain", "ms", drop=3, meaning="Time of one step of plain decoding."),
    Column("speedup", meaning="Over plain decoding with the drafter's own step times."),
    Column("speedup over the first's", meaning="Ratio of the speedup to that of the first drafter."),
)


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


def comparison_blocks(record: Mapping[str, Any], *, files: Mapping[str, str] | None = None) -> Blocks:
    """Return the winners, the next command, a table of contests with trees of one size and one of speedups, conditions.

    Args:
        record: what `comparison_record` returns.
        files: the trace of each drafter, for the next command.
    """
    judged = [contest for contest in record["contests"] if contest["batch"] is None]
    priced = [contest for contest in record["contests"] if contest["batch"] is not None]
    blocks: list[Block] = [Line("answer", text) for text in _answers(judged, priced, record["first"])]
    blocks += _next(judged, priced, files or {})
    if judged:
        blocks.append(Table("trees of one size", JUDGED, tuple(_rows(judged))))
    if priced:
        blocks.append(Table("each drafter with its own best tree", PRICED, tuple(_rows(priced))))
    blocks += [Line("warning", f"{warning}.") for warning in record["warnings"]]
    return (*blocks, *_conditions(record))


def _answers(judged: Contests, priced: Contests, first: str) -> list[str]:
    """Return the winner of each contest in a sentence, those of speed first."""
    fastest = (
        _won(contest, "speedup", first, f"Batch {contest['batch']}", "is the fastest", " times plain decoding")
        for contest in priced
    )
    longest = (_won(contest, "tau", first, contest["name"], "commits the most tokens per step") for contest in judged)
    return [*fastest, *longest]


def _winner(contest: Mapping[str, Any], by: str) -> Mapping[str, Any]:
    standing: Mapping[str, Any] = max(contest["standings"], key=lambda standing: standing[by]["value"])
    return standing


def _won(contest: Mapping[str, Any], by: str, first: str, place: str, verb: str, unit: str = "") -> str:
    """Return the winner of a contest, and how it compares with the first drafter, or the next one with it."""
    best = _winner(contest, by)
    line = f"{place[0].upper()}{place[1:]}: {best['drafter']} {verb}, {_text(best[by])}{unit}"
    others = [standing for standing in contest["standings"] if standing is not best]
    if best["over"] is not None:
        return f"{line}; {_text(best['over'])} times {first}{_unsure(best['over'])}."
    if not others:
        return f"{line}."
    second = max(others, key=lambda standing: standing["over"]["value"])
    return f"{line}; {second['drafter']} reaches {_text(second['over'])} of it{_unsure(second['over'])}."


def _unsure(over: Mapping[str, float]) -> str:
    return ", a difference within the noise" if over["low"] <= 1 <= over["high"] else ""


def _text(estimate: Mapping[str, float]) -> str:
    return ranged(estimate).text


def _next(judged: Contests, priced: Contests, files: Mapping[str, str]) -> list[Line]:
    """Return the search on the trace of the drafter that won most contests."""
    winners = [_winner(c, "speedup") for c in priced] or [_winner(c, "tau") for c in judged]
    names = [standing["drafter"] for standing in winners]
    best = max(names, key=names.count, default=None)
    if best is None or best not in files:
        return []
    batch = ",".join(str(contest["batch"]) for contest in priced) or "1"
    command = f"treeopt search --trace {shlex.quote(files[best])} --batch {batch} --output plan.json"
    return [Line("next", f"Next: choose the tree of {best}:", command)]


def _rows(contests: Contests) -> Iterator[Row]:
    for contest in contests:
        priced = contest["batch"] is not None
        name = number(contest["batch"]) if priced else word(contest["name"])
        for standing in contest["standings"]:
            plain, tree = not standing["tree"], standing["tree"] or {"nodes": 0, "depth": 0}
            cells = [name, word(standing["drafter"]), number(tree["nodes"]), number(tree["depth"])]
            cells.append(ONE if plain else ranged(standing["tau"]))
            if priced:
                cells += [number(standing[key] * 1e3, 2) for key in ("step_s", "plain_s")]
                cells.append(ONE if plain else ranged(standing["speedup"]))
            yield Row((*cells, ranged(standing["over"])))
        for drafter, reason in contest["skipped"].items():
            blank = (Cell(),) * (len(PRICED if priced else JUDGED) - 2)
            yield Row((name, word(drafter), *blank), "dim", f"not compared: {reason}")


def _conditions(record: Mapping[str, Any]) -> list[Line]:
    meta, text = record["meta"], record["meta"]["trace"][record["first"]]
    visible = [
        f"Predictions: by replay on {counted(meta['requests_judged_on'], 'request')} held out, trees chosen on "
        f"{meta['requests_chosen_on']} others (seed {meta['seed']}).",
        f"Intervals: 95 %, clustered by request; ratios to the first drafter are {PAIRED[record['pairing']]}.",
    ]
    detail = [
        f"Texts: {describe_rule(text)}; {text.get('new_tokens', '?')} new tokens per request.",
        *(f"{name}: {describe_models(trace)}." for name, trace in meta["trace"].items()),
        *(
            f"Step times of {name}: {describe_measurement(cost)}; "
            f"priced at {cost.get('priced_at') or '?'} tokens of context."
            for name, cost in meta["cost"].items()
        ),
    ]
    if meta["cost"]:
        detail.append(
            "Speedups are over plain decoding with the drafter's own step times and include their error; ratios of "
            "speedups include both errors as if independent."
        )
    return conditions(visible, detail)
