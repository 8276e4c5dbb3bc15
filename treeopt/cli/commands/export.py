"""`treeopt export`: hand a plan to an inference engine."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from treeopt.api.messages import warn
from treeopt.cli.options import output_files, printing
from treeopt.cli.options.help_sections import Command, examples
from treeopt.cli.options.settings_options import setup_options
from treeopt.cli.options.value_types import EngineName, Whole
from treeopt.comparison.mismatch_warnings import model_warnings, plan_rule_warnings
from treeopt.engines import ENGINES
from treeopt.errors import TraceError, visible
from treeopt.plans import load_plan
from treeopt.replay.sampled_rules import with_drawn_ranks
from treeopt.storage.hub_models import HUB
from treeopt.storage.provenance import look
from treeopt.storage.user_files import write_text
from treeopt.traces.trace_files import load_trace

SECTIONS = {
    "Engine": "engine method target model heads",
    "Plan": "batch nearest replay",
    "Output": "output launch as_json",
}
EXAMPLES = examples(
    "treeopt search --trace data/traces/medusa-t0.npz --batch 1 --output plan.json",
    "treeopt export plan.json --format medusa --heads 5",
    "treeopt export plan.json --format sglang --nearest chain --output sglang.txt",
)


def _methods(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the methods of the chosen engine, or of all, that begin as typed: for completion by the shell."""
    engine = ctx.params.get("engine")
    engines = ENGINES.exporting() if engine is None else (engine,)
    offered = {name for each in engines for name in ENGINES[each].choices}
    return sorted(name for name in offered if name.startswith(incomplete))


def own_options(command: Any) -> Any:
    """Add the options that only one engine's export takes."""
    for engine in ENGINES.exporting():
        for option in ENGINES[engine].options:
            kind = click.Choice(option.choices) if option.choices else Whole(min=1)
            command = click.option(f"--{option.name.replace('_', '-')}", type=kind, help=option.help)(command)
    return command


@click.command(cls=Command, sections=SECTIONS, epilog=EXAMPLES)
@click.argument("plan", type=click.Path(path_type=Path))
@click.option("--format", "engine", type=EngineName(ENGINES.exporting), required=True, help="Engine to write for.")
@click.option("--batch", type=Whole(min=1), help="Export only this batch size; default all of the plan's.")
@click.option(
    "--method",
    shell_complete=_methods,
    help="How the engine drafts, by the engine's own name, e.g. eagle3 (vllm); sglang and vllm have no default, others "
    "take it from the plan's drafter.",
)
@click.option("--model", help="Checkpoint of the drafter; for medusa, of the heads.")
@click.option("--target", help="Checkpoint of the target, for the launch line; default the word TARGET.")
@click.option(
    "--nearest",
    type=click.Choice(["chain", "triple"]),
    help="Replace a tree that the engine cannot run: by the plan's best chain, or by a dynamic tree of the same depth, "
    "width and size (openvino, sglang, tensorrt-llm), which the plan does not predict.",
)
@own_options
@setup_options(renamed={"drafter": "model"})
@click.option(
    "--replay",
    type=click.Path(path_type=Path),
    help="Make the engine accept what this trace's walk accepts, whatever it drafts: to measure there the speed that "
    "the plan predicts (llama.cpp, sglang, vllm).",
)
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="File to write; default stdout.")
@click.option(
    "--launch",
    is_flag=True,
    help="Print the whole command line, or the lines of Python, that start the engine with the plan.",
)
@click.option("--json", "as_json", is_flag=True, help="Print text, flags, launch line and notes as one JSON object.")
def export(
    plan: Path,
    engine: str,
    replay: Path | None,
    output: Path | None,
    *,
    launch: bool,
    as_json: bool,
    **settings: int | str | None,
) -> None:
    """Write the engine's own configuration for PLAN, a file that `treeopt search` wrote.

    The configuration goes to stdout or to a file; notes and launch flags go to stderr. With --launch stdout gets the
    launch line instead, after a command that writes the configuration if the engine reads it from a file and there
    is no --output.
    """
    output_files.check_output(output)
    given: dict[str, Any] = {name: value for name, value in settings.items() if value is not None}
    for name in given.keys() & {"model", "target"}:
        given[name] = given[name].removeprefix(HUB)  # the engine fetches it
    if replay is not None:
        given["replay"] = replay
    for name in given:
        ENGINES[engine].check_option(name)
    if output is not None:
        given["file"] = str(output)
    loaded = load_plan(plan)
    if replay is not None:
        given["replay"] = replayed = with_drawn_ranks(load_trace(replay), 0)
        warn(model_warnings("plan and trace", look(loaded.meta, "trace"), replayed.meta))
        warn(plan_rule_warnings(loaded, replayed.meta))
    try:
        result = ENGINES[engine].export(loaded, **given)
    except TraceError as error:
        raise TraceError(f"{replay}: {error}") from error
    if output is not None:
        write_text(output, result.text + "\n")
    if as_json:
        record = {"format": engine, **asdict(result), "notes": [*loaded.warnings, *result.notes]}
        click.echo(json.dumps(record, indent=2))
    elif launch:
        click.echo(visible(result.script if output is None else result.launch, lines=True))
    elif output is None:
        click.echo(visible(result.text, lines=True))
    for name, value in (("flags", result.flags), ("environment", result.environment)):
        if value and not launch:  # a launch line holds them itself
            printing.say(f"{name}: {value}")
    printing.warn(loaded.warnings)
    for note in result.notes:
        printing.say(f"note: {note}")
