"""The drivers of vLLM, SGLang and llama.cpp against recordings of their real servers: launches, requests and steps."""

import json
from functools import cache
from itertools import pairwise

import pytest

from tests.benchmarks.openvino_runs import RECORDINGS
from tests.benchmarks.server_runs import LENGTH, NEW_TOKENS, RUNS, decoded, in_place_of, models
from tests.helpers.engine_setups import ENGINES, ENVIRONMENT, SETUPS
from tests.helpers.server_exchanges import launches
from treeopt.engines.connections.completions_client import Chunk
from treeopt.engines.vllm.driver import statistics_of
from treeopt.errors import EngineError
from treeopt.storage.provenance import look


@pytest.fixture(scope="module")
def replayed(tmp_path_factory):
    """The steps of every recorded run, by name; a launch or request that is not as recorded fails."""

    @cache
    def steps(name):
        run, folder = RUNS[name], tmp_path_factory.mktemp("replay")
        return decoded(run, in_place_of(run, folder, "replay", str(RECORDINGS / f"{name}.jsonl")))

    return steps


def totals(name):
    """Accepted and drafted tokens of all requests with drafts, as the server's own last chunks count them."""
    accepted = drafted = 0
    for launch in launches(RECORDINGS / f"{name}.jsonl"):
        for exchange in launch["exchanges"]:
            records = [json.loads(data) for _, data in exchange.get("events", ()) if data != "[DONE]"]
            for record in records:
                counts = look(record, "metrics", "speculative_decoding")
                if counts:
                    accepted += sum(counts["per_step_accepted"])
                    drafted += sum(counts["per_step_drafted"])
            if records and "meta_info" in records[-1]:
                accepted += records[-1]["meta_info"].get("spec_num_correct_drafts", 0)
                drafted += records[-1]["meta_info"].get("spec_num_proposed_drafts", 0)
            if records and "timings" in records[-1]:
                accepted += records[-1]["timings"].get("draft_n_accepted", 0)
                drafted += records[-1]["timings"].get("draft_n", 0)
    return accepted, drafted


@pytest.mark.parametrize("name", RUNS)
def test_every_run_decodes_the_same_texts_in_whole_steps(replayed, name):
    """All engines, greedy and in float32."""
    plain = replayed("llama-server-eagle3")[0]
    for rows in replayed(name):
        texts = [[token for step in steps for token in step.tokens] for steps in rows]
        assert [len(text) for text in texts] == [NEW_TOKENS] * 3
        assert texts == [[token for step in steps for token in step.tokens] for steps in plain]
    for (draft, _), rows in zip(RUNS[name].settings, replayed(name), strict=True):
        for steps in rows:
            assert [(step.prefill, step.committed) for step in steps[:1]] == [(True, 1)]
            assert not any(step.prefill for step in steps[1:])
            assert [step.ended for step in steps] == [False] * (len(steps) - 1) + [True]
            assert all(before.at_s <= after.at_s for before, after in pairwise(steps))
            assert all(step.committed <= (step.drafted or 0) + 1 <= draft + 1 for step in steps)


@pytest.mark.parametrize("name", RUNS)
def test_acceptance_adds_up_to_the_server_s_own_counts(replayed, name):
    """vLLM and SGLang count acceptance beyond the last token that was asked for; llama.cpp does not draft it."""
    steps = [step for some in replayed(name)[-1] for step in some if not step.prefill]
    accepted, drafted = totals(name)
    assert sum(step.drafted for step in steps) == drafted
    beyond = 0 if RUNS[name].engine == "llama.cpp" else LENGTH * sum(step.ended for step in steps)
    assert accepted - beyond <= sum(step.committed - 1 for step in steps) <= accepted
    assert 0 < accepted < drafted


@pytest.mark.parametrize(
    ("name", "expected"), [("vllm-ngram", True), ("llama-server-ngram", True), ("vllm-eagle3", False)]
)
def test_steps_without_a_draft_are_seen(replayed, name, expected):
    steps = [step for row in replayed(name)[-1] for step in row]
    assert any(step.drafted == 0 and not step.prefill and not step.ended for step in steps) == expected


def test_a_request_that_was_not_recorded_is_named(tmp_path):
    """The recordings can fail."""
    name = "llama-server-ngram"
    run = RUNS[name]
    lines = (RECORDINGS / f"{name}.jsonl").read_text("utf-8").replace(f'"n_predict": {NEW_TOKENS}', '"n_predict": 99')
    (tmp_path / "other.jsonl").write_text(lines, "utf-8")
    with pytest.raises(EngineError, match="the recording has no such request to /completion"):
        decoded(run, in_place_of(run, tmp_path, "replay", str(tmp_path / "other.jsonl")))


@pytest.mark.engines
@pytest.mark.parametrize("name", RUNS)
def test_the_servers_still_answer_as_recorded(replayed, monkeypatch, name):
    """The same tokens in the same steps; times differ."""
    run = RUNS[name]
    python = ENGINES / SETUPS[run.engine].python
    if not python.exists():
        pytest.skip(f"needs {run.engine} below .engines")
    for variable, value in ENVIRONMENT.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.chdir(models())
    now = decoded(run, python)

    def essence(found):
        return [[[(step.tokens, step.drafted) for step in steps] for steps in rows] for rows in found]

    assert essence(now) == essence(replayed(name))


@pytest.mark.parametrize(
    ("accepted", "drafted"),
    [([1, 0], [3]), ("30", [3, 3]), ([1, None], [3, 3]), ([True, 0], [3, 3]), ([9, 0], [3, 3]), ([-1], [3])],
)
def test_statistics_without_sense_end_in_one_line(accepted, drafted):
    record = {"metrics": {"speculative_decoding": {"per_step_accepted": accepted, "per_step_drafted": drafted}}}
    chunk = Chunk(0.0, "", (1,), None, None, "stop", record)
    with pytest.raises(EngineError, match=r"^http://a: `per_step_accepted` and .* must be lists of whole numbers"):
        statistics_of([chunk], where="http://a")
