"""SGLang, which was not run: the driver's launches, and its steps from a server that sends `usage` with each chunk."""

import sys

import pytest

from executor.runners.engine_runner import EngineRunner
from executor.runners.runner import Requests
from tests.helpers import fake_engine
from treeopt.engines.driver import DriverSettings, EngineRequest
from treeopt.engines.sglang.driver import SGLang
from treeopt.errors import EngineError, UsageError
from treeopt.policies import DynamicTree
from treeopt.tree import Tree

PROMPT = (5, 6)


def driver(folder, manner="usage", **settings):
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


def test_plain_decoding_is_launched_without_a_drafter(tmp_path):
    with driver(tmp_path, "usage", method="EAGLE3", drafter="drafter") as engine, pytest.raises(EngineError):
        list(engine.decode([EngineRequest(PROMPT, 12)], draft=0, concurrency=1))  # this server drafts
    assert "speculative" not in (tmp_path / "words").read_text()


@pytest.mark.parametrize(
    ("draft", "concurrency", "message"),
    [
        (DynamicTree(4, 2), 1, "give draft lengths"),
        (3, 1, "needs a drafter for a draft of 3"),
        (0, 0, "concurrency must be at least 1"),
    ],
)
def test_what_the_driver_does_not_run_is_refused_before_a_launch(tmp_path, draft, concurrency, message):
    with driver(tmp_path) as engine, pytest.raises(UsageError, match=message):
        list(engine.decode([EngineRequest(PROMPT, 12)], draft=draft, concurrency=concurrency))
    assert not (tmp_path / "words").exists()


def test_a_server_that_dies_says_why_and_is_launched_again(tmp_path, caplog):
    """Its end is noticed some time after the connection broke."""
    words = "SGLang ended: CUDA error: an illegal memory access"
    with driver(tmp_path, "dies", method="EAGLE3") as engine, pytest.raises(EngineError, match=words):
        EngineRunner(lambda most: engine).run(Tree.chain(2), 1, Requests([PROMPT], 40))
    assert words in caplog.text
    assert len((tmp_path / "words").read_text().splitlines()) == 2
