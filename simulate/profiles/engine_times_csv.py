"""Step times of an inference engine, read from a CSV table: a profile of chains.

Values under a header, separated by commas, tabs, semicolons or bars (Markdown), one measurement per line:

* `batch`, requests that are decoded at a time; `drafted`, tokens of the chain, 0 for plain decoding; every batch size
  and context has lines for 0 and 1;
* `step_ms`, the time between a request's outputs; or `committed`, tokens per request and step, bonus counted (for plain
  decoding 1, or empty), beside `tokens_s`, output tokens per second of all requests while they are decoded, prompt time
  excluded (a step takes batch x committed / tokens_s), or `tpot_ms`, milliseconds per output token of a request (a step
  takes tpot_ms x committed);
* `context`, mean tokens per request in the cache; optional.

Other columns are ignored. Lines of the same batch, chain and context are repetitions. Several files count as one table.
Results of engines' benchmarks in JSON are read where they hold as much:

* `vllm bench serve --save-result` and `vllm bench sweep serve`: batch from `max_concurrency`, the step from
  `mean_itl_ms` (the time between a request's outputs), drafted tokens from the counts of drafts and of their tokens.
* SGLang's `bench_speculative`: chains (`topk` 1) and plain steps, `step_time` in seconds.
* SGLang's `bench_one_batch`: plain steps, from the median latency of decoding.

What other programs write lacks a step's time, its batch or its drafted tokens, and is refused in one line.

The profile is one of chains, see `engine_profile`.
"""

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simulate.profiles.calibration import engine_cell, engine_profile
from simulate.profiles.measured_cells import Cell
from simulate.profiles.profile import Profile
from treeopt.errors import CostError, UsageError
from treeopt.storage.json_records import reading
from treeopt.storage.provenance import this_run
from treeopt.storage.user_files import checksum, read_text

ALWAYS = ("batch", "drafted")
STEP = ("step_ms",)
RATE = ("tokens_s", "committed")
TPOT = ("tpot_ms", "committed")
FASTER = 0.95  # of a plain step: measurements are noisy, but a step that drafts and verifies takes no less
SHORTER, MUCH = 0.99, 3  # of a step with fewer drafts; of a plain step, for one draft: beyond are doubts
MOST = {
    "batch": 2**20,
    "drafted": 512,
    "context": 1e9,
    "step_ms": 1e9,
    "tpot_ms": 1e9,
    "tokens_s": 1e12,
    "committed": 513,
}
LEAST_S = 1e-9  # shortest step that is accepted
HERE = ("processor", "cores", "software")  # provenance of the machine that reads the table; not recorded


@dataclass(frozen=True)
class _Line:
    """A measurement; `context` is None if the table does not state it."""

    batch: int
    drafted: int
    step_s: float
    context: float | None


def read_times(*paths: Path, device: str, context: tuple[int, int] | None = None) -> Profile:
    """Read a table of step times and return the profile that it makes.

    Args:
        paths: the table, or its parts.
        device: the device that was measured, in words.
        context: fewest and most tokens per request in the cache; None if the table has a column for it.

    Raises:
        CostError: names file, line and column; or a batch size and context without plain decoding, or a chain of 1.
        UsageError: the context is given nowhere, or twice.
    """
    path, lines = paths[0], [line for part in paths for line in _lines(part, contexts=context is None)]
    low, high = _context_range(path, lines, context)
    cells = _cells(lines, middle=(low + high) / 2)
    meta: dict[str, Any] = {
        "imported": {
            "format": "times",
            "file": ", ".join(part.name for part in paths),
            "sha256": ", ".join(checksum(part) for part in paths),
        },
        "device": device,
        "provenance": {name: value for name, value in this_run().items() if name not in HERE},
    }
    _check_chains(path, lines)
    if doubt := _check_steps(path, lines):
        meta["imported"]["doubt"] = doubt
    return engine_profile(cells, context=(low, high), meta=meta)


def _context_range(path: Path, lines: Sequence[_Line], context: tuple[int, int] | None) -> tuple[int, int]:
    """Return the range of contexts, from `context` or from the column; raise UsageError unless exactly one is given."""
    has_column = {line.context is not None for line in lines}
    if has_column == {True} and context is not None:
        raise UsageError(f"{path} has a column `context`: do not give the context again")
    if has_column == {False} and context is None:
        raise UsageError(f"{path} does not say at which context it was measured: add a column, or give --context")
    contexts = [line.context for line in lines if line.context is not None]
    return context or (math.floor(min(contexts)), math.ceil(max(contexts)))


def _cells(lines: Sequence[_Line], *, middle: float) -> list[Cell]:
    """Return one cell per batch size, chain and context: the median of its repetitions.

    Args:
        lines: the measurements.
        middle: context of lines that do not state one.
    """
    cells = []
    for batch, drafted, context in dict.fromkeys((line.batch, line.drafted, line.context) for line in lines):
        same = [line.step_s for line in lines if (line.batch, line.drafted, line.context) == (batch, drafted, context)]
        error = float(np.std(np.log(same), ddof=1)) / len(same) ** 0.5 if len(same) > 1 else 0.0
        place = middle if context is None else context
        cells.append(engine_cell(batch, drafted, float(np.median(same)), context=place, error=error))
    return cells


def _check_chains(path: Path, lines: Sequence[_Line]) -> None:
    """Raise CostError unless every batch size and context has plain decoding and a chain of 1, which searches need."""
    for batch, context in dict.fromkeys((line.batch, line.context) for line in lines):
        chains = {line.drafted for line in lines if (line.batch, line.context) == (batch, context)}
        if not {0, 1} <= chains:
            named = "" if context is None else f", context {context:g} (only lines of equal context are compared)"
            raise CostError(
                f"{path}: batch {batch}{named}: there is no line with `drafted` {min({0, 1} - chains)}: measure "
                "it, too, or let `treeopt profile --engine` measure all"
            )


def _check_steps(path: Path, lines: Sequence[_Line]) -> str:
    """Raise CostError for a step with drafts that takes less time than a plain one; return a doubt about others."""
    doubt = ""
    for batch, context in dict.fromkeys((line.batch, line.context) for line in lines):
        here = [line for line in lines if (line.batch, line.context) == (batch, context)]
        plain_s = longest_s = float(np.median([line.step_s for line in here if line.drafted == 0]))
        for drafted in sorted({line.drafted for line in here} - {0}):
            step_s = float(np.median([line.step_s for line in here if line.drafted == drafted]))
            if step_s < FASTER * plain_s:
                raise CostError(
                    f"{path}: batch {batch}, {drafted} drafted: a step of {1e3 * step_s:.3g} ms is shorter than a "
                    f"plain one of {1e3 * plain_s:.3g} ms, though it also drafts and verifies. Is it the time per "
                    "output token (TPOT, or GuideLLM's ITL)? Name the column tpot_ms and add `committed`, bonus "
                    "counted; step_ms is the time between a request's outputs, tokens_s of all requests"
                )
            if step_s < SHORTER * longest_s or (drafted == 1 and step_s > MUCH * plain_s):
                doubt = (
                    f"batch {batch}: a step takes {1e3 * step_s:.3g} ms with {drafted} drafted, {1e3 * longest_s:.3g} "
                    "ms with fewer: is it noise, time per token (TPOT), or made of tokens_s of one request"
                )
            longest_s = max(longest_s, step_s)
    return doubt


def _lines(path: Path, *, contexts: bool) -> list[_Line]:
    """Read the measurements of a table, or of results, whose mean contexts count only with `contexts`."""
    with reading(path, CostError):
        text = read_text(path)
    if text.lstrip().startswith(("{", "[")):
        rows = enumerate(rows_of(path, text, contexts=contexts), start=1)
        return [_line(row, f"{path}: result {number}", STEP) for number, row in rows]
    table = [line.strip().strip("|") if "|" in line else line for line in text.splitlines()]
    mark = next((mark for mark in "|\t;" if table and mark in table[0]), ",")
    reader = csv.DictReader(table, skipinitialspace=True, delimiter=mark)
    names = [name.strip() for name in reader.fieldnames or ()]
    reader.fieldnames = names
    columns = _columns(path, names)
    lines = []
    try:
        for row in reader:
            if None in row:
                count = len(names) + len(row[None])
                raise CostError(f"{path}: line {reader.line_num} has {count} cells, the header {len(names)} columns")
            if any(cell and cell.strip("-: ") for cell in row.values()):
                lines.append(_line(row, f"{path}: line {reader.line_num}", columns))
    except csv.Error as error:
        raise CostError(f"{path}: line {reader.line_num}: {error}") from error
    if not lines:
        raise CostError(
            f"{path}: holds no measurement: add lines of batch, drafted, step_ms, or let "
            "`treeopt profile --engine` measure"
        )
    return lines


def _columns(path: Path, names: Sequence[str]) -> tuple[str, ...]:
    """Return the columns that give a step's time; raise CostError if a column is missing or appears twice."""
    columns = next((columns for columns in (STEP, TPOT) if columns[0] in names), RATE)
    if missing := [name for name in (*ALWAYS, *columns) if name not in names]:
        shown = ", ".join(names) or "nothing"
        wanted = f"{', '.join(ALWAYS)} and {STEP[0]}, or committed and {RATE[0]} or {TPOT[0]}, separated by commas"
        raise CostError(
            f"{path}: there is no column {', '.join(missing)}; it needs {wanted}, its header is {shown:.80}"
        )
    if len(several := [name for name in (STEP[0], RATE[0], TPOT[0]) if name in names]) > 1:
        raise CostError(f"{path}: {' and '.join(f'`{name}`' for name in several)} give the time of a step: keep one")
    for name in (*ALWAYS, *columns, "context"):
        if names.count(name) > 1:
            raise CostError(f"{path}: there are {names.count(name)} columns `{name}`")
    return columns


def _line(row: Mapping[str, Any], where: str, columns: tuple[str, ...]) -> _Line:
    """Return the measurement of a row; `where` starts the messages of its errors."""
    batch, drafted = (int(_number(row, name, where, whole=True)) for name in ALWAYS)
    if batch < 1:
        raise CostError(f"{where}: `batch` must be at least 1, found {batch}")
    if drafted < 0:
        raise CostError(f"{where}: `drafted` must be 0 or more, found {drafted}")
    context = _number(row, "context", where) if "context" in row else None
    if context is not None and context < 0:
        raise CostError(f"{where}: `context` must be 0 or more, found {context:g}")
    if columns == STEP:
        return _Line(batch, drafted, _plausible(_positive(row, STEP[0], where) / 1e3, where), context)
    committed = 1.0 if drafted == 0 and not (row[RATE[1]] or "").strip() else _number(row, RATE[1], where)
    if not 1 <= committed <= drafted + 1:
        raise CostError(f"{where}: `committed` must be 1 to {drafted + 1}, bonus counted, found {committed:g}")
    value = _positive(row, columns[0], where)
    step_s = value / 1e3 * committed if columns == TPOT else batch * committed / value
    return _Line(batch, drafted, _plausible(step_s, where), context)


def _plausible(step_s: float, where: str) -> float:
    """Return the seconds if a step could take them; raise CostError otherwise."""
    if not LEAST_S <= step_s < math.inf:
        raise CostError(f"{where}: a step of {step_s:g} seconds is not possible")
    return step_s


def _positive(row: Mapping[str, Any], name: str, where: str) -> float:
    """Return a number of a row that must be above 0."""
    value = _number(row, name, where)
    if value <= 0:
        raise CostError(f"{where}: `{name}` must be above 0, found {value:g}")
    return value


def _number(row: Mapping[str, Any], name: str, where: str, *, whole: bool = False) -> float:
    """Return a finite number of a row, `whole`: an integer."""
    text = (row[name] or "").strip()
    try:
        value = float(int(text)) if whole else float(text)
    except (ValueError, OverflowError):
        value = np.nan
    if not np.isfinite(value):
        raise CostError(f"{where}: `{name}` must be {'an integer' if whole else 'a number'}, found {text!r:.40}")
    if value > MOST[name]:
        raise CostError(f"{where}: `{name}` must be at most {MOST[name]:g}, found {value:g}")
    return value


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
        context = _figure(record, "input_len", where) + _figure(record, "output_len", where) / 2
        row = {"batch": record.get("batch_size"), "drafted": 0, **_ms(record["median_decode_latency"], where)}
        return row | {"context": context}
    program, why = next((LACKING[name] for name in LACKING if name in record), ("", "is no benchmark's that is read"))
    raise CostError(f"{where}: {f'{program} {why}' if program else why}: {COLUMNS}")


def _served(record: Record, where: str) -> dict[str, Any]:
    """Return the row of a result of `vllm bench serve`."""
    asked = next((record[n] for n in ("num_speculative_tokens", "speculative_tokens") if record.get(n) is not None), 0)
    if record.get("spec_decode_num_drafts"):
        tokens, drafts = (_figure(record, f"spec_decode_{n}", where) for n in ("draft_tokens", "num_drafts"))
        asked = round(tokens / drafts)
        if abs(tokens / drafts - asked) > 0.02 * asked:
            raise CostError(f"{where}: {tokens / drafts:.3g} tokens per draft is no chain: serve one length at a time")
    elif not asked and (record.get("spec_decode_acceptance_length") or record.get("accept_length")):
        raise CostError(f"{where}: does not say how many tokens are drafted: {COLUMNS}")
    if record["max_concurrency"] is None:
        raise CostError(f"{where}: max_concurrency must be a number: serve with --max-concurrency")
    if record.get("completed") and _figure(record, "completed", where) < _figure(record, "max_concurrency", where):
        raise CostError(f"{where}: {record['completed']} requests never fill max_concurrency: serve many more")
    row = {"batch": record["max_concurrency"], "drafted": asked, "step_ms": _figure(record, "mean_itl_ms", where)}
    if record.get("total_input_tokens") and record.get("completed"):
        cached = _figure(record, "total_input_tokens", where) + _figure(record, "total_output_tokens", where) / 2
        row["context"] = round(cached / _figure(record, "completed", where))
    return row


def _ms(seconds: Any, where: str) -> dict[str, float]:
    return {"step_ms": 1e3 * _figure({"seconds": seconds}, "seconds", where)}


def _figure(record: Record, name: str, where: str) -> float:
    """Return a positive number of a record."""
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e15:
        raise CostError(f"{where}: `{name}` must be a number above 0, found {value!r:.40}")
    return float(value)
