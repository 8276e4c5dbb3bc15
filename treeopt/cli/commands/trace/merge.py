"""`treeopt trace merge`: join traces."""

from pathlib import Path

import click

from treeopt.cli.options import general, output_files
from treeopt.cli.options.help_sections import Command, examples
from treeopt.errors import counted
from treeopt.storage.provenance import assumed_in
from treeopt.traces.merge_split import merge_traces
from treeopt.traces.resumable_shards import load_file_or_shards
from treeopt.traces.trace import save_trace

EXAMPLES = examples(
    "treeopt trace split data/traces/medusa-t0.npz --output one.npz --rest two.npz",
    "treeopt trace merge one.npz two.npz --output merged.npz",
    "treeopt trace merge data/traces/medusa-t0.npz --output copy.npz",
)


@click.command(cls=Command, epilog=EXAMPLES)
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
        click.echo(f"prompt lengths are left out, since {', '.join(without)} does not record them", err=True)
    for sentence in assumed_in(joined.meta):
        click.echo(f"assumed: {sentence}", err=True)
    click.echo(
        f"{counted(joined.anchors, 'anchor')} of {counted(joined.requests, 'request')} written to {output}", err=True
    )
