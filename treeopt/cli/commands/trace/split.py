"""`treeopt trace split`: divide the requests of a trace in two."""

from pathlib import Path

import click

from treeopt.cli.options import general, output_files
from treeopt.cli.options.help_sections import Command, examples
from treeopt.cli.options.value_types import Real
from treeopt.errors import UsageError, counted
from treeopt.traces.merge_split import halves
from treeopt.traces.trace import load_trace, save_trace

EXAMPLES = examples(
    "treeopt trace split data/traces/medusa-t0.npz --output part.npz --rest rest.npz",
    "treeopt trace split data/traces/eagle-t0.npz --share 0.9 --seed 1 --output large.npz --rest small.npz",
)


@click.command(cls=Command, epilog=EXAMPLES)
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
        click.echo(
            f"{counted(part.anchors, 'anchor')} of {counted(part.requests, 'request')} written to {path}", err=True
        )
