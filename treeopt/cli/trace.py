"""`treeopt trace`: collect a trace, join several, and say what one holds."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from treeopt.cli import inputs, options, sampling, trees
from treeopt.shards import Shards, merged
from treeopt.trace import load_trace, save_trace


@click.group()
def trace() -> None:
    """Traces: what a drafter gets right."""


@trace.command()
@inputs.models
@inputs.prompts
@inputs.new_tokens
@click.option("--output", type=options.FILE, required=True, help="Write the trace here (.npz).")
@click.option(
    "--depth", type=click.IntRange(min=1), help="Levels looked at; default all that the drafter has, at most 8."
)
@click.option("--width", type=click.IntRange(min=1), default=16, show_default=True, help="Candidates looked at.")
@click.option("--batch", type=click.IntRange(min=1), default=8, show_default=True, help="Requests decoded together.")
@click.option(
    "--probabilities", is_flag=True, help="Also record probabilities and entropies; the file grows several times."
)
@click.option(
    "--draws",
    type=click.IntRange(min=1),
    default=16,
    show_default=True,
    help="Simulated where acceptance has no closed form (sequoia).",
)
@click.option(
    "--candidates",
    type=trees.Dynamic(nodes=1, min_probability=0.0, budget=None),
    help="Also record whole candidate trees, for dynamic ones: depth=6,beam=20,width=10. Beams well above those that "
    "will be asked for leave less unknown.",
)
@click.option(
    "--stride", type=click.IntRange(min=1), default=1, show_default=True, help="Candidates at every so many tokens."
)
@click.option(
    "--parts",
    "folder",
    type=options.FOLDER,
    help="Keep finished requests in this folder: a command that was interrupted goes on there when it is given again.",
)
@sampling.sampling
def collect(
    models: inputs.Models,
    prompts: inputs.Prompts,
    sampling: sampling.Sampling,
    output: Path,
    **settings: Any,
) -> None:
    """Let the target continue prompts and record how the drafter ranks what it writes."""
    options.check_output(output)
    sampling.check()
    model, heads = inputs.load_models(models)
    asked = inputs.load_prompts(models, model, prompts, shortest=2)
    from executor.record import collect as record

    with options.progress("collecting", 2 * len(asked.tokens)) as advance:
        settings |= asdict(sampling) | {"stop": asked.stop, "progress": advance}
        found = record(model, heads, asked.prompts, asked.tokens, **settings)
    if not inputs.is_main_rank():
        return
    save_trace(found, output)
    click.echo(f"{found.anchors} anchors of {found.requests} requests written to {output}", err=True)


@trace.command()
@click.argument("traces", type=options.FOLDER, nargs=-1, required=True)
@click.option("--output", type=options.FILE, required=True, help="Write the trace here (.npz).")
def merge(traces: tuple[Path, ...], output: Path) -> None:
    """Join traces of the same models and rule; a folder that `collect --parts` filled counts as one."""
    options.check_output(output)
    found = merged([Shards.read(path).whole() if path.is_dir() else load_trace(path) for path in traces])
    save_trace(found, output)
    click.echo(f"{found.anchors} anchors of {found.requests} requests written to {output}", err=True)


@trace.command()
@click.argument("trace_file", type=options.FILE)
@options.as_json
def info(trace_file: Path, as_json: bool) -> None:
    """Say what a trace holds: size, models, acceptance by depth, repeated text."""
    from treeopt.report.tables import describe, show_trace

    found = load_trace(trace_file)
    if as_json:
        options.print_json(describe(found))
    else:
        show_trace(found)
