"""Read results of vLLM's benchmarks: JSON and tables of `vllm bench serve`, and what its offline examples print.

All have rates by position as shares of the drafts. Sources: vllm/benchmarks/serve.py of vLLM 0.32.0, and
examples/features/speculative_decoding of the same version.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from treeopt.errors import TraceError
from treeopt.traces.importers.chain_counts import Chain, chain_from_counts
from treeopt.traces.importers.readers.printed_rates import Printed, printed_chain
from treeopt.traces.trace_checks import MAX_DEPTH

SERVE = "spec_decode_per_position_acceptance_rates"
SERVE_COUNTS = ("spec_decode_num_drafts", "spec_decode_accepted_tokens", "spec_decode_draft_tokens")
LENGTHS = ("Acceptance_Length_Histogram", "acceptance_length_histogram")
MARGINALS, DRAFTED = "marginal_accept_rates", "num_speculative_tokens"
MOST_COUNTED = 2**48
FIRST_TOKENS = (
    "ModelOpt counts the tokens of each step; where a response's first token, which no step drafts, is among them, it "
    "counts as a step that accepted nothing"
)
EXACT = 1e-9  # error of a rate that is stored as a float
PERCENT = 5e-5  # of one printed in percent with two decimals
DECIMALS = 5e-3  # of one with two decimals
_ROW = re.compile(r"^[^\n]*?Position (\d{1,3}):\s+(\d{1,3}(?:\.\d+)?)\s*$", re.MULTILINE)
_TABLE = "Per-position acceptance (%):"
_TOKEN = re.compile(r"acceptance at token (\d{1,3}):\s*(\d(?:\.\d+)?)\s*$", re.MULTILINE)
_MEAN = re.compile(r"mean acceptance length:\s*(\d{1,3}\.\d+)", re.IGNORECASE)
_TABLE_COUNTS = ("Drafts:", "Accepted tokens:", "Draft tokens:")
_PRINTED_COUNTS = ("num_drafts:", "num_accepted_tokens:", "num_draft_tokens:")


def serve_results(records: Iterable[Mapping[str, Any]], *, uneven: bool = False) -> Chain:
    """Return the chain of results that `vllm bench serve --save-result` wrote, pooled.

    Raises:
        TraceError: names the result and the field that is missing or contradicts the others.
    """
    results = []
    for number, record in enumerate(record for record in records if record.get(SERVE)):
        where = f"result {number}"
        rates = record[SERVE]
        if not isinstance(rates, list) or not all(type(rate) in (int, float) for rate in rates):
            raise TraceError(f"{where}: `{SERVE}` must be a list of rates, found {rates!r:.60}")
        counts = [_count(record, key, where) for key in SERVE_COUNTS]
        results.append(_printed(rates, EXACT, counts, where))
    return printed_chain(results, uneven=uneven)


def specdec_results(records: Iterable[Mapping[str, Any]], *, depth: int | None = None) -> Chain:
    """Return the chain of a result of ModelOpt's specdec_bench: its histogram, or its rates by position without one.

    Raises:
        TraceError: names the field that is wrong.
    """
    record = next(record for record in records if any(record.get(key) for key in (*LENGTHS, MARGINALS)))
    configured = record.get(DRAFTED)
    if configured is not None and (type(configured) is not int or not 1 <= configured <= MAX_DEPTH):
        raise TraceError(f"`{DRAFTED}` must be in 1..{MAX_DEPTH}, found {configured!r:.40}")
    key = next((key for key in LENGTHS if record.get(key)), None)
    if key is None:
        rates = record[MARGINALS]
        if not isinstance(rates, list) or not all(type(rate) in (int, float) and 0 <= rate <= 1 for rate in rates):
            raise TraceError(f"`{MARGINALS}` must be a list of rates in 0..1, found {rates!r:.60}")
        return Chain(tuple(float(rate) for rate in rates), assumed=(FIRST_TOKENS,))
    histogram = _lengths(record[key], key)
    longest = max(histogram) - 1
    chosen = max(longest, 1) if depth is None and configured is None else depth or int(configured or 0)
    if longest > chosen:
        raise TraceError(f"`{key}`: a step accepted {longest} drafts, more than the depth of {chosen}")
    reached = [sum(count for tokens, count in histogram.items() if tokens > n + 1) for n in range(chosen)]
    return chain_from_counts(reached, steps=sum(histogram.values()), assumed=(FIRST_TOKENS,))


def _lengths(value: Any, key: str) -> dict[int, int]:
    """Return how many steps committed 1, 2, ... tokens."""
    names = list(value) if isinstance(value, dict) else []
    if not names or not all(re.fullmatch(r"[1-9]\d{0,2}", str(name)) for name in names):
        raise TraceError(f"`{key}` must have numbers of tokens, from 1, as keys, found {names or value!r:.60}")
    if not all(type(count) is int and 0 <= count < MOST_COUNTED for count in value.values()):
        raise TraceError(f"`{key}` must have counts of steps, found {list(value.values())!r:.60}")
    if max(map(int, names)) > MAX_DEPTH + 1:
        raise TraceError(f"`{key}` must have at most {MAX_DEPTH + 1} tokens of a step, found {max(map(int, names))}")
    return {int(name): count for name, count in value.items()}


def holds_prints(text: str) -> bool:
    """Return True if a table of `vllm bench serve`, or what vLLM's examples print, is in the text."""
    return (_TABLE in text and _ROW.search(text) is not None) or _TOKEN.search(text) is not None


def printed_results(text: str, *, uneven: bool = False) -> Chain:
    """Return the chain of printed results, pooled.

    Raises:
        TraceError: no results, positions are missing, or figures contradict each other.
    """
    table = _blocks(text, _ROW, _TABLE_COUNTS, PERCENT) if _TABLE in text else []
    results = [*table, *_blocks(text, _TOKEN, _PRINTED_COUNTS, DECIMALS)]
    decimals = 4 if table else 2
    return printed_chain(results, uneven=uneven, assumed=(f"rates have {decimals} decimals",))


def _blocks(text: str, row: re.Pattern[str], names: Sequence[str], error: float) -> list[Printed]:
    """Return one result for each run of rows 0, 1, ..., with the last counts printed before it."""
    blocks: list[list[re.Match[str]]] = []
    for match in row.finditer(text):
        position = int(match[1])
        if position == 0:
            blocks.append([])
        if not blocks or position != len(blocks[-1]):
            raise TraceError(
                f"position {position} is printed where position {len(blocks[-1]) if blocks else 0} must be"
            )
        blocks[-1].append(match)
    results, start = [], 0
    for number, block in enumerate(blocks):
        before = text[start : block[0].start()]
        counts = [_last(before, name) for name in names]
        rates, where = [float(match[2]) / (100 if error == PERCENT else 1) for match in block], f"result {number}"
        means = _MEAN.findall(before)
        drafts = _of_drafts(rates, float(means[-1]), where) if means and row is _TOKEN else rates
        results.append(_printed(drafts, error, counts, where))
        start = block[-1].end()
    return results


def _of_drafts(rates: Sequence[float], mean: float, where: str) -> Sequence[float]:
    """Return the rates of drafted tokens: until the middle of 2025 vLLM's examples printed the bonus as token 0.

    Raises:
        TraceError: the printed mean, tokens per step with the bonus, fits the rates in neither form.
    """
    room = 1.01 * DECIMALS * (len(rates) + 1)
    if abs(1 + sum(rates) - mean) <= room:
        return rates
    if rates[0] == 1 and len(rates) > 1 and abs(sum(rates) - mean) <= room:
        return rates[1:]
    raise TraceError(f"{where}: rates by token add up to {sum(rates):.2f}, which a mean length of {mean} does not fit")


def _last(text: str, name: str) -> int | None:
    found = re.findall(rf"(?:^|[^\w-]){re.escape(name)}\s+(\d{{1,15}})(?:\.0)?\s*$", text, re.MULTILINE)
    return int(found[-1]) if found else None


def _printed(rates: Sequence[float], error: float, counts: Sequence[int | None], where: str) -> Printed:
    if len(rates) > MAX_DEPTH or not all(0 <= rate <= 1 for rate in rates):
        raise TraceError(f"{where}: rates must be at most {MAX_DEPTH} shares in 0..1, found {list(rates)!r:.80}")
    steps, accepted, drafted = counts
    if steps == 0:
        raise TraceError(f"{where}: no step was counted: did the engine speculate?")
    if steps is not None and drafted is not None and drafted > len(rates) * steps:
        raise TraceError(f"{where}: {drafted} tokens drafted in {steps} drafts of {len(rates)} are too many")
    return Printed(tuple(float(rate) for rate in rates), error, steps, accepted, drafted)


def _count(record: Mapping[str, Any], key: str, where: str) -> int:
    value = record.get(key)
    if type(value) is not int or value < 0:
        raise TraceError(f"{where}: `{key}` must be a count, found {value!r:.40}")
    return value
