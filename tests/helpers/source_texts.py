"""Outputs of engines as they write them, all of the same 2000 steps, and how they are read.

The forms follow vllm/benchmarks/serve.py and vllm/v1/metrics/reader.py of vLLM 0.32.0, AIPerf 0.13.0 and SGLang's log.
"""

import json
from types import SimpleNamespace

from tests.helpers.command_line import done, refused, run
from treeopt.traces.importers.trace_source import read_output
from treeopt.traces.trace_files import load_trace


def bring(tmp_path, source, kind, *more):
    """The trace that the command makes."""
    result = done("trace", "import", source, "--format", kind, "--output", tmp_path / "out.npz", "--force", *more)
    return load_trace(tmp_path / "out.npz"), result.stderr


def turned_away(tmp_path, source, kind, *more, words, code=1):
    refused(run("trace", "import", source, "--format", kind, "--output", tmp_path / "no.npz", *more), *words, code=code)
    assert not (tmp_path / "no.npz").exists()


def reading(text, *, before=None, **settings):
    """The reading of a text: its kind, its chain and the engine."""
    source, chain = read_output(text, settings, before=before)
    return SimpleNamespace(kind=source.name, chain=chain, engine=chain.engine)


def chain_of(text, *, before=None, **settings):
    return read_output(text, settings, before=before)[1]


SERVE = {
    "endpoint_type": "openai-chat",
    "max_concurrency": 4,
    "spec_decode_acceptance_rate": 60.0,
    "spec_decode_acceptance_length": 2.8,
    "spec_decode_num_drafts": 2000,
    "spec_decode_draft_tokens": 6000,
    "spec_decode_accepted_tokens": 3600,
    "spec_decode_per_position_acceptance_rates": [0.8, 0.6, 0.4],
}
LABELS = {"engine": "0", "model_name": "m"}
METRICS = [
    {"name": "vllm:num_requests_running", "labels": LABELS, "value": 0.0},
    {"name": "vllm:spec_decode_num_drafts", "labels": LABELS, "value": 2000},
    {"name": "vllm:spec_decode_num_draft_tokens", "labels": LABELS, "value": 6000},
    {"name": "vllm:spec_decode_num_accepted_tokens", "labels": LABELS, "value": 3600},
    {"name": "vllm:spec_decode_num_accepted_tokens_per_pos", "labels": LABELS, "values": [1600, 1200, 800]},
]
HISTOGRAM = {"0": 400, "1": 400, "2": 400, "3": 800}
AIPERF = {
    "engine": "vllm",
    "acceptance_histogram": HISTOGRAM,
    "num_accepted_draft_tokens": 3600,
    "num_draft_tokens": 6000,
    "num_spec_steps": 2000,
    "num_spec_tokens": 3,
}
RESPONSE = json.dumps(
    {"choices": [], "metrics": {"speculative_decoding": AIPERF | {"acceptance_histogram": [400, 400, 400, 800]}}}
)
SGLANG_LINE = (
    "[2026-02-06 23:42:16] Finish: obj=GenerateReqInput(rid='a', stream=True), out={'meta_info': {'id': 'a', "
    "'spec_accept_rate': 0.6, 'spec_accept_length': 2.8, 'spec_accept_histogram': [400, 400, 400, 800], "
    "'spec_verify_ct': 2000}}\n"
)
META = json.dumps({"id": "a", "spec_verify_ct": 2000, "spec_correct_drafts_histogram": [400, 400, 400, 800]})
COUNTS = [("num_drafts", None, 2000), ("num_draft_tokens", None, 6000), ("num_accepted_tokens", None, 3600)]
COUNTS += [("num_accepted_tokens_per_pos", n, count) for n, count in enumerate((1600, 1200, 800))]


def labelled(position):
    return 'engine="0",model_name="m"' + ("" if position is None else f',position="{position}"')


PROMETHEUS = "".join(
    f"vllm:spec_decode_{name}_total{{{labelled(position)}}} {count}.0\n" for name, position, count in COUNTS
)
LOG = "".join(
    f"INFO 11-25 10:00:{n}0 [metrics.py:96] SpecDecoding metrics: Mean acceptance length: 2.80, Accepted throughput: "
    "72.0 tokens/s, Drafted throughput: 120.0 tokens/s, Accepted: 720 tokens, Drafted: 1200 tokens, Per-position "
    "acceptance rate: 0.800, 0.600, 0.400, Avg Draft acceptance rate: 60.0%\n"
    for n in range(5)
)
