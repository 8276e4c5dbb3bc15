"""Help, version, the commands as a shell runs them, and what it completes."""

import re
import sys

import click
import pytest
import torch
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from executor.target.tensor_parallel import leave
from tests.helpers.command_line import TREEOPT, done, one_line, ran, read_json, refused, run
from treeopt.cli import main
from treeopt.cli.commands import COMMANDS
from treeopt.plans import load_plan, to_json


def commands():
    """Every command with its words."""
    for name in COMMANDS:
        command = main.get_command(click.Context(main), name)
        if isinstance(command, click.Group):
            yield from (((name, inner), command.commands[inner]) for inner in command.commands)
        else:
            yield (name,), command


def test_help_lists_every_command():
    for word in ("--help", "-h"):
        shown = done(word).stdout
        for name in COMMANDS:
            assert re.search(rf"^  {name} +\S", shown, re.MULTILINE), name
    for name in COMMANDS:
        assert done(name, "--help").stdout.startswith("Usage:")


def test_the_version_is_the_packages(tmp_path):
    shown = ran(TREEOPT, "--version", cwd=tmp_path)
    assert re.fullmatch(r"treeopt, version \d+\.\d+\.\d+\S*\n", shown.stdout)
    assert (shown.returncode, shown.stderr) == (0, "")


def test_searching_from_a_shell(trace_file, profile_file, tmp_path):
    words = ("search", "--trace", "trace.npz", "--batch", "1", "--json", "--output", "plan.json")
    shown = ran(TREEOPT, *words, cwd=tmp_path)
    assert (shown.returncode, shown.stderr) == (0, "profile: profile.json\n")
    assert read_json(shown.stdout)["meta"]["provenance"]["command"] == f"treeopt {' '.join(words)}"
    assert to_json(load_plan(tmp_path / "plan.json")) + "\n" == shown.stdout


def test_failing_from_a_shell(tmp_path):
    shown = ran(TREEOPT, "search", "--trace", "none.npz", "--batch", "1", cwd=tmp_path)
    assert (shown.returncode, shown.stdout) == (1, "")
    assert "none.npz: no such file" in one_line(shown.stderr)


def test_without_torch_the_way_to_install_it_is_shown(trace_file, profile_file, plan_file, tmp_path):
    """And what needs no torch still runs."""
    code = """
import sys
sys.modules["torch"] = None
from treeopt.cli import main
models = ["--target", ".", "--drafter", ".", "--prompts", "prompts.jsonl"]
commands = [
    ["trace", "collect", *models, "--output", "o"],
    ["profile", *models, "--output", "o"],
    ["validate", *models, "--plan", "plan.json"],
    ["trace", "info", "trace.npz", "--json"],
    ["search", "--trace", "trace.npz", "--batch", "1", "--json"],
    ["export", "plan.json", "--format", "medusa", "--heads", "9", "--nearest", "chain"],
]
codes = []
for words in commands:
    try:
        main(words)
    except SystemExit as end:
        codes.append(end.code)
sys.exit(" ".join(map(str, codes)))
"""
    shown = ran(sys.executable, "-c", code, cwd=tmp_path)
    lines = shown.stderr.splitlines()
    assert lines[:3] == ["Error: this command needs torch: pip install 'treeopt[executor]'"] * 3
    assert lines[-1] == "1 1 1 0 0 0"


def test_a_command_leaves_its_group_of_processes(trace_file, profile_file):
    """PyTorch may abort a process that ends within one."""
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        done("search", "--trace", trace_file, "--profile", profile_file, "--batch", 1)
        assert not torch.distributed.is_initialized()
    finally:
        leave()


def test_the_old_name_of_an_option_beside_the_new_one_is_refused():
    both = run("search", "--trace", "absent.npz", "--batch", "1", "--for", "sglang", "--engine", "vllm")
    assert refused(both, "--engine is --for: give it once", code=2)


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
