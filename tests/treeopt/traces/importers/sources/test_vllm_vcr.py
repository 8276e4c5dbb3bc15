"""Recordings of vllm-vcr: bursts are steps, and the sidecar's counts are pooled."""

import json

import pytest

from tests.helpers.source_texts import reading
from treeopt.errors import TraceError
from treeopt.traces.importers.trace_source import read_output


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


def test_bursts_are_steps_in_order():
    found = reading(RECORDING)
    assert found.kind == "vllm-vcr"
    assert found.chain.requests == ((2, 0, 1), (3,))
    assert found.chain.ordered
    assert found.chain.survival == (0.75, 0.5, 0.25)


def test_a_sidecar_is_pooled():
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
