"""Read the counters that AIPerf scraped from a server: server_metrics_export.json, .csv and .jsonl.

JSON and CSV hold what each counter grew by during the run, without `_total` in its name. The lines of .jsonl are
scrapes: of each endpoint the last counts, less the first, and no counter may fall in between. Source:
docs/server-metrics of AIPerf 0.13.0.
"""

import csv
import re
from collections.abc import Iterator, Mapping
from io import StringIO
from typing import Any

from treeopt.errors import TraceError
from treeopt.traces.importers.readers.prometheus_text import PART, Key, of_model
from treeopt.traces.importers.source_file import parsed

FIRST = ["Endpoint", "Type", "Metric"]
_CSV = re.compile(r"^Endpoint,Type,Metric,", re.MULTILINE)
_JSON = re.compile(rf'"(?:\w+:|trtllm_){PART}_\w+"\s*:\s*(?:\{{|\[\s*\{{)')


def holds_export(text: str) -> bool:
    """Return True if AIPerf's server metrics with speculative decoding are in the text.

    >>> holds_export("Endpoint,Type,Metric,Unit,total,rate,position,Description")
    False
    """
    if PART not in text:
        return False
    if text.lstrip()[:1] == "{":
        return _JSON.search(text) is not None and '"metrics"' in text
    return _CSV.search(text) is not None


def export_samples(text: str, model: str | None) -> dict[Key, float]:
    """Return what each counter grew by during the run, under its name in /metrics; endpoints are added.

    Raises:
        TraceError: names the counter or the line; several models and none named.
    """
    samples: dict[Key, float] = {}
    rows = _of_json(text) if text.lstrip()[:1] == "{" else _of_csv(text)
    for name, labels, value in rows:
        key = f"{name.removesuffix('_total')}_total", tuple(sorted(labels.items()))
        samples[key] = samples.get(key, 0.0) + value
    return of_model(samples, model)


def _of_csv(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Yield the rows of counters; sections stand after each other, each with a head of its own."""
    head: list[str] = []
    try:
        for number, cells in enumerate(csv.reader(StringIO(text)), 1):
            if not cells or cells[0].startswith("#"):
                head = []
            elif not head:
                head = cells
            elif len(cells) == len(head) and head[:3] == FIRST and "total" in head and PART in cells[2]:
                end = head.index("Description") if "Description" in head else len(head)
                start = max(i for i, name in enumerate(head) if name == "total" or name.startswith("rate")) + 1
                labels = {name: cell for name, cell in zip(head[start:end], cells[start:end], strict=True) if cell}
                total = cells[head.index("total")]
                yield cells[2], labels, _number(total, f"line {number}: total of {cells[2]:.80}")
    except csv.Error as error:
        raise TraceError(f"not a table of cells: {error}") from error


def _of_json(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Yield the series of the aggregated export, or the growth between scrapes of an endpoint."""
    records = [record for record in parsed(text) if isinstance(record, dict)]
    scrapes: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        metrics = record.get("metrics")
        if not isinstance(metrics, dict):
            continue
        if "timestamp_ns" in record:
            scrapes.setdefault(str(record.get("endpoint_url")), []).append(record)
            continue
        for name, metric in metrics.items():
            if PART in name and isinstance(metric, dict) and metric.get("type", "counter") == "counter":
                yield from ((name, *series) for series in _series(name, metric.get("series")))
    for endpoint in scrapes.values():
        yield from _growth(endpoint)


def _growth(scrapes: list[Mapping[str, Any]]) -> Iterator[tuple[str, dict[str, str], float]]:
    """Yield what each counter of an endpoint grew by; of a single scrape, its counts.

    Raises:
        TraceError: a counter fell from one scrape to the next.
    """
    scrapes.sort(key=lambda scrape: _number(scrape["timestamp_ns"], "`timestamp_ns`"))
    counters = [dict(_cumulative(scrape["metrics"])) for scrape in scrapes]
    first = counters[0] if len(counters) > 1 else {}
    last: dict[Key, float] = {}
    for scrape in counters:
        for key, value in scrape.items():
            before = last.get(key, value)
            if value < before:
                raise TraceError(f"`{key[0]}` fell from {before:.15g} to {value:.15g}: the engine was restarted")
            last[key] = value
    for (name, labels), value in last.items():
        yield name, dict(labels), value - first.get((name, labels), 0.0)


def _series(name: str, series: Any) -> Iterator[tuple[dict[str, str], float]]:
    if not isinstance(series, list):
        raise TraceError(f"`{name}` must have a list of `series`, found {series!r:.60}")
    for number, item in enumerate(series):
        where = f"`{name}`, series {number}"
        stats = item.get("stats") if isinstance(item, dict) else None
        if not isinstance(stats, dict):
            raise TraceError(f"{where} must have `stats` with a `total`, found {item!r:.60}")
        yield _labels(item), _number(stats.get("total"), f"{where}: total")


def _cumulative(metrics: Mapping[str, Any]) -> Iterator[tuple[Key, float]]:
    """Yield the counters of one scrape."""
    for name, samples in metrics.items():
        if PART not in name or not isinstance(samples, list):
            continue
        for number, sample in enumerate(samples):
            if isinstance(sample, dict) and "value" in sample:
                value = _number(sample["value"], f"`{name}`, sample {number}: value")
                yield (name, tuple(sorted(_labels(sample).items()))), value


def _labels(item: Mapping[str, Any]) -> dict[str, str]:
    labels = item.get("labels") or {}
    return {str(key): str(word) for key, word in labels.items()} if isinstance(labels, dict) else {}


def _number(value: Any, where: str) -> float:
    try:
        return float("" if isinstance(value, bool) else value)
    except (TypeError, ValueError, OverflowError) as error:
        raise TraceError(f"{where} must be a count, found {value!r:.40}") from error
