"""The tables of docs/results/engines.md, from data/engines/acceptance.json; run as a module, it writes them there."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tests.helpers.engine_setups import ROOT

FILE = ROOT / "data" / "engines" / "acceptance.json"
PAGE = ROOT / "docs" / "results" / "engines.md"
NAMES = {"vllm": "vLLM", "llama.cpp": "llama.cpp", "openvino": "OpenVINO GenAI"}

Row = list[str]


def records() -> list[dict[str, Any]]:
    """Return the records of the file."""
    found: list[dict[str, Any]] = json.loads(FILE.read_text("utf-8"))
    return found


def method(record: Mapping[str, Any]) -> str:
    """Return the method in code font, with the name of prompt lookup."""
    lookup = f", `{record['drafter']}`" if record["drafter"].startswith("prompt-lookup") else ""
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


def written(page: str) -> str:
    """Return the page with the rows of its two tables as the file has them."""
    new = iter([acceptance(), slots()])

    def with_rows(head: re.Match[str]) -> str:
        return head[1] + "".join(f"| {' | '.join(row)} |\n" for row in next(new))

    return re.sub(r"^(\|.*\n\|---.*\n)(?:\|.*\n)*", with_rows, page, flags=re.MULTILINE)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")
