"""`treeopt report`: results that other commands wrote, as one HTML page."""

from pathlib import Path

import click

from treeopt.cli.options import general, output_files, printing
from treeopt.cli.options.help_sections import Command, examples
from treeopt.errors import TreeoptError, UsageError, visible
from treeopt.storage.user_files import is_special, write_text

ENDINGS = (".html", ".htm")

EXAMPLES = examples(
    "treeopt report data/traces/medusa-t0.npz data/profiles/medusa-cpu.json --output report.html",
    "treeopt report data/profiles/medusa-cpu.json --static --title Profile --output profile.html",
)


@click.command(cls=Command, epilog=EXAMPLES)
@click.argument("files", type=general.FOLDER, nargs=-1, required=True)
@click.option("--output", type=general.FILE, required=True, help="Write the page to this file (.html or .htm).")
@general.force
@click.option("--title", default="treeopt", show_default=True, help="Page title.")
@click.option("--plots/--no-plots", default=True, show_default=True, help="Draw charts.")
@click.option("--static", is_flag=True, help="Charts as pictures alone, without scripts and sliders: for mail.")
def report(files: tuple[Path, ...], output: Path, title: str, *, force: bool, plots: bool, static: bool) -> None:
    """Put FILES on one HTML page that needs no other file: a summary, tables, charts, and sliders.

    FILES are traces and their folders, plans, profiles, predictions, and what `compare`, `simulate`, `validate`,
    `verdict` and `whatif` write with --output. A file that cannot be read is listed on the page with the reason, and
    the exit code is 1.
    """
    if output.suffix.lower() not in ENDINGS and not is_special(output):
        raise UsageError(f"--output {output}: a page ends in {' or '.join(ENDINGS)}; name such a file")
    output_files.check_output(output, force=force)
    from treeopt.api.report_files import report_page
    from treeopt.report.html_page import KINDS, as_html

    page = report_page(files, title=title.strip() or "treeopt", plots=plots)
    if page.findings:
        write_text(output, as_html(page, static=static))
        results = "1 result" if len(page.findings) == 1 else f"{len(page.findings)} results"
        printing.say(f"{results} written to {output}")
    for note in page.notes:
        printing.say(note)
    lines = [f"{problem.file}: {problem.reason}" for problem in page.problems]
    for line in lines if len(lines) > 1 else ():
        click.echo(visible(" ".join(line.split())), err=True)
    if lines:
        kind = TreeoptError if page.findings else UsageError
        raise kind(lines[0] if len(lines) == 1 else f"{len(lines)} files could not be read. {KINDS}")
