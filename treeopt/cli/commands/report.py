"""`treeopt report`: results that other commands wrote, as one HTML page."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import is_zipfile

import click

from treeopt.cli.options import general
from treeopt.cli.options.help_sections import Command, examples
from treeopt.errors import UsageError
from treeopt.plans.plan_json import BEFORE, SCHEMA, load_plan
from treeopt.replay.sampled_rules import with_drawn_ranks
from treeopt.storage.atomic_files import checksum, why, write_text
from treeopt.storage.provenance import this_run
from treeopt.storage.user_files import read_text
from treeopt.traces.resumable_shards import ranks_of
from treeopt.traces.trace import load_trace

if TYPE_CHECKING:
    from treeopt.report.html_page import Section

EXAMPLES = examples(
    "treeopt report data/traces/medusa-t0.npz data/validations/medusa-cpu.json --output report.html",
    "treeopt report data/validations/medusa-cpu.json data/validations/medusa-cpu-t1.json --no-plots "
    "--title Validations --output validations.html",
)


@click.command(cls=Command, epilog=EXAMPLES)
@click.argument("files", type=general.FOLDER, nargs=-1, required=True)
@click.option("--output", type=general.FILE, required=True, help="Write the page to this file (.html).")
@general.force
@click.option("--title", default="treeopt", show_default=True, help="Page title.")
@click.option("--plots/--no-plots", default=True, show_default=True, help="Draw plots; needs matplotlib.")
def report(files: tuple[Path, ...], output: Path, title: str, *, force: bool, plots: bool) -> None:
    """Put FILES on one HTML page that needs no other file: tables as the commands print them, and plots.

    FILES are traces, plans, and what `compare`, `simulate`, `validate` and `whatif` write with --output.
    """
    general.check_output(output, force=force)
    from treeopt.report.html_page import as_html

    sections = [_section(path) for path in files]
    if not plots:
        sections = [replace(section, draws=()) for section in sections]
    run = this_run()
    commit = f", commit {run['commit']}" if run["commit"] else ""
    footer = f"treeopt {run['treeopt']}{commit}, {run['date']}: {run['command']}"
    write_text(output, as_html(title, sections, footer=footer))
    click.echo(f"{len(sections)} results written to {output}", err=True)


def _section(path: Path) -> "Section":
    """Return a file's content as a section."""
    from simulate.validation.find_validation import live_checks
    from treeopt.report.page_sections import RECORDS, plan_section, record_section, trace_section

    if path.is_dir():
        return trace_section(ranks_of(path), path.name)
    source = f"{path.name}, sha256 {_checked(path)[:16]}"
    if is_zipfile(path):
        trace = load_trace(path)
        return trace_section(trace, source, replayed=with_drawn_ranks(trace, 0))
    try:
        record = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: neither a trace (.npz) nor JSON: {error}") from error
    schema = record.get("schema") if isinstance(record, dict) else None
    if schema in (SCHEMA, BEFORE):
        plan = load_plan(path)
        return plan_section(plan, source, checks=live_checks(plan))
    if not isinstance(schema, str) or schema not in RECORDS:
        raise UsageError(f"{path}: schema must be {', '.join((SCHEMA, *RECORDS))}, found {schema!r:.80}")
    return record_section(record, source)


def _checked(path: Path) -> str:
    try:
        return checksum(path)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {why(error)}") from error
