"""The OpenVINO driver with the real engine, run by `make engines`: exact texts, cancelling, failures."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.benchmarks.openvino_runs import (
    DRAFTER,
    EAGLE3,
    EXACT,
    PYTHON,
    RECORDINGS,
    RUNS,
    TARGET,
    models,
    prompts,
    recorded,
    settings,
    texts,
)
from tests.helpers.worker_exchanges import recorder
from treeopt.engines.driver import EngineRequest
from treeopt.engines.openvino.driver import OpenVino
from treeopt.errors import EngineError
from treeopt.policies import DynamicTree

pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(not PYTHON.exists(), reason=f"needs {'/'.join(PYTHON.parts[-4:])} with openvino-genai"),
]
REQUESTS = 8
DRAFTERS = {"lookup": {"method": "prompt-lookup:3"}, "draft-model": {"drafter": DRAFTER}}


@pytest.fixture(scope="module")
def folder() -> Path:
    try:
        return models()
    except FileNotFoundError as missing:
        pytest.skip(f"needs {missing}")


@pytest.fixture(autouse=True)
def there(folder, monkeypatch) -> None:
    """Stand in the folder of the models, so that drivers name them as the recordings do."""
    monkeypatch.chdir(folder)


def asked(new_tokens: int = 32) -> list[EngineRequest]:
    return [EngineRequest(tokens, new_tokens, ignore_stop=True) for tokens in prompts(REQUESTS, 100)]


@pytest.mark.parametrize("options", DRAFTERS.values(), ids=DRAFTERS)
def test_greedy_texts_equal_plain_ones_and_accepted_lengths_do_not_depend_on_the_batch(options):
    with OpenVino(settings(PYTHON, TARGET, arguments=EXACT, **options)) as engine:
        plain = texts(engine, asked(), 0, 4)
        assert [len(text.tokens) for text in plain] == [32] * REQUESTS
        for length in (1, 5):
            alone, together = (texts(engine, asked(), length, concurrency) for concurrency in (1, 4))
            for text, one, four in zip(plain, alone, together, strict=True):
                assert one.tokens == four.tokens == text.tokens
                assert sum(one.committed) == sum(four.committed) == 32
                assert one.committed == four.committed
                assert max(one.committed) <= length + 1


def test_committed_tokens_are_those_of_the_engine_s_own_counters():
    """`m_batch_sizes` of the engine's blocking call, one request at a time."""
    request = asked()[0]
    script = f"""
import json, openvino, openvino_genai as genai
properties = dict(word.split("=") for word in {EXACT!r}.split())
properties["draft_model"] = genai.draft_model({DRAFTER!r}, "CPU")
pipeline = genai.ContinuousBatchingPipeline({TARGET!r}, genai.SchedulerConfig(), "CPU", properties)
config = genai.GenerationConfig(max_new_tokens=32, ignore_eos=True, num_assistant_tokens=5)
(result,) = pipeline.generate([openvino.Tensor([{list(request.tokens)}])], [config])
metrics = result.extended_perf_metrics
print(json.dumps([list(metrics.main_model_metrics.raw_metrics.m_batch_sizes), metrics.get_num_accepted_tokens()]))
"""
    done = subprocess.run([PYTHON, "-c", script], capture_output=True, text=True, check=True)
    sizes, accepted = json.loads(done.stdout)
    with OpenVino(settings(PYTHON, TARGET, arguments=EXACT, drafter=DRAFTER)) as engine:
        (text,) = texts(engine, [request], 5, 1)
    assert text.committed == sizes
    assert sum(text.committed) - len(text.committed) == accepted


def test_an_iterator_closed_early_cancels_and_the_next_run_is_exact():
    with OpenVino(settings(PYTHON, TARGET, arguments=EXACT, drafter=DRAFTER)) as engine:
        plain = texts(engine, asked(), 0, 4)
        steps = engine.decode(asked(400), draft=3, concurrency=4)
        for _ in range(10):
            next(steps)
        steps.close()
        assert [text.tokens for text in texts(engine, asked(), 3, 4)] == [text.tokens for text in plain]
        with pytest.raises(EngineError, match="EAGLE-3 drafter only, and stdlib-llama-3-layers is none"):
            texts(engine, asked(), DynamicTree(nodes=6, depth=3, beam=2), 1)  # the engine itself emits another text


def test_a_worker_killed_in_the_middle_gives_one_line_and_leaves_nothing():
    with OpenVino(settings(PYTHON, TARGET, arguments=EXACT)) as engine:
        steps = engine.decode(asked(400), draft=0, concurrency=2)
        next(steps)
        pid = engine._worker.process.pid
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(EngineError, match=r"^the OpenVINO GenAI worker was killed by SIGKILL$"):
            list(steps)
        with pytest.raises(ProcessLookupError):
            os.killpg(pid, 0)


def test_trees_decode_the_plain_text_in_fewer_steps_than_a_chain():
    with OpenVino(settings(PYTHON, TARGET, arguments=EXACT, drafter=EAGLE3)) as engine:
        plain = [text.tokens for text in texts(engine, asked(), 0, 4)]
        steps = {}
        for name, draft in (("chain", 4), ("tree", DynamicTree(nodes=12, depth=4, beam=3))):
            alone = texts(engine, asked(), draft, 1)
            assert [text.tokens for text in alone] == plain
            assert max(max(text.committed) for text in alone) <= 5
            steps[name] = sum(len(text.committed) for text in alone)
    assert steps["tree"] < steps["chain"]


@pytest.mark.parametrize("name", RUNS)
def test_the_engine_still_answers_as_recorded(tmp_path, name):
    """The same orders and the same tokens; times differ, and how many steps pass before a cancel."""
    recorded(name, recorder(tmp_path, tmp_path / "now.jsonl", PYTHON))
    before = (RECORDINGS / f"{name}.jsonl").read_text("utf-8").splitlines()[1:]
    now = (tmp_path / "now.jsonl").read_text("utf-8").splitlines()
    assert essence(now) == essence(before)


def essence(lines: list[str]) -> list[str]:
    """Return the exchange without times, and without the steps of the run that is cancelled."""
    kept = []
    for line in lines:
        ((kind, message),) = json.loads(line).items()
        message.pop("at_s", None)
        kept.append(json.dumps([kind, message]))
    cancelled = [number for number, line in enumerate(kept) if '"cancel"' in line]
    if cancelled:
        last = max(number for number, line in enumerate(kept) if '"decode"' in line)
        kept = kept[: last + 1]
    return kept
