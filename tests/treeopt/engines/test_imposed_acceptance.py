"""Exports that impose a trace's acceptance: engines accept as the trace does, by models of their sources."""

import json
import math
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

from tests.helpers.small_plans import BUSHY, EAGLE3, GOLDEN, entry, exported, plan_of
from tests.helpers.strategies import drawn_trace
from treeopt.cli.commands.export import export as command
from treeopt.engines import ENGINES
from treeopt.engines.export import kept_rates
from treeopt.errors import EngineError, TraceError
from treeopt.plans import save_plan
from treeopt.replay.static_tree import replay_tree
from treeopt.traces.trace import Trace
from treeopt.traces.trace_files import save_trace
from treeopt.tree import Tree


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
    for refused in ("0.5", "0.5,0.6", "1.2,0.3", "nan,0.1"):
        with pytest.raises(AssertionError):
            llama_rates(refused, length=2)


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
    refused = str(invoke("medusa", "t.npz").exception)
    assert "--replay does not apply to --format medusa: omit it; it takes --batch" in refused
    assert str(invoke("sglang", "shallow.npz").exception).startswith(f"{tmp_path / 'shallow.npz'}: the tree ")
