"""The verdict: no speculation, a fixed length, a schedule or adaptive verification, and by how much."""

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from treeopt.errors import counted
from treeopt.results.kinds import ResultKind
from treeopt.results.run import on_device
from treeopt.results.tables_and_numbers import Column, Line, ranged
from treeopt.results.words import unsure

WORDS = {
    "none": "no speculation",
    "fixed": "a fixed length",
    "schedule": "a schedule",
    "adaptive": "adaptive verification",
}
NEAR = 0.03
COLUMNS = (
    Column("requests", key=True, meaning="Requests that decode together.", field="requests"),
    Column("time", "%", drop=1, meaning="Share of the time.", field="share", digits=1),
    Column("configuration", align="left", key=True, field="name"),
    Column("length", align="left", meaning="As `simulate --length` takes it.", field="length"),
    Column("tokens/s", field="tokens_s", digits=0),
    Column("tau", drop=2, meaning="Tokens per step and request.", field="tau", digits=2),
    Column("over no speculation", field="over", digits=2),
)


def _answers(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield the verdict over all loads, then those of neighbouring loads that agree."""
    if (overall := record["overall"]) is not None:
        over = overall["over"][overall["verdict"]]
        text = "" if overall["verdict"] == "none" else f", {ranged(over).text} times no speculation{unsure(over)}"
        yield f"Over all loads{on_device(record)}: {WORDS[overall['verdict']]}{text}."
    for verdict, group in groupby(record["loads"], lambda load: load["verdict"]):
        loads = list(group)
        first, last = loads[0]["requests"], loads[-1]["requests"]
        many = counted(last, "running request")
        length = "" if verdict == "none" else f" ({_length(loads, verdict)})"
        at = "It" if first == last else f"At {last} it"
        yield f"{'' if first == last else f'{first} to '}{many}: {WORDS[verdict]}{length}. {_margin(loads[-1], at)}"


def _length(loads: list[Mapping[str, Any]], verdict: str) -> str:
    """Return the lengths of a configuration under these loads."""
    arms = [next(arm for arm in load["configurations"] if arm["name"] == verdict) for load in loads]
    return ", ".join(dict.fromkeys(arm["length"] for arm in arms))


def _margin(load: Mapping[str, Any], at: str) -> str:
    """Return by how much the verdict of a load beats the others, and which are as good, after `at`."""
    ratios = {name: ratio for name, ratio in load["ratios"].items() if ratio["low"] != ratio["high"] or name == "none"}
    good = [WORDS[name] for name, ratio in ratios.items() if ratio["value"] <= 1 + NEAR]
    beaten = [
        f"{ranged(ratio).text} times {WORDS[name]}{' (within the error)' if unsure(ratio) else ''}"
        for name, ratio in ratios.items()
        if ratio["value"] > 1 + NEAR
    ]
    texts = [*beaten, *(f"as good as {name}" for name in good)]
    return f"{at} is {' and '.join(filter(None, (', '.join(texts[:-1]), texts[-1])))}." if texts else ""


def _next(record: Mapping[str, Any], *, trace: str | None = None, **_: Any) -> Iterator[Line]:
    """Yield the simulation of the verdict at the largest load; `trace` has the options of trace and profile."""
    load = record["loads"][-1]
    if trace is not None:
        length = _length([load], load["verdict"])
        command = f"treeopt simulate {trace} --length {length} --batch {load['requests']}"
        yield Line("next", "Next: its latencies:", command)


ENTRY = ResultKind(
    name="verdict",
    title="Verdict",
    question="No speculation, a fixed length, a schedule or adaptive verification?",
    place=7,
    command="verdict",
    schema="treeopt.verdict/1",
    record="simulate.runs.run_records:VerdictRecord",
    rows=lambda record: [
        {"requests": load["requests"], "share": load["share"], **arm}
        for load in record["loads"]
        for arm in load["configurations"]
    ],
    columns=COLUMNS,
    answers=_answers,
    next_lines=_next,
    details=("Trace: ",),
    charts={"loads": "treeopt.charts.speed_charts:speed_by_load"},
)
