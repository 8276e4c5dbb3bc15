"""`treeopt validate`: predicted against measured."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from treeopt.api import validate_plan
from treeopt.api.run_models import Models
from treeopt.api.run_prompts import Prompts
from treeopt.api.runners import EngineChoice
from treeopt.api.token_sampling import Sampling
from treeopt.cli.options import general, models_and_prompts, output_files, printing
from treeopt.cli.options.engine_choice import engine
from treeopt.cli.options.help_sections import Command, examples
from treeopt.cli.options.value_types import Numbers, Whole, numbers_text
from treeopt.cli.options.verification_rule import sampling
from treeopt.comparison.trees_of_size import USUAL, parse_sizes
from treeopt.defaults import BLOCKS, VALIDATED_BATCHES
from treeopt.errors import UsageError
from treeopt.results.kinds import Record
from treeopt.storage import work_file
from treeopt.storage.atomic_files import write_text
from treeopt.trackers.log_run import TRACKERS, check_tracker, log_validation

if TYPE_CHECKING:
    from simulate.validation.prediction_sources import Sources

SHAPES = ",".join(f"{size.kind}:{size.nodes}" for size in USUAL)
REPLAY = "replay:"
SECTIONS = {
    "Models": "target drafter",
    "Prompts": "prompts_file skip requests",
    "Prediction": "plan_file trace_file batch engine",
    "Output": "output force as_json",
}
EXAMPLES = examples(
    "treeopt validate --target data/models/stdlib-llama --drafter data/models/stdlib-medusa "
    "--prompts data/prompts/stdlib.jsonl --skip 1000 --requests 4 --new-tokens 4 --blocks 2 "
    "--trace data/traces/medusa-t0.npz --batch 1 --shapes chain:1",
    "treeopt validate --target toy --drafter medusa:3 --random-weights --prompt-tokens 20 --requests 4 --new-tokens 8 "
    "--blocks 2 --trace data/traces/medusa-t0.npz --profile data/profiles/medusa-cpu.json "
    "--acceptance replay:data/traces/medusa-t0.npz --batch 1 --shapes chain:1",
)


@click.command(cls=Command, sections=SECTIONS, epilog=EXAMPLES)
@models_and_prompts.models_or_shapes
@models_and_prompts.prompts_or_random
@models_and_prompts.new_tokens
@click.option("--plan", "plan_file", type=general.FILE, help="The plan to check; or --trace to make one.")
@click.option("--trace", "trace_file", type=general.FILE, help="Search this trace for the plan to check.")
@click.option("--profile", "profile_file", type=general.FILE, help="Step times for the search.")
@click.option(
    "--batch",
    type=Numbers(),
    help=f"Batch sizes to search for; default {numbers_text(VALIDATED_BATCHES)}.",
)
@click.option("--shapes", "sizes", help=f"Also measure trees of these sizes, chosen on the trace; default {SHAPES}.")
@click.option(
    "--predictions",
    "predictions_file",
    type=general.FILE,
    help="Write the predictions to this file before anything is measured; default beside --output. Without --plan and "
    "--trace, read the predictions from it; a file that was changed is an error.",
)
@click.option(
    "--acceptance",
    default="live",
    show_default=True,
    help="live: the models decide; replay:TRACE.npz: accepted lengths are those of the trace's requests.",
)
@click.option(
    "--blocks",
    type=Whole(min=2),
    default=BLOCKS,
    show_default=True,
    help="Number of blocks that the prompts are split into.",
)
@sampling
@general.graphs
@engine
@click.option("--output", type=general.FILE, help="Write the comparison to this file (.json).")
@click.option(
    "--log",
    "tracker",
    type=click.Choice(list(TRACKERS)),
    help="Also log the comparison as a run of this tracker, which its own environment variables configure.",
)
@general.table
@general.force
@general.as_json
@general.verbose
@general.quiet
def validate(
    models: Models,
    prompts: Prompts,
    sampling: Sampling,
    engine: EngineChoice,
    plan_file: Path | None,
    trace_file: Path | None,
    profile_file: Path | None,
    sizes: str | None,
    predictions_file: Path | None,
    acceptance: str,
    output: Path | None,
    table_file: Path | None,
    tracker: str | None,
    as_json: bool,
    *,
    force: bool,
    **settings: Any,
) -> None:
    """Run trees in the real loop and print predicted beside measured, for each batch size.

    Use prompts that are not in the trace (--skip), and the trace's rule and temperature; rules that draw their
    candidates need a --plan of trees that they can verify. With a --trace of requests as long as these and a --profile
    that covers prefill, whole runs are predicted, too. With --acceptance replay:TRACE.npz request i of the prompts
    accepts what request i of that trace accepts, --skip and --requests choosing from both; such requests are left out
    of predictions from the same trace. The decoded text then has no meaning, so weights may be random, and --rule
    only decides the work of each step.

    With --engine the chains and dynamic trees of the plan run in an inference engine; --blocks is the number of rounds.

    Finished runs stay in OUTPUT.work until the comparison is written: after an interruption the same command resumes
    there.
    """
    printing.hold_warnings()
    check_tracker(tracker)
    from simulate.validation.prediction_sources import Sources

    work, replay = None if output is None else work_file.beside(output), _replayed(acceptance)
    sized = None if sizes is None else parse_sizes(sizes)
    sources = Sources(plan_file, trace_file, profile_file, settings.pop("batch"), sized, predictions_file, replay)
    if output and predictions_file is None and (plan_file or trace_file):
        sources = replace(sources, predictions=output.with_suffix(".predictions.json"))
    _check_outputs(sources, output, table_file, resumed=work is not None and work.exists(), force=force)
    settings |= {"sampling": sampling, "engine": engine, "work": work, "progress": printing.progress}
    record = validate_plan.validate_with(models, prompts, sources, **settings)
    if not printing.is_main_process():
        return
    _store(record, output, table_file, tracker)
    if work is not None:
        work.unlink(missing_ok=True)
    if as_json:
        printing.print_json(record)
        return
    printing.show("validation", record, plan=None if plan_file is None else str(plan_file))


def _check_outputs(
    sources: "Sources", output: Path | None, table_file: Path | None, *, resumed: bool, force: bool
) -> None:
    """Check the files that are written; predictions of a validation that resumes are made again."""
    written = sources.plan is not None or sources.trace is not None
    reads = {"acceptance": sources.replay, "predictions": None if written else sources.predictions}
    output_files.check_output(output, reads=reads, force=force)
    output_files.check_output(table_file, "--table", reads=reads, force=force)
    if written:
        output_files.check_output(sources.predictions, "--predictions", reads=reads, force=force or resumed)


def _store(record: Record, output: Path | None, table_file: Path | None, tracker: str | None) -> None:
    """Write the comparison to its files first, then log it."""
    if output:
        write_text(output, json.dumps(record, indent=1) + "\n")
    output_files.write_table(table_file, record.frame)
    if tracker is not None:
        printing.say(f"logged as {tracker} run {log_validation(record, tracker)}")


def _replayed(acceptance: str) -> Path | None:
    """Return the trace of `--acceptance replay:TRACE.npz`; None for `live`."""
    if acceptance == "live":
        return None
    if not acceptance.startswith(REPLAY) or acceptance == REPLAY:
        raise UsageError(f"--acceptance must be live or {REPLAY}TRACE.npz, got {acceptance}")
    return Path(acceptance.removeprefix(REPLAY))
