"""Exports read back by small models of the engines, written from their sources alone."""

import json
import shlex
import subprocess
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.helpers.small_plans import (
    BUSHY,
    EAGLE3,
    GOLDEN,
    MEDUSA_DRAFTER,
    OPT_TREE,
    entry,
    grown,
    plan_of,
    planned,
    speculates,
)
from tests.helpers.strategies import drawn_trace
from treeopt.cli.commands.export import export as command
from treeopt.engines import ENGINES
from treeopt.engines.export import Export, kept_rates
from treeopt.errors import EngineError, PlanError, TraceError, UsageError
from treeopt.plans.plan import Plan
from treeopt.plans.plan_json import save_plan
from treeopt.replay.static_tree import replay_tree
from treeopt.traces.trace import Trace, save_trace
from treeopt.tree import Tree
from treeopt.tree_files.paper_trees import MEDUSA, published_trees

untimed = settings(deadline=None)

NEEDED: dict[str, dict[str, Any]] = {
    "llama.cpp": {"method": "draft-eagle3"},
    "lmdeploy": {"method": "eagle3"},
    "openvino": {"method": "eagle3"},
    "tensorrt-llm": {"method": "Eagle3"},
    "transformers": {"method": "assistant"},
    "vllm": EAGLE3,
}
"""Options without which an engine's exporter raises an error."""

trees = st.lists(st.lists(st.integers(0, 11), min_size=1, max_size=5), min_size=1, max_size=12).map(Tree.from_paths)
lengths = st.integers(0, 7)
chain_plans = st.dictionaries(st.integers(1, 40), lengths, min_size=1, max_size=5).map(
    lambda steps: plan_of(*(entry(batch, Tree.chain(k) if k else None) for batch, k in steps.items()))
)


# Engines


def medusa_candidates(choices: list[list[int]], *, heads: int) -> list[tuple[int, int]]:
    """(depth, rank) of each choice's candidate: `generate_medusa_buffers`, `generate_candidates`."""
    ordered = sorted(choices, key=lambda path: (len(path), path))
    for path in ordered:
        for depth in range(1, len(path)):
            ordered.index(path[:depth])  # ValueError where a prefix is missing
    flat = [(0, 0)] + [(depth, rank) for depth in range(1, heads + 1) for rank in range(10)]
    return [flat[path[-1] + 10 * (len(path) - 1) + 1] for path in ordered]


def vllm_table(config: dict[str, Any], *, largest: int) -> list[int]:
    """K of batch 1, 2, ..., largest: `build_dynamic_sd_schedule_lookup` and the check before it."""
    tokens = config["num_speculative_tokens"]
    assert type(tokens) is int
    assert tokens > 0
    ranges = config.get("num_speculative_tokens_per_batch_size", [[1, 1, tokens]])
    assert ranges
    end = 0
    for low, high, k in ranges:
        assert end < low <= high
        assert k >= 0
        end = high
    assert ranges[0][0] == 1
    table = []
    for batch in range(1, largest + 1):
        k = [k for low, _, k in ranges if low <= batch][-1]
        table.append(min(tokens, k))
    return table


def sglang_steps(text: str, options: list[str], *, batch: int, captured: Sequence[int] = ()) -> int:
    """Steps of a batch: `_load_adaptive_config`, `AdaptiveStepRouter`, the check of the initial steps."""
    tiers: dict[int, list[int]] = {}
    for key, tier in json.loads(text).items():
        if key.isdigit():
            assert all(type(steps) is int and steps >= 0 for steps in tier["candidate_steps"])
            tiers[int(key)] = tier["candidate_steps"]
    union = {steps for candidates in tiers.values() for steps in candidates}
    assert int(options[options.index("--speculative-num-steps") + 1]) in union
    assert options[options.index("--speculative-eagle-topk") + 1] == "1"
    at = bisect_left(captured, batch)
    padded = captured[at] if at < len(captured) else batch
    keys = sorted(tiers)
    (steps,) = tiers[keys[max(0, bisect_right(keys, padded) - 1)]]
    return steps


def sglang_triple(text: str) -> tuple[int, int, int]:
    """(steps, topk, draft tokens) of launch flags."""
    words = shlex.split(text)
    flags = dict(zip(words[::2], words[1::2], strict=True))
    names = ("num-steps", "eagle-topk", "num-draft-tokens")
    steps, topk, tokens = (int(flags[f"--speculative-{name}"]) for name in names)
    return steps, topk, tokens


# Medusa


@untimed
@given(trees)
def test_medusa_gets_the_candidates_that_were_meant(tree: Tree) -> None:
    plan = plan_of(entry(1, tree), drafter={"kind": "medusa", "heads": 5})
    if max(tree.ranks) >= 10:
        with pytest.raises(EngineError, match="ranks must be below 10"):
            ENGINES["medusa"].export(plan)
        return
    choices = json.loads(ENGINES["medusa"].export(plan).text)
    assert Tree.from_paths(choices) == tree
    assert medusa_candidates(choices, heads=5) == [(len(path), path[-1]) for path in tree.paths]


def test_medusa_would_alias_rank_ten() -> None:
    assert medusa_candidates([[0], [10], [0, 0]], heads=2) == [(1, 0), (2, 0), (2, 0)]


def test_medusa_would_overflow_beyond_its_heads() -> None:
    with pytest.raises(IndexError):
        medusa_candidates([[0], [0, 0], [0, 0, 0]], heads=2)
    plan = plan_of(entry(1, Tree.chain(3), chain=2), drafter={"kind": "medusa", "heads": 2})
    with pytest.raises(EngineError, match=r"at most 2 can be drafted .*Medusa#63.*nearest: chain of 2"):
        ENGINES["medusa"].export(plan)
    assert json.loads(ENGINES["medusa"].export(plan, nearest="chain").text) == [[0], [0, 0]]
    assert len(json.loads(ENGINES["medusa"].export(plan, heads=3).text)) == 3


def test_medusa_takes_its_own_tree() -> None:
    tree = published_trees()[MEDUSA]
    result = ENGINES["medusa"].export(plan_of(entry(1, tree), drafter=MEDUSA_DRAFTER))
    assert Tree.from_paths(json.loads(result.text)) == tree
    assert len(result.notes) == 2
    assert result.notes[0] == "format checked against the code of Medusa e2a5d20"
    assert tree.id in result.notes[1]


def test_medusa_says_what_it_could_not_check() -> None:
    notes = "\n".join(ENGINES["medusa"].export(plan_of(entry(8, BUSHY))).notes)
    assert "at least 5" in notes
    assert "batch 8" in notes
    assert "does not name its drafter" in notes


# vLLM


@untimed
@given(chain_plans)
def test_vllm_reads_the_plan(plan: Plan) -> None:
    if not speculates(plan):
        with pytest.raises(EngineError, match=r"vLLM 0\.33\.0: .*not to speculate at batch"):
            ENGINES["vllm"].export(plan, **EAGLE3)
        return
    result = ENGINES["vllm"].export(plan, **EAGLE3)
    config = json.loads(result.text)
    assert set(config) <= {
        "method",
        "model",
        "num_speculative_tokens",
        "num_speculative_tokens_per_batch_size",
    }
    assert vllm_table(config, largest=50) == [planned(plan, batch) for batch in range(1, 51)]
    assert shlex.split(result.flags) == ["--speculative-config", result.text]


def test_vllm_golden() -> None:
    assert json.loads(ENGINES["vllm"].export(GOLDEN, **EAGLE3).text) == {
        "method": "eagle3",
        "model": "someone/eagle3",
        "num_speculative_tokens": 5,
        "num_speculative_tokens_per_batch_size": [[1, 7, 5], [8, 31, 3], [32, 63, 1], [64, 64, 0]],
    }
    assert any("needs vLLM 0.24 or later" in note for note in ENGINES["vllm"].export(GOLDEN, **EAGLE3).notes)
    one = ENGINES["vllm"].export(GOLDEN, method="ngram", batch=8)
    assert not any("0.24" in note for note in one.notes)
    assert json.loads(one.text) == {"method": "ngram", "num_speculative_tokens": 3}


@pytest.mark.parametrize(
    ("kind", "export", "method"),
    [
        ("prompt-lookup", ENGINES["vllm"].export, "ngram"),
        ("prompt-lookup:vllm", ENGINES["vllm"].export, "ngram"),
        ("language-model", ENGINES["vllm"].export, "draft_model"),
        ("language-model", ENGINES["sglang"].export, "STANDALONE"),
    ],
)
def test_drafters_are_called_as_the_executor_calls_them(kind: str, export: Callable[..., Export], method: str) -> None:
    """And what vLLM calls ngram is prompt lookup, not counts of n-grams."""

    def notes(name: str) -> str:
        meta = {"trace": {"drafter": {"kind": name}}}
        return " ".join(export(replace(GOLDEN, meta=meta), method=method, model="x", batch=8).notes)

    assert "the prediction does not hold" not in notes(kind)
    assert "the prediction does not hold" in notes("ngram")
    assert ("prompt_lookup_max" in notes(kind)) == (method == "ngram")
    assert ("prompt_lookup_min to 1" in notes(kind)) == (kind == "prompt-lookup")


def test_vllm_names_methods_that_it_removed() -> None:
    with pytest.raises(
        EngineError, match=r"cannot run method medusa: it was removed after 0\.32\.0; nearest: .*eagle3"
    ):
        ENGINES["vllm"].export(GOLDEN, method="medusa", model="x")


def test_vllm_says_where_a_schedule_is_ignored() -> None:
    scheduled = "\n".join(ENGINES["vllm"].export(GOLDEN, method="suffix").notes)
    assert "model runner V1" in scheduled
    assert "data parallelism" in scheduled
    assert "schedule" not in "\n".join(ENGINES["vllm"].export(GOLDEN, method="suffix", batch=1).notes)


# SGLang


@untimed
@given(chain_plans, st.booleans())
def test_sglang_reads_the_plan(plan: Plan, graphs: bool) -> None:
    if not speculates(plan):
        with pytest.raises(EngineError, match=r"SGLang 0\.5\.23: .*not to speculate at batch"):
            ENGINES["sglang"].export(plan)
        return
    result = ENGINES["sglang"].export(plan, **EAGLE3)
    intended = [planned(plan, batch) for batch in range(1, 51)]
    if not result.flags:
        assert {(k, 1, k + 1) for k in intended} == {sglang_triple(result.text)}
        return
    keys = [int(key) for key in json.loads(result.text) if key.isdigit()]
    captured = sorted({16, 48, *(key - 1 for key in keys[1:])}) if graphs else ()
    options = shlex.split(result.flags)
    assert keys[0] == 1
    assert [sglang_steps(result.text, options, batch=batch, captured=captured) for batch in range(1, 51)] == intended


def test_sglang_golden_schedule() -> None:
    result = ENGINES["sglang"].export(GOLDEN, **EAGLE3, file="tiers 1.json")
    config = json.loads(result.text)
    assert config.pop("treeopt")["trees"] == {
        "1": Tree.chain(5).id,
        "8": Tree.chain(3).id,
        "32": Tree.chain(1).id,
        "64": None,
    }
    assert config == {
        "1": {"candidate_steps": [5]},
        "8": {"candidate_steps": [3]},
        "32": {"candidate_steps": [1]},
        "64": {"candidate_steps": [0]},
    }
    assert result.flags == (
        "--speculative-algorithm EAGLE3 --speculative-draft-model-path someone/eagle3 "
        "--speculative-num-steps 5 --speculative-eagle-topk 1 --speculative-adaptive "
        "--speculative-adaptive-config 'tiers 1.json'"
    )
    assert any("--cuda-graph-bs holds 7, 31, 63" in note for note in result.notes)
    assert any("--max-running-requests 64" in note for note in result.notes)


def test_sglang_pads_early_without_these_graph_sizes() -> None:
    """As measured with the real class: batch 5 is padded to 8, batch 25 to 32."""
    result = ENGINES["sglang"].export(GOLDEN, **EAGLE3)
    options, captured = shlex.split(result.flags), (1, 2, 4, 8, 16, 24, 32)
    assert sglang_steps(result.text, options, batch=5, captured=captured) == 3
    assert sglang_steps(result.text, options, batch=25, captured=captured) == 1
    assert sglang_steps(result.text, options, batch=7) == 5


def test_sglang_algorithms() -> None:
    assert "--speculative-algorithm STANDALONE " in ENGINES["sglang"].export(GOLDEN, method="standalone", batch=1).text
    with pytest.raises(EngineError, match=r"SGLang .*STANDALONE by batch size .*nearest: one batch size of 1, 8"):
        ENGINES["sglang"].export(GOLDEN, method="standalone")


# All


@untimed
@given(trees)
def test_chain_engines_refuse_what_is_no_chain(tree: Tree) -> None:
    plan = plan_of(entry(2, tree, chain=4))
    for run, engine in (
        (lambda **k: ENGINES["vllm"].export(plan, **EAGLE3, **k), "vLLM"),
        (lambda **k: ENGINES["sglang"].export(plan, **k), "SGLang"),
    ):
        if any(tree.ranks):
            with pytest.raises(EngineError, match=rf"{engine} .*batch 2.*path \[.*nearest: chain of 4 \(`chain`\)"):
                run()
            assert tree.id in run(nearest="chain").notes[0]
        else:
            assert run().text == run(nearest="chain").text


@pytest.mark.parametrize("name", ENGINES.exporting())
def test_no_speculation_is_refused_alone(name: str) -> None:
    options = NEEDED.get(name, {})
    with pytest.raises(EngineError, match=r": the plan says not to speculate at batch 1; nearest: leave"):
        ENGINES[name].export(plan_of(entry(1, None), entry(8, BUSHY)), batch=1, **options)
    with pytest.raises(EngineError, match="not to speculate"):
        ENGINES[name].export(plan_of(entry(1, Tree.chain(0))), **options)


@pytest.mark.parametrize("name", ENGINES.exporting())
def test_without_a_compared_chain_there_is_none(name: str) -> None:
    options = NEEDED.get(name, {})
    plan = plan_of(entry(1, Tree.from_paths([(10,)]), chain=None))
    with pytest.raises(EngineError, match="nearest: no chain that the plan compared"):
        ENGINES[name].export(plan, nearest="chain", **options)


@pytest.mark.parametrize("name", ENGINES.exporting())
def test_trees_of_another_drafter_are_marked(name: str) -> None:
    options = NEEDED.get(name, {})
    run = ENGINES[name].export
    other = run(plan_of(entry(1, Tree.chain(2)), drafter={"kind": "hydra"}), **options)
    assert any("drafter of kind hydra" in note for note in other.notes)
    own = {"medusa": MEDUSA_DRAFTER, "transformers": {"kind": "language-model"}}.get(name, {"kind": "eagle3"})
    same = run(plan_of(entry(1, Tree.chain(2)), drafter=own), **options)
    assert not any("the prediction" in note and "does not hold" in note for note in same.notes)


@pytest.mark.parametrize("name", ENGINES.exporting())
def test_provenance_is_always_there(name: str) -> None:
    options = NEEDED.get(name, {})
    result: Export = ENGINES[name].export(GOLDEN, batch=1, **options)
    assert any(Tree.chain(5).id in note and note.startswith("treeopt ") for note in result.notes)
    assert [note for note in result.notes if note.startswith("format checked against ")] != []


def test_a_slower_chain_is_called_slower() -> None:
    plan = plan_of(entry(1, BUSHY, chain_speedup=0.9))
    assert "slower than no speculation" in ENGINES["sglang"].export(plan, nearest="chain").notes[0]


def test_batch_sizes_must_be_in_the_plan_once() -> None:
    with pytest.raises(UsageError, match="does not hold batch 3; it holds 1, 8, 32, 64"):
        ENGINES["sglang"].export(GOLDEN, batch=3)
    with pytest.raises(UsageError, match="choose one batch size of 1, 8, 32, 64"):
        ENGINES["medusa"].export(GOLDEN)
    with pytest.raises(PlanError, match="batch 4 twice"):
        ENGINES["sglang"].export(plan_of(entry(4, BUSHY), entry(4, BUSHY)))
    with pytest.raises(UsageError, match="it holds none"):
        ENGINES["sglang"].export(plan_of())


# Command


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    save_plan(GOLDEN, path)
    return path


def invoke(*args: str | Path) -> Any:
    return CliRunner().invoke(command, [str(arg) for arg in args])


def test_command_prints_the_text_alone(saved: Path) -> None:
    result = invoke(saved, "--format", "sglang", "--batch", "8", "--method", "eagle3", "--model", "a/b")
    assert result.exit_code == 0
    assert result.stdout == ENGINES["sglang"].export(GOLDEN, batch=8, method="eagle3", model="a/b").text + "\n"
    assert result.stderr.startswith("note: ")


def test_command_writes_a_file_and_names_it(saved: Path, tmp_path: Path) -> None:
    output = tmp_path / "tiers.json"
    result = invoke(saved, "--format", "sglang", "--output", output)
    assert (result.exit_code, result.stdout) == (0, "")
    assert output.read_text() == ENGINES["sglang"].export(GOLDEN).text + "\n"
    assert f"--speculative-adaptive-config {shlex.quote(str(output))}" in result.stderr


def test_command_prints_json(saved: Path) -> None:
    result = invoke(saved, "--format", "vllm", "--method", "eagle3", "--model", "a/b", "--json")
    record = json.loads(result.stdout)
    expected = ENGINES["vllm"].export(GOLDEN, method="eagle3", model="a/b")
    assert record == {
        "format": "vllm",
        "text": expected.text,
        "suffix": ".json",
        "flags": expected.flags,
        "notes": list(expected.notes),
        "environment": "",
        "launch": f"vllm serve TARGET {expected.flags}",
        "file": "",
    }


def test_command_loads_nothing_heavy() -> None:
    code = (
        "import sys, treeopt.cli; before = set(sys.modules); import treeopt.cli.commands.export; "
        "heavy = {'pandas', 'torch', 'ortools', 'rich', 'matplotlib', 'transformers'}; "
        "print(*heavy & (set(sys.modules) - before))"
    )
    root = Path(__file__).parent.parent.parent.parent
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


# Imposed acceptance


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


def cut(committed: NDArray[np.int64], lengths: NDArray[np.int64]) -> float:
    """Tokens a step of requests of these lengths, over and over, whose ends cut their last steps."""
    tokens = steps = 0
    given = iter(committed.tolist())
    for length in np.tile(lengths, 40).tolist():
        left = length
        while left > 0:
            left -= next(given)
            steps += 1
        tokens += length
    return tokens / steps


def test_rates_are_those_of_texts_that_never_end() -> None:
    """Acceptance that does not depend on the place: each level of it, however short the texts are."""
    for length in (8, 64):
        drawn = drawn_trace([[0.7, 0.1]], [length] * (64_000 // length), depth=5, rng=np.random.default_rng(2))
        assert kept_rates(Tree.chain(5), drawn) == pytest.approx([0.7**d for d in range(1, 6)], abs=0.02)


def test_vllm_keeps_what_the_trace_keeps(trace: Trace) -> None:
    result = ENGINES["vllm"].export(GOLDEN, **EAGLE3, replay=trace)
    kept = vllm_keeps(json.loads(result.text), rng=np.random.default_rng(0), steps=200_000)
    assert cut(kept + 1, trace.lengths) == pytest.approx(replay_tree(Tree.chain(5), trace).tau, rel=0.01)
    without = json.loads(ENGINES["vllm"].export(GOLDEN, **EAGLE3).text)
    assert without.items() < json.loads(result.text).items()


def test_sglang_commits_what_the_trace_commits(trace: Trace) -> None:
    result = ENGINES["sglang"].export(GOLDEN, batch=8, replay=trace)
    found = sglang_commits(result.environment, longest=4, rng=np.random.default_rng(0), steps=200_000)
    assert cut(found, trace.lengths) == pytest.approx(replay_tree(Tree.chain(3), trace).tau, rel=0.01)
    without = ENGINES["sglang"].export(GOLDEN, batch=8)
    assert (result.text, result.suffix, without.environment) == (without.text, without.suffix, "")
    assert set(without.notes) < set(result.notes)


def test_notes_of_imposed_acceptance_tell_what_to_compare(trace: Trace) -> None:
    said = "\n".join(ENGINES["vllm"].export(GOLDEN, **EAGLE3, replay=trace).notes)
    rates = kept_rates(Tree.chain(5), trace)
    assert f"batch 1: uncut steps commit {1 + sum(rates):.3f} tokens on average; the plan predicts tau 2.00" in said
    own = 1 + sum(kept_rates(Tree.chain(3), trace))
    assert f"batch 8: uncut steps commit {1 + sum(rates[:3]):.3f} tokens on average ({own:.3f} along the " in said
    assert "batch 64: uncut" not in said
    assert "generate 60 tokens" in said
    bushy = plan_of(entry(1, BUSHY))
    replaced = "\n".join(ENGINES["sglang"].export(bushy, nearest="chain", replay=trace).notes)
    assert "the plan predicts tau 2.00 and speedup 1.40 [1.30, 1.50]" in replaced  # the best chain's, not the tree's


def test_sglang_imposes_one_acceptance_on_chains(trace: Trace) -> None:
    with pytest.raises(EngineError, match=r"on all batch sizes .*nearest: one batch size of 1, 8, 32$"):
        ENGINES["sglang"].export(GOLDEN, replay=trace)
    with pytest.raises(EngineError, match=r"only on chains; nearest: `chain`"):
        ENGINES["sglang"].export(plan_of(entry(1, BUSHY)), nearest="triple", replay=trace)
    with pytest.raises(EngineError, match=r"nearest: chain of 3 \(`chain`\)[^`]*$"):
        ENGINES["sglang"].export(plan_of(entry(1, BUSHY)), replay=trace)
    with pytest.raises(TraceError):
        ENGINES["vllm"].export(plan_of(entry(1, Tree.chain(6))), **EAGLE3, replay=trace)


def test_command_imposes_a_traces_acceptance(saved: Path, tmp_path: Path, trace: Trace) -> None:
    save_trace(trace, tmp_path / "t.npz")
    words = ("--format", "sglang", "--batch", "8", "--replay", tmp_path / "t.npz")
    result, record = invoke(saved, *words), json.loads(invoke(saved, *words, "--json").stdout)
    due = ENGINES["sglang"].export(GOLDEN, batch=8, replay=trace)
    assert f"environment: {due.environment}\n" in result.stderr
    assert record["environment"] == due.environment
    refused = invoke(saved, "--format", "medusa", "--batch", "8", "--replay", tmp_path / "t.npz")
    assert "--replay does not apply to --format medusa: omit it; it takes --batch" in str(refused.exception)
    shallow = tmp_path / "shallow.npz"
    save_trace(drawn_trace([[0.5]], [9] * 12, depth=1, rng=np.random.default_rng(0)), shallow)
    short = invoke(saved, "--format", "sglang", "--batch", "8", "--replay", shallow)
    assert str(short.exception).startswith(f"{shallow}: the tree ")


@pytest.mark.parametrize("name", ENGINES.exporting())
def test_a_policy_is_never_taken_for_no_speculation(name: str) -> None:
    needed = NEEDED.get(name, {})
    plan = plan_of(grown(1, OPT_TREE))
    with pytest.raises(EngineError, match=r"cannot run policy opt-tree .*nearest"):
        ENGINES[name].export(plan, **needed)
    assert "policy opt-tree (7.5 nodes) was replaced" in ENGINES[name].export(plan, **needed, nearest="chain").notes[0]


def test_a_plans_warnings_are_passed_on(tmp_path: Path) -> None:
    save_plan(replace(GOLDEN, warnings=("few anchors",)), tmp_path / "plan.json")
    words = [str(tmp_path / "plan.json"), "--format", "sglang", "--batch", "8"]
    assert "Warning: few anchors.\n" in CliRunner().invoke(command, words).stderr
    assert json.loads(CliRunner().invoke(command, [*words, "--json"]).stdout)["notes"][0] == "few anchors"
