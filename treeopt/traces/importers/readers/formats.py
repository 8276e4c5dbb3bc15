"""The formats of acceptance figures that can be imported as a trace, by name, with the settings that each takes.

Outputs of engines are recognised by their content; `counters`, `responses` and `log` name the same format, `engine`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from treeopt.defaults import IMPORTED_DEPTH, IMPORTED_LENGTH, IMPORTED_REQUESTS
from treeopt.errors import TraceError, UsageError, counted
from treeopt.storage.atomic_files import checksum
from treeopt.traces.importers.chain_counts import Chain, chain_trace
from treeopt.traces.importers.readers import medusa_accuracy, positional_table, sequoia_vector
from treeopt.traces.importers.readers.engine_outputs import read_output
from treeopt.traces.importers.source_file import SAVED, read_numbers, read_text, source_meta
from treeopt.traces.trace import Trace


@dataclass(frozen=True)
class Source:
    """A file to import, and how a trace is made up where it has figures but no texts.

    Attributes:
        path: the file.
        kind: its format, a key of `FORMATS`.
        saved: reads files of `torch.save`.
        requests: of a trace that is made up; None: the default.
        length: tokens of each.
        seed: of its texts.
    """

    path: Path
    kind: str
    saved: Callable[[Path], Any]
    requests: int | None = None
    length: int = IMPORTED_LENGTH
    seed: int = 0

    @property
    def rng(self) -> np.random.Generator:
        """A fresh generator."""
        return np.random.default_rng(self.seed)

    def drawn(self, table: Any, assumed: list[str]) -> Trace:
        """Return a trace whose ranks are drawn from a table."""
        meta = source_meta(self.path, self.kind, assumed, seed=self.seed)
        return positional_table.drawn_trace(
            table, requests=self.requests or IMPORTED_REQUESTS, length=self.length, rng=self.rng, meta=meta
        )

    def of_chain(self, chain: Chain, kind: str, *, steps: int | None = None, **recorded: Any) -> Trace:
        """Return a trace with the acceptance of a chain from this kind of output; `recorded` goes to its provenance."""
        meta = source_meta(self.path, kind, (), seed=self.seed)
        meta["imported"] |= recorded | {"steps": chain.steps, "survival": list(chain.survival)}
        if chain.requests and self.requests is not None:
            raise UsageError(f"--requests does not apply: the file records {counted(len(chain.requests), 'request')}")
        return chain_trace(chain, requests=self.requests or IMPORTED_REQUESTS, rng=self.rng, meta=meta, steps=steps)


def import_trace(source: Source, settings: Mapping[str, Any]) -> Trace:
    """Return the trace of a file, with the settings of its format that are not None.

    Raises:
        UsageError: no such format, or a setting that it does not take.
        TraceError: names the file and what is wrong in it.
    """
    if source.kind not in FORMATS:
        raise UsageError(f"--format must be one of {', '.join(FORMATS)}, got {source.kind!r}")
    read, _ = FORMATS[source.kind]
    try:
        return read(source, **settings)
    except TraceError as error:
        raise TraceError(f"{source.path}: {error}") from error


def check_settings(kind: str, names: Mapping[str, Any]) -> None:
    """Raise UsageError for the first setting that the format does not take."""
    for name in names:
        if name not in FORMATS[kind][1]:
            raise UsageError(f"--{name.replace('_', '-')} does not apply to --format {kind}")


def _medusa_accuracy(source: Source, *, prompts: int | None = None, steps: int | None = None) -> Trace:
    if source.path.suffix not in SAVED:
        raise TraceError(f"must be one of {', '.join(SAVED)}")
    heads = source.saved(source.path)
    known = {"verification": "greedy", "temperature": 0.0}
    meta = source_meta(source.path, source.kind, medusa_accuracy.ASSUMED, **known)
    if isinstance(heads, list):
        meta["drafter"] = {"kind": "medusa", "heads": len(heads)}
    return medusa_accuracy.joint_trace(heads, prompts=prompts, steps=steps, meta=meta)


def _table(source: Source, *, column: str | None = None, depth: int | None = None) -> Trace:
    if column is None:
        raise UsageError(
            "give --column: rank if the table has the acceptance of each rank, recall if it has sums over ranks"
        )
    values = read_numbers(source.path, source.saved)
    table = positional_table.rank_table(values, column=column)
    assumed = list(positional_table.ASSUMED)
    if column == "rank" and positional_table.rises(table):
        assumed.insert(0, "ranks do get better from left to right, as recall does: was --column recall meant?")
    if depth is not None and len(table) > 1:
        raise UsageError(f"--depth is for a single row, the table has {len(table)}")
    if len(table) == 1 and depth != 1:
        table = np.tile(table, (depth or IMPORTED_DEPTH, 1))
        assumed.insert(0, f"the one row holds at each of {len(table)} depths")
    return source.drawn(table, assumed)


def _sequoia_vector(source: Source, *, depth: int = IMPORTED_DEPTH, reject_slot: bool | None = None) -> Trace:
    values = read_numbers(source.path, source.saved)
    table = sequoia_vector.vector_table(values, depth=depth, reject_slot=reject_slot)
    return source.drawn(table, [*sequoia_vector.ASSUMED, *positional_table.ASSUMED])


def _engine(source: Source, *, before: Path | None = None, steps: int | None = None, **settings: Any) -> Trace:
    given = settings | {name: value for name, value in {"before": before, "steps": steps}.items() if value is not None}
    try:
        earlier = None if before is None else read_text(before)
    except TraceError as error:
        raise TraceError(f"--before {before}: {error}") from error
    output = read_output(read_text(source.path), given, before=earlier)
    recorded: dict[str, Any] = {} if output.engine is None else {"engine": output.engine}
    if before is not None:
        recorded["before"] = {"file": before.name, "sha256": checksum(before)}
    return source.of_chain(output.chain, output.kind, steps=steps, **recorded)


ENGINE_SETTINGS = frozenset({"before", "model", "uneven", "steps", "depth", "requests"})
# Format -> its reader, and the settings that it takes.
FORMATS: Mapping[str, tuple[Callable[..., Trace], frozenset[str]]] = {
    "medusa-accuracy": (_medusa_accuracy, frozenset({"prompts", "steps"})),
    "table": (_table, frozenset({"column", "depth", "requests", "length"})),
    "sequoia-vector": (_sequoia_vector, frozenset({"depth", "reject_slot", "requests", "length"})),
    "engine": (_engine, ENGINE_SETTINGS),
    **dict.fromkeys(("counters", "responses", "log"), (_engine, ENGINE_SETTINGS)),
}
