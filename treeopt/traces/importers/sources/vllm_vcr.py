"""Recordings of vllm-vcr: tokens per chunk of each request, or its sidecar with what each engine step drafted.

A line of the recording has `itl_ms` and `itl_tokens`, the gap before each chunk after the first token and its tokens:
a burst is what a step committed. A line of the sidecar has `spec_decoding_stats`, the counts of vLLM's
`SpecDecodingStats`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from treeopt.errors import TraceError
from treeopt.traces.importers.chain_counts import Chain, chain_from_counts, chain_from_steps
from treeopt.traces.importers.trace_source import Content, Output, TraceSource

BURSTS = (
    "each chunk holds one step: true unless the server joins chunks (`--stream-interval`, a slow client), and then "
    "bursts are longer than the chain"
)
COUNTS = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")


def read_recording(content: Content, *, depth: int | None = None, uneven: bool = False) -> Chain:
    """Return the chain of a recording, each request with its steps in order, or of a sidecar, pooled over steps.

    Args:
        content: JSON lines.
        depth: length of the chain; a recording does not state it.
        uneven: see `chain_counts.chain_from_counts`; for a sidecar.

    Raises:
        TraceError: names the record and the field that is wrong.
    """
    if stats := content.with_key("spec_decoding_stats"):
        return _of_sidecar([record["spec_decoding_stats"] for record in stats], uneven)
    requests = []
    for number, record in enumerate(content.with_key("itl_tokens")):
        tokens = record["itl_tokens"]
        gaps = record.get("itl_ms", tokens)
        if not isinstance(tokens, list) or not all(type(n) is int and n >= 1 for n in tokens):
            raise TraceError(f"record {number}: `itl_tokens` must be a list of counts from 1, found {tokens!r:.60}")
        if not isinstance(gaps, list) or len(gaps) != len(tokens):
            raise TraceError(f"record {number}: `itl_ms` and `itl_tokens` must have one entry per chunk")
        requests.append([count - 1 for count in tokens])
    return chain_from_steps(requests, depth=depth, assumed=(BURSTS,))


def _of_sidecar(stats: list[Any], uneven: bool) -> Chain:
    """Return the chain of the summed counts of all steps."""
    total, accepted = np.zeros(len(COUNTS), dtype=np.int64), np.zeros(0, dtype=np.int64)
    for number, record in enumerate(stats):
        known = record if isinstance(record, Mapping) else {}
        counts = [known.get(name) for name in COUNTS]
        by_position = known.get("num_accepted_tokens_per_pos")
        values = [*counts, *(by_position if isinstance(by_position, list) else [None])]
        if not all(type(value) is int and 0 <= value < 2**40 for value in values):
            raise TraceError(
                f"step {number}: `spec_decoding_stats` must have counts {', '.join(COUNTS)} and "
                f"num_accepted_tokens_per_pos, found {record!r:.60}"
            )
        total += np.array(counts)
        longest = max(len(accepted), len(values) - len(COUNTS))
        here = np.array(values[len(COUNTS) :], dtype=np.int64)
        accepted = np.pad(accepted, (0, longest - len(accepted))) + np.pad(here, (0, longest - len(here)))
    if accepted.sum() != total[2]:
        raise TraceError(f"positions have {accepted.sum()} accepted tokens, `num_accepted_tokens` has {total[2]}")
    steps, drafted, _ = total.tolist()
    return chain_from_counts(accepted.tolist(), steps=steps, draft_tokens=drafted, uneven=uneven)


ENTRY = TraceSource(
    name="vllm-vcr",
    title="a recording of vllm-vcr",
    settings={
        "depth": "length of the chain, for recordings, which do not state it",
        "uneven": "count what short drafts left out as rejected",
        "requests": "most texts that stand for the steps",
        "steps": "number of counted steps, for a check",
    },
    holds=lambda content: bool(content.with_key("itl_tokens", "spec_decoding_stats")),
    chain=read_recording,
    outputs=(Output("vllm-vcr", "steps of each request", "its recording, or its sidecar", first=2),),
)
