"""Step times of an inference engine, brought in from a table: a profile of chains.

Comma-separated values under a header, a line a measurement:

* `batch`, requests that are decoded at a time; `drafted`, tokens of the chain, 0 for plain decoding; every batch size
  and context has lines of 0 and 1;
* either `step_ms`, the time between a request's outputs, or `tokens_s`, output tokens a second of all requests while
  they are decoded, time that prompts take left out, and `committed`, tokens a request and step, the bonus counted (of
  plain decoding 1, or empty): a step then takes batch x committed / tokens_s;
* `context`, tokens a request in the cache, in the mean; it MAY be missing.

Other columns are left alone. Lines of the same batch, chain and context are repetitions.

How much of a step is drafting such times do not tell, and to a chain it makes no difference: all is laid to
verification. A tree that branches is thus priced as the chain of as many nodes, which has more levels.
"""

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from simulate.profiles.calibration import Cell, profile_of
from simulate.profiles.profile import Profile
from simulate.profiles.step_tables import BatchTimes
from treeopt.errors import CostError, UsageError
from treeopt.storage.atomic_files import checksum, why
from treeopt.storage.provenance import this_run

ALWAYS = ("batch", "drafted")
STEP = ("step_ms",)
RATE = ("tokens_s", "committed")
MOST = {"batch": 2**20, "drafted": 512, "context": 1e9, "step_ms": 1e9, "tokens_s": 1e12, "committed": 513}
LEAST_S = 1e-9  # of a step
HERE = ("processor", "cores", "software")  # of provenance: those of the machine that read the table


@dataclass(frozen=True)
class _Line:
    """One measurement; `context` None where the table does not say."""

    batch: int
    drafted: int
    step_s: float
    context: float | None


def read_times(path: Path, *, device: str, context: tuple[int, int] | None = None) -> Profile:
    """The profile of a table.

    Args:
        path: of the table.
        device: what was measured, in words.
        context: fewest and most tokens a request in the cache; None where the table says it.

    Raises:
        CostError: names file, line and column; or a batch size and context without plain decoding, or a chain of 1.
        UsageError: nothing says the context, or two do.
    """
    lines = _lines(path)
    told = {line.context is not None for line in lines}
    if told == {True} and context is not None:
        raise UsageError(f"{path} has a column `context`: say it there alone")
    if told == {False} and context is None:
        raise UsageError(
            f"{path} does not say at which context it was measured: add a column, or say from where to where"
        )
    places = [line.context for line in lines if line.context is not None]
    low, high = context or (math.floor(min(places)), math.ceil(max(places)))
    cells = []
    for batch, drafted, place in dict.fromkeys((line.batch, line.drafted, line.context) for line in lines):
        same = [line.step_s for line in lines if (line.batch, line.drafted, line.context) == (batch, drafted, place)]
        error = float(np.std(np.log(same), ddof=1)) / len(same) ** 0.5 if len(same) > 1 else 0.0
        where, widths = (low + high) / 2 if place is None else place, (1,) * drafted
        cells.append(Cell(batch, where, drafted + 1, widths, 0.0, float(np.median(same)), error=error))
    meta = {
        "imported": {"format": "times", "file": path.name, "sha256": checksum(path)},
        "device": device,
        "provenance": {name: value for name, value in this_run().items() if name not in HERE},
    }
    for batch, place in dict.fromkeys((line.batch, line.context) for line in lines):
        chains = {line.drafted for line in lines if (line.batch, line.context) == (batch, place)}
        if not {0, 1} <= chains:  # plain decoding, and what a search begins with
            named = "" if place is None else f", context {place:g} (contexts must be equal to be compared)"
            raise CostError(f"{path}: batch {batch}{named}: there is no line with `drafted` {min({0, 1} - chains)}")
    found = profile_of(cells, context=(low, high), meta=meta)
    return replace(found, batches=tuple(map(_free, found.batches)))


def _free(times: BatchTimes) -> BatchTimes:
    """With drafting that costs nothing, from depth 1 on."""
    deepest = times.rest[-1][0] - 1
    return replace(times, draft=tuple((depth, 0.0) for depth in sorted({1, deepest})), widths_told=None)


def _lines(path: Path) -> list[_Line]:
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise CostError(f"{path}: cannot be read: {why(error)}") from error
    reader = csv.DictReader(text.splitlines(), skipinitialspace=True)
    names = [name.strip() for name in reader.fieldnames or ()]
    reader.fieldnames = names
    columns = STEP if STEP[0] in names else RATE
    shown = ", ".join(names) or "nothing"
    if missing := [name for name in (*ALWAYS, *columns) if name not in names]:
        wanted = f"{', '.join(ALWAYS)} and {STEP[0]}, or {' and '.join(RATE)}, parted by commas"
        raise CostError(
            f"{path}: there is no column {', '.join(missing)}; it needs {wanted}, its header is {shown:.80}"
        )
    if STEP[0] in names and RATE[0] in names:
        raise CostError(f"{path}: `{STEP[0]}` and `{RATE[0]}` both tell what a step takes: leave one of them out")
    for name in (*ALWAYS, *columns, "context"):
        if names.count(name) > 1:
            raise CostError(f"{path}: there are {names.count(name)} columns `{name}`")
    found = []
    try:
        for row in reader:
            if None in row:
                cells = len(names) + len(row[None])
                raise CostError(f"{path}: line {reader.line_num} has {cells} cells, the header {len(names)} columns")
            if any(row.values()):
                found.append(_line(row, f"{path}: line {reader.line_num}", columns))
    except csv.Error as error:
        raise CostError(f"{path}: line {reader.line_num}: {error}") from error
    if not found:
        raise CostError(f"{path}: holds no measurement")
    return found


def _line(row: Mapping[str, Any], where: str, columns: tuple[str, ...]) -> _Line:
    batch, drafted = (int(_number(row, name, where, whole=True)) for name in ALWAYS)
    if batch < 1:
        raise CostError(f"{where}: `batch` must be at least 1, found {batch}")
    if drafted < 0:
        raise CostError(f"{where}: `drafted` must be 0 or more, found {drafted}")
    context = _number(row, "context", where) if "context" in row else None
    if context is not None and context < 0:
        raise CostError(f"{where}: `context` must be 0 or more, found {context:g}")
    if columns == STEP:
        return _Line(batch, drafted, _told(_positive(row, STEP[0], where) / 1e3, where), context)
    committed = 1.0 if drafted == 0 and not (row[RATE[1]] or "").strip() else _number(row, RATE[1], where)
    if not 1 <= committed <= drafted + 1:
        raise CostError(f"{where}: `committed` must be 1 to {drafted + 1}, found {committed:g}")
    return _Line(batch, drafted, _told(batch * committed / _positive(row, RATE[0], where), where), context)


def _told(step_s: float, where: str) -> float:
    if not LEAST_S <= step_s < math.inf:
        raise CostError(f"{where}: a step of {step_s:g} seconds is none")
    return step_s


def _positive(row: Mapping[str, Any], name: str, where: str) -> float:
    found = _number(row, name, where)
    if found <= 0:
        raise CostError(f"{where}: `{name}` must be above 0, found {found:g}")
    return found


def _number(row: Mapping[str, Any], name: str, where: str, *, whole: bool = False) -> float:
    text = (row[name] or "").strip()
    try:
        found = float(int(text)) if whole else float(text)
    except (ValueError, OverflowError):
        found = np.nan
    if not np.isfinite(found):
        raise CostError(f"{where}: `{name}` must be {'an integer' if whole else 'a number'}, found {text!r:.40}")
    if found > MOST[name]:
        raise CostError(f"{where}: `{name}` must be at most {MOST[name]:g}, found {found:g}")
    return found
