"""Traces recorded in an engine: runs that break off resume, and steps replay to what the engine did."""

from contextlib import contextmanager

import pytest

from executor.recording.engine_steps import engine_texts, every_anchor_trace, record_requests, visited_trace
from executor.runners.engine_runner import EngineRunner
from executor.runners.runner import Requests
from tests.helpers import fake_engine
from treeopt.engines.driver import DriverSettings, EngineRequest
from treeopt.engines.openai.driver import OpenAI
from treeopt.errors import EngineError, UsageError
from treeopt.replay.static_tree import replay_tree
from treeopt.storage.work_file import WorkFile
from treeopt.tree import Tree

PROMPTS = [(5, 6), (100,), (200, 201, 202), (300,)]


@contextmanager
def running(manner="well"):
    server = fake_engine.serve(manner, 0)
    try:
        urls = {2: f"http://127.0.0.1:{server.server_port}"}
        with EngineRunner(lambda most: OpenAI(DriverSettings("openai", ".", urls=urls, timeout_s=5))) as runner:
            runner.concurrency = 2
            yield runner
    finally:
        server.close()


def recorded(runner, path, settings=1, **more):
    requests = [EngineRequest(prompt, 20) for prompt in PROMPTS]
    with WorkFile(path, {"a": settings}) as work:
        return record_requests(runner, requests, draft=2, work=work, **more)


def test_a_run_that_breaks_off_resumes(tmp_path):
    work = tmp_path / "t.npz.work"
    with running() as runner:
        whole = recorded(runner, tmp_path / "whole")
        recorded(runner, work)
    lines = work.read_text().splitlines(keepends=True)
    work.write_text("".join(lines[:3]) + lines[3][:7])
    with running("closes") as runner, pytest.raises(EngineError, match=r"2 of 4 requests are kept in .* resumes"):
        recorded(runner, work)
    with pytest.raises(UsageError, match="was begun with a 1, not 2: give the same settings, or remove it"):
        recorded(runner, work, settings=2)
    seen = []
    with running() as runner:
        assert recorded(runner, work, progress=seen.append) == whole
    assert seen == [2, 1, 1]


@pytest.mark.parametrize(
    "record",
    [
        '{"request": {"request": 0, "committed": [1, 0]}}',
        '{"request": {"request": 4, "committed": [1]}}',
        "{",
    ],
)
def test_a_broken_file_of_a_run_is_refused(tmp_path, record):
    work = tmp_path / "work"
    work.write_text('{"schema": "treeopt.work/1", "settings": {"a": 1}}\n' + record + "\n")
    with running() as runner, pytest.raises(UsageError, match=r"work: .*remove (it|the file) to start again"):
        recorded(runner, work)


def test_a_trace_of_a_run_replays_to_its_steps():
    with running() as runner:
        records = recorded(runner, None)
    trace = visited_trace([record.steps for record in records], depth=2, meta={})
    counts = replay_tree(Tree.chain(2), trace)
    assert counts.committed.tolist() == [sum(record.committed[1:]) for record in records]
    assert counts.steps.tolist() == [len(record.committed) - 1 for record in records]


def test_a_timed_run_is_recorded_too():
    """One call gives step times and the steps that make a trace."""
    with running() as runner:
        run = runner.run(Tree.chain(2), 2, Requests([list(prompt) for prompt in PROMPTS], 20))
    assert run.step_s >= fake_engine.STEP_S
    counts = replay_tree(Tree.chain(2), visited_trace(run.requests, depth=2, meta={}))
    assert counts.committed.sum() == run.tokens == 4 * 19
    assert counts.steps.sum() == run.steps


def test_a_step_at_every_anchor():
    """The fake engine's first step after any prefill accepts nothing, so every anchor does."""
    with running() as runner:
        texts = engine_texts(recorded(runner, None))
        with WorkFile(None, {}) as work:
            trace = every_anchor_trace(runner, PROMPTS, texts, depth=2, meta={}, work=work)
    assert trace.anchors == sum(len(text) - 1 for text in texts)
    assert (trace.rank != 0).all()
