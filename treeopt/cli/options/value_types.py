"""Values of options: finite numbers, numbers of tokens, lists of whole numbers, files for tables."""

import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

import click

from treeopt.errors import UsageError
from treeopt.storage.json_records import LARGEST_NUMBER
from treeopt.storage.table_files import check_table_file

LARGEST = 2**31  # whole number of a list
UNITS = {"k": 1024, "m": 1024**2}
DIGITS = 10  # of a number of tokens


class Real(click.FloatRange):
    """A finite number within bounds; click's own comparison lets NaN pass any bounds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number."""
        try:
            number = float(value)
        except ValueError:
            self.fail(f"{value!r} is not a number", param, ctx)
        if self.min is not None and number == self.min and self.min_open:
            self.fail(f"{value} must be above {self.min:g}", param, ctx)
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        if abs(number) > LARGEST_NUMBER:
            self.fail(f"{value} is more than {LARGEST_NUMBER:g}", param, ctx)
        return number


class Whole(click.IntRange):
    """A whole number within bounds, at most `LARGEST`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number."""
        number = super().convert(value, param, ctx)
        if number > LARGEST and self.max is None:
            self.fail(f"{str(value)[:40]} is more than {LARGEST}", param, ctx)
        return number


SECONDS = Real(0, 1e9)  # sums of them over all requests and tokens stay finite


class Tokens(Whole):
    """A number of tokens within bounds, such as 8192, 8k or 1M (k: 1024, M: 1024 k)."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number."""
        try:
            value = count(value) if isinstance(value, str) else value
        except ValueError:
            self.fail(f"{value!r} is not a number of tokens such as 512, 8k or 1M", param, ctx)
        return super().convert(value, param, ctx)


def count(text: str) -> int:
    """Return a number of tokens; raise ValueError for another text.

    >>> count("512"), count("8k"), count("8K"), count("1M")
    (512, 8192, 8192, 1048576)
    """
    text = text.strip()
    unit = UNITS.get(text[-1:].lower(), 1)
    digits = text[:-1] if unit > 1 else text
    if not (digits.isascii() and digits.isdigit() and len(digits) <= DIGITS):
        raise ValueError(text)
    return int(digits) * unit


class Numbers(click.ParamType):  # type: ignore[type-arg]  # which click takes from 8.4 on
    """Whole numbers such as `1,2,8`, `512,8k` (k: 1024) or `1-64`, which doubles from 1 to 64."""

    name = "sizes"

    def __init__(self, noun: str = "batch sizes") -> None:
        """Name the numbers for errors."""
        self.noun = noun

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Return the numbers and ranges between commas, each once."""
        if isinstance(value, tuple):
            return value
        numbers: list[int] = []
        try:
            for part in str(value).split(","):
                first, dash, last = part.partition("-")
                numbers += _doubled(_number(first), _number(last)) if dash else [_number(first)]
        except ValueError:
            form = f"whole numbers in 1..{LARGEST} such as 1,2,8 or 512,8k or 1-64"
            self.fail(f"{value!r} is not a list of {self.noun}, {form}", param, ctx)
        return tuple(dict.fromkeys(numbers))


class Address(click.ParamType):  # type: ignore[type-arg]
    """A server's address with the draft length that it runs, such as `3=http://127.0.0.1:8000`."""

    name = "k=url"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, str]:
        """Return the draft length and the address."""
        if isinstance(value, tuple):
            return value
        length, equals, url = str(value).partition("=")
        if not equals or not (length.isascii() and length.isdigit()) or len(length) > 3:
            self.fail(f"{value!r} must be like 3=http://127.0.0.1:8000, the draft length and the address", param, ctx)
        return int(length), url


class Names(click.ParamType):  # type: ignore[type-arg]
    """Names between commas, each of them one of several."""

    def __init__(self, choices: Collection[str], noun: str) -> None:
        """Take these names; the noun stands for them in help texts."""
        self.choices, self.name = choices, noun

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> frozenset[str]:
        """Return the names."""
        if isinstance(value, frozenset):
            return value
        names = frozenset(name.strip() for name in str(value).split(",") if name.strip())
        if unknown := sorted(names - set(self.choices)):
            self.fail(f"{unknown[0]!r} is none of {', '.join(self.choices)}", param, ctx)
        return names


def numbers_text(numbers: tuple[int, ...]) -> str:
    """Return numbers as `Numbers` reads them, for defaults.

    >>> numbers_text((1, 2, 4))
    '1,2,4'
    """
    return ",".join(map(str, numbers))


def _number(text: str) -> int:
    number = count(text)
    if not 1 <= number <= LARGEST:
        raise ValueError
    return number


def _doubled(low: int, high: int) -> list[int]:
    if low > high:
        raise ValueError
    numbers = [low]
    while numbers[-1] * 2 < high:
        numbers.append(numbers[-1] * 2)
    return numbers if low == high else [*numbers, high]


class TableFile(click.Path):
    """The name of a file for a table, which must end in .csv or .parquet."""

    def __init__(self) -> None:
        """Take files only."""
        super().__init__(path_type=Path, dir_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        path = Path(str(super().convert(value, param, ctx)))
        try:
            check_table_file(path)
        except UsageError as error:
            self.fail(str(error), param, ctx)
        return path
