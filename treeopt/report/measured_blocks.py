"""Blocks of files that no command prints as a table: profiles, and acceptance checks of engines."""

from collections.abc import Mapping, Sequence
from typing import Any

from treeopt.results.blocks import Block, Blocks, Cell, Column, Line, Row, Table, number, word
from treeopt.results.words import describe_measurement
from treeopt.storage.provenance import look

PROFILE = (
    Column("batch", key=True),
    Column("context", "tokens", meaning="Mean tokens per sequence in the cache; 0: not measured apart."),
    Column("plain step", "ms", meaning="Time of one step of plain decoding."),
    Column("smallest", "tokens", meaning="Fewest verified tokens per sequence that were measured."),
    Column("its step", "ms", meaning="Time of a step except drafting, at the fewest tokens."),
    Column("largest", "tokens", meaning="Most verified tokens per sequence that were measured."),
    Column("its step", "ms", meaning="Time of a step except drafting, at the most tokens."),
    Column("drafting 1 level", "ms", meaning="Time of drafting a chain of one token."),
    Column("deepest", "levels", meaning="Most drafted levels that were measured."),
    Column("drafting them", "ms", meaning="Time of drafting a chain of that depth."),
    Column("error", "± %", meaning="Half of the 95 % interval of step over plain step."),
)
ENGINES = (
    Column("engine", align="left", key=True),
    Column("method", align="left"),
    Column("draft", align="left"),
    Column("requests at once"),
    Column("texts equal"),
    Column("of", meaning="Requests."),
    Column("steps equal", meaning="Positions at which the engine accepted what the replay did."),
    Column("of", meaning="Positions at which both stepped."),
)


def profile_blocks(record: Mapping[str, Any]) -> Blocks:
    """Return the answer, the measured ranges and the conditions; `record` is what `treeopt profile` writes."""
    batches, meta = record["batches"], record["meta"]
    sizes = ", ".join(f"{times['plain_s'] * 1e3:.2f} ms at batch {times['batch']}" for times in batches)
    left_out = look(meta, "left_out_sizes", "median_error")
    blocks: list[Block] = [
        Line("answer", f"A plain step takes {sizes}."),
        Table("measured step times", PROFILE, tuple(_batch(times, record["relative_error"]) for times in batches)),
    ]
    if isinstance(left_out, float):
        sentence = f"Sizes left out in turn are predicted with a median error of {left_out:.1%}."
        blocks.append(Line("note", sentence))
    return (*blocks, Line("condition", f"Measured: {describe_measurement(meta)}."))


def _batch(times: Mapping[str, Any], otherwise: float) -> Row:
    error = times["relative_error"] if times["relative_error"] is not None else otherwise
    (few, few_s), (many, many_s) = times["rest"][0], times["rest"][-1]
    (_, first_s), (deepest, deepest_s) = times["draft"][0], times["draft"][-1]
    cells = (
        number(times["batch"]),
        number(times["context"]),
        _ms(times["plain_s"]),
        number(few),
        _ms(few_s),
        number(many),
        _ms(many_s),
        _ms(first_s),
        number(deepest),
        _ms(deepest_s),
        number(100 * error, 1),
    )
    return Row(cells)


def _ms(seconds: float) -> Cell:
    return number(1e3 * seconds, 2)


def engine_blocks(checks: Sequence[Mapping[str, Any]]) -> Blocks:
    """Return how many texts and steps were equal; `checks` are those of `make engines`."""
    texts = sum(check["texts_equal"] for check in checks)
    requests = sum(check["requests"] for check in checks)
    equal, shared = (sum(check[key] for check in checks) for key in ("anchors_equal", "anchors_shared"))
    answer = f"{texts:,} of {requests:,} texts and {equal:,} of {shared:,} steps are those of the replay."
    return (Line("answer", answer), Table("engines against replay", ENGINES, tuple(map(_check, checks))))


def _check(check: Mapping[str, Any]) -> Row:
    words = (word(check["engine"]), word(check["method"]), word(str(check["draft"]).split(" (")[0].split(" {")[0]))
    names = ("concurrency", "texts_equal", "requests", "anchors_equal", "anchors_shared")
    return Row((*words, *(number(check[name]) for name in names)))
