"""Exports of chains and static trees, read back by small models of the engines, written from their sources alone."""

import itertools
import json
import shlex
import subprocess
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.small_plans import (
    BUSHY,
    EAGLE3,
    GOLDEN,
    MEDUSA_DRAFTER,
    entry,
    exported,
    plan_of,
    planned,
    speculates,
)
from treeopt.engines import ENGINES
from treeopt.errors import EngineError, UsageError
from treeopt.plans import Plan
from treeopt.tree import Tree
from treeopt.tree_files.choice_lists import MEDUSA, published_trees

ROOT = Path(__file__).resolve().parents[3]
untimed = settings(deadline=None)
trees = st.lists(st.lists(st.integers(0, 11), min_size=1, max_size=5), min_size=1, max_size=12).map(Tree.from_paths)
chain_plans = st.dictionaries(st.integers(1, 40), st.integers(0, 7), min_size=1, max_size=5).map(
    lambda steps: plan_of(*(entry(batch, Tree.chain(k) if k else None) for batch, k in steps.items()))
)


def options_of(text: str) -> dict[str, str]:
    words = shlex.split(text)
    assert len(set(words[::2])) == len(words[::2])  # a repeated option would be a deprecation warning
    return dict(zip(words[::2], words[1::2], strict=True))


# Medusa


def medusa_candidates(choices: list[list[int]], *, heads: int) -> list[tuple[int, int]]:
    """(depth, rank) of each choice's candidate: `generate_medusa_buffers`, `generate_candidates`."""
    ordered = sorted(choices, key=lambda path: (len(path), path))
    for path in ordered:
        for depth in range(1, len(path)):
            ordered.index(path[:depth])  # ValueError where a prefix is missing
    flat = [(0, 0)] + [(depth, rank) for depth in range(1, heads + 1) for rank in range(10)]
    return [flat[path[-1] + 10 * (len(path) - 1) + 1] for path in ordered]


@untimed
@given(trees)
def test_medusa_gets_the_candidates_that_were_meant(tree: Tree) -> None:
    plan = plan_of(entry(1, tree), drafter={"kind": "medusa", "heads": 5})
    if max(tree.ranks) >= 10:
        with pytest.raises(EngineError, match="ranks must be below 10"):
            exported("medusa", plan)
        return
    choices = json.loads(exported("medusa", plan).text)
    assert Tree.from_paths(choices) == tree
    assert medusa_candidates(choices, heads=5) == [(len(path), path[-1]) for path in tree.paths]


def test_medusa_would_alias_rank_ten() -> None:
    assert medusa_candidates([[0], [10], [0, 0]], heads=2) == [(1, 0), (2, 0), (2, 0)]


def test_medusa_would_overflow_beyond_its_heads() -> None:
    with pytest.raises(IndexError):
        medusa_candidates([[0], [0, 0], [0, 0, 0]], heads=2)
    plan = plan_of(entry(1, Tree.chain(3), chain=2), drafter={"kind": "medusa", "heads": 2})
    with pytest.raises(EngineError, match=r"at most 2 can be drafted .*Medusa#63.*nearest: chain of 2"):
        exported("medusa", plan)
    assert json.loads(exported("medusa", plan, nearest="chain").text) == [[0], [0, 0]]
    with pytest.raises(EngineError, match="nearest: no chain that the plan compared"):
        exported("medusa", plan, nearest="chain", heads=1)
    assert len(json.loads(exported("medusa", plan, heads=3).text)) == 3


def test_medusa_takes_its_own_tree_and_says_what_it_could_not_check() -> None:
    tree = published_trees()[MEDUSA]
    result = exported("medusa", plan_of(entry(1, tree), drafter=MEDUSA_DRAFTER))
    assert Tree.from_paths(json.loads(result.text)) == tree
    assert result.notes[0] == "format checked against the code of Medusa e2a5d20"
    assert [tree.id in note for note in result.notes] == [False, True]
    notes = "\n".join(exported("medusa", plan_of(entry(8, BUSHY))).notes)
    assert all(words in notes for words in ("at least 5", "batch 8", "does not name its drafter"))


# vLLM


def vllm_table(config: dict[str, Any], *, largest: int) -> list[int]:
    """K of batch 1, 2, ..., largest: `build_dynamic_sd_schedule_lookup` and the check before it."""
    tokens = config["num_speculative_tokens"]
    assert type(tokens) is int
    assert tokens > 0
    ranges = config.get("num_speculative_tokens_per_batch_size", [[1, 1, tokens]])
    end = 0
    for low, high, k in ranges:
        assert end < low <= high
        assert k >= 0
        end = high
    assert ranges[0][0] == 1
    return [min(tokens, [k for low, _, k in ranges if low <= batch][-1]) for batch in range(1, largest + 1)]


@untimed
@given(chain_plans)
def test_vllm_reads_the_plan(plan: Plan) -> None:
    if not speculates(plan):
        with pytest.raises(EngineError, match=r"vLLM 0\.33\.0: .*not to speculate at batch"):
            exported("vllm", plan, **EAGLE3)
        return
    result = exported("vllm", plan, **EAGLE3)
    config, known = json.loads(result.text), {"num_speculative_tokens", "num_speculative_tokens_per_batch_size"}
    assert set(config) <= {"method", "model", *known}
    assert vllm_table(config, largest=50) == [planned(plan, batch) for batch in range(1, 51)]
    assert shlex.split(result.flags) == ["--speculative-config", result.text]


def test_vllm_golden() -> None:
    result = exported("vllm", **EAGLE3)
    assert json.loads(result.text) == {
        "method": "eagle3",
        "model": "someone/eagle3",
        "num_speculative_tokens": 5,
        "num_speculative_tokens_per_batch_size": [[1, 7, 5], [8, 31, 3], [32, 63, 1], [64, 64, 0]],
    }
    assert any("needs vLLM 0.24 or later" in note for note in result.notes)
    one = exported("vllm", method="ngram", batch=8)
    assert not any("0.24" in note for note in one.notes)
    assert json.loads(one.text) == {"method": "ngram", "num_speculative_tokens": 3}
    scheduled = "\n".join(exported("vllm", method="suffix").notes)
    assert "model runner V1" in scheduled
    assert "data parallelism" in scheduled
    assert "schedule" not in "\n".join(exported("vllm", method="suffix", batch=1).notes)
    with pytest.raises(EngineError, match=r"method medusa: it was removed after 0\.32\.0; nearest: .*eagle3"):
        exported("vllm", method="medusa", model="x")


def test_vllm_drafts_in_parallel_where_the_plan_does() -> None:
    """P-EAGLE is an eagle3 and PARD a draft model that drafts in parallel; DFlash's blocks are as long as the draft."""
    for kind, method in (("p-eagle", "eagle3"), ("pard", "draft_model")):
        plan = plan_of(entry(1, Tree.chain(5)), drafter={"kind": kind})
        assert json.loads(exported("vllm", plan, method=method, model="x").text)["parallel_drafting"] is True
        two = plan_of(entry(1, Tree.chain(5)), entry(4, Tree.chain(2)), drafter={"kind": kind})
        assert "another length with parallel_drafting" in "\n".join(
            exported("vllm", two, method=method, model="x").notes
        )
    for slots, engine in itertools.product((16, 6), ("vllm", "sglang")):
        plan = plan_of(entry(1, Tree.chain(5)), drafter={"kind": "dflash", "slots": slots})
        notes = "\n".join(exported(engine, plan, method="dflash", model="x").notes)
        assert ("record dflash:6:DIR" in notes) == (slots == 16)


@pytest.mark.parametrize(
    ("kind", "engine", "method"),
    [
        ("prompt-lookup", "vllm", "ngram"),
        ("prompt-lookup:vllm", "vllm", "ngram"),
        ("language-model", "vllm", "draft_model"),
        ("language-model", "sglang", "STANDALONE"),
    ],
)
def test_drafters_are_called_as_the_executor_calls_them(kind: str, engine: str, method: str) -> None:
    """And what vLLM calls ngram is prompt lookup, not counts of n-grams."""

    def notes(name: str) -> str:
        plan = replace(GOLDEN, meta={"trace": {"drafter": {"kind": name}}})
        return " ".join(exported(engine, plan, method=method, model="x", batch=8).notes)

    assert "the prediction does not hold" not in notes(kind)
    assert "the prediction does not hold" in notes("ngram")
    assert ("prompt_lookup_max" in notes(kind)) == (method == "ngram")
    assert ("prompt_lookup_min to 1" in notes(kind)) == (kind == "prompt-lookup")


# SGLang


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


@untimed
@given(chain_plans, st.booleans())
def test_sglang_reads_the_plan(plan: Plan, graphs: bool) -> None:
    if not speculates(plan):
        with pytest.raises(EngineError, match=r"SGLang 0\.5\.23: .*not to speculate at batch"):
            exported("sglang", plan)
        return
    result = exported("sglang", plan, **EAGLE3)
    intended = [planned(plan, batch) for batch in range(1, 51)]
    if not result.flags:
        flags = options_of(result.text)
        steps, topk, tokens = (
            flags[f"--speculative-{name}"] for name in ("num-steps", "eagle-topk", "num-draft-tokens")
        )
        assert {(str(k), "1", str(k + 1)) for k in intended} == {(steps, topk, tokens)}
        return
    keys = [int(key) for key in json.loads(result.text) if key.isdigit()]
    captured = sorted({16, 48, *(key - 1 for key in keys[1:])}) if graphs else ()
    options = shlex.split(result.flags)
    assert keys[0] == 1
    assert [sglang_steps(result.text, options, batch=batch, captured=captured) for batch in range(1, 51)] == intended


def test_sglang_golden_schedule() -> None:
    result = exported("sglang", **EAGLE3, file="tiers 1.json")
    config = json.loads(result.text)
    ids = {str(batch): Tree.chain(length).id for batch, length in ((1, 5), (8, 3), (32, 1))}
    assert config.pop("treeopt")["trees"] == {**ids, "64": None}
    assert config == {str(batch): {"candidate_steps": [k]} for batch, k in ((1, 5), (8, 3), (32, 1), (64, 0))}
    assert result.flags == (
        "--speculative-algorithm EAGLE3 --speculative-draft-model-path someone/eagle3 "
        "--speculative-num-steps 5 --speculative-eagle-topk 1 --speculative-adaptive "
        "--speculative-adaptive-config 'tiers 1.json'"
    )
    assert any("--cuda-graph-bs holds 7, 31, 63" in note for note in result.notes)
    assert any("--max-running-requests 64" in note for note in result.notes)
    # As measured with the real class: batch 5 is padded to 8, batch 25 to 32.
    options, captured = shlex.split(result.flags), (1, 2, 4, 8, 16, 24, 32)
    assert sglang_steps(result.text, options, batch=5, captured=captured) == 3
    assert sglang_steps(result.text, options, batch=25, captured=captured) == 1
    assert sglang_steps(result.text, options, batch=7) == 5


def test_sglang_algorithms() -> None:
    assert "--speculative-algorithm STANDALONE " in exported("sglang", method="standalone", batch=1).text
    for kind, words in (
        ("dflash", "DFLASH {}--speculative-dflash-block-size 4"),
        ("dspark", "DSPARK {}--speculative-dspark-block-size 3"),
    ):
        plan = plan_of(entry(1, Tree.chain(3)), drafter={"kind": kind})
        text = exported("sglang", plan, method=kind, model="x").text
        assert text == f"--speculative-algorithm {words}".format("--speculative-draft-model-path x ")
    with pytest.raises(EngineError, match=r"SGLang .*STANDALONE by batch size .*nearest: one batch size of 1, 8, 32$"):
        exported("sglang", method="standalone")


# llama.cpp


BOUNDS = {  # options of common/arg.cpp, with the bounds of their values
    "-md": None,
    "--spec-type": None,
    "--spec-draft-n-max": range(2**31),
    "--spec-draft-p-min": range(1),
    "--spec-ngram-simple-size-m": range(1, 1025),
    "--spec-ngram-map-k-size-m": range(1, 1025),
    "--spec-ngram-map-k4v-size-m": range(1, 1025),
    "--spec-ngram-mod-n-max": range(1025),
    "--spec-ngram-mod-n-min": range(1),  # shorter drafts are dropped
}


def llama_length(text: str) -> int:
    """The longest draft: `common_speculative_n_max`; without an option the engine's default counts."""
    options = options_of(text.replace(" --no-spec-draft-backend-sampling", ""))
    for name, value in options.items():
        assert BOUNDS[name] is None or int(value) in BOUNDS[name]
    kind = options["--spec-type"]
    if kind.startswith("draft-"):
        return int(options.get("--spec-draft-n-max", "3"))
    if kind == "ngram-mod":
        return int(options.get("--spec-ngram-mod-n-max", "64")) if "--spec-ngram-mod-n-min" in options else 48
    return int(options.get(f"--spec-{kind}-size-m", "48"))


@untimed
@given(st.sampled_from(sorted(ENGINES["llama.cpp"].methods)), st.integers(1, 40), st.integers(1, 64))
def test_llama_cpp_drafts_the_planned_length(method: str, length: int, batch: int) -> None:
    text = exported("llama.cpp", plan_of(entry(batch, Tree.chain(length))), method=method).text
    assert f"--spec-type {method} " in text
    assert llama_length(text) == length


def test_llama_cpp_golden() -> None:
    result = exported("llama.cpp", method="draft-eagle3", model="drafter 1.gguf", target="t.gguf", batch=8)
    text = "-md 'drafter 1.gguf' --spec-type draft-eagle3 --spec-draft-n-max 3 --spec-draft-p-min 0"
    text += " --no-spec-draft-backend-sampling"  # several slots
    assert (result.text, result.suffix, result.flags) == (text, ".txt", "")
    assert result.launch == f"llama-server -m t.gguf -np 8 {text}"
    launch = exported("llama.cpp", method="draft-eagle3", batch=1).launch
    assert launch.startswith("llama-server -m TARGET -np 1 -md DRAFTER --spec-type draft-eagle3 --spec-draft-n-max 5")
    assert "DRAFTER" not in exported("llama.cpp", method="ngram-mod", batch=1).launch


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        ("eagle3", "draft-eagle3"),
        ("language-model", "draft-simple"),
        ("prompt-lookup", "ngram-simple"),
        ("prompt-lookup:llama.cpp", "ngram-simple"),
    ],
)
def test_llama_cpp_takes_its_type_from_the_plans_drafter(kind: str, method: str) -> None:
    result = exported("llama.cpp", plan_of(entry(1, Tree.chain(4)), drafter={"kind": kind}))
    assert f"--spec-type {method} " in result.text
    assert any("at most 4: shorter drafts are dropped" in note for note in result.notes) == (kind[-4:] == ".cpp")
    assert not any("does not hold" in note for note in result.notes)


def test_llama_cpp_has_one_length_per_launch_and_limits_its_n_grams() -> None:
    with pytest.raises(EngineError, match=r"llama\.cpp .*one length .*5 at batch 1, 3 at batch 8.*of 1, 8, 32 \(`--ba"):
        exported("llama.cpp", method="draft-simple")
    alike = exported("llama.cpp", plan_of(*(entry(batch, Tree.chain(4)) for batch in (1, 8))), method="draft-simple")
    assert llama_length(alike.text) == 4
    assert " -np 8 " in alike.launch
    with pytest.raises(EngineError, match="at most 1024"):
        exported("llama.cpp", plan_of(entry(1, Tree.chain(1025))), method="ngram-mod")
    with pytest.raises(UsageError, match="method ngram-simple reads no drafter, so it takes no model: omit --model"):
        exported("llama.cpp", method="ngram-simple", model="m", batch=1)


# LMDeploy


@untimed
@given(st.integers(1, 60), st.sampled_from(sorted(ENGINES["lmdeploy"].methods)))
def test_lmdeploy_drafts_the_planned_length(length: int, method: str) -> None:
    result = exported("lmdeploy", plan_of(entry(4, Tree.chain(length))), method=method, model="a b", target="c/d")
    options = options_of(result.text)
    block = options.pop("--speculative-dflash-block-size", None)
    assert options == {
        "--speculative-algorithm": method,
        "--speculative-draft-model": "a b",
        "--speculative-num-draft-tokens": str(length),
    }
    assert block == (str(length + 1) if method == "dflash" else None)  # as SpeculativeConfig derives the length from it
    assert result.launch == f"lmdeploy serve api_server c/d {result.text}"
    assert "--speculative-draft-model" not in exported("lmdeploy", method="deepseek_mtp", batch=8).launch


# transformers


@untimed
@given(st.integers(1, 60), st.sampled_from(sorted(ENGINES["transformers"].methods)))
def test_transformers_drafts_the_planned_length(length: int, method: str) -> None:
    config = json.loads(exported("transformers", plan_of(entry(1, Tree.chain(length))), method=method).text)
    if method == "prompt-lookup":
        assert config == {"prompt_lookup_num_tokens": length, "max_matching_ngram_size": 3}
        return
    # Any other schedule changes the length from step to step, any other threshold cuts drafts.
    assert config == {
        "num_assistant_tokens": length,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": 0.0,
    }


@pytest.mark.parametrize("method", sorted(ENGINES["transformers"].methods))
def test_transformers_own_configuration_takes_the_settings(method: str) -> None:
    settings_of = json.loads(exported("transformers", method=method, batch=1).text)
    config = transformers.GenerationConfig(**settings_of)
    config.validate(strict=True)
    assert {name: getattr(config, name) for name in settings_of} == settings_of
    assert config.update(**dict.fromkeys(settings_of)) == {}  # no name that it does not know
    assert transformers.__version__.split(".")[0] == ENGINES["transformers"].title.split()[1].split(".")[0]


def test_transformers_decodes_one_sequence() -> None:
    with pytest.raises(EngineError, match=r"one sequence at a time.*holds batch 8; nearest: a plan for batch 1"):
        exported("transformers", method="assistant", batch=8)
    result = exported("transformers", method="assistant")
    assert json.loads(result.text)["num_assistant_tokens"] == 5
    assert any("only batch 1 of 1, 8, 32, 64 was exported" in note for note in result.notes)
    assert "only batch 1" not in "\n".join(exported("transformers", method="assistant", batch=1).notes)


@pytest.mark.slow
@pytest.mark.parametrize("method", sorted(ENGINES["transformers"].methods))
def test_transformers_launch_lines_run_and_draft_the_length(method: str, tmp_path: Path) -> None:
    """A process that loads torch and decodes with the shipped target as its own assistant: some seconds."""
    model = str(ROOT / "data/models/stdlib-llama")
    options = {"model": model} if method == "assistant" else {}
    lines = exported("transformers", method=method, target=model, batch=1, **options).launch
    hook = """
import transformers.generation.utils as utils
prepared = utils.GenerationMixin._get_candidate_generator
def spied(self, *args, **words):
    made = prepared(self, *args, **words)
    get = made.get_candidates
    def candidates(ids, *more, **other):
        found = get(ids, *more, **other)
        print("drafted", found[0].shape[1] - ids.shape[1])
        return found
    made.get_candidates = candidates
    return made
utils.GenerationMixin._get_candidate_generator = spied
"""
    script = tmp_path / "launch.py"
    script.write_text(hook + lines.replace("PROMPT", "def add(a, b):\\n    return").replace("256", "24"))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, cwd=ROOT)
    drafted = [int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("drafted")]
    if method == "assistant":
        assert set(drafted[:-1]) == {5}  # the last draft is cut at max_new_tokens
    assert max(drafted) == 5
    assert "def add" in done.stdout
