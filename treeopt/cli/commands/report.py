"""`treeopt report`: results that other commands wrote, as one HTML page."""

from pathlib import Path

import click

from treeopt.cli.options import general
from treeopt.cli.options.help_sections import Command, examples
from treeopt.errors import TreeoptError, UsageError
from treeopt.storage.atomic_files import write_text

EXAMPLES = examples(
    "treeopt report data/traces/medusa-t0.npz data/validations/medusa-cpu.json --output report.html",
    "treeopt report data/validations/medusa-cpu.json data/validations/medusa-cpu-t1.json --static "
    "--title Validations --output validations.html",
)


@click.command(cls=Command, epilog=EXAMPLES)
@click.argument("files", type=general.FOLDER, nargs=-1, required=True)
@click.option("--output", type=general.FILE, required=True, help="Write the page to this file (.html).")
@general.force
@click.option("--title", default="treeopt", show_default=True, help="Page title.")
@click.option("--plots/--no-plots", default=True, show_default=True, help="Draw charts.")
@click.option("--static", is_flag=True, help="Charts as pictures alone, without scripts and sliders: for mail.")
def report(files: tuple[Path, ...], output: Path, title: str, *, force: bool, plots: bool, static: bool) -> None:
    """Put FILES on one HTML page that needs no other file: a summary, tables, charts, and sliders.

    FILES are traces and their folders, plans, profiles, predictions, and what `compare`, `simulate`, `validate` and
    `whatif` write with --output. A file that cannot be read is listed on the page, and the exit code is 1.
    """
    general.check_output(output, force=force)
    from treeopt.api.page.read_results import report_page
    from treeopt.report.html_page import as_html

    page = report_page(files, title=title.strip() or "treeopt")
    reasons = "; ".join(f"{problem.file}: {problem.reason}" for problem in page.problems)
    if not page.findings:
        raise UsageError(reasons)
    write_text(output, as_html(page, plots=plots, static=static))
    click.echo(f"{len(page.findings)} results written to {output}", err=True)
    if reasons:
        raise TreeoptError(f"not all files could be read: {reasons}")
