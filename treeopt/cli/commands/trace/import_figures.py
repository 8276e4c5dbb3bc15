"""`treeopt trace import`: acceptance figures that other programs measured, as a trace."""

from pathlib import Path
from typing import Any

import click

from treeopt.cli.options import general, output_files
from treeopt.cli.options.help_sections import Command, examples
from treeopt.cli.options.input_sources import TextSource, named, shown, stored
from treeopt.cli.options.value_types import Tokens, Whole
from treeopt.errors import TreeoptError, counted
from treeopt.traces.importers.chain_counts import NONE_ACCEPTED
from treeopt.traces.importers.sources.table import COLUMNS
from treeopt.traces.importers.trace_source import (
    ALIASES,
    RECOGNISED,
    ImportedFile,
    check_settings,
    formats,
    import_trace,
    meaning,
)
from treeopt.traces.trace import load_trace, save_trace
from treeopt.traces.trace_checks import MAX_DEPTH

MADE_UP = ("requests", "length")  # settings of a trace that is made up
SECTIONS = {
    "Source": "kind depth steps model before column",
    "Trace": "requests length",
    "Output": "output force",
}
EXAMPLES = examples(
    "printf '0.62,0.12,0.06\\n0.48,0.13,0.06\\n' > ranks.csv",
    "treeopt trace import ranks.csv --format table --column rank --output imported.npz",
    "treeopt trace import ranks.csv --format table --column rank --requests 50 --length 64 --output short.npz",
)


@click.command("import", cls=Command, sections=SECTIONS, epilog=EXAMPLES)
@click.argument("source", type=TextSource())
@click.option(
    "--format",
    "kind",
    type=click.Choice(formats()),
    default=RECOGNISED,
    show_default=True,
    help=f"Format of SOURCE. {RECOGNISED}: output of an engine, recognised by its content; {', '.join(ALIASES)} are "
    "other names for it.",
)
@click.option("--output", type=general.FILE, required=True, help="Write the trace to this file (.npz).")
@click.option("--steps", type=Whole(min=1), help=meaning("steps"))
@click.option("--column", type=click.Choice(COLUMNS), help=meaning("column"))
@click.option("--depth", type=click.IntRange(1, MAX_DEPTH), help=meaning("depth"))
@click.option("--before", type=TextSource(), help=meaning("before"))
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
    given = {name: value for name, value in settings.items() if value is not None}
    check_settings(kind, given)
    made_up = {name: given.pop(name) for name in MADE_UP if name in given}
    with stored(source) as path, stored(given.get("before")) as earlier:
        assert path is not None
        given |= {} if earlier is None else {"before": earlier}
        trace = import_trace(ImportedFile(path, kind, _saved, seed=seed, **made_up), given)
    trace = named(trace, source, settings.get("before"))
    save_trace(trace, output)
    for sentence in trace.meta["assumed"]:
        click.echo(f"{'Warning' if sentence.startswith(NONE_ACCEPTED) else 'Assumed'}: {sentence}", err=True)
    click.echo(
        f"{counted(trace.anchors, 'anchor')} of {counted(trace.requests, 'request')} written to {output}", err=True
    )


def _imported_from_a_file(path: Path) -> bool:
    """Return whether a trace at this path was imported from a file: it can be imported again, and may be replaced."""
    try:
        source = load_trace(path).meta.get("imported", {}).get("file", "")
    except (TreeoptError, AttributeError):
        return False
    return bool(source) and source != shown("-") and "://" not in source


def _saved(path: Path) -> Any:
    from executor.checkpoints.tensors.find_tensor_files import read_saved

    return read_saved(path)
