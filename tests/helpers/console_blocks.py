"""The code blocks of README and docs: found, run, and their shown output pasted again (`make reference`)."""

import contextlib
import importlib
import os
import re
import shlex
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
from click.testing import CliRunner

from treeopt.cli import main

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = [ROOT / "README.md", ROOT / "data/README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SLOW = "<!-- slow: run by make slow -->"
NEEDS = (
    "<!-- needs: a model that is not shipped -->",
    "<!-- needs: an engine -->",
    "<!-- needs: a tracker -->",
    "<!-- needs: a browser -->",
)
BLOCK = re.compile(r"(?:^(<!-- [^\n]* -->)\n)?^```(\w*)([^\n]*)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
LINKED = ("data", "docs", "notebooks")  # what commands may read, relative to where they run
WIDTH = 110  # columns of a page
SKIPPED = "..."  # in shown output: any lines


@dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    Attributes:
        mark: the comment directly above, or nothing.
        language: of the fence.
        title: file that the block is the content of, or nothing.
        text: without the fences.
        start: where the text begins in the page.
    """

    mark: str
    language: str
    title: str
    text: str
    start: int


@dataclass(frozen=True)
class Command:
    """A command of a console block: its words, and the output shown below it (None: none is shown)."""

    words: tuple[str, ...]
    shown: tuple[str, ...] | None


def blocks(text: str) -> list[Block]:
    """Return the fenced blocks of a page."""
    result = []
    for match in BLOCK.finditer(text):
        title = re.search(r'title="([^"]+)"', match[3])
        result.append(Block(match[1] or "", match[2], title[1] if title else "", match[4], match.start(4)))
    return result


def commands(block: Block) -> list[Command]:
    """Return the commands of a console block; after `$ ` with their shown output, else one on each line.

    >>> commands(Block("", "console", "", "$ treeopt export p.json\\n[[0]]\\n", 0))
    [Command(words=('treeopt', 'export', 'p.json'), shown=('[[0]]',))]
    """
    lines = block.text.replace("\\\n", " ").splitlines()
    if not any(line.startswith("$ ") for line in lines):
        return [Command(tuple(shlex.split(line, comments=True)), None) for line in lines if line.strip()]
    pairs: list[tuple[str, list[str]]] = []
    for line in lines:
        if line.startswith("$ "):
            pairs.append((line.removeprefix("$ "), []))
        else:
            pairs[-1][1].append(line.rstrip())
    return [Command(tuple(shlex.split(line)), tuple(shown) or None) for line, shown in pairs]


def output_of(command: Command) -> list[str]:
    """Run a treeopt command as on a terminal of `WIDTH` columns and return what it printed.

    That of `decode` includes stderr.

    Raises:
        AssertionError: it failed.
    """
    result = CliRunner(env={"COLUMNS": str(WIDTH)}).invoke(main, list(command.words[1:]))
    assert result.exit_code == 0, f"{shlex.join(command.words)}\n{result.output}"
    text = result.output if command.words[1] == "decode" else result.stdout
    return [line.rstrip() for line in text.rstrip().splitlines()]


def agrees(shown: tuple[str, ...], printed: list[str]) -> bool:
    """Return whether shown lines are the printed ones; `...` stands for any lines, rates of a decoding for any rates.

    >>> agrees(("a", "...", "c"), ["a", "b", "b", "c"]), agrees(("a", "c"), ["a", "b", "c"])
    (True, False)
    """
    lines = _timeless("\n".join(shown)).split("\n")
    pattern = "\n".join(r"(?s:.*)" if line == SKIPPED else re.escape(line) for line in lines)
    return re.fullmatch(pattern, _timeless("\n".join(printed))) is not None


def _timeless(text: str) -> str:
    """Replace rates, and join a line that is wrapped behind one: where, depends on the rate's digits."""
    text = re.sub(r"\d+\.\d+ (tokens/s|ms (?:a|per) step)", r"* \1", text)
    return re.sub(r"(\* ms per step[^\n]*)\n  (?=\S)", r"\1 ", text)


def check(command: Command, *, run: bool) -> None:
    """Check that a command's names exist and, with `run`, run it and compare the output.

    Raises:
        AssertionError: names what is wrong.
    """
    words = list(command.words)
    if words[0] == "torchrun":
        words = words[words.index("treeopt") :]
        assert not run, "torchrun is not run here: mark the block"
    if words[:2] == ["pip", "install"]:
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
        asked = re.findall(r"\[(.*)\]", words[-1])
        assert set(",".join(asked).split(",")) - {""} <= set(extras), words
    elif words[0] == "make":
        assert re.search(rf"^{re.escape(words[1])}:", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE), words
    elif words[:2] == ["python", "-m"]:
        module = importlib.import_module(words[2])
        if run:
            assert module.main(words[3:]) == 0
    else:
        assert words[0] == "treeopt", f"no command that a test can run: {shlex.join(words)}"
        check_options(words[1:])
        if run:
            printed = output_of(command)
            if command.shown is not None:
                assert agrees(command.shown, printed), "\n".join([shlex.join(words), *printed])


def check_options(words: list[str]) -> None:
    """Check that a treeopt command and its options exist.

    Raises:
        AssertionError: names what does not.
    """
    context, command, remaining = click.Context(main), main, list(words)
    while isinstance(command, click.Group) and remaining:
        name = remaining.pop(0)
        child = command.get_command(context, name)
        assert child is not None, f"no command {name}: {words}"
        command = child
    known = {
        option for parameter in command.get_params(context) for option in (*parameter.opts, *parameter.secondary_opts)
    }
    unknown = {word.split("=")[0] for word in remaining if word.startswith("--") and " " not in word} - known
    assert not unknown, f"{words}: no options {unknown}"


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    """Enter a temporary folder with the repository's data linked, for as long as the context lasts."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        for name in LINKED:
            (Path(folder) / name).symlink_to(ROOT / name)
        os.chdir(folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(before)


def refreshed(text: str, *, slow: bool = False) -> str:
    """Return a page with the outputs that it shows pasted again.

    Args:
        text: of the page.
        slow: also run blocks that are marked slow.
    """
    changes = []
    with workplace() as folder:
        for block in blocks(text):
            if block.title:
                (folder / block.title).write_text(block.text, "utf-8")
            if block.language != "console" or block.mark in NEEDS or (block.mark == SLOW and not slow):
                continue
            if "\n$ " not in f"\n{block.text}":
                for command in commands(block):
                    if command.words[0] == "treeopt":
                        output_of(command)
                continue
            pasted = []
            for source in re.split(r"^(?=\$ )", block.text, flags=re.MULTILINE)[1:]:
                (command,) = commands(Block("", "console", "", source, 0))
                line = re.match(r"\$ (?:.*\\\n)*.*\n", source)
                assert line is not None
                printed, shown = output_of(command), command.shown or (SKIPPED,)
                if command.shown is not None and SKIPPED in shown:
                    head, tail = shown.index(SKIPPED), len(shown) - 1 - shown.index(SKIPPED)
                    printed = [*printed[:head], SKIPPED, *printed[len(printed) - tail :]]
                pasted.append(line[0] + "".join(f"{text}\n" for text in printed))
            changes.append((block, "".join(pasted)))
    for block, new in reversed(changes):
        text = text[: block.start] + new + text[block.start + len(block.text) :]
    return text


if __name__ == "__main__":
    for page in PAGES:
        before = page.read_text("utf-8")
        if "\n$ " in before:
            page.write_text(refreshed(before), "utf-8")
            print(page.relative_to(ROOT), file=sys.stderr)
