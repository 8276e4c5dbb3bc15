"""The exports to transformers and LMDeploy, which accept any value: so each is read back, and transformers is run."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.small_plans import GOLDEN, entry, plan_of
from treeopt.engines import ENGINES
from treeopt.errors import EngineError
from treeopt.tree import Tree

ROOT = Path(__file__).resolve().parents[3]

# transformers


@settings(deadline=None)
@given(st.integers(1, 60), st.sampled_from(sorted(ENGINES["transformers"].methods)))
def test_transformers_drafts_the_planned_length(length: int, method: str) -> None:
    config = json.loads(ENGINES["transformers"].export(plan_of(entry(1, Tree.chain(length))), method=method).text)
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
    library = pytest.importorskip("transformers", reason="the extra executor is not installed")
    settings_of = json.loads(ENGINES["transformers"].export(GOLDEN, method=method, batch=1).text)
    config = library.GenerationConfig(**settings_of)
    config.validate(strict=True)
    assert {name: getattr(config, name) for name in settings_of} == settings_of
    assert config.update(**dict.fromkeys(settings_of)) == {}  # no name that it does not know
    assert library.__version__.split(".")[0] == ENGINES["transformers"].title.split()[1].split(".")[0]


def test_transformers_decodes_one_sequence() -> None:
    with pytest.raises(EngineError, match=r"one sequence at a time.*holds batch 8; nearest: a plan for batch 1"):
        ENGINES["transformers"].export(GOLDEN, method="assistant", batch=8)
    with pytest.raises(EngineError, match=r"one sequence at a time.*holds batch 2, 4"):
        ENGINES["transformers"].export(plan_of(entry(2, Tree.chain(2)), entry(4, Tree.chain(2))), method="assistant")
    result = ENGINES["transformers"].export(GOLDEN, method="assistant")
    assert json.loads(result.text)["num_assistant_tokens"] == 5
    assert any("only batch 1 of 1, 8, 32, 64 was exported" in note for note in result.notes)
    assert not any(
        "only batch 1" in note for note in ENGINES["transformers"].export(GOLDEN, method="assistant", batch=1).notes
    )


@pytest.mark.slow
@pytest.mark.parametrize("method", sorted(ENGINES["transformers"].methods))
def test_transformers_launch_lines_run_and_draft_the_length(method: str, tmp_path: Path) -> None:
    """A process that loads torch and decodes with the shipped target as its own assistant: some seconds."""
    pytest.importorskip("transformers", reason="the extra executor is not installed")
    model = str(ROOT / "data/models/stdlib-llama")
    options = {"model": model} if method == "assistant" else {}
    lines = ENGINES["transformers"].export(GOLDEN, method=method, target=model, batch=1, **options).launch
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


# LMDeploy


@settings(deadline=None)
@given(st.integers(1, 60), st.sampled_from(sorted(ENGINES["lmdeploy"].methods)))
def test_lmdeploy_drafts_the_planned_length(length: int, method: str) -> None:
    words = shlex.split(
        ENGINES["lmdeploy"].export(plan_of(entry(4, Tree.chain(length))), method=method, model="a b").text
    )
    options = dict(zip(words[::2], words[1::2], strict=True))
    block = options.pop("--speculative-dflash-block-size", None)
    assert options == {
        "--speculative-algorithm": method,
        "--speculative-draft-model": "a b",
        "--speculative-num-draft-tokens": str(length),
    }
    assert (block is not None) == (method == "dflash")
    assert block is None or int(block) - 1 == length  # as SpeculativeConfig derives the length from the block


def test_lmdeploy_golden() -> None:
    result = ENGINES["lmdeploy"].export(GOLDEN, method="eagle3", model="a/b", target="c/d", batch=8)
    flags = "--speculative-algorithm eagle3 --speculative-draft-model a/b --speculative-num-draft-tokens 3"
    assert result.text == flags
    assert result.launch == f"lmdeploy serve api_server c/d {flags}"
    assert "--speculative-draft-model" not in ENGINES["lmdeploy"].export(GOLDEN, method="deepseek_mtp", batch=8).launch
