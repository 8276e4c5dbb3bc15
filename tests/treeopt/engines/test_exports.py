"""What every export does: plans without speculation, replaced trees, notes, launch lines; and the command."""

import ast
import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.small_plans import (
    BUSHY,
    EAGLE3,
    GOLDEN,
    MEDUSA_DRAFTER,
    OPT_TREE,
    entry,
    exported,
    grown,
    plan_of,
)
from treeopt.cli.commands.export import export as command
from treeopt.engines import ENGINES
from treeopt.errors import EngineError, PlanError, UsageError
from treeopt.plans import Plan, save_plan
from treeopt.policies import DynamicTree
from treeopt.tree import Tree

ROOT = Path(__file__).resolve().parents[3]
METHODS = {  # of an EAGLE-3 drafter where the engine has one
    "llama.cpp": "draft-eagle3",
    "lmdeploy": "eagle3",
    "openvino": "eagle3",
    "sglang": "EAGLE3",
    "tensorrt-llm": "Eagle3",
    "transformers": "assistant",
    "vllm": "eagle3",
}
NEEDED: dict[str, dict[str, Any]] = {
    name: {"method": METHODS.get(name, next(iter(ENGINES[name].methods))), "model": 'dir "1"/d'}
    if ENGINES[name].choices
    else {}
    for name in ENGINES.exporting()
}
PYTHON = ("medusa", "openvino", "transformers")
PROGRAMS = {
    "llama.cpp": ["llama-server"],
    "lmdeploy": ["lmdeploy", "serve", "api_server"],
    "sglang": ["python", "-m", "sglang.launch_server"],
    "tensorrt-llm": ["trtllm-serve"],
    "vllm": ["vllm", "serve"],
}
trees = st.lists(st.lists(st.integers(0, 11), min_size=1, max_size=5), min_size=1, max_size=12).map(Tree.from_paths)
every_engine = pytest.mark.parametrize("name", ENGINES.exporting())


@settings(deadline=None)
@given(trees, st.sampled_from(["vllm", "sglang"]))
def test_chain_engines_refuse_what_is_no_chain(tree: Tree, name: str) -> None:
    plan = plan_of(entry(2, tree, chain=4))
    if any(tree.ranks):
        with pytest.raises(
            EngineError, match=rf"^{ENGINES[name].title} .*batch 2.*path \[.*nearest: chain of 4 \(`chain`\)"
        ):
            exported(name, plan, **EAGLE3)
        assert tree.id in exported(name, plan, **EAGLE3, nearest="chain").notes[0]
    else:
        assert exported(name, plan, **EAGLE3) == exported(name, plan, **EAGLE3, nearest="chain")


@every_engine
def test_no_speculation_is_refused_alone(name: str) -> None:
    with pytest.raises(EngineError, match=r": the plan says not to speculate at batch 1; nearest: leave"):
        exported(name, plan_of(entry(1, None), entry(8, BUSHY)), batch=1, **NEEDED[name])
    with pytest.raises(EngineError, match="not to speculate"):
        exported(name, plan_of(entry(1, Tree.chain(0))), **NEEDED[name])


@every_engine
def test_a_policy_is_never_taken_for_no_speculation(name: str) -> None:
    plan = plan_of(grown(1, OPT_TREE))
    with pytest.raises(EngineError, match=r"cannot run policy opt-tree .*nearest"):
        exported(name, plan, **NEEDED[name])
    notes = exported(name, plan, **NEEDED[name], nearest="chain").notes
    assert "policy opt-tree (7.5 nodes) was replaced" in notes[0]


@every_engine
def test_without_a_compared_chain_there_is_none(name: str) -> None:
    with pytest.raises(EngineError, match="nearest: no chain that the plan compared"):
        exported(name, plan_of(entry(1, Tree.from_paths([(10,)]), chain=None)), nearest="chain", **NEEDED[name])


@every_engine
def test_notes_say_where_trees_come_from_and_for_which_drafter(name: str) -> None:
    other = exported(name, plan_of(entry(1, Tree.chain(2)), drafter={"kind": "hydra"}), **NEEDED[name])
    assert any("drafter of kind hydra" in note for note in other.notes)
    assert any(Tree.chain(2).id in note and note.startswith("treeopt ") for note in other.notes)
    assert [note for note in other.notes if note.startswith("format checked against ")] != []
    own = {"medusa": MEDUSA_DRAFTER, "transformers": {"kind": "language-model"}}.get(name, {"kind": "eagle3"})
    same = exported(name, plan_of(entry(1, Tree.chain(2)), drafter=own), **NEEDED[name])
    assert not any("the prediction" in note and "does not hold" in note for note in same.notes)


def test_a_slower_chain_is_called_slower() -> None:
    plan = plan_of(entry(1, BUSHY, chain_speedup=0.9))
    assert "slower than no speculation" in exported("sglang", plan, nearest="chain").notes[0]


def test_batch_sizes_must_be_in_the_plan_once() -> None:
    with pytest.raises(UsageError, match="does not hold batch 3; it holds 1, 8, 32, 64"):
        exported("sglang", batch=3)
    with pytest.raises(UsageError, match="choose one batch size of 1, 8, 32, 64"):
        exported("medusa")
    with pytest.raises(PlanError, match="batch 4 twice"):
        exported("sglang", plan_of(entry(4, BUSHY), entry(4, BUSHY)))
    with pytest.raises(UsageError, match="it holds none"):
        exported("sglang", plan_of())


# Launch lines


def strings(source: str) -> set[object]:
    return {node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)}


@every_engine
def test_every_format_has_a_launch_line(name: str) -> None:
    options = NEEDED[name] | ({} if name == "medusa" else {"target": 'dir "1"/t'})
    result = exported(name, batch=1, **options)
    wanted = {options[key] for key in ("model", "target") if key in options}
    if name in PYTHON:
        assert wanted <= strings(result.launch)
        assert name == "medusa" or set(json.loads(result.text).values()) <= strings(result.launch)
        return
    words = shlex.split(result.launch)
    program = PROGRAMS.get(name, [name])
    assert words[: len(program)] == program
    if name == "tensorrt-llm":
        assert options["target"] in words
        assert words[-2:] == ["--config", result.file]
    else:
        assert wanted <= {*words, *(json.loads(result.text).values() if name == "vllm" else ())}
        assert set(shlex.split(result.flags or result.text)) <= set(words)


@every_engine
def test_a_launch_takes_the_devices_that_were_priced(name: str) -> None:
    """Step times of eight devices were handed to engines that start on one."""
    for device in ("8 x H200", "8 x H200 tp1ep8", "H200"):
        plan = Plan(plan_of(entry(1, Tree.chain(5))).entries, {"cost": {"device": device}})
        result, option = exported(name, plan, batch=1, **NEEDED[name]), ENGINES[name].devices
        assert result.launch.endswith(f" {option} 8") == bool(option and device == "8 x H200")
        told = any(note.startswith(f"step times are those of {device}") for note in result.notes)
        assert told == (device.startswith("8") and not result.launch.endswith(" 8"))


def test_a_schedule_that_its_longest_draft_leaves_no_memory_for_is_noted() -> None:
    entries = plan_of(entry(16, Tree.chain(5)), entry(32, Tree.chain(2))).entries
    plan = Plan(entries, {"holds": {"device": "H200", "context": 4096, "share": 0.92, "batch": 16}})
    note = "H200 holds 16 sequences of 4096 tokens with the longest draft of this plan, not 32: export one size with "
    assert any(said.startswith(note) for said in exported("vllm", plan, **EAGLE3).notes)
    assert not any("H200 holds" in said for said in exported("vllm", plan, batch=32, **EAGLE3).notes)


def test_choices_of_medusa_are_in_its_lines() -> None:
    result = exported("medusa", batch=1)
    calls = [node for node in ast.walk(ast.parse(result.launch)) if isinstance(node, ast.Call)]
    (choices,) = (word.value for call in calls for word in call.keywords if word.arg == "medusa_choices")
    assert ast.literal_eval(choices) == json.loads(result.text)


def test_a_name_that_was_not_given_is_a_word_in_capitals() -> None:
    assert exported("sglang", batch=1).launch.startswith(
        "python -m sglang.launch_server --model-path TARGET --speculative-algorithm ALGORITHM "
        "--speculative-draft-model-path DRAFTER --speculative-num-steps 5"
    )
    assert "DRAFTER" not in exported("sglang", batch=1, method="nextn").launch
    assert exported("vllm", **EAGLE3).launch.startswith("vllm serve TARGET --speculative-config '{")
    assert "DRAFTER" in strings(exported("transformers", method="assistant").launch)
    assert "DRAFTER" not in exported("transformers", method="prompt-lookup").launch
    assert "prompt_lookup=True" in exported("openvino", method="prompt-lookup", batch=1).launch


def test_dynamic_trees_are_launched() -> None:
    plan = plan_of(grown(1, DynamicTree(nodes=15, depth=5, beam=4)))
    assert exported("sglang", plan, **EAGLE3).launch.endswith(exported("sglang", plan).text)
    lines = exported("openvino", plan, method="eagle3").launch
    assert "tree_depth=5, branching_factor=4, num_assistant_tokens=15)" in lines


def test_lines_of_a_file_run_in_a_shell(tmp_path: Path) -> None:
    """The file arrives as it is, whatever quotes and dollars it holds; then the command sees it."""
    names = {"model": "$HOME `id` 'x'", "target": "t t", "file": "a dir's file.yaml"}
    result = exported("tensorrt-llm", method="Eagle3", batch=1, **names)
    seen = 'trtllm-serve() { printf \'%s\\n\' "$@"; cat "$3"; }\n' + result.script
    done = subprocess.run(["bash", "-c", seen], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == f"t t\n--config\na dir's file.yaml\n{result.text}\n"
    tiers = exported("sglang", **EAGLE3, file="tiers 1.json")
    assert tiers.script == f"cat > 'tiers 1.json' <<'END'\n{tiers.text}\nEND\n{tiers.launch}"
    one = exported("sglang", **EAGLE3, batch=1)
    assert one.script == one.launch


# Command


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    save_plan(GOLDEN, path)
    return path


def invoke(*args: str | Path) -> Any:
    return CliRunner().invoke(command, [str(arg) for arg in args])


def test_command_writes_a_file_and_names_it(saved: Path, tmp_path: Path) -> None:
    output = tmp_path / "tiers.json"
    result = invoke(saved, "--format", "sglang", "--output", output)
    assert (result.exit_code, result.stdout) == (0, "")
    assert output.read_text() == exported("sglang").text + "\n"
    assert f"--speculative-adaptive-config {shlex.quote(str(output))}" in result.stderr


def test_command_prints_json(saved: Path) -> None:
    result = invoke(saved, "--format", "vllm", "--method", "eagle3", "--model", "a/b", "--json")
    expected = exported("vllm", method="eagle3", model="a/b")
    assert json.loads(result.stdout) == {
        "format": "vllm",
        "text": expected.text,
        "suffix": ".json",
        "flags": expected.flags,
        "notes": list(expected.notes),
        "environment": "",
        "launch": f"vllm serve TARGET {expected.flags}",
        "file": "",
    }


def test_command_writes_the_file_and_prints_what_reads_it(saved: Path, tmp_path: Path) -> None:
    words = (saved, "--format", "tensorrt-llm", "--method", "Eagle3", "--schedule-bounds", "upper", "--launch")
    whole = invoke(*words)
    assert whole.stdout.startswith("cat > treeopt_tensorrt_llm.yaml <<'END'\nspeculative_config:\n")
    output = tmp_path / "config.yaml"
    assert invoke(*words, "--output", output).stdout == f"trtllm-serve TARGET --config {output}\n"
    assert output.read_text().startswith("speculative_config:\n")
    record = json.loads(invoke(*words, "--json").stdout)
    assert record["launch"] == "trtllm-serve TARGET --config treeopt_tensorrt_llm.yaml"
    assert record["file"] == "treeopt_tensorrt_llm.yaml"
