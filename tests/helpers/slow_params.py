"""Choices between the daily and the slow suite: parameters of tests, and examples of properties."""

import os
from collections.abc import Callable, Iterable
from typing import Any

import pytest

DAILY = 25  # examples of a property that names no number
EXAMPLES = int(os.environ.get("TREEOPT_EXAMPLES", DAILY))


def slow_unless(daily: Callable[..., bool], values: Iterable[Any]) -> list[Any]:
    """Return pytest parameters, marked slow where `daily` is false; a tuple is passed as several arguments.

    >>> [bool(value.marks) for value in slow_unless(lambda number: number < 2, range(3))]
    [False, False, True]
    """
    rows = [value if isinstance(value, tuple) else (value,) for value in values]
    return [pytest.param(*row, marks=() if daily(*row) else pytest.mark.slow) for row in rows]


def examples(number: int) -> int:
    """Return how many examples of a property are tried: all in the slow suite, a quarter every day."""
    return number if EXAMPLES > DAILY else number // 4
