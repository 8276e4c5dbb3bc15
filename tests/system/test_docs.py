"""The README's commands run as they stand there."""

import re
import runpy
import shlex
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from executor.verification.acceptance_rules import RULES, make_rule
from executor.verification.temperature_top_k_top_p import Warp
from treeopt.cli import main

ROOT = Path(__file__).parent.parent.parent
TEXT = (ROOT / "README.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, flags=re.DOTALL)


def test_the_first_two_commands_are_demo_and_test():
    assert [line.split("#")[0].strip() for line in blocks("console")[0].splitlines()] == ["make demo", "make test"]


def test_the_demonstration_prints_what_the_readme_shows(monkeypatch):
    monkeypatch.chdir(ROOT)
    first, *shown = blocks("console")[1].splitlines()
    words = shlex.split(first.removeprefix("$ treeopt "))
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0
    assert [line.rstrip() for line in result.stdout.splitlines()] == [line.rstrip() for line in shown]


def test_the_decoded_text_is_what_the_readme_shows(monkeypatch):
    """And the counts; rates are the machine's."""
    monkeypatch.chdir(ROOT)
    command, memory, *text, figures, audit = next(
        block.replace("\\\n", "").splitlines() for block in blocks("console") if block.startswith("$ treeopt decode")
    )
    result = CliRunner().invoke(main, shlex.split(command.removeprefix("$ treeopt ")))
    assert result.exit_code == 0
    assert result.stdout.splitlines() == text
    said = result.stderr.splitlines()
    assert (said[0], said[2]) == (memory, audit)
    assert said[1].split("tokens/s")[0].rsplit(",", 1)[0] == figures.split("tokens/s")[0].rsplit(",", 1)[0]


def test_the_table_of_rules_is_the_code_s():
    rows = re.findall(r"^\| `([a-z-]+)`.*? \| (\*\*no\*\*|yes)", TEXT, flags=re.MULTILINE)
    generator = torch.Generator()
    made = {name: make_rule(name, warp=None if name == "greedy" else Warp(), generator=generator) for name in RULES}
    assert {name: word == "yes" for name, word in rows} == {name: rule.lossless for name, rule in made.items()}


@pytest.mark.parametrize("code", blocks("python"))
def test_python_examples_run(monkeypatch, tmp_path, code):
    monkeypatch.chdir(ROOT)
    (tmp_path / "example.py").write_text(code, "utf-8")
    names = runpy.run_path(str(tmp_path / "example.py"))
    assert "plan" in names or "generations" in names
