"""`treeopt trace import`: acceptance figures that people already have, as a trace."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from treeopt.cli.options import general
from treeopt.errors import TraceError, UsageError
from treeopt.storage.atomic_files import checksum
from treeopt.traces.importers import medusa_accuracy, positional_table, sequoia_vector
from treeopt.traces.importers.chain_counts import Chain, chain_trace
from treeopt.traces.importers.engine_logs import read_log
from treeopt.traces.importers.engine_responses import read_responses
from treeopt.traces.importers.prometheus_counters import read_counters
from treeopt.traces.importers.source_file import SAVED, read_numbers, read_text, source_meta
from treeopt.traces.trace import Trace, save_trace
from treeopt.traces.trace_checks import MAX_DEPTH

DEPTH = 8


@dataclass(frozen=True)
class Drawing:
    """How a trace is made up where the source has figures but no texts."""

    requests: int = 200
    length: int = 128
    seed: int = 0

    @property
    def rng(self) -> np.random.Generator:
        """Fresh, of the seed."""
        return np.random.default_rng(self.seed)


def _saved(path: Path) -> Any:
    from executor.checkpoints.tensors.torch_save import read_saved

    return read_saved(path)


def _medusa_accuracy(
    source: Path, kind: str, drawing: Drawing, *, prompts: int | None = None, steps: int | None = None
) -> Trace:
    if source.suffix not in SAVED:
        raise TraceError(f"must be one of {', '.join(SAVED)}")
    heads = _saved(source)
    known = {"verification": "greedy", "temperature": 0.0}
    meta = source_meta(source, kind, medusa_accuracy.ASSUMED, **known)
    if isinstance(heads, list):
        meta["drafter"] = {"kind": "medusa", "heads": len(heads)}
    return medusa_accuracy.joint_trace(heads, prompts=prompts, steps=steps, meta=meta)


def _table(source: Path, kind: str, drawing: Drawing, *, column: str | None = None, depth: int | None = None) -> Trace:
    if column is None:
        raise UsageError("say with --column whether the table has each rank by itself (rank) or sums (recall)")
    values = read_numbers(source, _saved)
    table = positional_table.rank_table(values, column=column)
    assumed = list(positional_table.ASSUMED)
    if column == "rank" and positional_table.rises(table):
        assumed.insert(0, "ranks do get better from left to right, as recall does: was --column recall meant?")
    if depth is not None and len(table) > 1:
        raise UsageError(f"--depth is for a single row, the table has {len(table)}")
    if len(table) == 1 and depth != 1:
        table = np.tile(table, (depth or DEPTH, 1))
        assumed.insert(0, f"the one row holds at each of {len(table)} depths")
    return _drawn(table, source, kind, drawing, assumed)


def _sequoia_vector(
    source: Path, kind: str, drawing: Drawing, *, depth: int = DEPTH, reject_slot: bool | None = None
) -> Trace:
    values = read_numbers(source, _saved)
    table = sequoia_vector.vector_table(values, depth=depth, reject_slot=reject_slot)
    return _drawn(table, source, kind, drawing, [*sequoia_vector.ASSUMED, *positional_table.ASSUMED])


def _drawn(table: Any, source: Path, kind: str, drawing: Drawing, assumed: list[str]) -> Trace:
    meta = source_meta(source, kind, assumed, seed=drawing.seed)
    return positional_table.drawn_trace(
        table, requests=drawing.requests, length=drawing.length, rng=drawing.rng, meta=meta
    )


def _counters(
    source: Path,
    kind: str,
    drawing: Drawing,
    *,
    before: Path | None = None,
    model: str | None = None,
    uneven: bool = False,
    steps: int | None = None,
) -> Trace:
    try:
        earlier = None if before is None else read_text(before)
    except TraceError as error:
        raise TraceError(f"--before {before}: {error}") from error
    found = read_counters(read_text(source), before=earlier, model=model, uneven=uneven)
    own: dict[str, Any] = {"engine": found.engine}
    if before is not None:
        own["before"] = {"file": before.name, "sha256": checksum(before)}
    return _of_chain(found.chain, source, kind, drawing, steps=steps, **own)


def _responses(source: Path, kind: str, drawing: Drawing, *, depth: int | None = None, uneven: bool = False) -> Trace:
    return _of_chain(read_responses(read_text(source), depth=depth, uneven=uneven), source, kind, drawing)


def _log(source: Path, kind: str, drawing: Drawing) -> Trace:
    return _of_chain(read_log(read_text(source)), source, kind, drawing)


def _of_chain(
    chain: Chain, source: Path, kind: str, drawing: Drawing, *, steps: int | None = None, **own: Any
) -> Trace:
    meta = source_meta(source, kind, (), seed=drawing.seed)
    meta["imported"] |= own | {"steps": chain.steps, "survival": list(chain.survival)}
    return chain_trace(chain, requests=drawing.requests, rng=drawing.rng, meta=meta, steps=steps)


# Format -> what reads it, and the options that have a meaning there.
FORMATS: Mapping[str, tuple[Callable[..., Trace], frozenset[str]]] = {
    "medusa-accuracy": (_medusa_accuracy, frozenset({"prompts", "steps"})),
    "table": (_table, frozenset({"column", "depth", "requests", "length"})),
    "sequoia-vector": (_sequoia_vector, frozenset({"depth", "reject_slot", "requests", "length"})),
    "counters": (_counters, frozenset({"before", "model", "uneven", "steps", "requests"})),
    "responses": (_responses, frozenset({"depth", "uneven"})),
    "log": (_log, frozenset({"requests"})),
}
DRAWING = ("requests", "length")


@click.command("import")
@click.argument("source", type=general.FILE)
@click.option("--format", "kind", type=click.Choice(list(FORMATS)), required=True, help="What the file is.")
@click.option("--output", type=general.FILE, required=True, help="Write the trace here (.npz).")
@click.option("--prompts", type=click.IntRange(min=1), help="medusa-accuracy of one head: how many there were.")
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    help="medusa-accuracy of one head: tokens of each prompt. counters of rates only: how many steps to draw.",
)
@click.option(
    "--column",
    type=click.Choice(positional_table.COLUMNS),
    help="table: each rank by itself, or this rank or a better one.",
)
@click.option(
    "--depth",
    type=click.IntRange(1, MAX_DEPTH),
    help=f"table of one row, sequoia-vector: depths that it holds at, default {DEPTH}. responses: the longest draft.",
)
@click.option(
    "--reject-slot/--no-reject-slot", default=None, help="sequoia-vector: whether its last entry is the rejections."
)
@click.option("--before", type=general.FILE, help="counters: an earlier scrape, to count from there on.")
@click.option("--model", help="counters: the model_name meant, where there are several.")
@click.option(
    "--uneven", is_flag=True, default=None, help="counters, responses: count what short drafts left out as rejected."
)
@click.option(
    "--requests",
    type=click.IntRange(min=1),
    help=f"Requests drawn (table, sequoia-vector, counters, log); default {Drawing.requests}.",
)
@click.option(
    "--length", type=click.IntRange(min=1), help=f"Tokens of each (table, sequoia-vector); default {Drawing.length}."
)
@general.seed
def bring(source: Path, kind: str, output: Path, seed: int, **settings: Any) -> None:
    """Make a trace of acceptance figures that other programs measured; `assumed` of its meta says what they lack."""
    general.check_output(output)
    read, meant = FORMATS[kind]
    given = {name: value for name, value in settings.items() if value is not None}
    for name in given:
        if name not in meant:
            raise UsageError(f"--{name.replace('_', '-')} has no meaning for --format {kind}")
    drawing = Drawing(seed=seed, **{name: given.pop(name) for name in DRAWING if name in given})
    try:
        found = read(source, kind, drawing, **given)
    except TraceError as error:
        raise TraceError(f"{source}: {error}") from error
    save_trace(found, output)
    for sentence in found.meta["assumed"]:
        click.echo(f"Assumed: {sentence}", err=True)
    click.echo(f"{found.anchors} anchors of {found.requests} requests written to {output}", err=True)
