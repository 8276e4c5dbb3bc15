"""Records of steps in their order, as the engines and vllm-vcr write them."""

import json

import pytest

from tests.helpers.source_texts import bring, chain_of, reading, turned_away
from treeopt.errors import TraceError
from treeopt.replay.static_tree import replay_tree, visit
from treeopt.traces.importers.sources.openvino_steps import step_lists
from treeopt.traces.importers.trace_source import read_output
from treeopt.tree import Tree


def step(task, accepted, drafted, more=""):
    place = f"0.01.234.567 I slot update_slots: id  {task % 4} | task {task}"
    return f"{place} | accepted {accepted:2}/{drafted:2} draft tokens{more}\n"


def timing(task, tokens):
    return f"slot print_timing: id  0 | task {task} |      eval time =   2296.72 ms / {tokens:4} tokens (  8.97 ms)\n"


def release(task):
    return f"slot      release: id  0 | task {task} | stop processing: n_tokens = 275, truncated = 0\n"


def test_llama_trace_lines_of_tasks_that_run_together(tmp_path):
    """Two tasks take turns; the last draft of task 7 is cut at max_tokens; the debug line repeats a step."""
    text = (
        "srv    load_model: LLAMA_TRACE = 1\n"
        + step(0, 1, 5)
        + step(7, 5, 5)
        + "slot update_slots: id  0 | task 0 | accepted 1/5 draft tokens, new n_tokens = 42\n"
        + step(0, 0, 5)
        + step(7, 2, 2)
        + timing(7, 10)
        + release(7)
        + step(0, 3, 5)
        + timing(0, 10)
    )
    chain = chain_of(text)
    assert chain.requests == ((1, 0, 3), (5, 2))
    assert chain.drafted == ((5, 5, 5), (5, 2))
    assert chain.ordered
    assert chain.steps == 5
    assert chain.assumed[0].startswith(
        "12.0% of the tokens that drafts of 5 would have were not drafted (llama.cpp cuts"
    )
    assert chain.assumed[1].startswith("2 of 7 steps drafted nothing; no line says where")
    (tmp_path / "any.name").write_text(text)
    trace, said = bring(tmp_path, tmp_path / "any.name", "engine")
    assert visit(Tree.chain(5), trace).accepted.tolist() == [1, 0, 3, 5, 2]
    assert replay_tree(Tree.chain(5), trace).tau == pytest.approx(1 + 11 / 5)
    assert trace.meta["imported"]["format"] == "llama-trace"
    assert "Assumed: 12.0% of the tokens" in said


def test_a_step_that_llama_cpp_rolled_back_is_counted_once():
    """The accepted tokens are verified again, with one more token: a step without a draft."""
    chain = chain_of(step(0, 2, 5, " (restore checkpoint)") + step(0, 3, 3) + step(0, 3, 3) + step(0, 5, 5))
    assert chain.requests == ((2, 0, 3, 5),)
    assert chain.drafted == ((5, 0, 3, 5),)


def test_a_task_number_that_comes_again_is_another_request():
    assert chain_of(step(0, 1, 3) + release(0) + step(0, 3, 3)).requests == ((1,), (3,))
    with pytest.raises(TraceError, match="request 0, step 0 accepted 4 of 3 drafts"):
        chain_of(step(0, 4, 3) + step(0, 5, 5))
    with pytest.raises(TraceError, match="a step has 5 drafts, more than the depth of 4"):
        chain_of(step(0, 5, 5), depth=4)


METRICS = {
    "draft_model_metrics": {"raw_metrics": {"m_batch_sizes": [1, 1, 1]}},
    "main_model_metrics": {"raw_metrics": {"m_batch_sizes": [1, 4, 1, 6, 2], "m_durations": [9.5, 1.5, 1.5, 1.5, 1.5]}},
}


def test_openvinos_step_lists(tmp_path):
    assert step_lists({"perf": METRICS}) == [[1, 4, 1, 6, 2]]
    chain = chain_of(json.dumps([METRICS, {"m_batch_sizes": [1, 2]}]))
    assert chain.requests == ((3, 0, 5, 1), (1,))
    assert (chain.steps, len(chain.survival), chain.ordered) == (5, 5, True)
    (tmp_path / "steps.jsonl").write_text("\n".join(json.dumps(each) for each in (METRICS, METRICS)))
    trace, said = bring(tmp_path, tmp_path / "steps.jsonl", "engine", "--depth", "6")
    assert (trace.requests, trace.depth) == (2, 6)
    assert visit(Tree.chain(6), trace).accepted.tolist() == [3, 0, 5, 1] * 2
    assert "taken to be the length of the chain" not in said
    with pytest.raises(TraceError, match=r"list 1: m_batch_sizes\[2\] must be the tokens .* found 0"):
        chain_of(json.dumps([{"m_batch_sizes": sizes} for sizes in ([1, 1], [1, 2, 0])]))
    with pytest.raises(TraceError, match="no step was counted"):
        chain_of(json.dumps({"m_batch_sizes": [1]}))


ANSWER = {
    "question_id": 0,
    "category": "writing",
    "choices": [{"index": 0, "turns": ["x", "y"], "decoding_steps": [2, 3], "accept_lengths": [3, 1, 4, 2, 4]}],
}


def test_spec_benchs_answers_have_a_request_for_each_turn(tmp_path):
    (tmp_path / "answers.jsonl").write_text("\n".join([json.dumps(ANSWER)] * 4))
    trace, said = bring(tmp_path, tmp_path / "answers.jsonl", "engine")
    assert trace.requests == 8
    assert visit(Tree.chain(3), trace).accepted.tolist() == [2, 0, 3, 1, 3] * 4
    assert trace.meta["imported"]["format"] == "spec-bench"
    assert "the longest draft that a step accepted is taken to be the length of the chain" in said
    one = chain_of(json.dumps({"accept_lengths": [2, 1], "decoding_steps": [5]}))
    assert one.requests == ((1, 0),)
    for wrong in (0, 1.5, "3", None):
        with pytest.raises(TraceError, match=r"answer 0: accept_lengths\[1\] must be the tokens that a step committed"):
            chain_of(json.dumps({"accept_lengths": [2, wrong]}))
    with pytest.raises(TraceError, match="answer 0: `accept_lengths` must be a list"):
        chain_of(json.dumps({"accept_lengths": 3}))


def test_requests_that_are_recorded_are_not_drawn(tmp_path):
    (tmp_path / "a").write_text(json.dumps(ANSWER))
    turned_away(tmp_path, tmp_path / "a", "engine", "--requests", "9", words=("the file records 2 requests",), code=2)
    turned_away(
        tmp_path, tmp_path / "a", "engine", "--model", "m", words=("--model does not apply to spec-bench",), code=2
    )


def lines(*records):
    return "\n".join(map(json.dumps, records))


RECORDING = lines(
    {"id": "a", "itl_ms": [9.5, 9.1, 9.3], "itl_tokens": [3, 1, 2]}, {"id": "b", "itl_ms": [9.0], "itl_tokens": [4]}
)
STATS = {"num_spec_tokens": 3, "num_drafts": 2, "num_draft_tokens": 6, "num_accepted_tokens": 3}
SIDECAR = lines(
    {"spec_decoding_stats": STATS | {"num_accepted_tokens_per_pos": [2, 1, 0]}},
    {"spec_decoding_stats": STATS | {"num_accepted_tokens_per_pos": [1, 1, 1]}},
)


def test_bursts_are_steps_in_order_and_a_sidecar_is_pooled():
    found = reading(RECORDING)
    assert found.kind == "vllm-vcr"
    assert found.chain.requests == ((2, 0, 1), (3,))
    assert found.chain.ordered
    assert found.chain.survival == (0.75, 0.5, 0.25)
    assert reading(SIDECAR).chain.survival == (0.75, 0.5, 0.25)
    assert reading(SIDECAR).chain.steps == 4


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (lines({"itl_ms": [1], "itl_tokens": [0]}), "record 0: `itl_tokens` must be a list of counts from 1"),
        (lines({"itl_ms": [1, 2], "itl_tokens": [2]}), "must have one entry per chunk"),
        (lines({"spec_decoding_stats": STATS}), "step 0: `spec_decoding_stats` must have counts"),
        (SIDECAR.replace("[2, 1, 0]", "[2, 2, 0]"), "positions have 7 accepted tokens"),
    ],
)
def test_what_contradicts_itself_is_refused(text, words):
    with pytest.raises(TraceError, match=words):
        read_output(text, {})


def test_aiperf_records_are_responses():
    """AIPerf 0.13 keeps a sparse histogram and the steps in order."""
    record = {"engine": "vllm", "mean_acceptance_length": 2.5, "acceptance_histogram": {"0": 1, "2": 1, "1": 1, "3": 1}}
    record |= {"per_step_accepted": [2, 0, 1, 3], "per_step_drafted": [3, 3, 3, 3]}
    found = reading(json.dumps({"metadata": {}, "spec_decode": record}))
    assert (found.kind, found.chain.requests, found.chain.ordered) == ("responses", ((2, 0, 1, 3),), True)
