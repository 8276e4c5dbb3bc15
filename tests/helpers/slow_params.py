"""Parameters of which a few run every day and the others only with the slow suite."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def slow_unless(daily: Callable[..., bool], values: Iterable[Any]) -> list[Any]:
    """Return pytest parameters, marked slow where `daily` is false; a tuple is passed as several arguments.

    >>> [bool(value.marks) for value in slow_unless(lambda number: number < 2, range(3))]
    [False, False, True]
    """
    rows = [value if isinstance(value, tuple) else (value,) for value in values]
    return [pytest.param(*row, marks=() if daily(*row) else pytest.mark.slow) for row in rows]
