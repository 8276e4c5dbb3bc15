"""`treeopt trace`: collect a trace, import one, describe one, join several, split one."""

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import click
from click_didyoumean import DYMGroup

from treeopt.acceptance_rule_entries import takes_chains_only
from treeopt.api import record_trace
from treeopt.api.file_loading import imported
from treeopt.api.record_trace import CollectSettings
from treeopt.cli.options import general, output_files, printing
from treeopt.cli.options.help_sections import Command, examples
from treeopt.cli.options.settings_options import MODELS, options_of, setup_options
from treeopt.cli.options.value_types import EntryName, Real, Text, Tokens, Whole, dynamic, files, numbers, numbers_text
from treeopt.defaults import INFO_NODES
from treeopt.errors import TraceError, TreeoptError, UsageError, counted
from treeopt.planning.learning_curve import learning_curves
from treeopt.planning.search_warnings import advice, interval_warnings, resemblance
from treeopt.replay.sampled_rules import with_drawn_ranks
from treeopt.storage.provenance import assumed_in, look
from treeopt.storage.work_file import beside
from treeopt.traces.importers.chain_counts import NONE_ACCEPTED
from treeopt.traces.importers.sources.table import COLUMNS
from treeopt.traces.importers.trace_source import (
    ALIASES,
    RECOGNISED,
    SOURCES,
    check_settings,
    formats,
    meaning,
)
from treeopt.traces.merge_split import halves, merge_traces
from treeopt.traces.resumable_shards import load_file_or_shards, optional_in, remove_parts
from treeopt.traces.trace import MAX_DEPTH, Trace
from treeopt.traces.trace_files import load_trace, save_trace

LIMIT = 2**26  # most bytes of a source that is no file
SCHEMES = ("http", "https")
WAIT_S = 10.0  # longest wait for a connection, and for the next piece of an answer
TOTAL_S = 60.0  # longest time of a whole answer


def _source(text: str) -> Path | str:
    """Return a file, or the text of what is none: `-` for standard input, an address of http:// or https://."""
    scheme, mark, _ = text.partition("://")
    if mark and scheme.isalnum() and scheme.lower() not in SCHEMES:
        raise ValueError(
            f"{shown(text)}: an address begins with http:// or https://, not {scheme}://: save what it holds to a "
            "file, or pipe it in as -"
        )
    return text if text == "-" or text.lower().startswith(("http://", "https://")) else Path(text)


SOURCE = Text("source", _source, Path, complete=files)


@contextmanager
def stored(source: Path | str | None) -> Iterator[Path | None]:
    """Yield the file of a source; errors that name a temporary file name the source instead.

    Raises:
        UsageError: nothing can be read there.
    """
    if not isinstance(source, str):
        yield source
        return
    content = _standard_input() if source == "-" else fetched(source)
    with tempfile.TemporaryDirectory(prefix="treeopt-") as folder:
        path = Path(folder) / "source"
        path.write_bytes(content)
        try:
            yield path
        except TraceError as error:
            raise TraceError(str(error).replace(str(path), shown(source))) from error


def named(trace: Trace, source: Path | str, before: Path | str | None = None) -> Trace:
    """Return the trace with the names of its sources in the place of those of temporary files."""
    imported = dict(trace.meta["imported"])
    if isinstance(source, str):
        imported["file"] = shown(source)
    if isinstance(before, str):
        imported["before"] = {**imported["before"], "file": shown(before)}
    return replace(trace, meta={**trace.meta, "imported": imported})


def shown(source: str) -> str:
    """Return the name of a source for messages and files, without a password.

    >>> shown("-"), shown("http://user:secret@10.0.0.1:8000/metrics?key=1")
    ('standard input', 'http://10.0.0.1:8000/metrics')
    """
    if source == "-":
        return "standard input"
    parts = urlsplit(source)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _standard_input() -> bytes:
    content = sys.stdin.buffer.read(LIMIT + 1)
    if not content.strip():
        raise UsageError("standard input is empty: pipe the engine's output into the command, or name a file")
    if len(content) > LIMIT:
        raise UsageError(f"standard input: larger than {LIMIT} bytes: name a file")
    return content


def fetched(url: str) -> bytes:
    """Return what a server answers.

    Raises:
        UsageError: no such address, no answer in time, a refusal, or more than `LIMIT` bytes.
    """
    import httpx2

    name, started, content = shown(url), time.monotonic(), bytearray()
    try:
        with (
            httpx2.Client(timeout=WAIT_S, follow_redirects=True, trust_env=False) as client,
            client.stream("GET", url) as answer,
        ):
            if answer.status_code != 200:
                raise UsageError(
                    f"{name}: answers {answer.status_code} {answer.reason_phrase}: check the address; counters are at "
                    "/metrics, where the server was started with them"
                )
            for piece in answer.iter_bytes():
                content += piece
                if len(content) > LIMIT:
                    raise UsageError(f"{name}: answers more than {LIMIT} bytes: save the part that counts to a file")
                if time.monotonic() - started > TOTAL_S:
                    raise UsageError(f"{name}: still answers after {TOTAL_S:.0f} s: save it to a file")
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UsageError(f"{name}: cannot be read: {reason}: check that the server runs") from error
    return bytes(content)


def _written(trace: Trace, path: Path) -> str:
    """Return the sentence about a trace that was written to a file."""
    return f"{counted(trace.anchors, 'anchor')} of {counted(trace.requests, 'request')} written to {path}"


IMPORT_SECTIONS = {
    "Source": "kind depth steps model before column",
    "Trace": "requests length",
    "Output": "output force",
}
IMPORT_EXAMPLES = examples(
    "printf '0.62,0.12,0.06\\n0.48,0.13,0.06\\n' > ranks.csv",
    "treeopt trace import ranks.csv --format table --column rank --output imported.npz",
    "treeopt trace import ranks.csv --format table --column rank --requests 50 --length 64 --output short.npz",
)


@click.command("import", cls=Command, sections=IMPORT_SECTIONS, epilog=IMPORT_EXAMPLES)
@click.argument("source", type=SOURCE)
@click.option(
    "--format",
    "kind",
    type=EntryName(SOURCES, formats),
    default=RECOGNISED,
    show_default=True,
    help=f"Format of SOURCE. {RECOGNISED}: output of an engine, recognised by its content; {', '.join(ALIASES)} are "
    "other names for it.",
)
@click.option("--output", type=general.FILE, required=True, help="Write the trace to this file (.npz).")
@click.option("--steps", type=Whole(min=1), help=meaning("steps"))
@click.option("--column", type=click.Choice(COLUMNS), help=meaning("column"))
@click.option("--depth", type=click.IntRange(1, MAX_DEPTH), help=meaning("depth"))
@click.option("--before", type=SOURCE, help=meaning("before"))
@click.option("--model", help=meaning("model"))
@click.option("--uneven", is_flag=True, default=None, help=meaning("uneven"))
@click.option("--requests", type=Whole(min=1), help=meaning("requests"))
@click.option("--length", type=Tokens(min=1), help=meaning("length"))
@general.seed
@general.force
def import_command(source: Path, kind: str, output: Path, seed: int, *, force: bool, **settings: Any) -> None:
    """Turn acceptance figures that other programs measured into a trace; `assumed` in its meta lists what they lack.

    SOURCE is a file, - for standard input, or an address such as http://127.0.0.1:8000/metrics.
    """
    output_files.check_output(output, force=force or _imported_from_a_file(output))
    check_settings(kind, {name: value for name, value in settings.items() if value is not None})
    with stored(source) as path, stored(settings["before"]) as earlier:
        assert path is not None
        trace = imported(path, kind, seed, settings | {"before": earlier})
    trace = named(trace, source, settings.get("before"))
    save_trace(trace, output)
    for sentence in trace.meta["assumed"]:
        if sentence.startswith(NONE_ACCEPTED):
            printing.warn([sentence])
        else:
            printing.say(f"Assumed: {sentence}")
    printing.say(_written(trace, output))


def _imported_from_a_file(path: Path) -> bool:
    """Return whether a trace at this path was imported from a file: it can be imported again, and may be replaced."""
    try:
        source = load_trace(path).meta.get("imported", {}).get("file", "")
    except (TreeoptError, AttributeError):
        return False
    return bool(source) and source != shown("-") and "://" not in source


COLLECT_EXAMPLES = examples(
    "treeopt trace collect --target data/models/stdlib-llama --drafter data/models/stdlib-medusa "
    "--prompts data/prompts/stdlib.jsonl --requests 4 --new-tokens 8 --output trace.npz",
    "treeopt trace collect --target data/models/stdlib-llama --drafter prompt-lookup "
    "--prompts data/prompts/stdlib.jsonl --requests 4 --new-tokens 8 --temperature 1 --output sampled.npz",
)
COLLECT_SECTIONS = {
    "Models": "target drafter",
    "Prompts": "prompts requests skip new_tokens",
    "Recording": "depth width temperature engine",
    "Output": "output force",
}


@click.command(cls=Command, sections=COLLECT_SECTIONS, epilog=COLLECT_EXAMPLES)
@options_of(
    CollectSettings,
    types={**MODELS, "candidates": dynamic(nodes=1, min_probability=0.0)},
    without=("random_weights", "texts", "prompt_tokens"),
    required=("prompts",),
)
@setup_options()
@click.option("--output", type=general.FILE, help="Write the trace to this file (.npz); may be left out with --parts.")
@general.force
def collect(settings: CollectSettings, output: Path | None, *, force: bool) -> None:
    """Let the target continue prompts and record how the drafter ranks what it writes.

    With --engine an inference engine writes the texts, with drafts of --depth tokens. With --drafter too, that drafter
    is recorded along these texts. Else the engine's own steps are: for drafters that treeopt does not have.

    Finished requests stay in OUTPUT.work until the trace is written: after an interruption the same command resumes
    there. With --parts alone the folder is the result, which no process ever holds whole; `search` reads it.
    """
    if output is None:
        if settings.parts is None or settings.models.drafter is None:
            raise UsageError("give --output, or for a drafter's trace --parts")
        trace = record_trace.collect(settings=settings, merged=False, progress=printing.progress)
        printing.say(f"{counted(trace.requests, 'request')} written to {settings.parts}")
        return
    output_files.check_output(output, force=force)
    work = beside(output)
    trace = record_trace.collect(settings=settings, work=work, progress=printing.progress)
    if printing.is_main_process():
        save_trace(trace, output)
        remove_parts(work) if work.is_dir() else work.unlink(missing_ok=True)
        printing.say(_written(trace, output))


MERGE_EXAMPLES = examples(
    "treeopt trace split data/traces/medusa-t0.npz --output one.npz --rest two.npz",
    "treeopt trace merge one.npz two.npz --output merged.npz",
    "treeopt trace merge data/traces/medusa-t0.npz --output copy.npz",
)


@click.command(cls=Command, epilog=MERGE_EXAMPLES)
@click.argument("traces", type=general.FOLDER, nargs=-1, required=True)
@click.option("--output", type=general.FILE, required=True, help="Write the trace to this file (.npz).")
@general.force
def merge(traces: tuple[Path, ...], output: Path, *, force: bool) -> None:
    """Join TRACES of the same models and rule; a folder that `collect --parts` filled counts as one."""
    output_files.check_output(output, force=force)
    parts = [load_file_or_shards(path) for path in traces]
    joined = merge_traces(parts, [str(path) for path in traces])
    save_trace(joined, output)
    without = [str(path) for path, part in zip(traces, parts, strict=True) if part.prompt_tokens is None]
    if 0 < len(without) < len(parts):
        printing.say(f"prompt lengths are left out, since {', '.join(without)} does not record them")
    for sentence in assumed_in(joined.meta):
        printing.say(f"assumed: {sentence}")
    printing.say(_written(joined, output))


SPLIT_EXAMPLES = examples(
    "treeopt trace split data/traces/medusa-t0.npz --output part.npz --rest rest.npz",
    "treeopt trace split data/traces/medusa-t0.npz --share 0.9 --seed 1 --output large.npz --rest small.npz",
)


@click.command(cls=Command, epilog=SPLIT_EXAMPLES)
@click.argument("trace_file", type=general.FILE)
@click.option("--output", type=general.FILE, required=True, help="Write the first part to this file (.npz).")
@click.option("--rest", type=general.FILE, required=True, help="Write the other part to this file (.npz).")
@click.option(
    "--share",
    type=Real(0, 1, min_open=True, max_open=True),
    default=0.5,
    show_default=True,
    help="Share of the requests in the first part.",
)
@general.seed
@general.force
def split(trace_file: Path, output: Path, rest: Path, share: float, seed: int, *, force: bool) -> None:
    """Divide a trace's requests in two at random: for example, choose a tree on one part and judge it on the other."""
    paths = (output, rest)
    for path, option in zip(paths, ("--output", "--rest"), strict=True):
        output_files.check_output(path, option, force=force)
    if output.resolve() == rest.resolve():
        raise UsageError("--output and --rest must be two files")
    for part, path in zip(halves(load_trace(trace_file), share=share, seed=seed), paths, strict=True):
        save_trace(part, path)
        printing.say(_written(part, path))


INFO_EXAMPLES = examples(
    "treeopt trace info data/traces/medusa-t0.npz",
    "treeopt trace info data/traces/medusa-t0.npz --learning-curve --nodes 4,16 --json",
)


@click.command(cls=Command, epilog=INFO_EXAMPLES)
@click.argument("trace_file", type=general.FOLDER)
@click.option(
    "--learning-curve",
    is_flag=True,
    help="Also choose trees on few and on more of the requests, and judge them on the others.",
)
@click.option(
    "--nodes",
    type=numbers("tree sizes"),
    default=numbers_text(INFO_NODES),
    show_default=True,
    help="Tree sizes (nodes) to give advice about.",
)
@general.seed
@general.as_json
@general.verbose
def info(trace_file: Path, learning_curve: bool, nodes: tuple[int, ...], seed: int, as_json: bool) -> None:
    """Describe a trace or a folder of shards: size, models, acceptance by depth, repeated text, what to beware of."""
    from treeopt.results.trace import curve_record, describe

    trace = load_file_or_shards(trace_file, ranks_only=True)
    ranked = with_drawn_ranks(trace, seed)
    warnings = _warnings(trace, ranked, max(nodes))
    if learning_curve and (trace.width == 1 or takes_chains_only(look(trace.meta, "verification"))):
        raise TraceError("a learning curve needs trees, but the trace holds chains alone")
    curves = learning_curves(ranked, nodes=nodes, depth=trace.depth, seed=seed) if learning_curve else ()
    if as_json:
        stored = {"optional": optional_in(trace_file)} if trace_file.is_dir() else {}
        drawn = {"learning_curves": [curve_record(curve) for curve in curves]} if learning_curve else {}
        printing.print_json(describe(trace) | stored | {"advice": warnings} | drawn)
        return
    beware = [*(f"assumed: {sentence}" for sentence in assumed_in(trace.meta)), *warnings]
    printing.show("trace", trace, file=str(trace_file), beware=beware, curves=curves)


def _warnings(trace: Trace, ranked: Trace, nodes: int) -> tuple[str, ...]:
    """Return what to beware of when a tree of this size is chosen on the trace."""
    try:
        warnings = advice(trace, nodes)
    except TraceError as error:  # the trace can be described all the same
        warnings = (str(error),)
    if ranked is not trace:
        warnings += ("its rule draws candidates: the ranks shown are the drafter's, not what steps accept",)
    doubts = tuple(sentence for sentence in interval_warnings(ranked) if sentence not in warnings)
    return warnings + doubts + tuple(resemblance(ranked))


@click.group(cls=DYMGroup)
def trace() -> None:
    """Record, import, describe, merge and split traces of what a drafter gets right."""


for command in (import_command, collect, merge, split, info):
    trace.add_command(command)
