"""Help texts in sections: a dozen options described, the others named, all with --help-all; no line is too wide."""

import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tests.treeopt.cli.test_help_and_shell import commands
from treeopt.cli import main
from treeopt.cli.options.help_sections import ADVANCED, MOST
from treeopt.cli.options.settings_options import KEYS

ROOT = Path(__file__).parents[3]
ALL = list(commands())
OPTION = re.compile(r"^  (?:-\w, )?(--[a-z0-9-]+)(?=\s|$)", re.MULTILINE)


def shown(words, *more, columns=80):
    result = CliRunner().invoke(main, [*words, *more], terminal_width=min(columns, 80) - 1)
    assert result.exit_code == 0
    return result.stdout


def names(command):
    return {max(option.opts, key=len) for option in command.params if isinstance(option, click.Option)}


@pytest.mark.parametrize(("words", "command"), ALL, ids=lambda value: " ".join(value) if type(value) is tuple else "")
def test_a_dozen_options_are_described_and_all_are_named(words, command):
    described, _, named = shown(words, "--help").partition(f"\n{ADVANCED}")
    listed = set(OPTION.findall(described)) - {"--help", "--help-all"}
    assert 1 <= len(listed) <= MOST
    assert all(option.help for option in command.params if isinstance(option, click.Option))
    rest = names(command) - listed - {"--help-all"}
    assert set(re.findall(r"--[a-z0-9-]+", named.partition("Examples:")[0])) - {"--help-all"} == rest
    whole = set(OPTION.findall(shown(words, "--help-all"))) if rest else listed | {"--help", "--help-all"}
    assert whole == names(command) | {"--help", "--help-all"}


def test_no_command_has_more_than_thirty_two_options_beside_the_setup_group():
    setup = {f"--{key}" for key in KEYS.values()} | {"--setup", "--write-setup", "--help-all"}
    assert {words: count for words, command in ALL if (count := len(names(command) - setup)) > 32} == {}


def test_recipes_of_the_readme_need_no_advanced_option():
    text = (ROOT / "README.md").read_text("utf-8").replace("\\\n", " ")
    lines = [line.split() for line in text.splitlines() if line.startswith("treeopt ")]
    assert len(lines) >= 8
    for words, _ in ALL:
        first = shown(words, "--help").partition(f"\n{ADVANCED}")[0]
        used = {word for line in lines if tuple(line[1 : 1 + len(words)]) == tuple(words) for word in line}
        assert {word for word in used if word.startswith("--")} - set(OPTION.findall(first)) == set()


@pytest.mark.parametrize("columns", [60, 80, 200])
@pytest.mark.parametrize(("words", "command"), ALL, ids=lambda value: " ".join(value) if type(value) is tuple else "")
def test_no_line_is_wider_than_the_terminal(words, command, columns):
    advanced = ("--help", "--help-all") if "--help-all" in names(command) else ("--help",)
    for option in advanced:
        text = shown(words, option, columns=columns)
        assert text.isascii()
        width = min(columns, 80)
        wide = [line for line in text.splitlines() if len(line) >= width]
        assert all(len(line.split(maxsplit=1)) == 1 or _unbreakable(line) for line in wide), wide


def _unbreakable(line):
    """True if a line is wide because of one word."""
    return len(line.split(" ")[-1]) > 30


@pytest.mark.parametrize("columns", [60, 80])
@pytest.mark.parametrize(("words", "command"), ALL, ids=lambda value: " ".join(value) if type(value) is tuple else "")
def test_examples_fit_and_are_the_same_commands(words, command, columns):
    """Continued before arguments as well as before options, and joined they are what was written."""
    text = CliRunner().invoke(main, [*words, "--help"], terminal_width=columns).stdout.partition("Examples:\n")[2]
    assert [line for line in text.splitlines() if len(line) > columns] == []
    joined = [re.sub(r"\s+", " ", line).strip() for line in text.replace("\\\n", "").splitlines()]
    assert joined == [line.strip() for line in (command.epilog or "").splitlines()[2:]]


def test_the_most_used_options_come_first_in_their_sections():
    text = shown(["search"], "--help")
    assert OPTION.findall(text)[:4] == ["--trace", "--acceptance", "--profile", "--batch"]
    assert re.findall(r"^(\w+):$", text, re.MULTILINE) == ["Input", "Question", "Output", "Help"]
    assert "One of " in " ".join(text.split())
