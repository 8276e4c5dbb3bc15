"""Every export, also with a trace's acceptance imposed: notes, launch lines, refusals; the command."""

import ast
import json
import math
import shlex
import subprocess
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.helpers.command_line import done, read_json, refused, run
from tests.helpers.command_line import found as found
from tests.helpers.command_line import small_plan as small_plan
from tests.helpers.command_line import unchanged as unchanged
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
from tests.helpers.strategies import drawn_trace
from treeopt.cli.commands.export import export as command
from treeopt.engines import ENGINES
from treeopt.engines.export import kept_rates
from treeopt.errors import EngineError, PlanError, TraceError, UsageError
from treeopt.plans import Plan, load_plan, save_plan
from treeopt.policies import DynamicTree
from treeopt.replay.static_tree import replay_tree
from treeopt.results.plan import next_lines
from treeopt.traces.trace import Trace
from treeopt.traces.trace_files import save_trace
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


@pytest.fixture(scope="module")
def trace() -> Trace:
    return drawn_trace([[0.8, 0.1], [0.5, 0.2], [0.6, 0.1]], [60] * 40, depth=5, rng=np.random.default_rng(3))


def vllm_keeps(config: dict[str, Any], *, rng: np.random.Generator, steps: int) -> NDArray[np.int64]:
    """Drafted tokens kept in each step: `_resolve_synthetic_acceptance_rates`, `unconditional_to_conditional_rates`."""
    assert config["rejection_sample_method"] == "synthetic"
    rates = config["synthetic_acceptance_rates"]
    assert len(rates) == config["num_speculative_tokens"]
    assert all(0 <= rate <= 1 for rate in rates)
    assert rates == sorted(rates, reverse=True)
    conditional = [rate / before for rate, before in zip(rates, [1.0, *rates], strict=False)]
    return (rng.random((steps, len(rates))) < conditional).cumprod(axis=1).sum(axis=1)


def sglang_commits(environment: str, *, longest: int, rng: np.random.Generator, steps: int) -> NDArray[np.int64]:
    """Tokens of each step: `_sample_simulated_acc_len`."""
    found = dict(word.split("=") for word in shlex.split(environment))
    assert found.pop("SGLANG_SIMULATE_ACC_METHOD") == "match-expected"
    assert found.pop("SGLANG_SIMULATE_ACC_TOKEN_MODE") == "real-draft-token"
    mean = max(1.0, min(longest, float(found.pop("SGLANG_SIMULATE_ACC_LEN"))))
    assert not found
    return int(mean) + (rng.random(steps) < mean % 1)


def llama_rates(rates: str, *, length: int) -> list[float]:
    """The rates as `common_speculative_synth_rates_resolve` accepts them."""
    resolved = [float(word) for word in rates.split(",")]
    assert len(resolved) == length
    assert all(math.isfinite(rate) and 0 <= rate <= 1 for rate in resolved)
    assert all(rate <= before for before, rate in pairwise(resolved))
    return resolved


def cut(committed: NDArray[np.int64], lengths: NDArray[np.int64]) -> float:
    """Tokens a step of requests of these lengths, over and over, whose ends cut their last steps."""
    tokens = steps = 0
    sizes = iter(committed.tolist())
    for length in np.tile(lengths, 40).tolist():
        left = length
        while left > 0:
            left -= next(sizes)
            steps += 1
        tokens += length
    return tokens / steps


def test_rates_are_those_of_texts_that_never_end() -> None:
    """Acceptance that does not depend on the place: each level of it, however short the texts are."""
    for length in (8, 64):
        drawn = drawn_trace([[0.7, 0.1]], [length] * (64_000 // length), depth=5, rng=np.random.default_rng(2))
        assert kept_rates(Tree.chain(5), drawn) == pytest.approx([0.7**d for d in range(1, 6)], abs=0.02)


def test_vllm_keeps_what_the_trace_keeps(trace: Trace) -> None:
    config = json.loads(exported("vllm", **EAGLE3, replay=trace).text)
    kept = vllm_keeps(config, rng=np.random.default_rng(0), steps=200_000)
    assert cut(kept + 1, trace.lengths) == pytest.approx(replay_tree(Tree.chain(5), trace).tau, rel=0.01)
    assert json.loads(exported("vllm", **EAGLE3).text).items() < config.items()


def test_sglang_commits_what_the_trace_commits(trace: Trace) -> None:
    result = exported("sglang", batch=8, replay=trace)
    tokens = sglang_commits(result.environment, longest=4, rng=np.random.default_rng(0), steps=200_000)
    assert cut(tokens, trace.lengths) == pytest.approx(replay_tree(Tree.chain(3), trace).tau, rel=0.01)
    without = exported("sglang", batch=8)
    assert (result.text, result.suffix, without.environment) == (without.text, without.suffix, "")
    assert set(without.notes) < set(result.notes)


def test_llama_cpp_replays_exactly_the_rates_of_its_length() -> None:
    trace = drawn_trace([[0.05]], [60] * 40, depth=6, rng=np.random.default_rng(3))
    for method in sorted(ENGINES["llama.cpp"].methods):
        result = exported("llama.cpp", plan_of(entry(1, Tree.chain(6))), method=method, replay=trace)
        words = shlex.split(result.text)
        rates = llama_rates(words[words.index("--spec-synth-rates") + 1], length=6)
        assert rates == pytest.approx(kept_rates(Tree.chain(6), trace), abs=1e-6)
        assert rates[-1] == 0  # a position that is never accepted is written as well
        assert f"uncut steps commit {1 + sum(rates):.3f} tokens" in "\n".join(result.notes)
        assert result.text in result.launch
    for wrong in ("0.5", "0.5,0.6", "1.2,0.3", "nan,0.1"):
        with pytest.raises(AssertionError):
            llama_rates(wrong, length=2)


def test_notes_of_imposed_acceptance_tell_what_to_compare(trace: Trace) -> None:
    notes = "\n".join(exported("vllm", **EAGLE3, replay=trace).notes)
    rates = kept_rates(Tree.chain(5), trace)
    assert f"batch 1: uncut steps commit {1 + sum(rates):.3f} tokens on average; the plan predicts tau 2.00" in notes
    own = 1 + sum(kept_rates(Tree.chain(3), trace))
    assert f"batch 8: uncut steps commit {1 + sum(rates[:3]):.3f} tokens on average ({own:.3f} along the " in notes
    assert "batch 64: uncut" not in notes
    assert "generate 60 tokens" in notes
    replaced = "\n".join(exported("sglang", plan_of(entry(1, BUSHY)), nearest="chain", replay=trace).notes)
    assert "the plan predicts tau 2.00 and speedup 1.40 [1.30, 1.50]" in replaced  # the best chain's, not the tree's


def test_one_acceptance_is_imposed_on_chains_that_the_trace_covers(trace: Trace) -> None:
    with pytest.raises(EngineError, match=r"on all batch sizes .*nearest: one batch size of 1, 8, 32$"):
        exported("sglang", replay=trace)
    with pytest.raises(EngineError, match=r"only on chains; nearest: `chain`"):
        exported("sglang", plan_of(entry(1, BUSHY)), nearest="triple", replay=trace)
    with pytest.raises(EngineError, match=r"nearest: chain of 3 \(`chain`\)[^`]*$"):
        exported("sglang", plan_of(entry(1, BUSHY)), replay=trace)
    for engine, method in (("vllm", "eagle3"), ("llama.cpp", "draft-simple")):
        with pytest.raises(TraceError):
            exported(engine, plan_of(entry(1, Tree.chain(6))), method=method, model="m", replay=trace)


def test_command_imposes_a_traces_acceptance(tmp_path: Path, trace: Trace) -> None:
    save_plan(GOLDEN, tmp_path / "plan.json")
    save_trace(trace, tmp_path / "t.npz")
    save_trace(drawn_trace([[0.5]], [9] * 12, depth=1, rng=np.random.default_rng(0)), tmp_path / "shallow.npz")

    def invoke(engine: str, name: str, *words: str) -> Any:
        options = ["--format", engine, "--batch", "8", "--replay", str(tmp_path / name), *words]
        return CliRunner().invoke(command, [str(tmp_path / "plan.json"), *options])

    environment = exported("sglang", batch=8, replay=trace).environment
    assert f"environment: {environment}\n" in invoke("sglang", "t.npz").stderr
    assert json.loads(invoke("sglang", "t.npz", "--json").stdout)["environment"] == environment
    said = str(invoke("medusa", "t.npz").exception)
    assert "--replay does not apply to --format medusa: omit it; it takes --batch" in said
    assert str(invoke("sglang", "shallow.npz").exception).startswith(f"{tmp_path / 'shallow.npz'}: the tree ")


def test_export_prints_the_engines_text_alone(small_plan):
    result = done("export", small_plan, "--format", "medusa", "--batch", "1")
    paths = read_json(result.stdout)
    chosen = load_plan(small_plan).entries[0].choice.tree
    assert paths == [list(path) for path in chosen.paths]
    assert chosen.id in result.stderr
    assert all(line.startswith(("note: ", "flags: ", "Warning: ")) for line in result.stderr.splitlines())
    warned = [line for line in result.stderr.splitlines() if line.startswith("Warning: ")]
    assert warned == [f"Warning: {warning}." for warning in load_plan(small_plan).warnings]
    assert warned  # of few requests
    whole = done("export", small_plan, "--format", "medusa", "--batch", "1", "--json")
    assert read_json(whole.stdout)["text"] + "\n" == result.stdout


def test_export_leaves_the_fetching_to_the_engine(small_plan):
    words = ("--format", "transformers", "--method", "assistant", "--nearest", "chain", "--batch", "1", "--launch")
    launch = done("export", small_plan, *words, "--model", "hf:org/head", "--target", "hf:org/llama").stdout
    assert "org/llama" in launch
    assert "org/head" in launch
    assert "hf:" not in launch


def test_export_refuses(small_plan, tmp_path, unchanged):
    (tmp_path / "empty.json").write_text("")
    unchanged()
    words = ("--format", "medusa", "--batch", "1")
    refused(run("export", tmp_path / "none.json", *words), "none.json", "No such file")
    refused(run("export", tmp_path / "empty.json", *words), "empty.json", "JSON")
    refused(run("export", tmp_path, *words), str(tmp_path), "directory", code=None)
    refused(run("export", small_plan, "--format", "medusa"), "1, 4", code=2)
    refused(run("export", small_plan, "--format", "medusa", "--batch", "2"), "batch 2", "1, 4", code=2)
    refused(run("export", small_plan, "--format", "sequoia"), "sequoia", "medusa", code=2)
    refused(run("export", small_plan, *words, "--method", "m"), "--method", "medusa", code=2)
    refused(run("export", small_plan, *words, "--heads", "1"), "Medusa", "depth")
    refused(run("export", small_plan, *words, "--output", tmp_path / "none" / "o"), "none", code=2)
    refused(run("export", small_plan, *words, "--output", tmp_path), str(tmp_path), code=2)


@pytest.mark.parametrize("engine", ENGINES.exporting())
@pytest.mark.parametrize("kind", ["eagle3", "language-model", "ngram", None])
def test_the_proposed_export_runs_or_says_what_to_choose_from(tmp_path, engine, kind):
    path = tmp_path / "plan.json"
    plan = plan_of(entry(1, Tree.chain(3)), drafter=None if kind is None else {"kind": kind})
    plan = replace(plan, meta={**plan.meta, "search": {"engine": engine}})
    save_plan(plan, path)
    (line,) = next_lines(plan, file=str(path))
    methods = ENGINES[engine].choices
    offered = methods if "--method METHOD" in line.command else ("",)
    fits = bool(ENGINES[engine].fitting(kind))
    assert ("METHOD" in line.command) == (bool(methods) and not fits and engine != "sglang")
    assert all(f" {method}" in line.text for method in offered)
    if methods and kind is not None:
        named = {"ngram": "n-gram-count drafter (engines' n-grams are prompt-lookup)"}.get(kind, f"{kind} drafter")
        assert (f"runs no {named}" in line.text) == (not fits)
    for method in offered[:1]:
        command = line.command.replace("METHOD", method).replace("DRAFTER", "folder")
        result = done(*shlex.split(command)[1:])
        if fits:
            assert "does not hold" not in result.stderr
