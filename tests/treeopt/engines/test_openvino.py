"""The OpenVINO driver: against recordings of the real worker, and against workers that misbehave."""

import itertools
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.benchmarks.openvino_runs import RECORDINGS, recorded
from tests.helpers.worker_exchanges import interpreter, replayer
from treeopt.engines.driver import DriverSettings, EngineRequest, EngineStep
from treeopt.engines.openvino.driver import OpenVino
from treeopt.errors import EngineError
from treeopt.policies import DynamicTree

PYTHON = Path(sys.executable)
READY = {"event": "ready", "protocol": 1, "openvino_genai": "2026.4.1.0", "openvino": "2026.4.1"}
REQUEST = EngineRequest((5, 6, 7), 4)
STEP = {"event": "step", "at_s": 0.1, "rows": [[0, [8], False]]}
LOADED = {"event": "loaded", "pipeline": "plain"}
WAITS = "sys.stdin.read()"


def worker(folder: Path, *answers: dict | None, then: str = WAITS) -> Path:
    """An interpreter that writes its answers one by one; None waits for an order."""
    return interpreter(
        folder,
        f"""
import json, os, signal, sys, time
for answer in {answers!r}:
    if answer is None:
        sys.stdin.readline()
    else:
        print(json.dumps(answer), flush=True)
{then}
""",
    )


def driver(python: Path, target: str = "target", *, grace_s: float = 5, timeout_s: float = 10, **options) -> OpenVino:
    settings = DriverSettings("openvino", target, python=python, timeout_s=timeout_s, **options)
    return OpenVino(settings, grace_s=grace_s)


def decoded(engine: OpenVino, draft=0) -> list[EngineStep]:
    return list(engine.decode([REQUEST], draft=draft, concurrency=1))


# --- recordings of the real worker


@pytest.mark.parametrize("name", ["openvino-lookup", "openvino-draft-model", "openvino-eagle3"])
def test_recorded_steps_add_up_to_the_same_text_for_every_draft_and_concurrency(tmp_path, name):
    plain, *drafted = recorded(name, replayer(tmp_path, RECORDINGS / f"{name}.jsonl"))
    assert [len(text.tokens) for text in plain] == [12, 12, 12]
    assert [step.drafted for text in plain for step in text.steps] == [0] * 36
    for texts in drafted:
        assert [text.tokens for text in texts] == [text.tokens for text in plain]
        assert max(max(text.committed) for text in texts) > 1
        for text in texts:
            assert sum(text.committed) == 12
            assert max(text.committed) <= 4  # 3 drafted on a path, and the target's own
            first, *others = text.steps
            assert (first.prefill, first.committed, first.drafted) == (True, 1, 0)
            assert {(step.prefill, step.drafted) for step in others} == {(False, None)}
            assert [step.ended for step in text.steps] == [False] * len(others) + [True]
    for texts in (plain, *drafted):
        times = [step.at_s for text in texts for step in text.steps]
        assert min(times) > 0
        assert all(a.at_s < b.at_s for text in texts for a, b in itertools.pairwise(text.steps))


@pytest.mark.parametrize("name", ["openvino-lookup", "openvino-draft-model"])
def test_accepted_lengths_do_not_depend_on_the_concurrency(tmp_path, name):
    _, alone, together = recorded(name, replayer(tmp_path, RECORDINGS / f"{name}.jsonl"))
    assert [text.committed for text in alone] == [text.committed for text in together]


def test_a_folder_without_a_model_gives_the_engine_s_words_in_one_line(tmp_path):
    python = replayer(tmp_path, RECORDINGS / "openvino-no-model.jsonl")
    with driver(python, ".") as engine:
        assert (engine.meta["openvino_genai"][:10], engine.meta["openvino"][:8]) == ("2026.4.1.0", "2026.4.1")
        with pytest.raises(EngineError, match=r"^OpenVINO GenAI: Could not find a model in the directory '\"\.\"'$"):
            decoded(engine)


def test_an_order_that_is_not_the_recorded_one_fails(tmp_path):
    """So that a changed driver needs new recordings."""
    with (
        driver(replayer(tmp_path, RECORDINGS / "openvino-no-model.jsonl")) as engine,
        pytest.raises(EngineError, match="exited with code 9: the recording has the order"),
    ):
        decoded(engine)


# --- workers that misbehave


@pytest.mark.parametrize(
    ("answers", "then", "message"),
    [
        ([], "sys.exit('no memory')", "exited with code 1: no memory"),
        ([READY | {"protocol": 2}], WAITS, "must speak protocol 1, it opened with .*'protocol': 2.*"),
    ],
)
def test_a_worker_that_does_not_start(tmp_path, answers, then, message):
    engine = driver(worker(tmp_path, *answers, then=then), grace_s=0.1)
    with pytest.raises(EngineError, match=f"^the OpenVINO GenAI worker {message}$"):
        engine.__enter__()


def test_an_interpreter_without_the_engine_names_what_to_install():
    """This test's own interpreter is such a one."""
    with pytest.raises(EngineError, match=r"cannot import OpenVINO GenAI \(.*\); there, run: pip install openvino-gen"):
        driver(Path(sys.executable)).__enter__()


@pytest.mark.parametrize(
    ("answers", "then", "message"),
    [
        ([STEP], "os.kill(os.getpid(), signal.SIGKILL)", "the .* worker was killed by SIGKILL"),
        ([STEP, {"event": "step?"}], WAITS, ".* which its protocol does not know"),
        ([{"event": "done"}], WAITS, ".* ended without a token for request 0"),
        (
            [STEP, {"event": "step", "at_s": 0.2, "rows": [[0, [], True]]}],
            "sys.stdin.readline(); print(json.dumps({'event': 'cancelled'}), flush=True); sys.stdin.read()",
            "OpenVINO GenAI gave up request 0 after 1 steps: its cache has no room; lower the concurrency",
        ),
    ],
    ids=["killed", "unknown-answer", "no-steps", "gives-up"],
)
def test_a_worker_that_fails_while_it_decodes(tmp_path, answers, then, message):
    python = worker(tmp_path, READY, None, LOADED, None, *answers, then=then)
    with driver(python) as engine, pytest.raises(EngineError, match=f"^{message}$"):
        decoded(engine)


def test_a_worker_that_hangs_in_the_middle_and_ignores_sigterm(tmp_path):
    pid = tmp_path / "pid"
    then = f"signal.signal(signal.SIGTERM, signal.SIG_IGN); open({str(pid)!r}, 'w').write(str(os.getpid()))"
    python = worker(tmp_path, READY, None, LOADED, None, STEP, then=then + "\ntime.sleep(60)")
    with driver(python, timeout_s=0.5, grace_s=0.1) as engine:
        steps = engine.decode([REQUEST], draft=0, concurrency=1)
        assert next(steps).tokens == (8,)
        with pytest.raises(EngineError, match=r"has not answered for 0\.5 s"):
            next(steps)
        first = int(pid.read_text())
        assert next(engine.decode([REQUEST], draft=0, concurrency=1)).tokens == (8,)  # of a new worker
    for number in (first, int(pid.read_text())):
        with pytest.raises(ProcessLookupError):
            os.kill(number, 0)
    with pytest.raises(EngineError, match="worker does not run; start it with `with`"):
        decoded(engine)


def test_after_an_error_the_pipeline_is_loaded_again(tmp_path):
    error = {"event": "error", "message": "Exception from /src/utils.cpp:500:\nbad token\n\n"}
    last = {"event": "step", "at_s": 0.2, "rows": [[0, [1, 2, 3, 4], True]]}
    answers = (READY, None, LOADED, None, error, None, LOADED, None, last, {"event": "done"})
    with driver(worker(tmp_path, *answers)) as engine:
        with pytest.raises(EngineError, match=r"^OpenVINO GenAI: bad token$"):
            decoded(engine)
        assert [step.committed for step in decoded(engine)] == [4]


def test_a_tree_is_refused_unless_the_loaded_drafter_is_an_eagle3_head(tmp_path):
    loaded = {"event": "loaded", "pipeline": "drafting", "eagle3": False}
    with (
        driver(worker(tmp_path, READY, None, loaded), drafter="drafter") as engine,
        pytest.raises(EngineError, match="drafts trees with an EAGLE-3 drafter only, and drafter is none"),
    ):
        decoded(engine, DynamicTree(3, 2, 2))


def test_two_iterators_at_a_time_are_refused(tmp_path):
    answers = (READY, None, LOADED, None, STEP, None, {"event": "cancelled"})
    with driver(worker(tmp_path, *answers)) as engine:
        steps = engine.decode([REQUEST], draft=0, concurrency=1)
        next(steps)
        with pytest.raises(EngineError, match="one set of requests at a time; close the open iterator first"):
            decoded(engine)
        steps.close()


# --- settings that the engine cannot run

MODEL, LOOKUP = {"drafter": "drafter"}, {"method": "prompt-lookup:3"}
TREE = DynamicTree(nodes=4, depth=2, beam=2)


@pytest.mark.parametrize(
    ("settings", "draft", "requests", "message"),
    [
        (MODEL, -1, [REQUEST], "a draft length must be at least 0, got -1"),
        (MODEL, replace(TREE, width=3), [REQUEST], "no setting for width of a dynamic tree; it must be 2"),
        (MODEL, replace(TREE, min_probability=0.1), [REQUEST], "no setting for min_probability .* must be 0"),
        (MODEL, TREE, [REQUEST] * 2, "one of several requests with trees ends; decode with concurrency 1"),
        (LOOKUP, TREE, [REQUEST], "looks up chains, no trees; give a draft length"),
        ({}, 2, [REQUEST], "needs a drafter for a draft of 2: give --engine-drafter, or --method prompt-lookup"),
        ({}, 0, [REQUEST, EngineRequest((), 4)], "request 1 needs at least 1 prompt token and 1 new token, got 0 and"),
    ],
)
def test_what_the_engine_cannot_run_is_refused_before_it_starts(settings, draft, requests, message):
    with pytest.raises(EngineError, match=message):
        driver(PYTHON, **settings).decode(requests, draft=draft, concurrency=2)
    with pytest.raises(EngineError, match="concurrency must be at least 1, got 0"):
        driver(PYTHON).decode([REQUEST], draft=0, concurrency=0)
