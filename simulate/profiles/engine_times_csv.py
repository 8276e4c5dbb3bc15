"""Step times of an inference engine, read from a CSV table: a profile of chains, see `engine_profile`.

Values under a header, separated by commas, tabs, semicolons or bars (Markdown), one measurement per line:

* `batch`, requests that are decoded at a time; `drafted`, tokens of the chain, 0 for plain decoding; every batch size
  and context has lines for 0 and 1;
* `step_ms`, the time between a request's outputs; or `committed`, tokens per request and step, bonus counted (for plain
  decoding 1, or empty), beside `tokens_s`, output tokens per second of all requests while they are decoded, prompt time
  excluded (a step takes batch x committed / tokens_s), or `tpot_ms`, milliseconds per output token of a request (a step
  takes tpot_ms x committed);
* `context`, mean tokens per request in the cache; optional.

`NAMES` and `UNITS` have the spellings that are read, and `columns` gives others; it may also give `accepted`, drafted
tokens kept per step, or `acceptance`, accepted over drafted tokens, in place of `committed`. Other columns are ignored.
Lines of the same batch, chain and context are repetitions. Several files count as one table. The same in JSON: a list
of objects with these fields. Of engines' benchmarks are read `vllm bench serve`, saved or printed, and its sweeps (the
step is `mean_itl_ms`), SGLang's `bench_speculative` (chains and plain steps) and `bench_one_batch` (plain steps).
"""

import csv
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from simulate.profiles.measured_cells import Cell
from simulate.profiles.profile import Profile
from simulate.profiles.profile_from_cells import engine_cell, engine_profile
from treeopt.errors import CostError, TraceError, UsageError
from treeopt.storage.json_records import reading
from treeopt.storage.provenance import this_run
from treeopt.storage.user_files import checksum, read_text
from treeopt.traces.importers.source_file import is_json, parsed

NAMES = {  # a column -> further spellings that mean nothing else; case and marks between words do not count
    "batch": ("batch_size", "bs", "concurrency", "max_concurrency"),
    "drafted": ("k", "gamma", "spec_len", "draft_len", "draft_length", "speculative_tokens", "num_speculative_tokens"),
    "step_ms": ("step", "step_time", "step_latency"),
    "tpot_ms": ("tpot", "mean_tpot", "time_per_output_token"),
    "tokens_s": ("tok_s", "t_s", "tokens_per_s", "tokens_per_sec", "tokens_per_second"),
    "committed": ("tau",),
    "context": (),
}
UNITS = {"s": 1e3, "ms": 1.0, "us": 1e-3, "ns": 1e-6}  # of a time -> milliseconds
GIVEN = ("accepted", "acceptance")  # read if `columns` names them: these words have several meanings
KINDS = dict.fromkeys(("step_ms", "tpot_ms", "tokens_s"), "time") | dict.fromkeys(GIVEN, "committed")
NO_TOKENS = ("", "-", "\u2013", "\u2014", "0", "0.0", "nan", "none", "n/a")  # `committed` of plain decoding, which is 1
MARKS = " *`"  # around words in Markdown
NEEDED = "batch, drafted, and step_ms (or step_us, step_s), or tokens_s or tpot_ms with committed"
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
    "accepted": 512,
    "acceptance": 1,
}
LEAST_S = 1e-9  # shortest step that is accepted
HERE = ("processor", "cores", "software")  # provenance of the machine that reads the table; not recorded


class Column(NamedTuple):
    """A column of a table: what it holds, its name, and the factor to the unit that is read."""

    holds: str
    name: str
    factor: float = 1.0


Row = Mapping[str, Any]
Place = tuple[int, float | None]  # batch size, and context if the table states it
Steps = Mapping[Place, Mapping[int, Sequence[float]]]  # seconds of repetitions, by tokens drafted


@dataclass(frozen=True)
class _Line:
    """A measurement; `context` is None if the table does not state it."""

    batch: int
    drafted: int
    step_s: float
    context: float | None
    model: str = ""


def read_times(
    *paths: Path, device: str, context: tuple[int, int] | None = None, columns: Mapping[str, str] | None = None
) -> Profile:
    """Read a table of step times and return the profile that it makes.

    Args:
        paths: the table, or its parts.
        device: the device that was measured, in words.
        context: fewest and most tokens per request in the cache; None if the table has a column for it.
        columns: quantities, such as `step_us`, to the names of their columns, where the names do not tell.

    Raises:
        CostError: names file, line and column; or a batch size and context without plain decoding, or a chain of 1.
        UsageError: the context is given nowhere, or twice; or a file twice.
    """
    path, lines = paths[0], [line for part in paths for line in _lines(part, columns or {}, contexts=context is None)]
    sums = [checksum(part) for part in paths]
    if twice := [part for place, part in enumerate(paths) if sums[place] in sums[:place]]:
        raise UsageError(f"{twice[0]} is given twice: its lines would count as repetitions")
    if len(models := sorted({line.model for line in lines} - {""})) > 1:
        raise CostError(f"{path}: results of several models, {', '.join(models):.200}: keep those of one")
    low, high = _context_range(path, lines, context)
    steps: dict[Place, dict[int, list[float]]] = {}
    for line in lines:
        steps.setdefault((line.batch, line.context), {}).setdefault(line.drafted, []).append(line.step_s)
    meta: dict[str, Any] = {
        "imported": {"format": "times", "file": ", ".join(part.name for part in paths), "sha256": ", ".join(sums)},
        "device": device,
        "provenance": {name: value for name, value in this_run().items() if name not in HERE},
    }
    if doubt := _check_steps(path, steps):
        meta["imported"]["doubt"] = doubt
    return engine_profile(_cells(steps, middle=(low + high) / 2), context=(low, high), meta=meta)


def _context_range(path: Path, lines: Sequence[_Line], context: tuple[int, int] | None) -> tuple[int, int]:
    """Return the range of contexts, from `context` or from the column; raise UsageError unless exactly one is given."""
    has_column = {line.context is not None for line in lines}
    if has_column == {True} and context is not None:
        raise UsageError(f"{path} has a column `context`: do not give the context again")
    if has_column == {False} and context is None:
        raise UsageError(f"{path} does not say at which context it was measured: add a column, or give --context")
    contexts = [line.context for line in lines if line.context is not None]
    return context or (math.floor(min(contexts)), math.ceil(max(contexts)))


def _cells(steps: Steps, *, middle: float) -> list[Cell]:
    """Return one cell per batch size, context (`middle` where none is stated) and chain: the median of repetitions."""
    cells = []
    for (batch, context), by_chain in steps.items():
        place = middle if context is None else context
        for drafted, same in by_chain.items():
            error = float(np.std(np.log(same), ddof=1)) / len(same) ** 0.5 if len(same) > 1 else 0.0
            cells.append(engine_cell(batch, drafted, float(np.median(same)), context=place, error=error))
    return cells


def _check_steps(path: Path, steps: Steps) -> str:
    """Return a doubt about steps, if there is one.

    Raises:
        CostError: a batch size and context without plain decoding or a chain of 1, which searches need, or with a step
            with drafts that takes less time than a plain one.
    """
    doubt = ""
    for (batch, context), by_chain in steps.items():
        if missing := {0, 1} - by_chain.keys():
            named = "" if context is None else f", context {context:g} (only lines of equal context are compared)"
            raise CostError(
                f"{path}: batch {batch}{named}: there is no line with `drafted` {min(missing)}: measure "
                "it, too, or let `treeopt profile --engine` measure all"
            )
        plain_s = longest_s = float(np.median(by_chain[0]))
        for drafted in sorted(by_chain.keys() - {0}):
            step_s = float(np.median(by_chain[drafted]))
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


def _lines(path: Path, given: Mapping[str, str], *, contexts: bool) -> list[_Line]:
    """Read the measurements of a table, or of results, whose mean contexts count only with `contexts`."""
    with reading(path, CostError):
        text = read_text(path)
    results = _reports(text) or (_records(path, text) if is_json(text) else [])
    records = list(enumerate(results, start=1)) or table_of(path, text)
    named = [(f"{path}: {'result' if results else 'line'} {number}", record) for number, record in records]
    rows = named if given else [(at, row) for at, record in named if (row := _row(record, at)) is not None]
    if not rows:
        raise CostError(f"{path}: holds no chain and no plain step: {COLUMNS}")
    if not (results or given) and (len(rows[0][1]) == 1 or re.search(r"\d[.:]\d", " ".join(rows[0][1]))):
        raise CostError(f"{path}: {NO_TABLE}")
    if rows[0][1] is not records[0][1] and (not contexts or len({frozenset(row) for _, row in rows}) > 1):
        rows = [(at, {name: value for name, value in row.items() if name != "context"}) for at, row in rows]
    columns = _columns(path, [*rows[0][1]], given)
    return [_line(row, at, columns) for at, row in rows]


def table_of(path: Path, text: str) -> list[tuple[int, Row]]:
    """Return the lines of a table by their numbers."""
    lines = text.splitlines()
    bars = [number for number, line in enumerate(lines) if line.lstrip().startswith("|")]
    first = bars[0] if bars else 0  # what stands around a table of bars is prose
    table = [line.strip().strip("|") if "|" in line else "" if bars else line for line in lines[first:]]
    mark = next((mark for mark in "|\t;" if table and mark in table[0]), ",")
    reader = csv.DictReader(table, skipinitialspace=True, delimiter=mark)
    names = [name.strip(MARKS) for name in reader.fieldnames or ()]
    reader.fieldnames = names
    if twice := [name for name in names if names.count(name) > 1 and column_of(name).holds in NAMES]:
        raise CostError(f"{path}: there are {len(twice)} columns `{twice[0]}`")
    rows: list[tuple[int, Row]] = []
    try:
        for row in reader:
            if None in row:
                count, known = len(names) + len(row[None]), any(column_of(name).holds in NAMES for name in names)
                ragged = f"line {first + reader.line_num} has {count} cells, the header {len(names)} columns"
                raise CostError(f"{path}: {ragged if known else NO_TABLE}")
            if any(cell and cell.strip("-: ") for cell in row.values()):
                if {*row} >= SERVED:  # results hold numbers
                    row = {
                        name: float(c) if re.fullmatch(r"\d*\.?\d+", c or "") else c or None for name, c in row.items()
                    }
                rows.append((first + reader.line_num, row))
    except csv.Error as error:
        raise CostError(f"{path}: line {first + reader.line_num}: {error}") from error
    return rows


def column_of(name: str) -> Column:
    """Return what the name of a column says that it holds; itself, if that is open.

    >>> column_of("Step time (us)"), column_of("BS").holds, column_of("accept").holds
    (Column(holds='step_ms', name='Step time (us)', factor=0.001), 'batch', 'accept')
    """
    words = re.sub(r"[\W_]+", " ", re.sub("[\u00b5\u03bc]", "u", name.lower())).split()
    for holds, spellings in NAMES.items():
        unit = UNITS.get(words[-1], 0.0) if words and holds.endswith("_ms") else 1.0
        if unit and "_".join(words[:-1] if holds.endswith("_ms") else words) in (holds.removesuffix("_ms"), *spellings):
            return Column(holds, name, unit)
    return Column(name, name)


def _columns(path: Path, names: Sequence[str], given: Mapping[str, str]) -> dict[str, Column]:
    """Return the columns by kind: the given ones, else those with a name of this module, else with a known spelling.

    Raises:
        CostError: a column is missing, or two could be meant.
    """
    if any(column_of(what).holds not in (*NAMES, *GIVEN) or not name for what, name in given.items()):
        raise UsageError(f"--columns must be like batch=bs,step_us=latency, with {', '.join((*NAMES, *GIVEN))}")
    known = [column for column in map(column_of, names) if column.holds in NAMES]
    named = [(1 + (re.sub("_[un]?s$", "_ms", c.name) not in (c.holds, "tokens_ms")), c) for c in known]
    named += [(0, column_of(what)._replace(name=name)) for what, name in given.items()]
    ranked = [(KINDS.get(column.holds, column.holds), rank, column) for rank, column in named]
    columns: dict[str, Column] = {}
    for kind in dict.fromkeys(kind for kind, _, _ in ranked):
        first = min(rank for other, rank, _ in ranked if other == kind)
        columns[kind], *others = (column for other, rank, column in ranked if (other, rank) == (kind, first))
        if others:
            both = f"`{columns[kind].name}` and `{others[0].name}`"
            raise CostError(f"{path}: {both} both give the {kind}: keep one, or name one with --columns")
    time = columns.get("time")
    needed = ["batch", "drafted", "step_ms" if time is None else "time" if time.holds == "step_ms" else "committed"]
    shown = f"the columns are {', '.join(names):.300}"
    if absent := [name for name in given.values() if name not in names]:
        raise CostError(f"{path}: there is no column {absent[0]!r:.40}; {shown}")
    if missing := [name for name in needed if name not in columns]:
        options = ",".join(f"{name}=NAME" for name in missing)
        options += ", or tokens_s=NAME or tpot_ms=NAME in place of step_ms" if "step_ms" in missing else ""
        tokens = ", or accepted=NAME if the bonus is left out, or acceptance=NAME for accepted over drafted"
        raise CostError(
            f"{path}: which column is {', '.join(missing)}? {shown}; a table needs {NEEDED}: add or rename columns, or "
            f"give --columns {options}{tokens if 'committed' in missing else ''}"
        )
    return columns


def _line(row: Row, where: str, columns: Mapping[str, Column]) -> _Line:
    """Return the measurement of a row; `where` starts the messages of its errors."""
    batch, drafted = (int(number_of(row, columns[name], where, whole=True)) for name in ("batch", "drafted"))
    context = number_of(row, columns["context"], where) if "context" in columns else None
    time, value = columns["time"], number_of(row, columns["time"], where)
    if value == 0:
        raise CostError(f"{where}: `{time.name}` must be above 0, found 0")
    tokens, kept = 1.0, columns.get("committed", time)
    if time.holds != "step_ms" and (drafted or str(row.get(kept.name) or "").strip(MARKS).lower() not in NO_TOKENS):
        found = number_of(row, kept, where)
        tokens = {"accepted": 1 + found, "acceptance": 1 + found * drafted}.get(kept.holds, found)
    if not 1 <= tokens <= drafted + 1:
        raise CostError(f"{where}: `{kept.name}` must be 1 to {drafted + 1}, bonus counted, found {tokens:g}")
    step_s = batch * tokens / value if time.holds == "tokens_s" else value / 1e3 * tokens
    if not LEAST_S <= step_s < math.inf:
        raise CostError(f"{where}: a step of {step_s:g} seconds is not possible")
    return _Line(batch, drafted, step_s, context, str(row.get("model_id") or ""))


def number_of(row: Row, column: Column, where: str, *, whole: bool = False) -> float:
    """Return a finite number of a row in the unit of `NAMES`, `whole`: an integer."""
    found = row.get(column.name)
    text = "" if found is None else str(found).strip(MARKS)
    if column.holds == "acceptance" and text.endswith("%"):
        text, column = text[:-1], column._replace(factor=0.01)
    try:
        value = float(re.sub(r",(?=\d{3}(?:,\d{3})*\.\d)", "", text)) * column.factor  # 4,094.75
    except ValueError:
        value = np.nan
    if not np.isfinite(value) or (whole and not value.is_integer()):
        unit = "; a unit belongs into the column's name, such as step_us" if re.search(r"\d\s*[nuµm]?s$", text) else ""
        raise CostError(
            f"{where}: `{column.name}` must be {'an integer' if whole else 'a number'}, found {text!r:.40}{unit}"
        )
    least, most = int(column.holds == "batch"), MOST[column.holds]
    if not least <= value <= most:
        raise CostError(f"{where}: `{column.name}` must be {least} to {most:.10g}, found {value:g}")
    return value


COLUMNS = (
    "write a CSV with a line per measurement and the columns batch, drafted and step_ms (the time between a request's "
    "outputs, such as mean ITL), or tokens_s (of all requests) and committed"
)
NO_TABLE = f"its first line has no names of columns: {COLUMNS}"
SERVED = {"mean_itl_ms", "max_concurrency"}  # fields of results of `vllm bench serve`
REPORT = "Serving Benchmark Result"  # head of what vLLM's and SGLang's benchmarks print
REPORTED = {  # a line below it -> the field of results
    "Max(?:imum)? request concurrency": "max_concurrency",
    "Successful requests": "completed",
    "Total input tokens": "total_input_tokens",
    "Total generated tokens": "total_output_tokens",
    r"Mean TPOT \(ms\)": "mean_tpot_ms",
    r"Mean ITL \(ms\)": "mean_itl_ms",
    "Acceptance length": "spec_decode_acceptance_length",
    "Accept length": "accept_length",
    "Drafts": "spec_decode_num_drafts",
    "Draft tokens": "spec_decode_draft_tokens",
}
LENGTHS = ("spec_decode_acceptance_length", "accept_length")
UNEVEN = 1.5  # by how much the means over requests and over outputs may differ
LACKING = {  # fields that only this program writes, in a row without `drafted` -> the program, and what it lacks
    ("speed_tg", "S_TG t/s"): ("llama-batched-bench", "times plain steps of the target alone, without a drafter"),
    ("avg_latency",): ("vllm bench latency", "has neither the batch size nor the tokens of what it timed"),
    ("world_info",): ("trtllm-bench", "has means over requests of different load, and no time of a step"),
    ("avg_ts", "params"): ("llama-bench", "times the target alone, without a drafter"),
    ("p25",): ("AIPerf", "has neither the batch size nor the tokens that are drafted"),
    ("Run Info",): ("GuideLLM", "does not say how many tokens are drafted"),
    ("accept_length",): ("sglang.bench_serving", "does not say how many tokens are drafted"),
}


def _records(path: Path, text: str) -> Sequence[Row]:
    """Return the objects of JSON, of lines of JSON, or of joined files."""
    try:
        content = parsed(text)
    except TraceError as error:
        raise CostError(f"{path}: {error}") from error
    records = content[0] if len(content) == 1 and isinstance(content[0], list) else content
    if not all(isinstance(record, Mapping) for record in records):
        raise CostError(f"{path}: is JSON, but no results of a benchmark: {COLUMNS}")
    return records


def _reports(text: str) -> list[dict[str, Any]]:
    """Return the reports that `vllm bench serve` and SGLang's bench_serving printed, as their results."""
    reports = []
    for part in text.split(REPORT)[1:]:
        found = {name: re.search(rf"(?m)^\W*{line}: +(\d+(?:\.\d+)?)\s*$", part) for line, name in REPORTED.items()}
        reports.append(dict.fromkeys(SERVED) | {name: float(match[1]) for name, match in found.items() if match})
    return reports


def _row(record: Row, where: str) -> Row | None:
    """Return the row of a result, any other record itself; None for a tree: a profile of chains has no place for it."""
    if {*record} >= SERVED:
        return _served(record, where)
    if "step_time" in record and "topk" in record:  # bench_speculative
        if record["topk"] not in (0, 1):
            return None
        return {"batch": record.get("batch_size"), "drafted": record.get("steps"), **_ms(record["step_time"], where)}
    if "median_decode_latency" in record:  # bench_one_batch
        context = _figure(record, "input_len", where) + _figure(record, "output_len", where) / 2
        row = {"batch": record.get("batch_size"), "drafted": 0, **_ms(record["median_decode_latency"], where)}
        return row | {"context": context}
    if "schema" in record:
        raise CostError(f"{where}: is {str(record['schema'])!r:.40}, no table of an engine's step times: {COLUMNS}")
    for names, (program, why) in LACKING.items():
        if any(name in record for name in names) and all(column_of(name).holds != "drafted" for name in record):
            raise CostError(f"{where}: {program} {why}: {COLUMNS}")
    return record


def _served(record: Row, where: str) -> dict[str, Any]:
    """Return the row of a result of `vllm bench serve`."""
    name = next((n for n in ("drafted", *NAMES["drafted"]) if record.get(n) is not None), None)
    asked = int(number_of(record, Column("drafted", name), where, whole=True)) if name else 0
    if record.get("spec_decode_num_drafts"):
        tokens, drafts = (_figure(record, f"spec_decode_{n}", where) for n in ("draft_tokens", "num_drafts"))
        asked = round(tokens / drafts)
        if abs(tokens / drafts - asked) > 0.02 * asked:
            raise CostError(f"{where}: {tokens / drafts:.3g} tokens per draft is no chain: serve one length at a time")
    elif not asked and any(map(record.get, LENGTHS)):
        raise CostError(f"{where}: does not say how many tokens are drafted: {COLUMNS}")
    if record["max_concurrency"] is None:
        raise CostError(f"{where}: max_concurrency must be a number: serve with --max-concurrency")
    if record.get("completed") and _figure(record, "completed", where) < _figure(record, "max_concurrency", where):
        raise CostError(f"{where}: {record['completed']:g} requests never fill max_concurrency: serve many more")
    row = {"batch": record["max_concurrency"], "drafted": asked, "step_ms": _figure(record, "mean_itl_ms", where)}
    if record.get("mean_tpot_ms"):
        tokens = row["step_ms"] / _figure(record, "mean_tpot_ms", where)
        stated = [_figure(record, name, where) for name in LENGTHS if record.get(name)]
        if not max([1.0, *stated]) / UNEVEN < tokens < (asked + 1) * UNEVEN:
            raise CostError(
                f"{where}: mean_itl_ms is {tokens:.3g} times mean_tpot_ms, where a step commits "
                f"{f'{stated[0]:.3g} tokens' if stated else f'at most {asked + 1}'}: it is no step's time: "
                "several steps' with --stream-interval, a token's in SGLang's results, or drafts were not counted"
            )
    row["model_id"] = record.get("model_id")
    if record.get("total_input_tokens") and record.get("completed"):
        cached = _figure(record, "total_input_tokens", where) + _figure(record, "total_output_tokens", where) / 2
        row["context"] = round(cached / _figure(record, "completed", where))
    return row


def _ms(seconds: Any, where: str) -> dict[str, float]:
    return {"step_ms": 1e3 * _figure({"seconds": seconds}, "seconds", where)}


def _figure(record: Row, name: str, where: str) -> float:
    """Return a positive number of a record."""
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e15:
        raise CostError(f"{where}: `{name}` must be a number above 0, found {value!r:.40}")
    return float(value)
