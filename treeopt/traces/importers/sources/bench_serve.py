"""Results of `vllm bench serve --save-result`: rates by position as shares of the drafts, with exact totals.

Source: vllm/benchmarks/serve.py of vLLM 0.32.0.
"""

from collections.abc import Mapping
from typing import Any

from treeopt.errors import TraceError
from treeopt.traces.importers.chain_counts import Chain
from treeopt.traces.importers.sources.printed import Printed, printed_chain
from treeopt.traces.importers.trace_source import Content, Output, TraceSource

RATES = "spec_decode_per_position_acceptance_rates"
COUNTS = ("spec_decode_num_drafts", "spec_decode_accepted_tokens", "spec_decode_draft_tokens")
EXACT = 1e-9  # error of a rate that is stored as a float


def read_results(content: Content, *, uneven: bool = False) -> Chain:
    """Return the chain of all results, pooled.

    Raises:
        TraceError: names the result and the field that is missing or contradicts the others.
    """
    results = []
    for number, record in enumerate(content.with_key(RATES)):
        where = f"result {number}"
        rates = record[RATES]
        if not isinstance(rates, list) or not all(type(rate) in (int, float) for rate in rates):
            raise TraceError(f"{where}: `{RATES}` must be a list of rates, found {rates!r:.60}")
        steps, accepted, drafted = (_count(record, key, where) for key in COUNTS)
        results.append(Printed.checked(rates, EXACT, (steps, accepted, drafted), where))
    return printed_chain(results, uneven=uneven)


def _count(record: Mapping[str, Any], key: str, where: str) -> int:
    value = record.get(key)
    if type(value) is not int or value < 0:
        raise TraceError(f"{where}: `{key}` must be a count, found {value!r:.40}")
    return value


ENTRY = TraceSource(
    name="bench-serve",
    title="results of `vllm bench serve`",
    form=f"JSON of `vllm bench serve --save-result` with `{RATES}`",
    trace_holds="several results are windows",
    settings={
        "uneven": "count what short drafts left out as rejected",
        "requests": "most texts that stand for the steps",
        "steps": "number of steps to draw, if the file has none",
    },
    holds=lambda content: bool(content.with_key(RATES)),
    chain=read_results,
    outputs=(Output("vLLM", "totals by position", "the JSON of `vllm bench serve --save-result`", first=4),),
)
