"""Rates by position as people paste them: model cards, pull requests, tables of benchmarks, lines that programs print.

Asked last, where no engine's own output is recognised. Rates are shares of all steps. It reads lists behind
"per-position" or "pos accept", lines "acceptance (rate) at token|position N: x", columns `...@N`, distributions of
accepted lengths, and the histograms by position of Modular MAX.
"""

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence

from treeopt.errors import TraceError
from treeopt.traces.importers.chain_counts import Chain
from treeopt.traces.importers.sources.bench_serve import Printed, printed_chain
from treeopt.traces.importers.trace_source import Content, TraceSource

_NUMBER = r"(?:\d{1,3}(?:\.\d{1,18})?|\.\d{1,18})\s?%?"
_BY_POSITION = r"(?:per[-_ ]?pos(?:ition)?|pos(?:ition)? accept\w*)"
_LIST = re.compile(rf"(?i){_BY_POSITION}[^\d\n\[{{|,]{{0,60}}\[?\s*({_NUMBER}(?:[,\s]\s?{_NUMBER})*)")
_ONE = re.compile(
    rf"(?i)accept\w*(?: rate)?(?: \(%\))?(?: at| of| for)? (?:token|position) (\d{{1,2}})\W{{1,30}}({_NUMBER})"
)
_SHARES = re.compile(r"(?i)accepted tokens distribution\W{1,4}((?:\d{1,2}: ?'?[\d.]{1,20}%'?,? ?)+)")
_HISTOGRAM = re.compile(
    r'acceptance_rate_per_position_(sum|count)\{[^}\n]{0,200}?position="(\d{1,2})"[^}\n]{0,200}\}\s+([\d.]{1,20}(?:e[+-]?\d+)?)'
)
_COLUMN = re.compile(r"(?i)accept\w*@(\d{1,2})")
_STEPS = re.compile(r"(?i)(?:num_drafts|number of draft(?: proposal)?s|draft proposals|rounds)\W{1,40}(\d[\d,]{0,17})")
_OF_DRAFTED = re.compile(r"(?i)accepted/total draft tokens: (\d{1,15})/(\d{1,15})")
_HEADER = re.compile(r"[A-Za-z]\w*@?\w*(?:,\s*[A-Za-z]\w*@?\w*)+")
_STEPS_NAME = re.compile(r"(?i)(?:\w*num_drafts|rounds|drafts|steps)")
EQUAL = "the {} rows do not say how many steps they cover: each counts the same"


def holds_rates(content: Content) -> bool:
    """Return True if rates by position stand in the text, in a form that is read."""
    return next(_rows(content.text), None) is not None


def read_rates(content: Content) -> Chain:
    """Return the chain of all rates in a text, pooled by their steps; of a running total, the last.

    Raises:
        TraceError: rates that are no shares, that rise, or of drafts of several lengths.
    """
    rows = list(_rows(content.text))
    without = [row for row in rows if not row.steps]
    if without and len(rows) > 1:
        length = {len(row.rates) for row in rows}
        if len(length) > 1:
            raise TraceError(f"it has rates of {min(length)} to {max(length)} positions: keep those of one length")
        means = tuple(sum(rates) / len(rows) for rates in zip(*(row.rates for row in rows), strict=True))
        return Chain(means, assumed=(EQUAL.format(len(rows)),))
    return printed_chain(rows)


def _rows(text: str) -> Iterator[Printed]:
    """Yield each row of rates, with its steps where they are printed."""
    if means := _of_histograms(text):
        yield Printed.checked(means, 0.0, (None, None, None), "the histograms")
        return
    totals = list(_SHARES.finditer(text))
    if totals:
        yield _of_distribution(text, totals[-1])
        return
    table = list(_of_tables(text))
    yield from table
    if table:
        return
    stated = _STEPS.findall(text)
    steps = int(stated[0].replace(",", "")) if len(stated) == 1 else None
    for found in _LIST.finditer(text):
        yield _printed(re.findall(_NUMBER, found[1]), steps)
    ones: list[str] = []
    for position, rate in _ONE.findall(text):
        if int(position) == 0 and ones:
            yield _printed(ones, steps)
            ones = []
        if int(position) != len(ones):
            raise TraceError(f"position {position} stands where position {len(ones)} is expected")
        ones.append(rate)
    if ones:
        yield _printed(ones, steps)


def _of_histograms(text: str) -> list[float]:
    """Return the means of histograms of per cent by position, position 0 first; none of other texts."""
    sums: dict[tuple[str, int], float] = {}
    for part, position, value in _HISTOGRAM.findall(text):
        key = part, int(position)
        sums[key] = sums.get(key, 0.0) + float(value)
    length = len({position for _, position in sums})
    counts = [sums.get(("count", position), 0.0) for position in range(length)]
    return [sums.get(("sum", place), 0.0) / count / 100 for place, count in enumerate(counts)] if all(counts) else []


def _of_distribution(text: str, found: re.Match[str]) -> Printed:
    """Return the rates of a distribution of accepted lengths, from 0 on, which counts since the engine started."""
    shares = [float(share) / 100 for share in re.findall(r": ?'?([\d.]+)%", found[1])]
    rates = [min(sum(shares[length:]), 1.0) for length in range(1, len(shares))]
    line = text[text.rfind("\n", 0, found.start()) + 1 : found.end()]
    counts = _OF_DRAFTED.search(line)
    steps = int(counts[2]) // max(len(rates), 1) if counts else None
    return Printed.checked(rates, 5e-5 * len(shares), (steps, None, None), "the distribution")


def _of_tables(text: str) -> Iterator[Printed]:
    """Yield the rows of CSV and of tables drawn with bars that have a column of rates."""
    bars = [line for line in text.splitlines() if line.count("|") > 2 and re.search(r"\w", line)]
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in bars]
    if not rows and _HEADER.fullmatch(text.strip().split("\n", 1)[0].strip()):
        rows = list(csv.reader(io.StringIO(text.strip())))
    header, *rest = rows or [[]]
    for number, row in enumerate(rest, 1):
        cells = dict(zip(header, row, strict=False))
        rates = _rates_of(cells)
        if rates:
            counts = [cell for name, cell in cells.items() if _STEPS_NAME.fullmatch(name) and cell.isdecimal()]
            yield _printed(rates, int(counts[0]) if counts else None, f"row {number}")


def _rates_of(cells: Mapping[str, str]) -> list[str]:
    """Return the rates of a row: those of columns that name positions, or of one column that lists them."""
    columns = {int(found[1]): cell for name, cell in cells.items() if (found := _COLUMN.fullmatch(name))}
    if columns and sorted(columns) == list(range(len(columns))):
        return [columns[position] for position in range(len(columns))]
    lists = [cell for name, cell in cells.items() if re.search(rf"(?i){_BY_POSITION}", name)]
    return re.findall(_NUMBER, lists[0]) if len(lists) == 1 else []


def _printed(rates: Sequence[str], steps: int | None, where: str = "it") -> Printed:
    """Return a row from its words; all are per cent if one of them says so or exceeds 1."""
    try:
        values = [float(rate.strip().removesuffix("%")) for rate in rates]
    except ValueError:
        raise TraceError(f"{where}: rates must be numbers, found {list(rates)!r:.60}") from None
    scale = 100 if any("%" in rate for rate in rates) or max(values) > 1 else 1
    digits = min(len(rate.strip().removesuffix("%").partition(".")[2]) for rate in rates)
    error = 0.5 * 10.0**-digits / scale
    return Printed.checked([value / scale for value in values], error, (steps, None, None), where)


ENTRY = TraceSource(
    name="rates",
    title="rates by position",
    form="a text with rates by position, shares of all steps: a list behind `per-position`, lines `acceptance at token "
    "0: 0.80`, columns `accept_rate@0`, a distribution of accepted lengths, or histograms by position of Modular MAX. "
    "Rows are pooled by their steps, where it says them",
    trace_holds="intervals by steps, if their number is known",
    settings={
        "requests": "most texts that stand for the steps",
        "steps": "number of steps that the rates cover, if the text has none",
    },
    assumes=("rates are shares of all steps, not of the steps that accepted the position before",),
    holds=holds_rates,
    chain=read_rates,
    last=True,
)
