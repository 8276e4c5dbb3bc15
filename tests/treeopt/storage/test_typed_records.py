"""Errors of typed records: msgspec's own words, with the place and what was found."""

import math
from typing import Annotated, Any, Literal

import msgspec
import pytest

from treeopt.storage.json_records import RecordError
from treeopt.storage.typed_records import AtLeastOne, Count, Finite, Index, Integer, Positive, Record, read_record


class Circle(Record, frozen=True, tag_field="kind", tag="circle", forbid_unknown_fields=True):
    radius: Positive


class Square(Record, frozen=True, tag_field="kind", tag="square"):
    side: Positive


class Interval(Record, frozen=True):
    low: Finite
    high: Finite

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"must rise, found {self.low} and {self.high}")
        if self.low == self.high:
            raise ValueError("`low` and `high` must differ")


class Whole(Record, frozen=True):
    count: Count
    any_count: Integer
    index: Index
    share: Finite | None
    factor: AtLeastOne
    pair: tuple[Count, Finite]
    rows: tuple[tuple[Count, ...], ...]
    few: Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=2)]
    by_name: dict[str, Interval]
    nested: dict[str, dict[str, Count]]
    shape: Circle | Square | None
    mode: Literal["fast", "slow"]
    flag: bool = False
    meta: dict[str, Any] = msgspec.field(default_factory=dict)


RECORD: dict[str, Any] = {
    "count": 1,
    "any_count": -1,
    "index": 0,
    "share": None,
    "factor": 1,
    "pair": [1, 0.5],
    "rows": [[1], [], [2, 3]],
    "few": ["a"],
    "by_name": {"a": {"low": 0, "high": 1}, "b": {"low": 0, "high": 1}},
    "nested": {"x": {"y": 1}},
    "shape": {"kind": "circle", "radius": 1},
    "mode": "fast",
}


def test_what_is_right_is_read():
    read = read_record(RECORD | {"later": "field"}, Whole)
    assert (read.factor, type(read.factor), read.rows, read.pair) == (1.0, float, ((1,), (), (2, 3)), (1, 0.5))
    assert read.by_name["a"] == Interval(0.0, 1.0)
    assert read.shape == Circle(1.0)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("count", 0, "count: Expected `int` >= 1, found 0"),
        ("count", "1", "count: Expected `int`, found '1'"),
        ("any_count", -(2**200), f"any_count: Expected `int` >= {-(2**63)}, found one too large"),
        ("share", math.inf, "share: Expected `float` <= 1e+100, found inf"),
        ("pair", [1], "pair: Expected `array` of length 2, found [1]"),
        ("rows", [[1], [2, [3]]], "rows[1][1]: Expected `int`, found [3]"),
        ("by_name", RECORD["by_name"] | {"c": {"low": 0}}, "by_name.c: Object missing required field `high`"),
        ("by_name", RECORD["by_name"] | {"c d": {"low": 1, "high": 1}}, "by_name['c d']: `low` and `high` must differ"),
        ("nested", {"x": {"y": 1}, "z": {"y": 1, "w": 0}}, "nested.z.w: Expected `int` >= 1, found 0"),
        ("shape", {"kind": "star"}, "shape.kind: Invalid value 'star'"),
        ("mode", "best", "mode: Invalid enum value 'best'"),
    ],
    ids=str,
)
def test_what_is_wrong_is_named(key, value, message):
    with pytest.raises(RecordError) as refused:
        read_record(RECORD | {key: value}, Whole)
    assert str(refused.value) == message


def test_what_is_missing_or_no_record_is_named():
    for record, where, message in (
        ({}, "", "Object missing required field `count`"),
        ([1], "plan.entries[0]", "plan.entries[0]: Expected `object`, found [1]"),
        (RECORD | {"\ud800": 1}, "", "a name is not Unicode: '\\ud800'"),
        (RECORD | {"rows": [[0]]}, "plan", "plan: rows[0][0]: Expected `int` >= 1, found 0"),
    ):
        with pytest.raises(RecordError) as refused:
            read_record(record, Whole, where)
        assert str(refused.value) == message
