"""Help texts: every command ends with examples that use shipped files, and each example runs."""

import shlex
import subprocess

import pytest
from click.testing import CliRunner

from tests.treeopt.cli.test_help_and_shell import commands
from treeopt.cli import main
from treeopt.storage.user_files import shipped

COMMANDS = dict(commands())
LONG = {("profile",), ("report",), ("train",), ("decode",), ("validate",), ("whatif",), ("verdict",)}
LONG |= {("trace", "collect"), ("doctor",)}
# Serves a page until it is interrupted, watches a server, launches an engine: each has tests of its own.
ENDLESS = (("explore",), ("watch",), ("tune",))


def examples(command):
    """The lines of the block that ends a command's help."""
    _, block = command.epilog.split("Examples:\n")
    return [line.removeprefix("  ") for line in block.replace(" \\\n      --", " --").splitlines()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with `data`, in which every example writes."""
    folder = tmp_path_factory.mktemp("examples")
    (folder / "data").symlink_to(shipped("traces").parent)
    return folder


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_ends_with_two_examples_of_shipped_files(words):
    lines = examples(COMMANDS[words])
    mine = [line for line in lines if line.startswith(f"treeopt {' '.join(words)}")]
    assert len(mine) == 2
    assert words[-1] in ("doctor", "models", "times", "import") or any("data/" in line for line in lines)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of libraries that train
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(words, marks=pytest.mark.slow if words in LONG else (), id=" ".join(words))
        for words in COMMANDS
        if words not in ENDLESS
    ],
)
def test_examples_run(words, folder, monkeypatch):
    monkeypatch.chdir(folder)
    for line in examples(COMMANDS[words]):
        if not line.startswith("treeopt "):
            subprocess.run(line, shell=True, check=True, cwd=folder)
            continue
        result = CliRunner().invoke(main, shlex.split(line)[1:])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise AssertionError(line) from result.exception
        assert result.exit_code == 0, f"{line}\n{result.stderr}"


def test_a_mistyped_command_is_suggested():
    for words, message in (
        (["serach"], "Error: No such command 'serach'. Did you mean search or watch or trace?\n"),
        (["trace", "colect"], "Error: No such command 'colect'. Did you mean collect?\n"),
        (["trainn"], "Error: No such command 'trainn'. Did you mean train or trace?\n"),
        (["qqqq"], "Error: No such command 'qqqq'.\n"),
    ):
        result = CliRunner().invoke(main, words)
        assert (result.exit_code, result.stdout, result.stderr) == (2, "", message)
