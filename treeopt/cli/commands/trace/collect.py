"""`treeopt trace collect`: let the target write, and record how the drafter ranks what it writes."""

from pathlib import Path

import click

from treeopt.api import record_trace
from treeopt.api.record_trace import CollectSettings
from treeopt.cli.options import general, output_files, printing
from treeopt.cli.options.help_sections import Command, examples
from treeopt.cli.options.settings_options import MODELS, options_of
from treeopt.cli.options.setup_file import setup_options
from treeopt.cli.options.what_to_draft import Dynamic
from treeopt.errors import counted
from treeopt.storage.work_file import beside
from treeopt.traces.resumable_shards import remove_parts
from treeopt.traces.trace import save_trace

SECTIONS = {
    "Models": "target drafter",
    "Prompts": "prompts requests skip new_tokens",
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
@options_of(
    CollectSettings,
    types={**MODELS, "candidates": Dynamic(nodes=1, min_probability=0.0, budget=None)},
    without=("random_weights", "texts", "prompt_tokens"),
    required=("prompts",),
)
@setup_options()
@click.option("--output", type=general.FILE, required=True, help="Write the trace to this file (.npz).")
@general.force
@general.quiet
def collect(settings: CollectSettings, output: Path, *, force: bool) -> None:
    """Let the target continue prompts and record how the drafter ranks what it writes.

    With --engine an inference engine writes the texts, with drafts of --depth tokens. With --drafter too, that drafter
    is recorded along these texts. Else the engine's own steps are: for drafters that treeopt does not have.

    Finished requests stay in OUTPUT.work until the trace is written: after an interruption the same command resumes
    there.
    """
    output_files.check_output(output, force=force)
    work = beside(output)
    trace = record_trace.collect(settings=settings, work=work, progress=printing.progress)
    if printing.is_main_process():
        save_trace(trace, output)
        remove_parts(work) if work.is_dir() else work.unlink(missing_ok=True)
        printing.say(f"{counted(trace.anchors, 'anchor')} of {counted(trace.requests, 'request')} written to {output}")
