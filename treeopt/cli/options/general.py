"""Options that several commands share, the check of what they write, and how commands print."""

import json
import math
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import click

from treeopt.defaults import NODES
from treeopt.errors import UsageError
from treeopt.storage.atomic_files import is_special
from treeopt.storage.json_records import LARGEST_NUMBER
from treeopt.tree import MAX_NODES

FILE = click.Path(path_type=Path, dir_okay=False)
# Parameters that name what is written; others are read.
WRITTEN = ("output", "rest", "predictions_file", "plans", "tables")
FOLDER = click.Path(path_type=Path)
LARGEST = 2**31  # whole number of a list
UNITS = {"k": 1024, "m": 1024**2}
DIGITS = 10  # of a number of tokens
NOTHING: Mapping[str, Path | None] = {}
# Schema of a file that takes minutes of a machine -> the word for it.
COSTLY = {"profile": "a profile", "validation": "a validation", "decode": "decoded texts"}
HEAD = 256  # bytes in which a file's schema stands


class Real(click.FloatRange):
    """A finite number within bounds; click's own comparison lets NaN pass any bounds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number."""
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


as_json = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, alone, on stdout.")
seed = click.option(
    "--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="Seed of every random choice."
)
batches = click.option("--batch", type=Numbers(), required=True, help="Batch sizes, such as 4 or 1,2,4,8.")
max_nodes = click.option(
    "--max-nodes",
    type=click.IntRange(1, MAX_NODES),
    help=f"Largest tree tried, in nodes; default {NODES}, or the largest that the step times cover.",
)
max_depth = click.option(
    "--max-depth",
    type=Whole(min=1),
    help="Deepest tree tried; default the trace's depth, or the deepest that the step times cover.",
)
context = click.option(
    "--context",
    type=Tokens(min=0),
    help="Tokens in the cache per sequence, such as 512 or 8k; default as profiled, the shortest of several contexts.",
)
force = click.option("--force", is_flag=True, help="Overwrite existing files without asking.")
graphs = click.option("--graphs", is_flag=True, help="Replay steps from CUDA graphs; not run on a device yet.")


def bundle(name: str, kind: type, *given: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a decorator that adds options to a command, which gets them as one argument `name` of dataclass `kind`."""

    def decorate(command: Any) -> Any:
        @wraps(command)
        def bundled(**values: Any) -> Any:
            own = {field.name: values.pop(field.name) for field in fields(kind) if field.name in values}
            return command(**{name: kind(**own)}, **values)

        for option in reversed(given):
            bundled = option(bundled)
        return bundled

    return decorate


def check_output(
    path: Path | None,
    option: str = "--output",
    *,
    reads: Mapping[str, Path | None] = NOTHING,
    force: bool | None = None,
) -> None:
    """Fail before any work when the output could not be written, or would replace what took long to make.

    Commands that record or measure have --force: without it they ask before they replace a file, or refuse without
    a terminal. Commands whose results take seconds replace those, but no recording or measurement.

    Args:
        path: the output.
        option: the option that names it.
        reads: files that the command reads besides its parameters that are paths, by the words for them.
        force: the command's --force; None: it has none.

    Raises:
        UsageError: the folder is missing or not writable, the command reads that very file, or its folder, or the file
            exists and may not be replaced.
    """
    if path is None:
        return
    goal = path.resolve()
    for name, read in (*_read(), *reads.items()):
        if read is None or not goal.is_file() or not read.exists():
            continue
        if goal.samefile(read) or (read.is_dir() and goal.is_relative_to(read.resolve())):
            raise UsageError(f"{option} {path}: is read as {name} and would be overwritten: name another file")
    if is_special(path):
        if not os.access(path, os.W_OK):
            raise UsageError(f"{option} {path}: cannot write there")
        return
    if not goal.parent.is_dir():
        raise UsageError(f"{option} {path}: there is no folder {goal.parent}")
    try:
        with tempfile.TemporaryFile(dir=goal.parent):
            pass
    except OSError as error:
        raise UsageError(f"{option} {path}: cannot write there: {error.strerror}") from error
    if goal.is_file() and goal.stat().st_size and not force:
        _check_replaced(path, option, may_ask=force is not None)


def _check_replaced(path: Path, option: str, *, may_ask: bool) -> None:
    """Raise UsageError if a file may not be replaced, or the user does not want it."""
    if not may_ask:
        if (kind := _costly(path)) is not None:
            raise UsageError(f"{option} {path}: holds {kind}, which takes long to make: name another file")
    elif not on_terminal():
        raise UsageError(f"{option} {path}: exists: give --force to overwrite it, or name another file")
    elif not click.confirm(f"{path} exists. Overwrite it?", err=True):
        raise UsageError(f"{option} {path}: exists and stays as it is: name another file")


def on_terminal() -> bool:
    """Return whether a user can answer a question; processes that share a target have no terminal of their own."""
    return sys.stdin.isatty() and sys.stderr.isatty() and "RANK" not in os.environ


def _costly(path: Path) -> str | None:
    """Return the kind of a file that took a recording or a measurement, in words; None for others."""
    try:
        if is_zipfile(path):
            return "a trace"
        with path.open("rb") as file:
            found = re.search(rb'"schema":\s*"treeopt\.(\w+)/', file.read(HEAD))
    except OSError:
        return None
    return None if found is None else COSTLY.get(found[1].decode())


def _read() -> Iterator[tuple[str, Path]]:
    """Yield the files that the command reads, by the words for them."""
    context = click.get_current_context(silent=True)
    for name, value in ({} if context is None else context.params).items():
        if name not in WRITTEN:
            for item in value if isinstance(value, tuple) else (value,):
                if isinstance(item, Path):
                    yield name.removesuffix("_file").replace("_", " "), item


def print_json(value: Any) -> None:
    """Print JSON alone on stdout."""
    click.echo(json.dumps(value, indent=2))


def is_main_process() -> bool:
    """Return whether this process prints: all do until models are loaded, then one of those that share a target."""
    parallel = sys.modules.get("executor.target.tensor_parallel")
    return parallel is None or bool(parallel.is_main_rank())


def say(line: str) -> None:
    """Print a line on stderr, from one process."""
    if is_main_process():
        click.echo(line, err=True)


@contextmanager
def progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on stderr where that is a terminal; call what it yields with finished pieces."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda pieces: None
        return
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda pieces: bar.advance(task, pieces)
