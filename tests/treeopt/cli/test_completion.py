"""Completion by the shell: commands, options, engines, devices, shapes, published trees."""

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from treeopt.cli import main
from treeopt.cli.commands import COMMANDS


def completed(*words, incomplete=""):
    shell = ShellComplete(main, {}, "treeopt", "_TREEOPT_COMPLETE")
    return [item.value for item in shell.get_completions(list(words), incomplete)]


def test_commands_and_options_complete():
    assert completed() == list(COMMANDS)
    assert completed(incomplete="tra") == ["trace", "train"]
    assert completed("trace", incomplete="c") == ["collect"]
    assert completed("search", incomplete="--max-") == ["--max-nodes", "--max-depth", "--max-tpot-ms"]
    assert "--held-out" in completed("search", incomplete="--")  # an advanced one


@pytest.mark.parametrize(
    ("words", "incomplete", "due"),
    [
        (("search", "--for"), "vl", ["vllm"]),
        (("profile", "--engine"), "o", ["openai", "openvino"]),
        (("export", "--format"), "sg", ["sglang"]),
        (("export", "--format", "llama.cpp", "--method"), "draft-e", ["draft-eagle3"]),
        (("export", "--schedule-bounds"), "u", ["upper"]),
        (("whatif", "--hardware"), "rtx", ["rtx-4090", "rtx-5090", "rtx-5060-ti", "rtx-pro-6000"]),
        (("whatif", "--hardware"), "h100,l", ["h100,l40s", "h100,l4"]),
        (("whatif", "--like"), "A100", ["a100-40", "a100-80"]),
        (("whatif", "--measured-on"), "mi", ["mi300x", "mi355x"]),
        (("whatif", "--target"), "8", ["8b", "8"]),
        (("profile", "--target"), "7", ["70b", "7"]),
        (("decode", "--drafter"), "prompt", ["prompt-lookup", "prompt"]),
        (("decode", "--tree"), "medusa/mc", ["medusa/mc_sim_7b_63", "medusa/mc"]),
        (("train", "--recipe"), "medusa", ["medusa1", "medusa2"]),
    ],
)
def test_names_complete(words, incomplete, due):
    """Where files may be given too, the last entry asks the shell for them."""
    assert completed(*words, incomplete=incomplete) == due


def test_a_shell_gets_completions():
    asked = {"_TREEOPT_COMPLETE": "bash_complete", "COMP_WORDS": "treeopt tr", "COMP_CWORD": "1"}
    result = CliRunner().invoke(main, [], prog_name="treeopt", env=asked)
    assert result.stdout.splitlines() == ["plain,trace", "plain,train"]
