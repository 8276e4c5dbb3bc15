"""Output files of commands: checked before any work, never one that is read, and what took long is not replaced."""

import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import is_zipfile

import click

from treeopt.cli.options import general, printing
from treeopt.errors import UsageError
from treeopt.registry import load
from treeopt.storage.table_files import save_table
from treeopt.storage.user_files import address_of, copy_object, is_special, open_regular, real_path

if TYPE_CHECKING:
    from treeopt.results.kinds import ResultKind

# Parameters that name what is written; others are read.
WRITTEN = "output rest predictions parts write_setup plans tables table_file cost_table textfile state"
NOTHING: Mapping[str, Path | None] = {}
# Schema of a file that takes minutes of a machine -> the word for it.
COSTLY = {"profile": "a profile", "validation": "a validation", "decode": "decoded texts"}
HEAD = 256  # bytes in which a file's schema stands


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
    if address_of(path) is not None:
        if not force and copy_object(path, None):
            _check_replaced(path, option, may_ask=force is not None)
        return
    goal = real_path(path)
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
        with open_regular(path) as file:
            if is_zipfile(file):
                return "a trace"
            file.seek(0)
            found = re.search(rb'"schema":\s*"treeopt\.(\w+)/', file.read(HEAD))
    except OSError:
        return None
    return None if found is None else COSTLY.get(found[1].decode())


def _read() -> Iterator[tuple[str, Path]]:
    """Yield the files that the command reads, by the words for them."""
    context = click.get_current_context(silent=True)
    for name, value in ({} if context is None else context.params).items():
        if name not in WRITTEN.split():
            for item in value if isinstance(value, tuple) else (value,):
                if isinstance(item, Path):
                    yield name.removesuffix("_file").replace("_", " "), item


@dataclass(frozen=True)
class ResultFiles:
    """Where a result goes: the files of `--output` and `--table`, and whether stdout gets JSON."""

    output: Path | None
    table: Path | None
    as_json: bool

    def check(self, *, reads: Mapping[str, Path | None] = NOTHING, force: bool | None = None) -> None:
        """Hold warnings until the result is printed, and fail before any work; see `check_output`."""
        printing.hold_warnings()
        check_output(self.output, reads=reads, force=force)
        check_output(self.table, "--table", reads=reads, force=force)

    def give(self, kind: str, value: Any, *, json_text: str = "", **beside: Any) -> None:
        """Write a result of a kind of `RESULTS` to its files, and print it; `beside`: see `ResultKind`.

        `json_text` is the result as JSON, where it is no JSON value itself.
        """
        entry: ResultKind = load(f"treeopt.results.{kind}:ENTRY")
        if self.output is not None:
            entry.save(value, self.output)
        if self.table is not None:
            save_table(entry.frame(value), self.table)
        if not self.as_json:
            printing.show(entry, value, **beside)
        elif json_text:
            click.echo(json_text)
        else:
            printing.print_json(value)


def result_options(noun: str = "result") -> Callable[[Any], Any]:
    """Return a decorator that adds `--output`, `--table`, `--json` and `--verbose`; `files` holds them."""
    output = click.option("--output", type=general.FILE, help=f"Write the {noun} to this file (.json).")

    def decorate(command: Any) -> Any:
        @wraps(command)
        def asked(output: Path | None, table_file: Path | None, as_json: bool, **values: Any) -> Any:
            return command(files=ResultFiles(output, table_file, as_json), **values)

        for option in (general.verbose, general.as_json, general.table, output):
            asked = option(asked)
        return asked

    return decorate
