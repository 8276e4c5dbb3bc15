"""The README's commands run as they stand there."""

import re
import runpy
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from treeopt.cli import main

ROOT = Path(__file__).parent.parent
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


@pytest.mark.parametrize("code", blocks("python"))
def test_python_examples_run(monkeypatch, tmp_path, code):
    monkeypatch.chdir(ROOT)
    (tmp_path / "example.py").write_text(code, "utf-8")
    names = runpy.run_path(str(tmp_path / "example.py"))
    assert "plan" in names or "generations" in names
