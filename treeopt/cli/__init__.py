"""The command line: one command a file, loaded when it is asked for. Exit code 0; 1: cannot be done; 2: usage."""

import importlib
import os
import sys
from io import TextIOWrapper
from typing import Any

import click

from treeopt.errors import TreeoptError

# Name of a command -> module that holds it, as an attribute of the same name.
COMMANDS = {
    "search": "treeopt.cli.commands.search",
    "decode": "treeopt.cli.commands.decode",
    "export": "treeopt.cli.commands.export",
    "trace": "treeopt.cli.commands.trace",
    "profile": "treeopt.cli.commands.profile",
    "times": "treeopt.cli.commands.times",
    "simulate": "treeopt.cli.commands.simulate",
    "whatif": "treeopt.cli.commands.whatif",
    "compare": "treeopt.cli.commands.compare",
    "validate": "treeopt.cli.commands.validate",
    "train": "treeopt.cli.commands.train",
    "report": "treeopt.cli.commands.report",
    "doctor": "treeopt.cli.commands.doctor",
}
# Packages that only some commands need -> the extra that brings them.
EXTRAS = {
    **dict.fromkeys(("torch", "transformers", "tokenizers", "safetensors", "accelerate"), "executor"),
    "peft": "train",
    "simpy": "serving",
    "matplotlib": "report",
}


class Commands(click.Group):
    """Loads commands lazily and turns treeopt's errors into one line and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names, in the order of the main job."""
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
            code = super().main(*args, **(settings | {"standalone_mode": False}))
            leave_group()
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            sys.exit(error.exit_code)
        except click.ClickException as error:
            fail(error.format_message(), error.exit_code)
        except click.Abort:
            fail("interrupted", 1)
        except TreeoptError as error:
            fail(str(error), error.exit_code)
        except OSError as error:  # a full disk, a closed pipe
            drop_stdout()
            fail(f"{error.filename or 'output'}: {error.strerror or error}", 1)
        except ModuleNotFoundError as error:
            if error.name not in EXTRAS:
                raise
            fail(f"this command needs {error.name}: pip install 'treeopt[{EXTRAS[error.name]}]'", 1)
        sys.exit(code if isinstance(code, int) else 0)


def leave_group() -> None:
    """Leave the group of processes that this command may have run in."""
    if (parallel := sys.modules.get("executor.target.tensor_parallel")) is not None:
        parallel.leave()


def drop_stdout() -> None:
    """If standard output takes nothing more, drop what is left, which Python would try again to write at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def fail(message: str, code: int) -> None:
    """Say why on stderr, in one line, and leave."""
    click.echo(f"Error: {' '.join(message.split())}", err=True)
    sys.exit(code)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="treeopt")
def main() -> None:
    """Choose, predict and run token trees for speculative decoding."""
