"""The command line: one command a file, loaded when it is called. Exit code 0; 1: cannot be done; 2: usage.

* `commands`: the commands; each parses its options, calls the Python API and prints.
* `options`: options that several commands share.
"""

import importlib
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from typing import Any

import click
from click_didyoumean import DYMGroup

from treeopt.cli.commands import COMMANDS
from treeopt.cli.options.printing import say, warn
from treeopt.errors import TreeoptError, visible

# Packages that only some commands need -> the extra that installs them.
EXTRAS = {
    **dict.fromkeys(("torch", "transformers", "tokenizers", "safetensors", "accelerate"), "executor"),
    "peft": "train",
    **dict.fromkeys(("altair", "jinja2", "vl_convert"), "report"),
    "pyarrow": "parquet",
    **dict.fromkeys(("marimo", "uvicorn", "starlette"), "explore"),
    "httpx2": "engines",
    "ray": "ray",
}
OWN = ("treeopt", "simulate", "executor")
APART = "uninstall that distribution, or install treeopt in an environment of its own"


class Commands(DYMGroup):  # type: ignore[misc]
    """Loads commands lazily and turns treeopt's errors into one line and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order of the main job."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(COMMANDS[cmd_name]), cmd_name)
        return command

    def main(self, *args: Any, **settings: Any) -> Any:
        """Run a command; every deliberate failure and every usage error ends here, in one line."""
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # a text may hold characters that the terminal lacks
        try:
            with messages_on_stderr():
                code = super().main(*args, **(settings | {"standalone_mode": False}))
            if (parallel := sys.modules.get("executor.target.tensor_parallel")) is not None:
                parallel.leave()  # the group of processes that the command may have run in
            click.echo(nl=False)  # flushes
        except BrokenPipeError:  # whoever read the output has enough, as `head` does
            for stream in (sys.stdout, sys.stderr):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            sys.exit(1)
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            sys.exit(error.exit_code)
        except click.ClickException as error:
            fail(_with_suggestions(error.format_message()), error.exit_code)
        except click.Abort:
            fail("interrupted", 1)
        except TreeoptError as error:
            fail(str(error), error.exit_code)
        except OSError as error:  # a full disk, a closed pipe
            try:
                sys.stdout.flush()
            except OSError:  # closed: what is buffered is dropped, Python would try to write it again at exit
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            fail(f"{error.filename or 'output'}: {error.strerror or error}", 1)
        except ImportError as error:
            if (package := (error.name or "").partition(".")[0]) in OWN:
                place = getattr(sys.modules.get(package), "__file__", package)
                fail(f"{place} is of another distribution than treeopt, which has a package of that name: {APART}", 1)
            if error.name not in EXTRAS:
                raise
            fail(f"this command needs {error.name}: pip install 'treeopt[{EXTRAS[error.name]}]'", 1)
        sys.exit(code if isinstance(code, int) else 0)


class Stderr(logging.Handler):
    """Prints what the Python API reports on stderr, from the process that prints."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a warning as a sentence with its prefix, a note as it is."""
        if record.levelno < logging.WARNING:
            say(record.getMessage())
        else:
            warn([record.getMessage()])


@contextmanager
def messages_on_stderr() -> Iterator[None]:
    """Print warnings and notes of the Python API while a command runs."""
    log, handler = logging.getLogger("treeopt"), Stderr()
    before = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before[0])
        log.propagate = before[1]


def _with_suggestions(message: str) -> str:
    r"""Return the error of an unknown command with its suggestions as one sentence.

    >>> _with_suggestions("No such command 'serach'.\n\nDid you mean one of these?\n    search")
    "No such command 'serach'. Did you mean search?"
    """
    error, found, names = message.partition("\n\nDid you mean one of these?")
    return f"{error} Did you mean {' or '.join(names.split())}?" if found else message


def fail(message: str, code: int) -> None:
    """Print the error on stderr in one line, and exit."""
    click.echo(f"Error: {visible(' '.join(message.split()))}", err=True)
    sys.exit(code)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="treeopt")
def main() -> None:
    """Choose, predict and run token trees for speculative decoding."""
