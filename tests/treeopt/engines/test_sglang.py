"""SGLang: the driver's launches, and its steps from a server that sends several in one chunk."""

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.runners.engine_runner import EngineRunner
from executor.runners.runner import Requests
from tests.helpers import fake_engine
from treeopt.engines.driver import DriverSettings, EngineRequest
from treeopt.engines.sglang.driver import SGLang, counted_steps, step_sizes
from treeopt.errors import EngineError, UsageError
from treeopt.policies import DynamicTree
from treeopt.tree import Tree

PROMPT = (5, 6)


def driver(folder, manner="merged", **settings):
    """A driver whose interpreter keeps SGLang's words and runs the fake engine."""
    program = folder / "python"
    kept, fake = f'echo "$@" >> {folder}/words', f'exec {sys.executable} {fake_engine.__file__} "{manner}" "$@"'
    program.write_text(f"#!/bin/sh\n{kept}\n{fake}\n")
    program.chmod(0o755)
    return SGLang(DriverSettings("sglang", "target", python=program, timeout_s=30, **settings))


def test_a_launch_counts_the_root_and_streams_by_step(tmp_path):
    settings = {"method": "EAGLE3", "drafter": "drafter", "arguments": "--tp-size 2"}
    with driver(tmp_path, **settings) as engine:
        steps = list(engine.decode([EngineRequest(PROMPT, 12)], draft=2, concurrency=1))
    assert [step.committed for step in steps] == [len(step) for step in fake_engine.steps_of(list(PROMPT), 12)]
    words = (tmp_path / "words").read_text()
    assert "-m sglang.launch_server --model-path target --host 127.0.0.1" in words
    assert "--speculative-algorithm EAGLE3 --speculative-draft-model-path drafter" in words
    assert "--speculative-num-steps 2 --speculative-eagle-topk 1 --speculative-num-draft-tokens 3" in words
    assert "--stream-interval 1 --tp-size 2" in words


def test_on_a_cpu_sglang_is_told_to_use_its_engine_for_cpus(tmp_path):
    for arguments, set_ in (("--device cpu", True), ("--device=cpu", True), ("--device cuda", False)):
        with driver(tmp_path, arguments=arguments) as engine:
            assert ("SGLANG_USE_CPU_ENGINE" in engine._launch(0).environment) == set_


def test_plain_decoding_is_launched_without_a_drafter_and_commits_a_token_a_step(tmp_path):
    with driver(tmp_path, method="EAGLE3", drafter="drafter") as engine:
        steps = list(engine.decode([EngineRequest(PROMPT, 12)], draft=0, concurrency=1))
    assert [step.committed for step in steps] == [1] * 12
    assert "speculative" not in (tmp_path / "words").read_text()


def test_a_tree_is_launched_with_its_width_and_size(tmp_path):
    with driver(tmp_path, method="EAGLE3", drafter="drafter") as engine:
        steps = list(engine.decode([EngineRequest(PROMPT, 12)], draft=DynamicTree(8, 2, 4), concurrency=1))
    assert sum(step.committed for step in steps) == 12
    words = (tmp_path / "words").read_text()
    assert "--speculative-num-steps 2 --speculative-eagle-topk 4 --speculative-num-draft-tokens 9" in words


def test_steps_that_contradict_the_server_s_count_are_refused():
    """A drafted token more than the histogram counts."""
    with pytest.raises(EngineError, match=r"server: no steps of \[2, 2\] found in chunks of \[2, 3\] tokens"):
        step_sizes([2, 3], [2, 2], "server")


@pytest.mark.parametrize(
    ("info", "message"),
    [
        ({}, "a chunk has no `meta_info.completion_tokens`"),
        ({"completion_tokens": 2}, "the answer has no end, or not all of its tokens"),
        ({"completion_tokens": 3, "finish_reason": {}}, "not all of its tokens"),
        ({"completion_tokens": 2, "finish_reason": {}, "spec_correct_drafts_histogram": "11"}, "must list numbers"),
        ({"completion_tokens": 2, "finish_reason": {}, "spec_correct_drafts_histogram": [10**9]}, "must list numbers"),
        ({"completion_tokens": 2, "finish_reason": {}}, "no steps of"),
        ([2], "a chunk has no `meta_info.completion_tokens`"),
        (
            {"completion_tokens": 0, "finish_reason": {"type": "abort", "message": "too long"}},
            "0 was aborted: 'too long'",
        ),
        (
            {"completion_tokens": 2, "finish_reason": {}, "spec_correct_drafts_histogram": [0, 0, 0, 1]},
            "accepted 3 tokens",
        ),
    ],
)
def test_an_answer_without_sense_ends_in_one_line(info, message):
    records = iter([(0.0, {"output_ids": [7, 8], "meta_info": info})])
    with pytest.raises(EngineError, match=f"^server: .*{message}"):
        list(counted_steps(records, 0, 0.0, draft=2, where="server"))


def test_tokens_that_are_no_numbers_are_refused():
    records = iter([(0.0, {"output_ids": ["a"], "meta_info": {"completion_tokens": 1, "finish_reason": {}}})])
    with pytest.raises(EngineError, match="not all of its tokens"):
        list(counted_steps(records, 0, 0.0, draft=2, where="server"))


def test_a_first_chunk_without_a_token_is_no_prefill():
    ended = {"completion_tokens": 3, "finish_reason": {}, "spec_correct_drafts_histogram": [0, 1]}
    infos = [([], {"completion_tokens": 0}), ([5], {"completion_tokens": 1}), ([6, 7], ended)]
    records = ((float(at), {"output_ids": ids, "meta_info": info}) for at, (ids, info) in enumerate(infos))
    steps = list(counted_steps(records, 0, 0.0, draft=2, where="server"))
    assert [(step.at_s, step.tokens) for step in steps] == [(1.0, (5,)), (2.0, (6, 7))]


@pytest.mark.parametrize(
    ("chunks", "sizes"),
    [([4000], [1] * 4000), ([2] * 2000, [1] * 4000), ([1000, 3000], [1, 3] * 1000)],
    ids=["one chunk", "pairs", "two chunks"],
)
def test_long_requests_are_split(chunks, sizes):
    """A recursion over so many steps or chunks would exceed the frames that Python has."""
    assert [sum(some) for some in step_sizes(chunks, sizes, "server")] == chunks


def test_chunks_that_cannot_be_split_are_refused_after_a_limited_search():
    """Each 12 has three ways, and the 1 none."""
    with pytest.raises(EngineError, match="no steps of"):
        step_sizes([*[12] * 12, 1, 5], [2] * 30 + [3] * 30, "server")


@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=60), cut=st.integers(0, 4), seed=st.integers(0, 99))
def test_merged_chunks_are_split_into_the_steps_that_the_server_counted(sizes, cut, seed):
    """The last step may lose tokens to the limit."""
    rng, cut = np.random.default_rng(seed), min(cut, sizes[-1] - 1)
    ends = np.cumsum([*sizes[:-1], sizes[-1] - cut])
    kept = rng.random(len(ends)) < 0.8
    kept[-1] = True
    chunks = np.diff(ends[kept], prepend=0).tolist()
    steps = step_sizes(chunks, sizes, "server")
    assert [sum(some) for some in steps] == chunks
    steps[-1][-1] += cut
    assert sorted(size for some in steps for size in some) == sorted(sizes)


@pytest.mark.parametrize(
    ("draft", "concurrency", "settings", "message"),
    [
        (DynamicTree(4, 2), 1, {}, "needs a drafter for a draft of DynamicTree"),
        (3, 1, {}, "needs a drafter for a draft of 3"),
        (0, 0, {}, "concurrency must be at least 1"),
        (DynamicTree(8, 2, 4), 1, {"method": "DFLASH"}, "chains, not trees"),  # its size would be taken for a block's
    ],
)
def test_what_the_driver_does_not_run_is_refused_before_a_launch(tmp_path, draft, concurrency, settings, message):
    with driver(tmp_path, **settings) as engine, pytest.raises(UsageError, match=message):
        list(engine.decode([EngineRequest(PROMPT, 12)], draft=draft, concurrency=concurrency))
    assert not (tmp_path / "words").exists()


def test_a_server_that_dies_says_why_and_is_launched_again(tmp_path, caplog):
    """Its end is noticed some time after the connection broke."""
    words = "SGLang ended: CUDA error: an illegal memory access"
    with driver(tmp_path, "dies", method="EAGLE3") as engine, pytest.raises(EngineError, match=words):
        EngineRunner(lambda most: engine).run(Tree.chain(2), 1, Requests([PROMPT], 40))
    assert words in caplog.text
    assert len((tmp_path / "words").read_text().splitlines()) == 2
