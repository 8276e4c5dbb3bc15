"""Write docs/reference/cli.md from the commands themselves: `python docs/generate_cli_reference.py`."""

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

PAGE = Path(__file__).parent / "reference" / "cli.md"
OPENING = """# Command line

<!-- Written by docs/generate_cli_reference.py (make reference). Do not edit. -->

Results go to stdout, everything else to stderr. Exit code 0: done; 1: it cannot be done, and the message says why;
2: usage.
"""


def commands(command: click.Command, context: click.Context) -> Iterator[tuple[click.Command, click.Context]]:
    """Yield every command below a group that is not a group itself, in the order of the help."""
    if not isinstance(command, click.Group):
        yield command, context
        return
    for name in command.list_commands(context):
        child = command.get_command(context, name)
        if child is not None and not child.hidden:
            yield from commands(child, click.Context(child, info_name=name, parent=context))


def escaped(text: str) -> str:
    """Return text as one line of Markdown: code stays code, nothing else is read as markup."""
    pieces = re.split(r"(`[^`]+`)", " ".join(text.split()))
    return "".join(piece if index % 2 else _plain(piece) for index, piece in enumerate(pieces))


def _plain(text: str) -> str:
    return re.sub(r"([\\`*_\[\]])", r"\\\1", text).replace("&", "&amp;").replace("<", "&lt;")


def anchor(title: str) -> str:
    """Return the anchor of a heading."""
    return title.replace(" ", "-")


def paragraphs(command: click.Command) -> list[str]:
    """Return the paragraphs of a command's help, each on one line."""
    text = inspect.cleandoc(command.help or "").split("\f")[0].replace("\b\n", "")
    return [escaped(part) for part in re.split(r"\n\s*\n", text) if part.strip()]


def section(command: click.Command, context: click.Context) -> str:
    """Return the section of one command: usage, help, options."""
    path = context.command_path
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    parts = [f"## {path}", f"```text\n{usage}\n```", *paragraphs(command)]
    options = []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and "--help" not in parameter.opts:
            options.append(f"* `{record[0]}`: {escaped(record[1])}")
    return "\n\n".join([*parts, "\n".join(options)])


def reference(main: click.Group, *, name: str = "treeopt") -> str:
    """Return the whole page for a group of commands."""
    entries = list(commands(main, click.Context(main, info_name=name)))
    rows = ["| command | what it does |", "|---|---|"]
    for command, context in entries:
        path = context.command_path
        summary = (paragraphs(command) or [""])[0].replace("|", "\\|")
        rows.append(f"| [`{path}`](#{anchor(path)}) | {summary} |")
    sections = [section(command, context) for command, context in entries]
    return "\n\n".join([OPENING.strip(), "\n".join(rows), *sections]) + "\n"


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    from treeopt.cli import main

    PAGE.write_text(reference(main), "utf-8")
