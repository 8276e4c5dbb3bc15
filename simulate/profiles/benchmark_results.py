"""Results of engines' own benchmarks as rows of a table of step times, where they hold what such a row needs.

* `vllm bench serve --save-result` and `vllm bench sweep serve`: batch from `max_concurrency`, the step from
  `mean_itl_ms` (the time between a request's outputs), drafted tokens from the counts of drafts and of their tokens.
* SGLang's `bench_speculative`: chains (`topk` 1) and plain steps, `step_time` in seconds.
* SGLang's `bench_one_batch`: plain steps, from the median latency of decoding.

What other programs write lacks a step's time, its batch or its drafted tokens, and is refused in one line.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from treeopt.errors import CostError

Record = Mapping[str, Any]
COLUMNS = (
    "write a CSV with a line per measurement and the columns batch, drafted and step_ms (the time between a request's "
    "outputs, such as mean ITL), or tokens_s (of all requests) and committed"
)
LACKING = {  # a field that only this program writes -> the program, and what its results lack
    "speed_tg": ("llama-batched-bench", "times plain steps of the target alone, without a drafter"),
    "avg_latency": ("vllm bench latency", "has neither the batch size nor the tokens of what it timed"),
    "world_info": ("trtllm-bench", "has means over requests of different load, and no time of a step"),
    "accept_length": ("sglang.bench_serving", "does not say how many tokens are drafted"),
}


def rows_of(path: Path, text: str, *, contexts: bool) -> list[dict[str, str]]:
    """Return the rows of a table that benchmark results in JSON or JSON lines make, as a CSV reader would.

    Args:
        path: the file, for messages.
        text: its content.
        contexts: rows have the mean context of a result where all results state it.

    Raises:
        CostError: no JSON, or results that lack what a row needs; says what to write instead.
    """
    rows = []
    for number, record in enumerate(_records(path, text), start=1):
        where = f"{path}: result {number}"
        row = _row(record, where)
        if row is not None:
            rows.append({name: str(value) for name, value in row.items()})
    if not rows:
        raise CostError(f"{path}: holds no chain and no plain step: {COLUMNS}")
    if not contexts or len({frozenset(row) for row in rows}) > 1:  # only some state a context
        rows = [{name: value for name, value in row.items() if name != "context"} for row in rows]
    return rows


def _records(path: Path, text: str) -> Sequence[Record]:
    """Return the objects of a JSON file or of JSON lines."""
    try:
        try:
            content = json.loads(text)
        except ValueError:
            content = [json.loads(line) for line in text.splitlines() if line.strip()]
    except (ValueError, RecursionError) as error:
        raise CostError(f"{path}: is no JSON that can be read: {error}") from error
    records = content if isinstance(content, list) else [content]
    if not all(isinstance(record, Mapping) for record in records):
        raise CostError(f"{path}: is JSON, but no results of a benchmark: {COLUMNS}")
    return records


def _row(record: Record, where: str) -> dict[str, Any] | None:
    """Return the row of a result; None for a tree, which has no place in a profile of chains."""
    if "mean_itl_ms" in record and "max_concurrency" in record:
        return _served(record, where)
    if "step_time" in record and "topk" in record:  # bench_speculative
        if record["topk"] not in (0, 1):
            return None
        return {"batch": record.get("batch_size"), "drafted": record.get("steps"), **_ms(record["step_time"], where)}
    if "median_decode_latency" in record:  # bench_one_batch
        context = _number(record, "input_len", where) + _number(record, "output_len", where) / 2
        row = {"batch": record.get("batch_size"), "drafted": 0, **_ms(record["median_decode_latency"], where)}
        return row | {"context": context}
    program, why = next((LACKING[name] for name in LACKING if name in record), ("", "is no benchmark's that is read"))
    raise CostError(f"{where}: {f'{program} {why}' if program else why}: {COLUMNS}")


def _served(record: Record, where: str) -> dict[str, Any]:
    """Return the row of a result of `vllm bench serve`."""
    asked = next((record[n] for n in ("num_speculative_tokens", "speculative_tokens") if record.get(n) is not None), 0)
    if record.get("spec_decode_num_drafts"):
        tokens, drafts = (_number(record, f"spec_decode_{n}", where) for n in ("draft_tokens", "num_drafts"))
        asked = round(tokens / drafts)
        if abs(tokens / drafts - asked) > 0.02 * asked:
            raise CostError(f"{where}: {tokens / drafts:.3g} tokens per draft is no chain: serve one length at a time")
    elif not asked and (record.get("spec_decode_acceptance_length") or record.get("accept_length")):
        raise CostError(f"{where}: does not say how many tokens are drafted: {COLUMNS}")
    if record["max_concurrency"] is None:
        raise CostError(f"{where}: max_concurrency must be a number: serve with --max-concurrency")
    if record.get("completed") and _number(record, "completed", where) < _number(record, "max_concurrency", where):
        raise CostError(f"{where}: {record['completed']} requests never fill max_concurrency: serve many more")
    row = {"batch": record["max_concurrency"], "drafted": asked, "step_ms": _number(record, "mean_itl_ms", where)}
    if record.get("total_input_tokens") and record.get("completed"):
        cached = _number(record, "total_input_tokens", where) + _number(record, "total_output_tokens", where) / 2
        row["context"] = round(cached / _number(record, "completed", where))
    return row


def _ms(seconds: Any, where: str) -> dict[str, float]:
    return {"step_ms": 1e3 * _number({"seconds": seconds}, "seconds", where)}


def _number(record: Record, name: str, where: str) -> float:
    """Return a positive number of a record."""
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e15:
        raise CostError(f"{where}: `{name}` must be a number above 0, found {value!r:.40}")
    return float(value)
