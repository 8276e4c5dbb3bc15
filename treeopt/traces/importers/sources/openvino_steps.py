"""OpenVINO GenAI's lists of the tokens that each step committed, and so the anchors that the run visited.

Source: `RawPerfMetrics.m_batch_sizes` of OpenVINO GenAI 2026.4.
"""

from typing import Any

from treeopt.traces.importers.chain_counts import LONGEST, Chain, chain_from_steps
from treeopt.traces.importers.source_file import drafts_of_steps
from treeopt.traces.importers.trace_source import Content, Output, TraceSource

BATCH_SIZES = "m_batch_sizes"


def step_lists(value: Any) -> list[list[int]]:
    """Return every list of tokens committed step by step in a JSON value, of target models only.

    >>> step_lists({"main_model_metrics": {"m_batch_sizes": [1, 3]}, "draft_model_metrics": {"m_batch_sizes": [1]}})
    [[1, 3]]
    """
    lists, stack = [], [value]
    while stack:
        inner = stack.pop()
        if isinstance(inner, dict):
            lists += [inner[BATCH_SIZES]] if isinstance(inner.get(BATCH_SIZES), list) else []
            stack += [part for name, part in inner.items() if name not in (BATCH_SIZES, "draft_model_metrics")][::-1]
        elif isinstance(inner, list):
            stack += inner[::-1]
    return lists


def read_steps(content: Content, *, depth: int | None = None) -> Chain:
    """Return the chain of the step lists, each a request; entry 0 is the prefill.

    Raises:
        TraceError: names the list and the entry that is no number of tokens.
    """
    lists = enumerate(step_lists(content.values))
    requests = [drafts_of_steps(sizes, f"list {number}", BATCH_SIZES)[1:] for number, sizes in lists]
    return chain_from_steps(requests, depth=depth, assumed=() if depth else (LONGEST,))


ENTRY = TraceSource(
    name="openvino-steps",
    title="OpenVINO's step lists",
    settings={"depth": "length of the chain; default the longest draft that was accepted"},
    holds=lambda content: bool(step_lists(content.values)),
    chain=read_steps,
    outputs=(
        Output(
            "OpenVINO GenAI",
            "every step",
            "`extended_perf_metrics.main_model_metrics.raw_metrics.m_batch_sizes` of each request, as JSON lines "
            '`{"m_batch_sizes": [...]}`',
        ),
    ),
)
