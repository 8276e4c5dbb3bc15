"""Options that several commands share, examples in help texts, and how commands print."""

import json
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from functools import wraps
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any

import click

from treeopt.defaults import NODES
from treeopt.errors import UsageError
from treeopt.storage.atomic_files import is_special
from treeopt.storage.json_records import LARGEST_NUMBER
from treeopt.tree import MAX_NODES

if TYPE_CHECKING:
    from treeopt.tables.blocks import Blocks

FILE = click.Path(path_type=Path, dir_okay=False)
# Parameters that name what is written; others are read.
WRITTEN = ("output", "rest", "predictions_file", "plans", "tables")
FOLDER = click.Path(path_type=Path)
LARGEST = 2**31  # whole number of a list
EXAMPLE_WIDTH = 100  # columns
PATIENCE_S = 2.0  # work that is done sooner shows no bar
NOTHING: Mapping[str, Path | None] = {}


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
    text = text.strip()
    number = int(text[:-1]) * 1024 if text.lower().endswith("k") else int(text)
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
    type=Whole(min=0),
    help="Tokens in the cache per sequence; default as profiled, the shortest of several contexts.",
)
graphs = click.option("--graphs", is_flag=True, help="Replay steps from CUDA graphs; not run on a device yet.")


def _remember(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Keep a flag for this command's whole run, without an argument of the function."""
    ctx.meta[f"treeopt.{param.name}"] = value


def is_set(flag: str) -> bool:
    """Return whether the running command was given `verbose` or `quiet`."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(f"treeopt.{flag}"))


verbose = click.option(
    "--verbose",
    "-v",
    is_flag=True,
    expose_value=False,
    callback=_remember,
    help="Also print how the result was found, and all conditions.",
)
quiet = click.option(
    "--quiet",
    "-q",
    is_flag=True,
    expose_value=False,
    callback=_remember,
    help="Print neither progress nor notes on stderr; warnings and errors stay.",
)


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


def examples(*lines: str) -> str:
    """Return the block of examples that ends a help text; long commands continue on lines of their own.

    >>> print(examples("treeopt doctor").replace(chr(8), "|"))
    |
    Examples:
      treeopt doctor
    """
    return "\n".join(["\b", "Examples:", *(f"  {_continued(line)}" for line in lines)])


def _continued(line: str) -> str:
    """Return a command broken before options, as a shell takes it."""
    first, *options = line.split(" --")
    rows = [first]
    for option in options:
        if len(rows[-1]) + len(option) + 5 > EXAMPLE_WIDTH:
            rows[-1] += " \\"
            rows.append(f"    --{option}")
        else:
            rows[-1] += f" --{option}"
    return "\n  ".join(rows)


def check_output(path: Path | None, option: str = "--output", *, reads: Mapping[str, Path | None] = NOTHING) -> None:
    """Fail before any work when the output could not be written.

    Args:
        path: the output.
        option: the option that names it.
        reads: files that the command reads besides its parameters that are paths, by the words for them.

    Raises:
        UsageError: the folder is missing or not writable, or the command reads that very file, or its folder.
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


def warn(sentences: Iterable[str]) -> None:
    """Print warnings on stderr, sentences without a full stop."""
    for sentence in sentences:
        click.echo(f"Warning: {sentence}.", err=True)


def say(line: str) -> None:
    """Print a note on stderr, from one process, unless --quiet forbids it."""
    if is_main_process() and not is_set("quiet"):
        click.echo(line, err=True)


def show(blocks: "Blocks") -> None:
    """Print a result on stdout, with its details if --verbose asks for them."""
    from treeopt.tables.terminal_blocks import print_blocks

    print_blocks(blocks, verbose=is_set("verbose"))


@contextmanager
def progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar with the time left on stderr, from `PATIENCE_S` on; call what it yields with finished pieces.

    Nothing is shown where stderr is no terminal, from other processes than the first, and with --quiet.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    if not console.is_terminal or not is_main_process() or is_set("quiet"):
        yield lambda pieces: None
        return
    bar = Progress(*columns, console=console, transient=True, redirect_stdout=sys.stdout.isatty())
    task, start = bar.add_task(label, total=total), Timer(PATIENCE_S, bar.start)
    start.daemon = True
    start.start()
    try:
        yield lambda pieces: bar.advance(task, pieces)
    finally:
        start.cancel()
        start.join()
        bar.stop()
