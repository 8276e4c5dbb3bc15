"""OpenAI-compatible servers: steps from chunks, and one clear line for each way in which a server fails."""

import json
from contextlib import contextmanager
from itertools import pairwise

import pytest
from executor.engines.engine_record import record_run
from executor.engines.engine_trace import every_anchor_trace, visited_trace

from tests.helpers import fake_engine
from treeopt.engines.connections import completions_client
from treeopt.engines.driver import EngineRequest
from treeopt.engines.openai.driver import OpenAI
from treeopt.errors import EngineError, UsageError
from treeopt.replay.static_tree import replay_tree
from treeopt.tree import Tree

PROMPTS = [(5, 6), (100,), (200, 201, 202), (300,)]


@contextmanager
def running(manner: str = "well", **settings):
    server = fake_engine.serve(manner, 0)
    settings = {"timeout_s": 5} | settings
    try:
        with OpenAI({2: f"http://127.0.0.1:{server.server_port}"}, **settings) as engine:
            yield engine
    finally:
        server.close()


def decoded(engine, new_tokens=20, concurrency=2):
    requests = [EngineRequest(prompt, new_tokens) for prompt in PROMPTS]
    return list(engine.decode(requests, draft=2, concurrency=concurrency))


def expected(new_tokens=20):
    return [fake_engine.steps_of(list(prompt), new_tokens) for prompt in PROMPTS]


@pytest.mark.parametrize("manner", ["well", "usage", "logprobs", "busy", "standard fields only", "text"])
def test_steps_are_those_of_the_server(manner):
    settings = {"count": lambda text: len(text.split())} if manner in ("text", "standard fields only") else {}
    with running(manner, **settings) as engine:
        steps = decoded(engine)
    for number, due in enumerate(expected()):
        of_request = [step for step in steps if step.request == number]
        assert [step.committed for step in of_request] == [len(tokens) for tokens in due]
        assert [step.prefill for step in of_request] == [True] + [False] * (len(due) - 1)
        assert [step.ended for step in of_request] == [False] * (len(due) - 1) + [True]
        assert all(before.at_s <= after.at_s for before, after in pairwise(of_request))
        if manner in ("well", "busy"):
            assert [list(step.tokens) for step in of_request] == due


@pytest.mark.parametrize(
    ("manner", "message"),
    [
        ("an error", "answered 400 Bad Request: max_tokens is too large: 4096"),
        ("no stream", "the server does not stream its answer"),
        ("all at once", "a chunk holds 19 tokens, a step of 2 drafted tokens at most 3: .*does not stream by step"),
        ("no tokens", "the answer to request . holds no token"),
        ("broken JSON", "a chunk is not JSON: '{'"),
        ("an error in the stream", "out of memory"),
        ("closes", "the connection broke: "),
        ("text", "chunks do not say how many tokens they hold .*: give --target"),
        ("models without a name", "/v1/models names no model"),
    ],
)
def test_what_fails_is_said_in_one_line(manner, message):
    with running(manner) as engine, pytest.raises(EngineError, match=message) as caught:
        decoded(engine)
    assert "\n" not in str(caught.value)


def test_a_slow_server():
    with running("hangs", timeout_s=0.3) as engine, pytest.raises(EngineError, match="nothing within the time limit"):
        decoded(engine)


def test_no_server_at_all():
    with (
        OpenAI({2: "http://127.0.0.1:9"}, timeout_s=1) as engine,
        pytest.raises(EngineError, match="cannot be reached"),
    ):
        decoded(engine)


@pytest.mark.parametrize("url", ["ftp://a", "nothing", "http://"])
def test_no_address(url):
    with pytest.raises(EngineError, match="not an http address"):
        OpenAI({2: url})


def test_a_length_without_a_server():
    with running() as engine, pytest.raises(UsageError, match=r"no server is given for a draft of 3.* for 2"):
        list(engine.decode([], draft=3, concurrency=1))


def test_an_iterator_that_is_closed_early_cancels():
    with running() as engine:
        steps = engine.decode([EngineRequest((1,), 2000)] * 4, draft=2, concurrency=2)
        assert next(steps).prefill
        steps.close()
        assert len(decoded(engine)) == sum(len(due) for due in expected())


def test_a_server_that_stays_busy(monkeypatch):
    monkeypatch.setattr(completions_client, "FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(fake_engine.Handler, "busy", 10**6)
    with (
        running("busy", timeout_s=0.05) as engine,
        pytest.raises(EngineError, match="503 Service Unavailable: loading"),
    ):
        decoded(engine)


# --- records and traces


def recorded(engine, work, **more):
    requests = [EngineRequest(prompt, 20) for prompt in PROMPTS]
    return record_run(engine, requests, draft=2, concurrency=2, work=work, settings={"a": 1}, **more)


def test_a_run_that_breaks_off_resumes(tmp_path):
    work = tmp_path / "t.npz.work"
    with running() as engine:
        whole = recorded(engine, tmp_path / "whole")
        recorded(engine, work)
    lines = work.read_text().splitlines(keepends=True)
    work.write_text("".join(lines[:3]) + lines[3][:7])
    kept = [json.loads(line)["request"] for line in lines[1:3]]
    with running("closes") as engine, pytest.raises(EngineError, match=r"2 of 4 requests are kept in .*--resume"):
        recorded(engine, work, resume=True)
    with running() as engine, pytest.raises(UsageError, match="holds an interrupted run: add --resume"):
        recorded(engine, work)
    seen = []
    with running() as engine:
        assert recorded(engine, work, resume=True, progress=seen.append) == whole
    assert seen == [len(kept), 1, 1]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"request": 0, "committed": [1, 0]}', "`committed` must be 1 or more, found 0"),
        ('{"request": 0, "committed": []}', "one entry per step"),
        ('{"request": 0, "committed": [1, 2], "tokens": [3]}', "1 `tokens`, 3 committed"),
        ('{"request": 0, "committed": [1, 2], "drafted": [0]}', "one entry per step"),
        ('{"committed": [1]}', "`request`"),
        ("[]", "request"),
        ("{", "not JSON"),
    ],
)
def test_a_broken_file_of_a_run_is_refused(tmp_path, line, message):
    work = tmp_path / "work"
    work.write_text('{"schema": "treeopt.engine_run/1", "settings": {"a": 1}}\n' + line + "\n")
    with running() as engine, pytest.raises(UsageError, match=message):
        recorded(engine, work, resume=True)


def test_a_run_of_other_settings_is_refused(tmp_path):
    work = tmp_path / "work"
    head = '{"schema": "treeopt.engine_run/1", "settings": {"a": 2}}\n'
    work.write_text(head + '{"request": 0, "committed": [1, 2]}\n')
    with running() as engine, pytest.raises(UsageError, match="other settings or prompts"):
        recorded(engine, work, resume=True)


def test_a_run_that_kept_nothing_begins_again(tmp_path):
    work = tmp_path / "work"
    work.write_text('{"schema": "treeopt.engine_run/1", "settings": {"a": 2}}\n')
    with running() as engine:
        assert len(recorded(engine, work)) == len(PROMPTS)


def test_a_trace_of_a_run_replays_to_its_steps():
    with running() as engine:
        records = recorded(engine, None)
    trace = visited_trace(records, depth=2, meta={})
    counts = replay_tree(Tree.chain(2), trace)
    assert counts.committed.tolist() == [sum(record.committed[1:]) for record in records]
    assert counts.steps.tolist() == [len(record.committed) - 1 for record in records]


def test_a_step_at_every_anchor():
    """The fake engine's first step after any prefill accepts nothing, so every anchor does."""
    with running() as engine:
        records = recorded(engine, None)
        trace = every_anchor_trace(engine, PROMPTS, records, depth=2, concurrency=2, meta={})
    assert trace.anchors == sum(sum(record.committed) - 1 for record in records)
    assert (trace.rank != 0).all()
