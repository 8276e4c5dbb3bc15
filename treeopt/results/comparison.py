"""Comparisons of drafters: the fastest drafter first in words, then all of them, with trees of one size and priced."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from treeopt.results.kinds import ResultKind
from treeopt.results.tables_and_numbers import (
    BATCH,
    DEPTH,
    NODES,
    PLAIN_STEP,
    SPEEDUP,
    STEP,
    TAU,
    Column,
    Line,
    Row,
    Table,
    conditions,
    ranged,
    warnings_of,
)
from treeopt.results.words import CLUSTERED, describe_measurement, describe_models, describe_rule, replayed_on

Contests = Sequence[Mapping[str, Any]]
PAIRED = {
    "texts": "paired by request: the target wrote the same texts",
    "prompts": "paired by prompt; texts may differ between drafters",
    "caller": "paired by request",
    None: "not paired",
}
NO_ESTIMATE = dict.fromkeys(("value", "low", "high"))  # a missing one, as a table has it
DRAFTER = Column("drafter", align="left", key=True, field="drafter")
RATIO = "Ratio of {} to that of the first drafter."
OVER = Column("speedup over the first's", meaning=RATIO.format("the speedup"), field="over", digits=2)
PRICED = (  # each with its own best tree
    BATCH,
    DRAFTER,
    NODES,
    DEPTH,
    TAU,
    STEP,
    replace(PLAIN_STEP, drop=5),
    replace(SPEEDUP, meaning="Over plain decoding with the drafter's own step times."),
    OVER,
)
JUDGED = (  # with trees of one size
    Column("trees", align="left", key=True, field="contest"),
    DRAFTER,
    NODES,
    DEPTH,
    replace(TAU, drop=0),
    replace(OVER, name="tau over the first's", meaning=RATIO.format("tau")),
)


def rows(record: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield each drafter of each contest."""
    for contest in record["contests"]:
        for standing in contest["standings"]:
            tree = standing["tree"] or {"nodes": 0, "depth": 0}
            estimates = {key: standing[key] or NO_ESTIMATE for key in ("tau", "speedup", "over")}
            yield {
                "contest": contest["name"],
                "batch": contest["batch"],
                "drafter": standing["drafter"],
                **{key: tree[key] for key in ("nodes", "depth")},
                **{key: standing[key] for key in ("step_s", "plain_s")},
                **estimates,
            }


def answers(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield the winner of each contest in a sentence, those of speed first."""
    judged, priced = _contests(record)
    for contest in priced:
        yield _won(contest, "speedup", f"Batch {contest['batch']}", "is the fastest", " times plain decoding")
    for contest in judged:
        yield _won(contest, "tau", contest["name"], "commits the most tokens per step")


def _contests(record: Mapping[str, Any]) -> tuple[Contests, Contests]:
    """Return the contests with trees of one size, and those of speeds."""
    contests = record["contests"]
    return [c for c in contests if c["batch"] is None], [c for c in contests if c["batch"] is not None]


def _winner(contest: Mapping[str, Any], by: str) -> Mapping[str, Any]:
    """Return the drafter that is best on the requests that trees were chosen on; of older files the best shown."""
    named = [standing for standing in contest["standings"] if standing["drafter"] == contest.get("best")]
    standing: Mapping[str, Any] = max(named or contest["standings"], key=lambda standing: standing[by]["value"])
    return standing


def _won(contest: Mapping[str, Any], by: str, place: str, verb: str, unit: str = "") -> str:
    """Return the winner of a contest, and how it compares with the next one."""
    best, lead = _winner(contest, by), contest.get("lead")
    value = f"{ranged(best[by]).text}{unit}"
    start = f"{place[0].upper()}{place[1:]}: {best['drafter']}"
    if lead is None:
        return f"{start} {verb}, {value}."
    if lead["low"] > 1:
        return f"{start} {verb}, {value}; {ranged(lead).text} times {contest['second']}."
    times = f"{ranged(lead).text} times the other"
    return f"{start} and {contest['second']} are within the error of each other: {value}, {times}."


def next_lines(record: Mapping[str, Any], *, files: Mapping[str, str] | None = None, **_: Any) -> Iterator[Line]:
    """Yield the search on the trace of the drafter that won most contests; `files` are options, by drafter."""
    judged, priced = _contests(record)
    winners = [_winner(c, "speedup") for c in priced] or [_winner(c, "tau") for c in judged]
    names = [standing["drafter"] for standing in winners]
    best = max(names, key=names.count, default=None)
    if best is None or best not in (files or {}):
        return
    batch = ",".join(str(contest["batch"]) for contest in priced) or "1"
    command = f"treeopt search {(files or {})[best]} --batch {batch} --output plan.json"
    yield Line("next", f"Next: choose the tree of {best}:", command)


def tables(record: Mapping[str, Any], **_: Any) -> Iterator[Table]:
    """Yield a table of contests with trees of one size and one of speedups; who was not compared has a note."""
    judged, priced = _contests(record)
    titles = ("trees of one size", "each drafter with its own best tree")
    for title, shown, contests in zip(titles, (JUDGED, PRICED), (judged, priced), strict=True):
        lines = []
        for contest in contests:
            lines += [Row(tuple(column.cell(row) for column in shown)) for row in rows({"contests": [contest]})]
            for drafter, reason in contest["skipped"].items():
                names = {"contest": contest["name"], "batch": contest["batch"], "drafter": drafter}
                lines.append(Row(tuple(column.cell(names) for column in shown), "dim", f"not compared: {reason}"))
        if contests:
            yield Table(title, shown, tuple(lines))


def remarks(record: Mapping[str, Any], **_: Any) -> Iterator[Line]:
    """Yield warnings, and how the drafters were compared."""
    yield from warnings_of(record["warnings"])
    meta, text = record["meta"], record["meta"]["trace"][record["first"]]
    visible = [
        f"{replayed_on(text, meta)}.",
        f"Intervals: 95 %, {CLUSTERED}; ratios to the first drafter are {PAIRED[record['pairing']]}.",
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
    yield from conditions(visible, detail)


ENTRY = ResultKind(
    name="comparison",
    title="Drafters side by side",
    question="Which drafter?",
    place=4,
    command="compare",
    schema="treeopt.comparison/2",
    record="treeopt.comparison.compare_drafters:ComparisonRecord",
    made_by="treeopt.comparison.compare_drafters:Comparison",
    rows=rows,
    columns=PRICED,
    answers=answers,
    next_lines=next_lines,
    tables=tables,
    remarks=remarks,
    charts={"contests": "treeopt.charts.speed_charts:contests"},
)
