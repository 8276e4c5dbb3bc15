"""The tables of docs/results/engines.md, from the files in data/engines; run as a module, it writes them there."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tests.helpers.engine_setups import ROOT
from treeopt.results.words import interval
from treeopt.statistics import Estimate

FILE = ROOT / "data" / "engines" / "acceptance.json"
PAGE = ROOT / "docs" / "results" / "engines.md"
NAMES = {"vllm": "vLLM", "sglang": "SGLang", "llama.cpp": "llama.cpp", "openvino": "OpenVINO GenAI"}

Row = list[str]


def records() -> list[dict[str, Any]]:
    """Return the records of the file."""
    found: list[dict[str, Any]] = json.loads(FILE.read_text("utf-8"))
    return found


def method(record: Mapping[str, Any]) -> str:
    """Return the method in code font, with the name of a lookup."""
    lookup = f", `{record['drafter']}`" if record["drafter"].startswith(("prompt-lookup", "suffix")) else ""
    return f"`{record['method']}`{lookup}"


def draft(record: Mapping[str, Any]) -> str:
    """Return the draft in words."""
    return str(record["draft"]).partition(" {")[0]


def acceptance() -> Iterator[Row]:
    """Yield a row per check: texts and accepted lengths that are equal."""
    for record in records():
        yield [
            NAMES[record["engine"]],
            method(record),
            draft(record),
            str(record["concurrency"]),
            f"{record['texts_equal']} of {record['requests']}",
            f"{record['anchors_equal']} of {record['anchors_shared']}",
        ]


def slots() -> Iterator[Row]:
    """Yield a row per check of llama.cpp: share of steps that accept the first drafted token, and accepted per step."""
    for record in records():
        if record["engine"] == "llama.cpp":
            steps = record["anchors_shared"]
            engine, replay = record["accepted_by_position"], record["replayed_by_position"]
            yield [
                method(record),
                str(record["concurrency"]),
                f"{100 * engine[0] / steps:.0f} %",
                f"{100 * replay[0] / steps:.0f} %",
                f"{sum(engine) / steps:.2f}",
                f"{sum(replay) / steps:.2f}",
            ]


def validations() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the content of each validation in an engine."""
    for file in sorted(FILE.parent.glob("*.validation.json")):
        yield file.name.removesuffix(".validation.json"), json.loads(file.read_text("utf-8"))


def times() -> Iterator[Row]:
    """Yield a row per case: errors of predicted speedups, intervals, and how far the predicted best is behind."""
    for name, record in validations():
        covered = record["coverage"]["covered"]
        behind = ", ".join(f"{100 * best['behind']:.1f} %" for best in record["best"])
        yield [
            f"`{name}`",
            NAMES[record["meta"]["engine"]["name"]],
            str(record["meta"]["prompts"]),
            f"{100 * record['mean_error']:.1f} %",
            f"{100 * record['max_error']:.1f} %",
            f"{round(covered['value'] * covered['cells'])} of {covered['cells']}",
            behind,
        ]


def drafted(cell: Mapping[str, Any]) -> tuple[int, str]:
    """Return the nodes and the name of what a cell drafts: a chain, or a dynamic tree with its settings."""
    if cell["grown"] is None:
        nodes = len(cell["tree"]["paths"])
        return nodes, f"chain of {nodes}"
    limits = cell["grown"]["settings"]
    return limits["nodes"], f"tree of {limits['nodes']}, depth {limits['depth']}, beam {limits['beam']}"


def cells() -> Iterator[Row]:
    """Yield a row per draft and batch size: predicted and measured speedup."""
    for name, record in validations():
        for cell in sorted(record["cells"], key=lambda cell: (cell["batch"], *drafted(cell))):
            predicted, measured = cell["predicted"], cell["measured"]
            yield [
                f"`{name}`",
                str(cell["batch"]),
                drafted(cell)[1],
                f"{predicted['tau']['value']:.2f}",
                f"{measured['tau']['value']:.2f}",
                *(interval(Estimate(**side["speedup"])) for side in (predicted, measured)),
                f"{100 * cell['error']:+.1f} %",
            ]


def tuned() -> Iterator[Row]:
    """Yield a row per run and batch size: the length that `tune` chose beside the best of a sweep, and their costs."""
    for record in sorted(json.loads((FILE.parent / "tune.json").read_text("utf-8")), key=lambda one: one["case"]):
        sweep_s = record["sweep_of_servers_s" if record.get("server_launch_s") else "sweep_of_launches_s"]
        costs = [f"{record['tune_s']:.0f} s", str(record["launches"]), f"{sweep_s:.0f} s"]
        for place, cell in enumerate(record["cells"]):
            yield [
                f"`{record['case']}`",
                str(cell["batch"]),
                *(f"chain of {cell[name]}" if cell[name] else "no speculation" for name in ("chosen", "best")),
                interval(Estimate(**cell["chosen_over_best"])),
                f"{100 * cell['blind']:.1f} %",
                *(["", "", ""] if place else costs),
            ]


def tables(page: str) -> list[list[Row]]:
    """Return the rows of each table of a page, without its head."""
    found: list[list[Row]] = []
    before = ""
    for line in page.splitlines():
        if line.startswith("|"):
            if not before.startswith("|"):
                found.append([])
            found[-1].append([cell.strip() for cell in line.strip("|").split("|")])
        before = line
    return [table[2:] for table in found]


def engine_rows() -> list[Iterable[Row]]:
    """Return the rows of the tables of docs/results/engines.md, in order."""
    return [acceptance(), times(), cells(), tuned(), slots()]


def written(page: str, tables: Sequence[Iterable[Row] | None]) -> str:
    """Return the page with new rows in its tables, in order; None leaves those of a table."""
    new = iter(tables)

    def with_rows(found: re.Match[str]) -> str:
        rows = next(new, None)
        return found[0] if rows is None else found[1] + "".join(f"| {' | '.join(row)} |\n" for row in rows)

    return re.sub(r"^(\|.*\n\|---.*\n)(?:\|.*\n)*", with_rows, page, flags=re.MULTILINE)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8"), engine_rows()), "utf-8")
