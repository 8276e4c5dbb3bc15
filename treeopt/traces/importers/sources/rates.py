"""Rates by position as people paste them: model cards, pull requests, tables of benchmarks, lines that programs print.

Asked last, where no engine's own output is recognised. Read are JSON lists and lines with "per-position acceptance" and
nothing but numbers behind it, "token|position N: x" where acceptance is spoken of, tables with a column for each
position, with a list in a column or with a row for each position, distributions of accepted lengths, and the histograms
by position of Modular MAX. Rates are shares of all steps; conditional ones are refused.
"""

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from treeopt.errors import TraceError
from treeopt.traces.importers.chain_counts import Chain
from treeopt.traces.importers.sources.bench_serve import Printed, printed_chain
from treeopt.traces.importers.trace_source import Content, TraceSource

_NUMBER = r"(?:\d{1,4}(?:\.\d{1,18})?|\.\d{1,18})"
_RATE = re.compile(rf"{_NUMBER}%?")
_BY_POSITION = re.compile(r"(?i)per[-_ ]?pos|marginal_|pos(?:ition)? accept|accept\w*(?: rates?)? (?:by|per) pos")
_LINE = re.compile(
    r"(?i)^(?P<words>[^|]*?)(?:[:=]|\s)\s*(?P<rates>[\[(]?\s*"
    rf"{_NUMBER}\s*%?(?:[,;/\s]+{_NUMBER}\s*%?)*\s*[\])]?)\s*$"
)
_ONE = re.compile(
    rf"(?i)\b(token|position|pos)\.? ?#?(\d{{1,2}})\s*[:=]\s*({_NUMBER}(?:,\d{{1,6}})?\s?%?)(?: ?\(\d+ ?/ ?(\d+)\))?"
)
_DISTRIBUTION = re.compile(r"(?i)accepted tokens distribution\W{1,4}((?:\d{1,2}: ?'?[\d.]{1,20}%'?,? ?)+)")
_HISTOGRAM = re.compile(
    r'acceptance_rate_per_position_(sum|count)\{[^}\n]{0,200}?position="(\d{1,2})"[^}\n]{0,200}\}\s+'
    r"([\d.]{1,20}(?:e[+-]?\d+)?)"
)
_COLUMN = re.compile(
    r"(?i)(?:accept\w*@|(?:accept[a-z]*[ _](?:rate[ _])?)?(?:at[ _])?(?:pos[a-z]*|token)[ _]?#?)(\d{1,2})(?: accept.*)?"
)
_PAIR = re.compile(r"(?m)^\|[ *`]*([^|\n]+?)[ *`]*\|[ *`]*([^|\n]+?)[ *`]*\|[ \t]*$")  # a row of a name and its value
_HEADER = re.compile(r"\s*[A-Za-z][\w @#/()%.-]*(?:[,;\t]\s*[A-Za-z][\w @#/()%.-]*)+\s*")
_COUNT = r"\"?[ \t]*[:=|][ \t|:=]{0,40}(\d[\d,]{0,17}+)(?!\.\d{3}\b)"
_STEPS = (
    r'(?im)(?:num_drafts|number of draft(?: proposal)?s|draft proposals|(?:^\s*|")(?:rounds|drafts|steps))' + _COUNT
)
_ACCEPTED = r"(?i)accepted[ _]tokens" + _COUNT
_OF_DRAFTED = re.compile(r"(?i)accepted/total draft tokens: (\d{1,15})/(\d{1,15})")
_MEAN = re.compile(rf"(?i)accept(?:ance|ed)?[ _]len(?:gth)?\"?[ \t]*[:=][ \t:=]{{0,40}}({_NUMBER})")
_PERCENT = re.compile(r"(?i)\(\s*%|pct|per ?cent")
_OTHER = re.compile(
    r"(?i)latency|loss|accuracy|agreement|dropout|average|mean|range|time|perplexity|length|accepted[ _]tokens"
)
_CONDITIONAL = re.compile(r"(?i)conditional|given (?:that )?(?:the )?(?:one|previous|token|before)")
_KINDS = re.compile(r"(?i)drafter|draft_model|method|model")
NOT_STATED = (None, None, None)  # steps, accepted and drafted tokens
LONGEST = 2000  # characters of a line of rates; logs print prompts as longer ones
NEARBY = 400  # characters before a rate in which acceptance must be spoken of
APART = 0.06  # by how much rates may add up to another mean than the text states: both are rounded
SHARES = "rates are shares of all steps, not of the steps that accepted the position before"
EQUAL = "the {} rows do not say how many steps they cover: each counts the same"


def holds_rates(content: Content) -> bool:
    """Return True if rates by position stand in the content, in a form that is read."""
    return next(_rows(content), None) is not None


def read_rates(content: Content) -> Chain:
    """Return the chain of all rates in a text, pooled by their steps; of a running total, the last.

    Raises:
        TraceError: rates that are no shares, that rise, of several drafters or lengths, or that contradict the mean.
    """
    rows = list(_rows(content))
    lengths = {len(row.rates) for row in rows}
    if len(lengths) > 1:
        raise TraceError(f"it has rates of {min(lengths)} to {max(lengths)} positions: keep those of one length")
    if len(rows) == 1:
        _check_mean(rows[0].rates, _PAIR.sub(r"\1: \2", content.text), "it")
    if len(rows) > 1 and any(not row.steps for row in rows):
        shares = np.mean([row.rates for row in rows], axis=0)
        return Chain(tuple(shares.tolist()), assumed=(SHARES, EQUAL.format(len(rows))))
    chain = printed_chain(rows)
    return replace(chain, assumed=(SHARES, *chain.assumed))


def _check_mean(rates: Sequence[float], text: str, where: str) -> None:
    """Raise TraceError if the one mean length that a text states is not what the rates make, bonus counted or not."""
    means, total = _MEAN.findall(text), 1 + sum(rates)
    if len(means) == 1 and min(abs(float(means[0]) - total), abs(float(means[0]) - total + 1)) > APART:
        raise TraceError(f"{where} says a mean length of {means[0]}, but its rates add up to {total:.2f} tokens a step")


def _counts(text: str) -> Sequence[int | None]:
    """Return the steps and accepted tokens that a text states once, None for the others and for drafted tokens."""
    stated = (re.findall(pattern, text) for pattern in (_STEPS, _ACCEPTED))
    return (*(int(found[0].replace(",", "")) if len(found) == 1 else None for found in stated), None)


def _rows(content: Content) -> Iterator[Printed]:
    """Yield each row of rates, with its steps where they are printed."""
    text = content.text
    if means := _of_histograms(text):
        yield Printed.checked(means, 0.0, NOT_STATED, "the histograms")
    elif totals := list(_DISTRIBUTION.finditer(text)):
        yield _of_distribution(text, totals[-1])
    elif content.values is not None:
        yield from _of_json(content)
    elif table := list(_of_tables(text)):
        yield from table
    else:
        text = _PAIR.sub(r"\1: \2", text)
        counts = _counts(text)
        lines = [row for line in text.splitlines() if (row := _of_line(line, counts))] or list(_of_ones(text, counts))
        if len(lines) > 1:
            raise TraceError(f"it has {len(lines)} lists of rates by position: keep one")
        yield from lines


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
    if abs(sum(shares) - 1) > 0.01:
        raise TraceError(f"the distribution of accepted tokens adds up to {sum(shares):.1%}: are lengths missing?")
    rates = [min(sum(shares[length:]), 1.0) for length in range(1, len(shares))]
    line = text[text.rfind("\n", 0, found.start()) + 1 : found.end()]
    counts = _OF_DRAFTED.search(line)
    steps = int(counts[2]) // max(len(rates), 1) if counts else None
    return Printed.checked(rates, 5e-5 * len(shares), (steps, None, None), "the distribution")


def _of_json(content: Content) -> Iterator[Printed]:
    """Yield the lists of objects whose name speaks of acceptance by position."""
    for record in content.records:
        counts = _counts(json.dumps({name: value for name, value in record.items() if type(value) in (int, float)}))
        lists = {name: value for name, value in record.items() if isinstance(value, list) and value}
        named = [name for name in lists if "accept" in name.lower() and _BY_POSITION.search(name)]
        for name in [name for name in named if "rate" in name.lower()] or named:
            rates = lists[name]
            if re.search(r"(?i)accepted[ _]tokens", name):  # counts
                rates = [count / counts[0] for count in rates] if counts[0] else []
            if rates:
                yield _printed([str(rate) for rate in rates], name, counts)


def _of_line(line: str, counts: Sequence[int | None]) -> Printed | None:
    """Return the rates of a line that names acceptance by position, and has nothing but numbers behind the name."""
    found = _LINE.match(line.strip()) if len(line) < LONGEST and "accept" in line.lower() else None
    if found is None or not _BY_POSITION.search(found["words"]) or "accept" not in found["words"].lower():
        return None
    words = found["words"]
    if re.search(r"\d\.\d|\d%", words):  # numbers among other words: not a list
        return None
    if _OTHER.search(words) and not re.search(r"(?i)acceptance rate|accept rate", words):
        return None
    return _printed(_RATE.findall(re.sub(r"\s+%", "%", found["rates"])), words, counts)


def _of_ones(text: str, counts: Sequence[int | None]) -> Iterator[Printed]:
    """Yield the rates that follow a position each, `position 0: 0.8`, where acceptance is spoken of shortly before."""
    rates: list[str] = []
    first, words, steps = 0, "", None
    for found in _ONE.finditer(text):
        spoken, position = text[max(found.start() - NEARBY, 0) : found.start()], int(found[2])
        line = text[text.rfind("\n", 0, found.start()) + 1 : found.start()]
        if _OTHER.search(line) or ("accept" not in spoken.lower() and not rates):
            continue
        if position <= 1 and rates and position == first:
            yield _printed(rates, words, counts)
            rates = []
        if not rates:
            words, steps = spoken[spoken.lower().rfind("accept") :], found[4]
            first = 1 if position == 1 and found[1].lower() != "token" else 0  # engines number tokens from 0
        if position != first + len(rates):
            raise TraceError(f"position {position} stands where position {first + len(rates)} is expected")
        rates.append(found[3])
        if _CONDITIONAL.search(spoken) or found[4] != steps:  # of fewer steps than the first
            words += " conditional"
    if rates:
        yield _printed(rates, words, counts)


def _of_tables(text: str) -> Iterator[Printed]:
    """Yield the rows of CSV and of tables drawn with bars that hold rates by position."""
    bars = [line for line in text.splitlines() if line.count("|") > 2 and re.search(r"\w", line)]
    rows = [[cell.strip(" *`\t") for cell in line.strip().strip("|").split("|")] for line in bars]
    if not rows and _HEADER.fullmatch(text.strip().split("\n", 1)[0]):
        mark = next(mark for mark in "\t;," if mark in text.strip().split("\n", 1)[0])
        rows = list(csv.reader(io.StringIO(text.strip()), delimiter=mark))
    header, *rest = rows or [[]]
    if column := _column_of_positions(header, rest):
        yield _printed(column, "", NOT_STATED)
        return
    kinds = {row[place] for place, name in enumerate(header) if _KINDS.search(name) for row in rest if len(row) > place}
    found = []
    for number, row in enumerate(rest, 1):
        cells = dict(zip(header, row, strict=False))
        if rates := _rates_of(cells, text):
            stated = "\n".join(f"{name}: {cell}" for name, cell in cells.items())
            words = " ".join(name for name in header if "accept" in name.lower() or _COLUMN.fullmatch(name))
            found.append(_printed(rates, words, _counts(stated), f"row {number}"))
            _check_mean(found[-1].rates, stated, f"row {number}")
    labels = sum(1 for name in header if _KINDS.search(name))
    if len(found) > 1 and len(kinds) > labels:
        raise TraceError("it has rows of several models or drafters: keep those of one")
    yield from found


def _column_of_positions(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rates of a table with a row for each position; none of other tables."""
    places = [
        place for place, name in enumerate(header) if re.fullmatch(r"(?i)(?:draft )?(?:positions?|pos|token)", name)
    ]
    rates = [place for place, name in enumerate(header) if "accept" in name.lower() and not _CONDITIONAL.search(name)]
    if len(places) != 1 or len(rates) != 1 or any(len(row) <= max(places + rates) for row in rows):
        return []
    numbers = [row[places[0]] for row in rows]
    starts = [[str(first + place) for place in range(len(rows))] for first in (0, 1)]
    return [row[rates[0]] for row in rows] if numbers and numbers in starts else []


def _rates_of(cells: Mapping[str, str], text: str) -> list[str]:
    """Return the rates of a row: those of columns that name positions, or of one column that lists them."""
    columns = {int(found[1]): cell for name, cell in cells.items() if (found := _COLUMN.fullmatch(name))}
    first = min(columns, default=0)
    if (
        columns
        and first <= 1
        and sorted(columns) == list(range(first, first + len(columns)))
        and "accept" in text.lower()
    ):
        rates = [columns[first + place] for place in range(len(columns))]
        return rates[: sum(1 for cell in rates if cell.strip("-\u2013\u2014"))]  # shorter drafts leave the rest empty
    lists = [cell for name, cell in cells.items() if "accept" in name.lower() and _BY_POSITION.search(name)]
    return _RATE.findall(lists[0]) if len(lists) == 1 else []


def _printed(rates: Sequence[str], words: str, counts: Sequence[int | None], where: str = "it") -> Printed:
    """Return a row from its words; rates are all per cent or all shares."""
    marked = [rate.strip().endswith("%") for rate in rates]
    try:
        values = [float(rate.strip().removesuffix("%")) for rate in rates]
    except ValueError:
        raise TraceError(f"{where}: rates must be numbers with a decimal point, found {list(rates)!r:.60}") from None
    if any(marked) != all(marked):
        raise TraceError(f"{where}: rates mix per cent and shares: {', '.join(rates)[:60]}")
    named = _PERCENT.search(words) is not None
    percent = all(marked) or max(values) > 1
    if max(values) > 100:
        raise TraceError(f"{where}: {max(values):g} is no rate: are these counts? Divide by drafts; write 0.8 for 0,8")
    if not all(marked) and not named and 0 < min(values) <= 1 < max(values):
        raise TraceError(f"{where}: rates mix per cent and shares: {', '.join(rates)[:60]}")
    if named and not percent and max(values) > 0:
        raise TraceError(f"{where}: are rates of at most {max(values):g} per cent or shares? Write % behind each")
    scale = 100 if percent else 1
    if _CONDITIONAL.search(words):
        raise TraceError(_conditional([f"{value / scale:g}" for value in values]))
    digits = min(len(rate.strip().removesuffix("%").partition(".")[2]) for rate in rates)
    shares = [value / scale for value in values]
    counts = NOT_STATED if 0 < (counts[0] or 0) <= len(rates) else counts  # `steps` may be the length of drafts
    return Printed.checked(shares, 0.5 * 10.0**-digits / scale, counts, where)


def _conditional(rates: Sequence[str]) -> str:
    products = np.cumprod([float(rate.strip().removesuffix("%")) / (100 if "%" in rate else 1) for rate in rates])
    shares = ",".join(f"{share:.3g}" for share in products)
    return (
        f"rates given the position before are no shares of all steps: give `--acceptance {shares}` to search or whatif"
    )


ENTRY = TraceSource(
    name="rates",
    title="rates by position",
    settings={
        "requests": "most texts that stand for the steps",
        "steps": "number of steps that the rates cover, if the text has none",
    },
    holds=holds_rates,
    chain=read_rates,
    last=True,
)
