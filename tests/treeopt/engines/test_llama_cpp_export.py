"""The export to llama.cpp, read back by the rules of its argument parser and of `common_speculative_n_max`."""

import math
import shlex
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.small_plans import GOLDEN, entry, plan_of
from tests.helpers.strategies import drawn_trace
from treeopt.engines import ENGINES
from treeopt.engines.export import kept_rates
from treeopt.errors import EngineError, TraceError, UsageError
from treeopt.tree import Tree

OPTIONS = {  # of common/arg.cpp, with the bounds of their values
    "-md": str,
    "--spec-type": str,
    "--spec-draft-n-max": range(2**31),
    "--spec-draft-p-min": float,
    "--spec-ngram-simple-size-m": range(1, 1025),
    "--spec-ngram-map-k-size-m": range(1, 1025),
    "--spec-ngram-map-k4v-size-m": range(1, 1025),
    "--spec-ngram-mod-n-max": range(1025),
    "--spec-ngram-mod-n-min": range(1025),
    "--spec-synth-rates": str,
}
FLAGS = {"--no-spec-draft-backend-sampling"}


def parsed(text: str) -> dict[str, str]:
    words = shlex.split(text)
    flags = [word for word in words if word in FLAGS]
    words = [word for word in words if word not in FLAGS]
    assert len(flags) == len(set(flags))
    options = dict(zip(words[::2], words[1::2], strict=True))
    assert len(options) == len(words) // 2  # a repeated option would be a deprecation warning
    for name, value in options.items():
        allowed = OPTIONS[name]
        assert int(value) in allowed if isinstance(allowed, range) else allowed(value) is not None
    return options


def effective_length(options: dict[str, str]) -> int:
    """The longest draft: `common_speculative_n_max`; without an option the engine's default counts."""
    kind = options["--spec-type"]
    if kind.startswith("draft-"):
        assert float(options.get("--spec-draft-p-min", "0")) == 0
        return int(options.get("--spec-draft-n-max", "3"))
    if kind == "ngram-mod":
        assert int(options.get("--spec-ngram-mod-n-min", "48")) == 0  # shorter drafts are dropped
        return int(options.get("--spec-ngram-mod-n-max", "64"))
    return int(options.get(f"--spec-{kind}-size-m", "48"))


def rates_of(options: dict[str, str]) -> list[float]:
    """The rates as `common_speculative_synth_rates_resolve` accepts them."""
    rates = [float(word) for word in options["--spec-synth-rates"].split(",")]
    assert len(rates) == effective_length(options)
    assert all(math.isfinite(rate) and 0 <= rate <= 1 for rate in rates)
    assert all(rate <= before for before, rate in pairwise(rates))
    return rates


@settings(deadline=None)
@given(st.sampled_from(sorted(ENGINES["llama.cpp"].methods)), st.integers(1, 40), st.integers(1, 64))
def test_llama_cpp_drafts_the_planned_length(method: str, length: int, batch: int) -> None:
    result = ENGINES["llama.cpp"].export(plan_of(entry(batch, Tree.chain(length))), method=method)
    options = parsed(result.text)
    assert options["--spec-type"] == method
    assert effective_length(options) == length


def test_llama_cpp_golden() -> None:
    result = ENGINES["llama.cpp"].export(
        GOLDEN, method="draft-eagle3", model="drafter 1.gguf", target="t.gguf", batch=8
    )
    text = "-md 'drafter 1.gguf' --spec-type draft-eagle3 --spec-draft-n-max 3 --spec-draft-p-min 0"
    text += " --no-spec-draft-backend-sampling"  # several slots
    assert (result.text, result.suffix, result.flags) == (text, ".txt", "")
    assert result.launch == f"llama-server -m t.gguf -np 8 {text}"
    assert (
        ENGINES["llama.cpp"]
        .export(GOLDEN, method="draft-eagle3", batch=1)
        .launch.startswith("llama-server -m TARGET -np 1 -md DRAFTER --spec-type draft-eagle3 --spec-draft-n-max 5")
    )
    assert "DRAFTER" not in ENGINES["llama.cpp"].export(GOLDEN, method="ngram-mod", batch=1).launch


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
    result = ENGINES["llama.cpp"].export(plan_of(entry(1, Tree.chain(4)), drafter={"kind": kind}))
    assert parsed(result.text)["--spec-type"] == method
    assert any("at most 4: shorter drafts are dropped" in note for note in result.notes) == (kind[-4:] == ".cpp")
    assert not any("does not hold" in note for note in result.notes)


def test_llama_cpp_has_one_length_per_launch() -> None:
    with pytest.raises(EngineError, match=r"llama\.cpp .*one length .*5 at batch 1, 3 at batch 8.*of 1, 8, 32 \(`--ba"):
        ENGINES["llama.cpp"].export(GOLDEN, method="draft-simple")
    alike = plan_of(entry(1, Tree.chain(4)), entry(8, Tree.chain(4)))
    assert effective_length(parsed(ENGINES["llama.cpp"].export(alike, method="draft-simple").text)) == 4
    assert " -np 8 " in ENGINES["llama.cpp"].export(alike, method="draft-simple").launch


def test_llama_cpp_limits_its_n_grams() -> None:
    with pytest.raises(EngineError, match="at most 1024"):
        ENGINES["llama.cpp"].export(plan_of(entry(1, Tree.chain(1025))), method="ngram-mod")
    with pytest.raises(UsageError, match="method ngram-simple reads no drafter, so it takes no model: omit --model"):
        ENGINES["llama.cpp"].export(GOLDEN, method="ngram-simple", model="m", batch=1)


def test_llama_cpp_replays_exactly_the_rates_of_its_length() -> None:
    trace = drawn_trace([[0.05]], [60] * 40, depth=6, rng=np.random.default_rng(3))
    for method in sorted(ENGINES["llama.cpp"].methods):
        result = ENGINES["llama.cpp"].export(plan_of(entry(1, Tree.chain(6))), method=method, replay=trace)
        rates = rates_of(parsed(result.text))
        assert rates == pytest.approx(kept_rates(Tree.chain(6), trace), abs=1e-6)
        assert rates[-1] == 0  # a position that is never accepted is written as well
        assert f"uncut steps commit {1 + sum(rates):.3f} tokens" in "\n".join(result.notes)
        assert result.text in result.launch
    with pytest.raises(TraceError):
        ENGINES["llama.cpp"].export(plan_of(entry(1, Tree.chain(7))), method="draft-simple", replay=trace)


def test_the_reader_of_rates_refuses_what_llama_cpp_refuses() -> None:
    options = {"--spec-type": "draft-simple", "--spec-draft-n-max": "2", "--spec-draft-p-min": "0"}
    for rates in ("0.5", "0.5,0.6", "1.2,0.3", "nan,0.1"):
        with pytest.raises(AssertionError):
            rates_of({**options, "--spec-synth-rates": rates})
    assert rates_of({**options, "--spec-synth-rates": "0.5,0.5"}) == [0.5, 0.5]
