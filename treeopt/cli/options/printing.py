"""Printing of commands: results and JSON on stdout, warnings, notes and progress on stderr."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import Event, Thread, Timer
from typing import TYPE_CHECKING, Any

import click

from treeopt.errors import visible
from treeopt.registry import load

if TYPE_CHECKING:
    from treeopt.results.kinds import ResultKind

HELD = "treeopt.held_warnings"  # key in a context's meta
PATIENCE_S = 2.0  # work that is done sooner shows no bar
LINES_S, RARELY_S = 5.0, 60.0  # seconds between lines of progress where there is no terminal: at first, and later


def is_set(flag: str) -> bool:
    """Return whether the running command was given `verbose` or `quiet`."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(f"treeopt.{flag}"))


def print_json(value: Any) -> None:
    """Print JSON alone on stdout."""
    click.echo(json.dumps(value, indent=2))


def is_main_process() -> bool:
    """Return whether this process prints: all do until models are loaded, then one of those that share a target."""
    parallel = sys.modules.get("executor.target.tensor_parallel")
    return parallel is None or bool(parallel.is_main_rank())


def hold_warnings() -> None:
    """Print warnings after the result of the running command, not before it; before its error if it fails."""
    context, held = click.get_current_context(), list[str]()
    context.meta[HELD] = held
    context.call_on_close(lambda: _release(context, held))


def warn(sentences: Iterable[str]) -> None:
    """Print warnings on stderr, sentences without a full stop, from one process; or hold them."""
    context = click.get_current_context(silent=True)
    held: list[str] | None = None if context is None else context.meta.get(HELD)
    for sentence in sentences if is_main_process() else ():
        if held is None:
            _on_stderr(f"Warning: {sentence.removesuffix('.')}.")
        else:
            held.append(sentence)


def _release(context: click.Context, held: list[str]) -> None:
    context.meta[HELD] = None
    warn(dict.fromkeys(held))


def say(line: str) -> None:
    """Print a note on stderr, from one process, unless --quiet forbids it."""
    if is_main_process() and not is_set("quiet"):
        _on_stderr(line)


def _on_stderr(text: str) -> None:
    """Print a text in lines that fit the terminal; a file or pipe gets one line."""
    from treeopt.terminal import PROSE, width_of, wrapped

    width = width_of(sys.stderr)
    text = visible(text)
    lines = [text] if width is None else wrapped(text, min(width, PROSE))
    click.echo("\n".join(lines), err=True)


def show(kind: "ResultKind | str", value: Any, **beside: Any) -> None:
    """Print a result of a kind, or of its name, with details if --verbose asks; `beside`: see `ResultKind`."""
    from treeopt.terminal import print_blocks

    entry: ResultKind = load(f"treeopt.results.{kind}:ENTRY") if isinstance(kind, str) else kind
    print_blocks(entry.blocks(value, **beside), verbose=is_set("verbose"))


@contextmanager
def progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar with the time left on stderr, from `PATIENCE_S` on; call what it yields with finished pieces.

    Lines take its place where stderr is no terminal, `LINES_S` apart at first and later `RARELY_S`. Nothing is shown
    from other processes than the first, and with --quiet.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    if not is_main_process() or is_set("quiet"):
        yield lambda pieces: None
        return
    if not console.is_terminal:
        with _lines(label, total) as advance:
            yield advance
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


@contextmanager
def _lines(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """Print lines with the finished pieces; see `progress`."""
    pieces_done, over = [0], Event()

    def lines() -> None:
        pause_s = LINES_S
        while not over.wait(pause_s):
            pause_s = min(2 * pause_s, RARELY_S)
            done = sum(pieces_done)
            planned = f" of {total}" if done <= total else f", {done - total} more than planned"
            click.echo(f"{label}: {done}{planned}", err=True)

    printer = Thread(target=lines, daemon=True)
    printer.start()
    try:
        yield pieces_done.append
    finally:
        over.set()
        printer.join()
