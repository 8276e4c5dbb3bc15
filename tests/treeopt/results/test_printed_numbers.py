"""Printed numbers are those of the JSON: 200 drawn at random, each looked for in the row that it belongs to."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from tests.helpers import command_line
from tests.helpers.command_line import done, refused
from tests.helpers.printed_results import RESULTS, printed, record, words

DRAWN = 200
Expected = tuple[str, tuple[str, ...], str]  # command, words of the row, number as it must stand there


def ranged(estimate: Mapping[str, float], digits: int = 2, scale: float = 1.0) -> str:
    value, low, high = (f"{estimate[end] * scale:,.{digits}f}" for end in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


def searched() -> Iterator[Expected]:
    for entry in record("search")["entries"]:
        for choice in (entry["choice"], *entry["compared"]):
            row = (choice["name"],)
            rate = entry["batch"] * choice["tau"]["value"] / choice["step_s"]
            yield "search", row, f"{rate:,.0f}"
            yield "search", row, f"{choice['step_s'] * 1e3:.2f}"
            if choice["tree"]:
                yield "search", row, ranged(choice["tau"])
                yield "search", row, ranged(choice["speedup"])
            if choice["behind"]:
                yield "search", row, ranged(choice["behind"], 1, 100)


def validated() -> Iterator[Expected]:
    for cell in record("validate")["cells"]:
        row = (str(cell["batch"]), cell["name"])
        for side in ("predicted", "measured"):
            yield "validate", row, ranged(cell[side]["tau"])
            yield "validate", row, ranged(cell[side]["speedup"])
            yield "validate", row, f"{cell[side]['step_s'] * 1e3:.2f}"
        yield "validate", row, f"{cell['error'] * 100:+.1f}"
        yield "validate", row, f"{cell['end_to_end']:.2f}"
        yield "validate", row, ranged(cell["end_to_end_predicted"])


def asked_what_if() -> Iterator[Expected]:
    for cell in record("whatif")["cells"]:
        tree = cell["tree"]
        kind = "no speculation" if tree is None else "chain" if tree["nodes"] == tree["depth"] else "tree"
        row = (str(cell["batch"]), kind)
        for text in (f"{cell['step_s'] * 1e3:.2f}", f"{cell['plain_s'] * 1e3:.2f}", f"{cell['tokens_s']:,.0f}"):
            yield "whatif", row, text
        for key in ("tau", "speedup"):
            yield "whatif", row, ranged(cell[key])
        yield "whatif", row, f"{cell['break_even_acceptance']:.3f}"


def compared() -> Iterator[Expected]:
    for contest in record("compare")["contests"]:
        row = contest["name"] if contest["batch"] is None else str(contest["batch"])
        for standing in contest["standings"]:
            for key in ("tau", "speedup", "over"):
                if standing[key] is not None:
                    yield "compare", (row, standing["drafter"]), ranged(standing[key])


def simulated() -> Iterator[Expected]:
    labels = {"ttft_s": "time to first token", "tpot_s": "time per output token", "itl_s": "inter-token latency"}
    for run in record("run")["configurations"]:
        yield "run", ("tokens/s",), ranged(run["tokens_s"], 1)
        for key, label in labels.items():
            for percent in (50, 95, 99):
                yield "run", (f"{label}, p{percent}, ms",), ranged(run[key][f"p{percent}"], 1, 1e3)
    for way in record("server")["configurations"]:
        for label, key, digits in (("tokens/s", "tokens_s", 1), ("requests decoding", "running", 2)):
            yield "server", (label,), ranged(way["figures"][key], digits)
        for percent in (50, 95, 99):
            yield (
                "server",
                (f"time to first token, p{percent}, ms",),
                ranged(way["figures"][f"ttft_s_p{percent}"], 1, 1e3),
            )
    for way in record("capacity")["configurations"]:
        yield "capacity", (way["name"],), ranged(way["requests_s"])


def described() -> Iterator[Expected]:
    for depth, shares in enumerate(record("info")["top_1_2_4_8_by_depth"], 1):
        for share in shares:
            yield "info", (str(depth),), f"{share:.3f}"
    for curve in record("info")["learning_curves"]:
        for point in curve["points"]:
            yield "curve", (str(point["requests"]),), ranged(point["held_out"], 3)


def expected() -> list[Expected]:
    parts = (searched(), validated(), asked_what_if(), compared(), simulated(), described())
    return [each for part in parts for each in part]


def stands(lines: list[str], row: tuple[str, ...], number: str) -> bool:
    """Return whether one line holds the words of a row and, behind them, the number whole."""
    names = r"\s+".join(re.escape(word) for word in row)
    pattern = re.compile(rf"^\s*{names}\s.*(?<![\w.,]){re.escape(number)}(?![\w%]|[.,]\d)")
    return any(pattern.search(line) for line in lines)


def test_two_hundred_numbers_drawn_at_random_are_those_of_the_json():
    rng = np.random.default_rng(33)
    known = expected()
    assert len(known) > DRAWN
    lines = {name: printed(RESULTS[name](), 240) for name in RESULTS}
    lines["curve"] = done(*words("info")).stdout.splitlines()
    for place in rng.choice(len(known), DRAWN, replace=False).tolist():
        command, row, number = known[place]
        assert stands(lines[command], row, number), (command, row, number)


@pytest.mark.parametrize("name", ["search", "whatif", "compare", "run", "info"])
def test_a_command_prints_what_its_json_holds(name):
    """Into a file: the tables of the same record, whole."""
    shown = done(*words(name)).stdout.splitlines()
    for command, row, number in expected():
        if command == name:
            assert stands(shown, row, number), (row, number)


def test_the_answer_holds_the_numbers_of_the_plan():
    plan: Mapping[str, Any] = record("search")
    shown = done(*words("search")).stdout
    for entry in plan["entries"]:
        choice = entry["choice"]
        rate = entry["batch"] * choice["tau"]["value"] / choice["step_s"]
        assert f"Batch {entry['batch']}: a tree of {len(choice['tree']['paths'])} nodes, " in shown
        assert f"{ranged(choice['speedup'])} times plain decoding, {rate:,.0f} tokens/s." in shown


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ("0", "0 must be above 0"),
        ("1e-4", "no batch size takes at most 0.0001 ms per token: the fastest configuration takes "),
    ],
)
def test_errors_about_the_time_per_token_say_what_is_wrong(limit, message):
    text = refused(command_line.run(*words("search"), "--max-tpot-ms", limit), message, code=None)
    assert "max-tpot:" not in text
    assert "fitted requests" not in text


def test_one_batch_size_is_named_once():
    words = ["whatif", "--accepted-length", "3.2@5", "--kind", "eagle3", "--target", "8b", "--hardware", "h100"]
    (one, *_), (several, *_) = (done(*words, "--batch", some).stdout.splitlines() for some in ("64", "1,64"))
    assert one.startswith("H100 SXM, context 512: speculation pays at batch 64: a chain of ")
    assert several.startswith(
        "H100 SXM, context 512: speculation pays at every batch size. Most at batch 1: a chain of "
    )
