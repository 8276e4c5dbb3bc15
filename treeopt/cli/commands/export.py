"""`treeopt export`: hand a plan to an inference engine."""

import inspect
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from treeopt.cli.commands.search import kept_ranks
from treeopt.cli.options import general
from treeopt.cli.options.matching_files import warn_of_another_rule, warn_unless_same
from treeopt.engines import ENGINES
from treeopt.errors import TraceError, UsageError
from treeopt.plans.plan_json import load_plan
from treeopt.storage.atomic_files import write_text
from treeopt.storage.provenance import look
from treeopt.traces.trace import load_trace


@click.command()
@click.argument("plan", type=click.Path(path_type=Path))
@click.option("--format", "engine", type=click.Choice(list(ENGINES)), required=True, help="Engine to write for.")
@click.option("--batch", type=click.IntRange(min=1), help="One of the plan's batch sizes; default all of them.")
@click.option("--heads", type=click.IntRange(min=1), help="Heads of the checkpoint (medusa).")
@click.option("--method", help="How the engine drafts, e.g. eagle3 (sglang, vllm).")
@click.option("--model", help="Checkpoint of the drafter (sglang, vllm).")
@click.option(
    "--nearest",
    type=click.Choice(["chain", "triple"]),
    help="What may take the place of a tree that the engine cannot run: the plan's best chain, or a dynamic "
    "tree as deep, as wide and as large (sglang), which the plan does not predict.",
)
@click.option(
    "--replay",
    type=click.Path(path_type=Path),
    help="Make the engine keep what this trace's walk keeps, whatever it drafts: to measure there the speed that the "
    "plan predicts (sglang, vllm).",
)
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="File to write; default stdout.")
@click.option("--json", "as_json", is_flag=True, help="Print text, flags and notes as one JSON object.")
def export(
    plan: Path, engine: str, replay: Path | None, output: Path | None, *, as_json: bool, **settings: int | str | None
) -> None:
    """Write the engine's own configuration for PLAN, a file that `treeopt search` made.

    The configuration goes to stdout or to a file; notes and launch flags go to stderr.
    """
    general.check_output(output)
    given: dict[str, Any] = {name: value for name, value in settings.items() if value is not None}
    if replay is not None:
        given["replay"] = replay
    known = inspect.signature(ENGINES[engine]).parameters
    for name in given:
        if name not in known:
            raise UsageError(f"--{name} means nothing to {engine}")
    if output is not None and "file" in known:
        given["file"] = str(output)
    loaded = load_plan(plan)
    if replay is not None:
        given["replay"] = trace = kept_ranks(load_trace(replay), 0)
        warn_unless_same("plan and trace", look(loaded.meta, "trace"), trace.meta)
        warn_of_another_rule(loaded, trace.meta)
    try:
        result = ENGINES[engine](loaded, **given)
    except TraceError as error:
        raise TraceError(f"{replay}: {error}") from error
    if output is not None:
        write_text(output, result.text + "\n")
    if as_json:
        click.echo(
            json.dumps({"format": engine, **asdict(result), "notes": [*loaded.warnings, *result.notes]}, indent=2)
        )
    elif output is None:
        click.echo(result.text)
    if result.flags:
        click.echo(f"flags: {result.flags}", err=True)
    if result.environment:
        click.echo(f"environment: {result.environment}", err=True)
    for warning in loaded.warnings:
        click.echo(f"Warning: {warning}.", err=True)
    for note in result.notes:
        click.echo(f"note: {note}", err=True)
