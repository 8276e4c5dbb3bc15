"""Launch lines: whole commands or Python for every format, and what `treeopt export --launch` prints."""

import ast
import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from tests.helpers.small_plans import EAGLE3, GOLDEN, entry, grown, plan_of
from treeopt.cli import main
from treeopt.cli.commands.export import export as command
from treeopt.engines import ENGINES
from treeopt.plans.plan_json import save_plan
from treeopt.policies import DynamicTree
from treeopt.tree import Tree

SAMPLES: dict[str, dict[str, Any]] = {
    "llama.cpp": {"method": "draft-eagle3", "model": "dir 1/d.gguf", "target": "dir 1/t.gguf"},
    "lmdeploy": {"method": "eagle3", "model": "dir 1/d", "target": "dir 1/t"},
    "medusa": {"model": 'dir "1"/d'},
    "openvino": {"method": "eagle3", "model": 'dir "1"/d', "target": 'dir "1"/t'},
    "sglang": {"method": "EAGLE3", "model": "dir 1/d", "target": "dir 1/t"},
    "tensorrt-llm": {"method": "Eagle3", "model": "dir 1/d", "target": "dir 1/t"},
    "transformers": {"method": "assistant", "model": 'dir "1"/d', "target": 'dir "1"/t'},
    "vllm": {"method": "eagle3", "model": "dir 1/d", "target": "dir 1/t"},
}
PYTHON = ("medusa", "openvino", "transformers")
PROGRAMS = {
    "llama.cpp": ["llama-server"],
    "lmdeploy": ["lmdeploy", "serve", "api_server"],
    "sglang": ["python", "-m", "sglang.launch_server"],
    "tensorrt-llm": ["trtllm-serve"],
    "vllm": ["vllm", "serve"],
}


def strings(source: str) -> set[object]:
    return {node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)}


@pytest.mark.parametrize("name", ENGINES.exporting())
def test_every_format_has_a_launch_line(name: str) -> None:
    options = SAMPLES[name]
    result = ENGINES[name].export(GOLDEN, batch=1, **options)
    wanted = {options[key] for key in ("model", "target") if key in options}
    if name in PYTHON:
        assert wanted <= strings(result.launch)
        assert name == "medusa" or set(json.loads(result.text).values()) <= strings(result.launch)
        return
    words = shlex.split(result.launch)
    assert words[: len(PROGRAMS[name])] == PROGRAMS[name]
    assert {str(each) for each in wanted} <= set(words) | set(result.text.split('"'))
    if name == "tensorrt-llm":
        assert words[-2:] == ["--config", result.file]
    else:
        assert set(shlex.split(result.flags or result.text)) <= set(words)


def test_choices_of_medusa_are_in_its_lines() -> None:
    result = ENGINES["medusa"].export(GOLDEN, batch=1)
    call = next(
        node
        for node in ast.walk(ast.parse(result.launch))
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "medusa_generate"
    )
    choices = next(word.value for word in call.keywords if word.arg == "medusa_choices")
    assert ast.literal_eval(choices) == json.loads(result.text)


def test_a_name_that_was_not_given_is_a_word_in_capitals() -> None:
    assert (
        ENGINES["sglang"]
        .export(GOLDEN, batch=1)
        .launch.startswith(
            "python -m sglang.launch_server --model-path TARGET --speculative-algorithm ALGORITHM "
            "--speculative-draft-model-path DRAFTER --speculative-num-steps 5"
        )
    )
    assert "DRAFTER" not in ENGINES["sglang"].export(GOLDEN, batch=1, method="nextn").launch
    assert ENGINES["vllm"].export(GOLDEN, **EAGLE3).launch.startswith("vllm serve TARGET --speculative-config '{")
    assert "DRAFTER" in strings(ENGINES["transformers"].export(GOLDEN, method="assistant").launch)
    assert "DRAFTER" not in ENGINES["transformers"].export(GOLDEN, method="prompt-lookup").launch
    assert "prompt_lookup=True" in ENGINES["openvino"].export(GOLDEN, method="prompt-lookup", batch=1).launch


def test_dynamic_trees_are_launched() -> None:
    plan = plan_of(grown(1, DynamicTree(nodes=15, depth=5, beam=4)))
    assert ENGINES["sglang"].export(plan, **EAGLE3).launch.endswith(ENGINES["sglang"].export(plan).text)
    lines = ENGINES["openvino"].export(plan, method="eagle3").launch
    assert "tree_depth=5, branching_factor=4, num_assistant_tokens=15)" in lines


def test_lines_of_a_file_run_in_a_shell(tmp_path: Path) -> None:
    """The file arrives as it is, whatever quotes and dollars it holds; then the command sees it."""
    result = ENGINES["tensorrt-llm"].export(
        GOLDEN, method="Eagle3", model="$HOME `id` 'x'", batch=1, target="t t", file="a dir's file.yaml"
    )
    seen = 'trtllm-serve() { printf \'%s\\n\' "$@"; cat "$3"; }\n'
    done = subprocess.run(
        ["bash", "-c", seen + result.script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"t t\n--config\na dir's file.yaml\n{result.text}\n"


def test_sglang_reads_its_tiers_from_the_file_that_the_lines_write(tmp_path: Path) -> None:
    result = ENGINES["sglang"].export(GOLDEN, **EAGLE3, file="tiers 1.json")
    assert result.script == f"cat > 'tiers 1.json' <<'END'\n{result.text}\nEND\n{result.launch}"
    assert (
        ENGINES["sglang"].export(GOLDEN, **EAGLE3, batch=1).script
        == ENGINES["sglang"].export(GOLDEN, **EAGLE3, batch=1).launch
    )


# Command


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    save_plan(plan_of(entry(1, Tree.chain(5)), entry(8, Tree.chain(3)), drafter={"kind": "eagle3"}), path)
    return path


def invoke(*args: str | Path) -> Any:
    return CliRunner().invoke(command, [str(arg) for arg in args])


def test_command_prints_the_launch_line(saved: Path) -> None:
    result = invoke(
        saved, "--format", "llama.cpp", "--batch", "1", "--launch", "--target", "t.gguf", "--model", "d.gguf"
    )
    assert result.stdout == (
        "llama-server -m t.gguf -np 1 -md d.gguf --spec-type draft-eagle3 --spec-draft-n-max 5 --spec-draft-p-min 0\n"
    )
    assert "note: format checked against the code of llama.cpp" in result.stderr


def test_command_writes_the_file_and_prints_what_reads_it(saved: Path, tmp_path: Path) -> None:
    words = (saved, "--format", "tensorrt-llm", "--schedule-bounds", "upper", "--launch")
    whole = invoke(*words)
    assert whole.stdout.startswith("cat > treeopt_tensorrt_llm.yaml <<'END'\nspeculative_config:\n")
    output = tmp_path / "config.yaml"
    short = invoke(*words, "--output", output)
    assert short.stdout == f"trtllm-serve TARGET --config {output}\n"
    assert output.read_text().startswith("speculative_config:\n")
    record = json.loads(invoke(*words, "--json").stdout)
    assert (record["launch"], record["file"]) == (
        "trtllm-serve TARGET --config treeopt_tensorrt_llm.yaml",
        "treeopt_tensorrt_llm.yaml",
    )


def completed(*words: str) -> set[str]:
    shell = ShellComplete(main, {}, "treeopt", "_TREEOPT_COMPLETE")
    return {item.value for item in shell.get_completions(list(words[:-1]), words[-1])}


def test_names_of_formats_and_methods_are_completed() -> None:
    assert completed("export", "--format", "t") == {"tensorrt-llm", "transformers"}
    assert completed("export", "--format", "llama.cpp", "--method", "draft-e") == {"draft-eagle3"}
    assert completed("export", "--format", "openvino", "--method", "") == set(ENGINES["openvino"].methods)
    assert completed("export", "--format", "medusa", "--method", "") == set()
    assert {"eagle3", "EAGLE3"} & completed("export", "--method", "e") == {"eagle3"}
    assert completed("export", "--schedule-bounds", "u") == {"upper"}
