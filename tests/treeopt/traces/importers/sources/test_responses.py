"""Histograms in responses and in logs: each response is a request, and counts once."""

import json

import pytest

from tests.helpers.source_texts import bring, chain_of
from treeopt.errors import TraceError
from treeopt.replay.static_tree import replay_tree
from treeopt.tree import Tree

SGLANG = {
    "spec_accept_rate": 0.41,
    "spec_accept_length": 2.64,
    "spec_num_correct_drafts": 207,
    "spec_num_proposed_drafts": 625,
    "spec_verify_ct": 125,
    "spec_correct_drafts_histogram": [38, 30, 21, 17, 11, 8],
}


VLLM_RESPONSE = {
    "mean_acceptance_length": 2.4,
    "draft_acceptance_rate": 0.5,
    "acceptance_histogram": [1, 2, 1, 1],
    "num_spec_steps": 5,
    "num_accepted_draft_tokens": 7,
    "num_draft_tokens": 15,
    "num_spec_tokens": 3,
    "per_step_accepted": [3, 0, 1, 2, 1],
    "per_step_drafted": [3, 3, 3, 3, 3],
}


SHARED = ("acceptance_histogram", "num_spec_steps", "num_spec_tokens")
TRTLLM_RESPONSE = {name: VLLM_RESPONSE[name] for name in SHARED}
TRTLLM_RESPONSE |= {"acceptance_rate": 7 / 15, "total_accepted_draft_tokens": 7, "total_draft_tokens": 15}


@pytest.mark.parametrize("response", [VLLM_RESPONSE, TRTLLM_RESPONSE])
@pytest.mark.parametrize("lines", [True, False])
def test_responses_become_requests(tmp_path, response, lines):
    bodies = [{"id": name, "choices": [{"metrics": {"speculative_decoding": response}}]} for name in "abc"]
    bodies.append({"choices": []})
    text = "\n".join(map(json.dumps, bodies)) if lines else json.dumps(bodies)
    (tmp_path / "answers.jsonl").write_text(text)
    trace, said = bring(tmp_path, tmp_path / "answers.jsonl", "responses")
    counts = replay_tree(Tree.chain(3), trace)
    assert counts.steps.tolist() == [5, 5, 5]
    assert counts.tau == pytest.approx(2.4)
    assert counts.accepted_counts.tolist() == [3, 6, 3, 3]
    assert "Assumed: only rank 0 was counted" in said
    if "per_step_accepted" in response:
        assert [(row == 0).sum() for row in trace.rank[[0, 4, 5, 7, 10]]] == [3, 0, 1, 2, 1]


def test_sglangs_responses(tmp_path):
    bodies = [{"meta_info": {"id": name, **SGLANG}} for name in "ab"]
    chunk = {"meta_info": {"id": "a", **SGLANG, "spec_verify_ct": 1, "spec_correct_drafts_histogram": [0, 1]}}
    chunk["meta_info"]["spec_num_correct_drafts"] = 1
    chain = chain_of("\n".join(map(json.dumps, [chunk, *bodies])))
    assert chain.survival == tuple(count / 250 for count in (174, 114, 72, 38, 16))
    assert (chain.steps, len(chain.requests)) == (250, 2)
    assert "ends with the most drafts that a step accepted" in chain.assumed[-1]
    deeper = chain_of(json.dumps(bodies), depth=7)
    assert deeper.survival[5:] == (0.0, 0.0)
    assert chain.assumed[-1] not in deeper.assumed
    old = {key: value for key, value in SGLANG.items() if "histogram" not in key}
    old["spec_accept_histogram"] = SGLANG["spec_correct_drafts_histogram"]
    assert chain_of(json.dumps(old)).survival == chain.survival
    (tmp_path / "r.json").write_text(json.dumps(bodies))
    trace, _ = bring(tmp_path, tmp_path / "r.json", "responses")
    assert replay_tree(Tree.chain(5), trace).tau == pytest.approx(1 + 414 / 250)


def test_uneven_drafts_of_responses():
    uneven = VLLM_RESPONSE | {"per_step_drafted": [3, 3, 1, 2, 1], "num_draft_tokens": 10}
    chain = chain_of(json.dumps(uneven))
    assert chain.survival == (0.8, 2 / 3, 1 / 2)
    assert chain.requests == ()
    kept_as_rejected = chain_of(json.dumps(uneven), uneven=True)
    assert kept_as_rejected.survival == (0.8, 0.4, 0.2)
    assert kept_as_rejected.requests == ((3, 0, 1, 2, 1),)
    summary = {key: value for key, value in uneven.items() if not key.startswith("per_step")}
    with pytest.raises(TraceError, match="10 tokens were drafted in 5 steps of up to 3"):
        chain_of(json.dumps(summary))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"acceptance_histogram": [1, 2, 1, -1]}, "`acceptance_histogram` must be a list of counts"),
        ({"num_spec_steps": 6}, "response 0: num_spec_steps is 6, the histogram has 5"),
        ({"num_spec_tokens": 2}, r"`num_spec_tokens` must be in 3\.\.64, found 2"),
        ({"per_step_accepted": [3, 0, 1, 2, 2]}, "do not fit the histogram"),
        ({"per_step_drafted": [2, 3, 3, 3, 3]}, "a step accepted more than it drafted"),
    ],
)
def test_responses_that_are_not_so(change, message):
    with pytest.raises(TraceError, match=message):
        chain_of(json.dumps(VLLM_RESPONSE | change))


def test_a_stream_of_events_is_read_as_its_chunks():
    chunk = json.dumps(VLLM_RESPONSE)
    lines = [chunk, f"event: message\ndata: {chunk}\n\n: ping\n\ndata: [DONE]\n"]
    plain, stream = (chain_of(text) for text in lines)
    assert stream == plain


EARLY, LATE, OTHER = [2, 1], [10, 5, 3, 2], [0, 0, 1, 19]  # 3 steps, 20 and 20


def sglang(histogram):
    return json.dumps({"text": "x", "meta_info": {"id": "a", "spec_accept_histogram": histogram}})


def vllm_chunk(histogram):
    statistics = {"acceptance_histogram": histogram, "num_spec_tokens": 3}
    return "data: " + json.dumps({"id": "a", "choices": [], "metrics": {"speculative_decoding": statistics}}) + "\n"


def sglext_chunk(histogram):
    statistics = {"spec_tokens_details": {"spec_correct_drafts_histogram": histogram}}
    return "data: " + json.dumps({"id": "a", "choices": [{"index": 0}], "sglext": statistics}) + "\n"


def printed(histogram):
    return repr({"id": "a", "finish_reason": {"type": "stop"}, "spec_accept_histogram": histogram})


def printed_id_last(histogram):
    return repr({"text": "x", "meta_info": {"spec_accept_histogram": histogram, "finish": {"n": {}}, "id": "a"}})


def logged(histogram):
    return f"[10:00:00] Finish: obj=Req(rid='a'), out={{'meta_info': {printed(histogram)}}}"


FORMS = [sglang, vllm_chunk, sglext_chunk, printed, printed_id_last, logged]


@pytest.mark.parametrize("form", FORMS)
def test_the_last_chunk_of_a_stream_counts_and_each_run_of_a_name(form):
    found = chain_of("\n".join(map(form, (EARLY, LATE, LATE))))
    assert (found.steps, len(found.requests)) == (20, 1)
    for histograms in ((LATE, OTHER), (OTHER, LATE), (OTHER, EARLY, LATE)):
        found = chain_of("\n".join(map(form, histograms)))
        assert (found.steps, len(found.requests)) == (40, 2)


def test_choices_of_one_response_are_not_chunks_of_each_other():
    def choices(*numbered):
        inner = [
            {"index": index, "sglext": {"spec_correct_drafts_histogram": histogram}} for index, histogram in numbered
        ]
        return json.dumps({"id": "a", "choices": inner})

    assert chain_of(choices((0, EARLY), (1, LATE))).steps == 23
    chunks = [choices((1, EARLY)), choices((0, EARLY)), choices((0, LATE)), choices((1, LATE))]
    assert len(chain_of("\n".join(chunks)).requests) == 2


def test_responses_printed_on_one_line_have_their_own_names():
    line = "out=" + repr([{"spec_accept_histogram": EARLY, "id": "a"}, {"spec_accept_histogram": LATE, "id": "b"}])
    assert len(chain_of(line).requests) == 2
    assert len(chain_of(f"{line}\n{line}").requests) == 2


def test_steps_that_drafted_nothing_are_those_of_the_tokens_that_are_left():
    """vLLM's suffix decoding: 15 tokens are one of prefill, five steps with their seven drafts, and two steps alone."""
    block = VLLM_RESPONSE | {"per_step_drafted": [3, 1, 3, 2, 1], "num_draft_tokens": 10}
    response = {
        "choices": [{"text": ""}],
        "usage": {"completion_tokens": 15},
        "metrics": {"speculative_decoding": block},
    }
    chain = chain_of(json.dumps(response), uneven=True)
    assert (chain.requests, chain.drafted) == (((3, 0, 1, 2, 1, 0, 0),), ((3, 1, 3, 2, 1, 0, 0),))
    assert (chain.steps, chain.ordered, chain.tau) == (7, False, pytest.approx(2))
    two = response | {"choices": [{"text": ""}] * 2}  # whose tokens these are is not said
    assert chain_of(json.dumps(two), uneven=True).ordered


@pytest.mark.parametrize("per_step", [{}, {"per_step_accepted": [0, 3, 1], "per_step_drafted": [3, 3, 3]}])
def test_an_n_gram_that_drafts_full_lengths_or_nothing_is_counted_over_all_steps(per_step):
    """20 tokens are one of prefill, three steps with their four drafts, and twelve steps alone: tau is 19 / 15."""
    block = {"num_spec_tokens": 3, "num_draft_tokens": 9, "acceptance_histogram": [1, 1, 0, 1]}
    response = {
        "choices": [{}],
        "usage": {"completion_tokens": 20},
        "metrics": {"speculative_decoding": block | per_step},
    }
    chain = chain_of(json.dumps(response))
    assert (chain.steps, chain.tau) == (15, pytest.approx(19 / 15))
    assert [part.count(0) for part in chain.drafted] == [12]
    assert "12 of 15 steps drafted nothing" in chain.assumed[-1]


def test_drafts_of_different_lengths_are_counted_over_the_steps_that_drafted_nothing_too():
    """20 tokens are one of prefill, four steps with their six drafts, and nine steps alone."""
    block = {"num_spec_tokens": 3, "num_draft_tokens": 9, "acceptance_histogram": [1, 1, 1, 1]}
    block |= {"per_step_accepted": [2, 3, 1, 0], "per_step_drafted": [2, 3, 3, 1]}
    response = {"choices": [{}], "usage": {"completion_tokens": 20}, "metrics": {"speculative_decoding": block}}
    chain = chain_of(json.dumps(response))
    assert chain.survival == pytest.approx([share * 4 / 13 for share in (3 / 4, 2 / 3, 1 / 2)])
