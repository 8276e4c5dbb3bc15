"""`treeopt trace`: collect a trace, import one, join several or split one, and say what one holds."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from treeopt.cli.commands import trace_import
from treeopt.cli.commands.search import kept_ranks
from treeopt.cli.options import general, models_and_prompts, verification_rule, what_to_draft
from treeopt.errors import TraceError, UsageError
from treeopt.planning.learning_curve import learning_curves
from treeopt.planning.search_warnings import advice, resemblance
from treeopt.storage.provenance import assumed_in, look
from treeopt.traces.merge_split import halves, merged
from treeopt.traces.resumable_shards import Shards, optional_in, ranks_of
from treeopt.traces.trace import CHAINS, load_trace, save_trace


@click.group()
def trace() -> None:
    """Traces: what a drafter gets right."""


trace.add_command(trace_import.bring)


@trace.command()
@models_and_prompts.models
@models_and_prompts.prompts
@models_and_prompts.new_tokens
@click.option("--output", type=general.FILE, required=True, help="Write the trace here (.npz).")
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
    help="Simulated where acceptance has no closed form (sequoia); default 16.",
)
@click.option(
    "--candidates",
    type=what_to_draft.Dynamic(nodes=1, min_probability=0.0, budget=None),
    help="Also record whole candidate trees, for dynamic ones: depth=6,beam=20,width=10. Beams well above those that "
    "will be asked for leave less unknown.",
)
@click.option("--stride", type=click.IntRange(min=1), help="Candidates at every so many tokens; default at each.")
@click.option(
    "--tree",
    type=what_to_draft.Static(),
    help="Of rule typical: texts are written with it, and trees that search may choose are parts of it. Rank paths as "
    "JSON, FILE[:NAME], or the name of a published tree such as medusa/mc_sim_7b_63.",
)
@click.option(
    "--parts",
    "folder",
    type=general.FOLDER,
    help="Keep finished requests in this folder: a command that was interrupted goes on there when it is given again.",
)
@verification_rule.sampling
def collect(
    models: models_and_prompts.Models,
    prompts: models_and_prompts.Prompts,
    sampling: verification_rule.Sampling,
    output: Path,
    **settings: Any,
) -> None:
    """Let the target continue prompts and record how the drafter ranks what it writes."""
    general.check_output(output)
    sampling.check()
    if settings["stride"] is not None and settings["candidates"] is None:
        raise UsageError("--stride is of --candidates")
    if (settings["tree"] is None) == (sampling.name == "typical"):
        raise UsageError("--rule typical and --tree go together: the trees that search may choose are parts of it")
    if settings["draws"] is not None and sampling.name != "sequoia":
        raise UsageError(f"--draws is for rule sequoia, not {sampling.name}")
    settings |= {"stride": settings["stride"] or 1, "draws": settings["draws"] or 16}
    model, heads = models_and_prompts.load_models(models)
    asked = models_and_prompts.load_prompts(models, model, prompts, shortest=2)
    from executor.recording.collect_trace import collect as record

    with general.progress("collecting", 2 * len(asked.tokens)) as advance:
        settings |= asdict(sampling) | {"stop": asked.stop, "progress": advance}
        found = record(model, heads, asked.prompts, asked.tokens, **settings)
    if not models_and_prompts.is_main_rank():
        return
    save_trace(found, output)
    click.echo(f"{found.anchors} anchors of {found.requests} requests written to {output}", err=True)


@trace.command()
@click.argument("traces", type=general.FOLDER, nargs=-1, required=True)
@click.option("--output", type=general.FILE, required=True, help="Write the trace here (.npz).")
def merge(traces: tuple[Path, ...], output: Path) -> None:
    """Join traces of the same models and rule; a folder that `collect --parts` filled counts as one."""
    general.check_output(output)
    parts = [Shards.read(path).whole() if path.is_dir() else load_trace(path) for path in traces]
    found = merged(parts, [str(path) for path in traces])
    save_trace(found, output)
    untold = [str(path) for path, part in zip(traces, parts, strict=True) if part.prompt_tokens is None]
    if 0 < len(untold) < len(parts):
        click.echo(f"lengths of prompts are left out, not told by {', '.join(untold)}", err=True)
    for sentence in assumed_in(found.meta):
        click.echo(f"assumed: {sentence}", err=True)
    click.echo(f"{found.anchors} anchors of {found.requests} requests written to {output}", err=True)


@trace.command()
@click.argument("trace_file", type=general.FILE)
@click.option("--output", type=general.FILE, required=True, help="Write the first part here (.npz).")
@click.option("--rest", type=general.FILE, required=True, help="Write the other part here (.npz).")
@click.option(
    "--share",
    type=general.Real(0, 1, min_open=True, max_open=True),
    default=0.5,
    show_default=True,
    help="Of the requests, in the first part.",
)
@general.seed
def split(trace_file: Path, output: Path, rest: Path, share: float, seed: int) -> None:
    """Divide a trace's requests in two by chance, such as to choose a tree on one part and to judge it on the other."""
    paths = (output, rest)
    for path, option in zip(paths, ("--output", "--rest"), strict=True):
        general.check_output(path, option)
    if output.resolve() == rest.resolve():
        raise UsageError("--output and --rest must be two files")
    for part, path in zip(halves(load_trace(trace_file), share=share, seed=seed), paths, strict=True):
        save_trace(part, path)
        click.echo(f"{part.anchors} anchors of {part.requests} requests written to {path}", err=True)


@trace.command()
@click.argument("trace_file", type=general.FOLDER)
@click.option(
    "--learning-curve", is_flag=True, help="Also choose trees on few and more of the requests and judge them on others."
)
@click.option(
    "--nodes",
    type=general.Numbers("tree sizes"),
    default="4,16,63",
    show_default=True,
    help="Sizes of trees to speak of.",
)
@general.seed
@general.as_json
def info(trace_file: Path, learning_curve: bool, nodes: tuple[int, ...], seed: int, as_json: bool) -> None:
    """Say what a trace or a folder of shards holds: size, models, acceptance by depth, repeated text, what to mind."""
    from treeopt.report.learning_curve_tables import curve_record, show_curves
    from treeopt.report.trace_tables import describe, show_trace

    found = ranks_of(trace_file) if trace_file.is_dir() else load_trace(trace_file)
    try:
        warnings = advice(found, max(nodes))
    except TraceError as error:  # what it holds can be said all the same
        warnings = (str(error),)
    replayed = kept_ranks(found, seed)
    if replayed is not found:
        warnings += ("its rule draws candidates: the ranks shown are the drafter's, not what steps keep",)
    warnings += resemblance(replayed)
    if learning_curve and look(found.meta, "verification") in CHAINS:
        raise TraceError("no learning curve: curves are of trees, and the trace's rule verifies chains alone")
    curves = learning_curves(replayed, nodes=nodes, depth=found.depth, seed=seed) if learning_curve else ()
    if as_json:
        held = {"optional": optional_in(trace_file)} if trace_file.is_dir() else {}
        drawn = {"learning_curves": [curve_record(curve) for curve in curves]} if learning_curve else {}
        general.print_json(describe(found) | held | {"advice": warnings} | drawn)
        return
    show_trace(found)
    show_curves(curves)
    for warning in (*(f"assumed: {each}" for each in assumed_in(found.meta)), *warnings):
        click.echo(f"Beware: {warning}.")
