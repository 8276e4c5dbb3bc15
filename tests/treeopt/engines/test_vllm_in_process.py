"""vLLM in one process: against a recording of the real worker, against workers that misbehave, and the real engine."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.benchmarks.openvino_runs import RECORDINGS, asked, texts
from tests.benchmarks.server_runs import models
from tests.benchmarks.vllm_worker_runs import DRAFTS, NAME, driver, recorded
from tests.helpers.engine_setups import ENGINES, ENVIRONMENT, SETUPS
from tests.helpers.worker_exchanges import interpreter, replayer
from treeopt.engines.driver import DriverSettings
from treeopt.engines.vllm.driver import VLLM, environment
from treeopt.engines.vllm.in_process import InProcess, start
from treeopt.errors import EngineError, UsageError
from treeopt.policies import DynamicTree

PYTHON = ENGINES / SETUPS["vllm"].python
READY = {"event": "ready", "protocol": 1, "version": "0.32.0", "device": "cpu"}


def test_one_launch_decodes_every_length_and_says_what_each_step_drafted(tmp_path):
    runs = recorded(replayer(tmp_path, RECORDINGS / f"{NAME}.jsonl"))
    assert len({tuple(tuple(text.tokens) for text in run) for run in runs}) == 1
    for (draft, _), run in zip(DRAFTS, runs, strict=True):
        for text in run:
            first, *others = text.steps
            assert (first.prefill, first.committed, first.drafted) == (True, 1, 0)
            assert {step.drafted for step in others} == {draft}
            assert max(step.committed for step in others) <= draft + 1
            assert [step.ended for step in text.steps] == [False] * len(others) + [True]


def test_plain_decoding_is_a_launch_of_its_own_and_heads_take_one_per_length():
    settings = DriverSettings("vllm", "t", drafter="d", method="eagle3", python=Path(sys.executable))
    eagle, medusa = InProcess(settings), InProcess(replace(settings, method="medusa"))
    assert [eagle.launch(draft) for draft in (0, 1, 5)] == ["plain", "drafting", "drafting"]
    assert len({medusa.launch(draft) for draft in (0, 1, 5)}) == 3
    assert eagle.alive == 1  # a name of the hub: nobody knows its size
    parallel = InProcess(replace(settings, method='{"method": "eagle3", "parallel_drafting": true}'))
    assert len({parallel.launch(draft) for draft in (0, 1, 5)}) == 3
    for one_length in (medusa, parallel):
        assert "num_speculative_tokens_per_batch_size" not in " ".join(one_length.arguments(3))


def test_servers_are_launched_where_they_are_asked_for_and_where_vllm_is_not_built_for_cpus(tmp_path):
    settings = DriverSettings("vllm", "t", python=Path(sys.executable))  # without vLLM
    assert isinstance(start(settings), VLLM)
    cpu = replace(settings, python=interpreter(tmp_path, "print('cpu')"))
    assert isinstance(start(cpu), InProcess)
    assert isinstance(start(replace(cpu, servers=1)), VLLM)


def test_the_cache_is_a_share_of_the_memory_unless_it_is_set(monkeypatch):
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    assert 1 <= int(environment()["VLLM_CPU_KVCACHE_SPACE"]) < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "7")
    assert environment()["VLLM_CPU_KVCACHE_SPACE"] == "7"


def test_an_engine_that_fails_shows_its_words_and_keeps_its_log(tmp_path):
    error = {"event": "error", "message": "Available memory on node 0 is less than desired"}
    script = f"import json, sys\nfor each in {[READY, error]!r}:\n    print(json.dumps(each), flush=True)\n"
    script += "    sys.stdin.readline()\nprint('the whole story', file=sys.stderr, flush=True)\nsys.stdin.read()"
    with driver(interpreter(tmp_path, script)) as engine:
        with pytest.raises(EngineError, match=r"^vLLM: Available memory on node 0 .* \(its log: (.*)\)$") as failed:
            texts(engine, asked(), 2, 1)
        log = Path(str(failed.value).rpartition("(its log: ")[2].removesuffix(")"))
        assert "the whole story" in log.read_text("utf-8")
        log.unlink()


def test_trees_and_drafts_without_a_drafter_are_refused():
    with driver(Path(sys.executable)) as engine, pytest.raises(UsageError, match="chains, not trees"):
        engine.decode(asked(), draft=DynamicTree(nodes=4, depth=2, beam=2), concurrency=1)
    plain = InProcess(DriverSettings("vllm", "t", python=Path(sys.executable)))
    with pytest.raises(UsageError, match="needs a drafter for a draft of 2"):
        plain.decode(asked(), draft=2, concurrency=1)


@pytest.mark.engines
@pytest.mark.skipif(not PYTHON.exists(), reason="needs .engines/vllm")
def test_the_engine_still_decodes_as_recorded(tmp_path, monkeypatch):
    for variable, value in ENVIRONMENT.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.chdir(models())
    before = recorded(replayer(tmp_path, RECORDINGS / f"{NAME}.jsonl"))
    with driver(PYTHON) as engine:
        engine.longest = 3
        now = [texts(engine, asked(), draft, concurrency) for draft, concurrency in DRAFTS]
        plain = texts(engine, asked(), 0, 3)
        assert engine.launches == 2
    assert [[text.committed for text in run] for run in now] == [[text.committed for text in run] for run in before]
    assert [text.tokens for text in plain] == [text.tokens for text in now[0]]
