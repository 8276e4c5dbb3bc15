"""Help in sections and with examples that run; the version, the commands as a shell runs them, and completion."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
import torch
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from executor.target.tensor_parallel import leave
from tests.helpers.command_line import TREEOPT, done, one_line, ran, read_json, refused, run
from treeopt.cli import main
from treeopt.cli.commands import COMMANDS
from treeopt.cli.options.help_sections import ADVANCED, MOST
from treeopt.cli.options.settings_options import KEYS
from treeopt.plans import load_plan, to_json
from treeopt.storage.user_files import shipped


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
def test_no_line_is_wider_than_the_terminal_and_examples_are_what_was_written(words, command, columns):
    advanced = ("--help", "--help-all") if "--help-all" in names(command) else ("--help",)
    for option in advanced:
        text = shown(words, option, columns=columns)
        assert text.isascii()
        width = min(columns, 80)
        wide = [line for line in text.splitlines() if len(line) >= width]
        assert all(len(line.split(maxsplit=1)) == 1 or _unbreakable(line) for line in wide), wide
    block = CliRunner().invoke(main, [*words, "--help"], terminal_width=columns).stdout.partition("Examples:\n")[2]
    assert [line for line in block.splitlines() if len(line) > columns] == []
    joined = [re.sub(r"\s+", " ", line).strip() for line in block.replace("\\\n", "").splitlines()]
    assert joined == [line.strip() for line in (command.epilog or "").splitlines()[2:]]


def _unbreakable(line):
    """True if a line is wide because of one word."""
    return len(line.split(" ")[-1]) > 30


def test_the_most_used_options_come_first_in_their_sections():
    text = shown(["search"], "--help")
    assert OPTION.findall(text)[:4] == ["--trace", "--acceptance", "--profile", "--batch"]
    assert re.findall(r"^(\w+):$", text, re.MULTILINE) == ["Input", "Question", "Output", "Help"]
    assert "One of " in " ".join(text.split())


HELPED = dict(commands())
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


@pytest.mark.parametrize("words", HELPED, ids=" ".join)
def test_help_ends_with_two_examples_of_shipped_files(words):
    lines = examples(HELPED[words])
    mine = [line for line in lines if line.startswith(f"treeopt {' '.join(words)}")]
    assert len(mine) == 2
    assert words[-1] in ("doctor", "models", "times", "import") or any("data/" in line for line in lines)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of libraries that train
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(words, marks=pytest.mark.slow if words in LONG else (), id=" ".join(words))
        for words in HELPED
        if words not in ENDLESS
    ],
)
def test_examples_run(words, folder, monkeypatch):
    monkeypatch.chdir(folder)
    for line in examples(HELPED[words]):
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
