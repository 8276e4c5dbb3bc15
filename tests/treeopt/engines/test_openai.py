"""OpenAI-compatible servers: steps from chunks, and one clear line for each way in which a server fails."""

from contextlib import contextmanager
from itertools import pairwise

import pytest

from tests.helpers import fake_engine
from treeopt.engines.connections import completions_client
from treeopt.engines.driver import DriverSettings, EngineRequest
from treeopt.engines.openai.driver import OpenAI
from treeopt.errors import EngineError, UsageError

PROMPTS = [(5, 6), (100,), (200, 201, 202), (300,)]


def at(url, **settings):
    return DriverSettings("openai", ".", urls={2: url}, **settings)


@contextmanager
def running(manner: str = "well", **settings):
    server = fake_engine.serve(manner, 0)
    settings = {"timeout_s": 5} | settings
    try:
        with OpenAI(at(f"http://127.0.0.1:{server.server_port}", **settings)) as engine:
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
        ("hangs", r"nothing within the time limit \(--engine-timeout\)"),
    ],
)
def test_what_fails_is_said_in_one_line(manner, message):
    with (
        running(manner, timeout_s=0.5 if manner == "hangs" else 5) as engine,
        pytest.raises(EngineError, match=message) as caught,
    ):
        decoded(engine)
    assert "\n" not in str(caught.value)


def test_what_is_no_server():
    for url in ("ftp://a", "nothing", "http://"):
        with pytest.raises(EngineError, match="not an http address"):
            OpenAI(at(url))
    with OpenAI(at("http://127.0.0.1:9", timeout_s=1)) as engine:
        with pytest.raises(EngineError, match="cannot be reached"):
            decoded(engine)
        with pytest.raises(UsageError, match=r"no server is given for a draft of 3.* for 2"):
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
        running("busy", timeout_s=2) as engine,
        pytest.raises(EngineError, match="503 Service Unavailable: loading"),
    ):
        decoded(engine)


@pytest.mark.parametrize("manner", ["well", "an error", "closes"])
def test_servers_of_one_length_share_the_requests_and_one_that_fails_is_reported_and_left_out(manner, caplog):
    servers = [fake_engine.serve(manner, 0), fake_engine.serve("well", 0)]
    urls = [f"http://127.0.0.1:{server.server_port}" for server in servers]
    try:
        with OpenAI(at(" ".join(urls), timeout_s=5)) as engine:
            steps = decoded(engine)
    finally:
        for server in servers:
            server.close()
    for number, due in enumerate(expected()):
        assert [list(step.tokens) for step in steps if step.request == number] == due
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == (manner != "well")
    assert all(urls[0] in sentence and "the other servers get its requests" in sentence for sentence in told)


def test_no_server_of_several_answers():
    with OpenAI(at("http://127.0.0.1:1 http://127.0.0.1:2", timeout_s=5)) as engine, pytest.raises(EngineError):
        decoded(engine)
