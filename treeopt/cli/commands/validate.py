"""`treeopt validate`: predicted against measured."""

import shlex
from pathlib import Path

import click

from treeopt.api import validate_plan
from treeopt.api.validate_plan import ValidateSettings
from treeopt.cli.options import general, output_files, printing
from treeopt.cli.options.help_sections import Command, examples
from treeopt.cli.options.output_files import ResultFiles
from treeopt.cli.options.settings_options import MODELS, options_of, setup_options
from treeopt.cli.options.trace_or_figure import options_of_source
from treeopt.cli.options.value_types import Text
from treeopt.errors import UsageError
from treeopt.storage import work_file
from treeopt.traces.trace_files import load_trace

REPLAY = "replay:"
SECTIONS = {
    "Models": "target drafter",
    "Prompts": "prompts skip requests",
    "Prediction": "plan trace batch engine",
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


def _profile(settings: ValidateSettings) -> str:
    """Return the command that measures the step times of these models again; empty for those of an engine."""
    models = settings.models
    named = {"target": models.target, "drafter": models.drafter, "prompts": settings.source.prompts}
    words = [f"--{name} {shlex.quote(str(value))}" for name, value in named.items() if value is not None]
    drawn = ["--random-weights", f"--prompt-tokens {settings.source.prompt_tokens}"] if models.random_weights else []
    return "" if settings.engine.engine else " ".join(["treeopt profile", *words, *drawn, "--output profile.json"])


def _search(settings: ValidateSettings) -> str:
    """Return the command that writes the plan of the trace; empty without a trace."""
    trace, profile = settings.sources.trace, settings.sources.profile
    if not isinstance(trace, Path):
        return ""
    named = options_of_source(trace, load_trace(trace).meta, profile if isinstance(profile, Path) else None)
    return f"treeopt search {named} --batch {','.join(map(str, settings.sources.batch)) or '1,4'} --output plan.json"


def _acceptance(text: str) -> Path | None:
    """Return the trace whose acceptance is replayed, `replay:TRACE.npz`; None for `live`."""
    if text == "live":
        return None
    if not text.startswith(REPLAY) or text == REPLAY:
        raise UsageError(f"--acceptance must be live or {REPLAY}TRACE.npz, got {text}")
    return Path(text.removeprefix(REPLAY))


TYPES = {
    **MODELS,
    **dict.fromkeys(("plan", "trace", "profile"), general.FILE),
    "replay": Text("text", _acceptance, Path),
}


@click.command(cls=Command, sections=SECTIONS, epilog=EXAMPLES)
@options_of(ValidateSettings, types=TYPES, without=("texts",))
@setup_options()
@output_files.result_options("comparison")
@general.force
def validate(settings: ValidateSettings, files: ResultFiles, *, force: bool) -> None:
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
    output = files.output
    work = None if output is None else work_file.beside(output)
    sources = settings.sources
    written = sources.plan is not None or sources.trace is not None
    if output and sources.predictions is None and written:
        settings = settings.changed(predictions=output.with_suffix(".predictions.json"))
        sources = settings.sources
    reads = {"acceptance": sources.replay, "predictions": None if written else sources.predictions}
    files.check(reads=reads, force=force)
    if written:  # predictions of a validation that resumes are made again
        resumed = work is not None and work.exists()
        output_files.check_output(sources.predictions, "--predictions", reads=reads, force=force or resumed)
    record = validate_plan.validate(settings=settings, work=work, progress=printing.progress)
    if not printing.is_main_process():
        return
    plan = None if sources.plan is None else str(sources.plan)
    files.give("validation", record, plan=plan, profile=_profile(settings), search=_search(settings))
    if work is not None:
        work.unlink(missing_ok=True)
