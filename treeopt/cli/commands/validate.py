"""`treeopt validate`: predicted against measured."""

import json
from pathlib import Path
from typing import Any

import click

from treeopt.api import validate_plan
from treeopt.api.engine_models import EngineChoice
from treeopt.api.engine_runs import validate_engine
from treeopt.api.run_models import Models, is_main_rank
from treeopt.api.run_prompts import Prompts
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
from treeopt.storage.atomic_files import write_text
from treeopt.trackers.log_run import TRACKERS, check_tracker, log_validation

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
    """
    printing.hold_warnings()
    replay = _replayed(acceptance)
    written = plan_file is not None or trace_file is not None
    beside = output.with_suffix(".predictions.json") if output and written else None
    reads = {"acceptance": replay, "predictions": None if written else predictions_file}
    output_files.check_output(output, reads=reads, force=force)
    output_files.check_output(table_file, "--table", reads=reads, force=force)
    sampling.check()
    check_tracker(tracker)
    if written:
        output_files.check_output(predictions_file or beside, "--predictions", reads=reads, force=force)
    if sizes is not None:
        parse_sizes(sizes)
    made: dict[str, Any] = {"plan": plan_file, "trace": trace_file, "profile": profile_file, "sizes": sizes}
    made |= {"replay": replay, "predictions": predictions_file or beside, "progress": printing.progress}
    if engine.engine is not None:
        record = _in_engine(engine, models, prompts, sampling, {**made, **settings})
    else:
        record = validate_plan.validate(**_arguments(models, prompts, sampling), **made, **settings)
        if not is_main_rank():
            return
    _store(record, output, table_file, tracker)
    if as_json:
        printing.print_json(record)
        return
    printing.show("validation", record, plan=None if plan_file is None else str(plan_file))


def _store(record: Record, output: Path | None, table_file: Path | None, tracker: str | None) -> None:
    """Write the comparison to its files first, then log it."""
    if output:
        write_text(output, json.dumps(record, indent=1) + "\n")
    output_files.write_table(table_file, record.frame)
    if tracker is not None:
        printing.say(f"logged as {tracker} run {log_validation(record, tracker)}")


def _in_engine(
    engine: EngineChoice, models: Models, prompts: Prompts, sampling: Sampling, given: dict[str, Any]
) -> Record:
    """Validate in an inference engine."""
    from simulate.validation.prediction_sources import Sources

    if sampling.temperature > 0 or given["replay"] is not None or models.random_weights or given["graphs"]:
        raise UsageError(
            "--engine does not take --temperature, --acceptance replay, --random-weights or --graphs: omit them"
        )
    sizes = None if given["sizes"] is None else parse_sizes(given["sizes"])
    sources = Sources(given["plan"], given["trace"], given["profile"], given["batch"], sizes, given["predictions"])
    return validate_engine(
        engine,
        models.target,
        models.drafter,
        prompts,
        sources,
        new_tokens=given["new_tokens"],
        rounds=given["blocks"],
        seed=sampling.seed,
        progress=given["progress"],
    )


def _arguments(models: Models, prompts: Prompts, sampling: Sampling) -> dict[str, Any]:
    """Return models, prompts and sampling as arguments of `treeopt.validate`."""
    chosen = {name: value for name, value in vars(prompts).items() if name not in ("prompts_file", "texts")}
    return {**vars(models), "prompts": prompts.prompts_file, **chosen, **vars(sampling)}


def _replayed(acceptance: str) -> Path | None:
    """Return the trace of `--acceptance replay:TRACE.npz`; None for `live`."""
    if acceptance == "live":
        return None
    if not acceptance.startswith(REPLAY) or acceptance == REPLAY:
        raise UsageError(f"--acceptance must be live or {REPLAY}TRACE.npz, got {acceptance}")
    return Path(acceptance.removeprefix(REPLAY))
