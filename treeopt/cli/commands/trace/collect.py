"""`treeopt trace collect`: let the target write, and record how the drafter ranks what it writes."""

from pathlib import Path
from typing import Any

import click

from treeopt.api.record_trace import collect_with
from treeopt.api.run_models import Models
from treeopt.api.run_prompts import Prompts
from treeopt.api.runners import EngineChoice
from treeopt.api.token_sampling import Sampling
from treeopt.cli.options import general, models_and_prompts, output_files, printing
from treeopt.cli.options.engine_choice import engine
from treeopt.cli.options.help_sections import Command, examples
from treeopt.cli.options.value_types import Whole
from treeopt.cli.options.verification_rule import sampling
from treeopt.cli.options.what_to_draft import Dynamic, Static
from treeopt.defaults import DRAWS, ENGINE_LENGTH, RECORD_BATCH, WIDTH
from treeopt.errors import counted
from treeopt.storage.work_file import beside
from treeopt.traces.resumable_shards import remove_parts
from treeopt.traces.trace import save_trace

SECTIONS = {
    "Models": "target drafter",
    "Prompts": "prompts_file requests skip new_tokens",
    "Recording": "depth width temperature engine",
    "Output": "output force",
}
EXAMPLES = examples(
    "treeopt trace collect --target data/models/stdlib-llama --drafter data/models/stdlib-medusa "
    "--prompts data/prompts/stdlib.jsonl --requests 4 --new-tokens 8 --output trace.npz",
    "treeopt trace collect --target data/models/stdlib-llama --drafter prompt-lookup "
    "--prompts data/prompts/stdlib.jsonl --requests 4 --new-tokens 8 --temperature 1 --output sampled.npz",
)


@click.command(cls=Command, sections=SECTIONS, epilog=EXAMPLES)
@models_and_prompts.models_without_drafter
@models_and_prompts.prompts
@models_and_prompts.new_tokens
@click.option("--output", type=general.FILE, required=True, help="Write the trace to this file (.npz).")
@general.force
@click.option(
    "--depth",
    type=Whole(min=1),
    help="Levels to record; default all that the drafter has, at most 8. With --engine: its draft length; "
    f"default that of the only --url, or {ENGINE_LENGTH}.",
)
@click.option("--width", type=Whole(min=1), default=WIDTH, show_default=True, help="Candidates to record per level.")
@click.option("--batch", type=Whole(min=1), default=RECORD_BATCH, show_default=True, help="Requests decoded together.")
@click.option(
    "--probabilities",
    is_flag=True,
    help="Also record probabilities and entropies; the file becomes several times larger.",
)
@click.option(
    "--draws",
    type=Whole(min=1),
    help=f"Simulated draws where acceptance has no closed form (rule sequoia); default {DRAWS}.",
)
@click.option(
    "--candidates",
    type=Dynamic(nodes=1, min_probability=0.0, budget=None),
    help="Also record whole candidate trees, for dynamic policies: depth=6,beam=20,width=10. Use a beam well above "
    "those of the policies to be searched, so that less stays unknown.",
)
@click.option(
    "--stride",
    type=Whole(min=1),
    help="With --candidates: record them at every Nth token; default at each.",
)
@click.option(
    "--tree",
    type=Static(),
    help="For rule typical: texts are written with this tree, and a search can only choose parts of it. Rank paths, "
    "FILE[:NAME], or the name of a published tree such as medusa/mc_sim_7b_63.",
)
@click.option(
    "--parts",
    type=general.FOLDER,
    help="Store finished requests in this folder, in place of OUTPUT.work, and keep it.",
)
@click.option(
    "--every-anchor",
    is_flag=True,
    help="With --engine and without --drafter: measure a step of the engine at every position of its texts, not only "
    "at those that a run visits. Turn on the engine's prefix caching.",
)
@sampling
@engine
@general.quiet
def collect(
    models: Models,
    prompts: Prompts,
    sampling: Sampling,
    engine: EngineChoice,
    output: Path,
    *,
    force: bool,
    **settings: Any,
) -> None:
    """Let the target continue prompts and record how the drafter ranks what it writes.

    With --engine an inference engine writes the texts, with drafts of --depth tokens. With --drafter too, that drafter
    is recorded along these texts. Else the engine's own steps are: for drafters that treeopt does not have.

    Finished requests stay in OUTPUT.work until the trace is written: after an interruption the same command resumes
    there.
    """
    output_files.check_output(output, force=force)
    work = beside(output)
    settings |= {"sampling": sampling, "engine": engine, "work": work}
    trace = collect_with(models, prompts, progress=printing.progress, **settings)
    if printing.is_main_process():
        save_trace(trace, output)
        remove_parts(work) if work.is_dir() else work.unlink(missing_ok=True)
        printing.say(f"{counted(trace.anchors, 'anchor')} of {counted(trace.requests, 'request')} written to {output}")
