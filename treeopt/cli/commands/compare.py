"""`treeopt compare`: drafters side by side on the same prompts."""

from pathlib import Path

import click

from treeopt.api import compare_traces
from treeopt.cli.options import general, output_files
from treeopt.cli.options.help_sections import Command, examples
from treeopt.cli.options.output_files import ResultFiles
from treeopt.cli.options.settings_options import options_of
from treeopt.comparison.compare_drafters import CompareSettings

SECTIONS = {
    "Comparison": "sizes requests same_prompts",
    "Batch sizes": "batch profiles context max_nodes",
    "Output": "output as_json",
}
EXAMPLES = examples(
    "treeopt compare data/traces/medusa-t0.npz data/traces/eagle-t0.npz --shapes chain:2,best:15",
    "treeopt compare data/traces/medusa-t0.npz data/traces/hydra-t0.npz --batch 1 --max-nodes 8 --output drafters.json",
)


@click.command(cls=Command, sections=SECTIONS, epilog=EXAMPLES)
@click.argument("traces", type=general.FOLDER, nargs=-1, required=True)
@click.option(
    "--profile",
    "profiles",
    type=general.FILE,
    multiple=True,
    help="Step times of each trace, in their order; default the profiles of the traces' models.",
)
@options_of(CompareSettings)
@output_files.result_options()
def compare(
    traces: tuple[Path, ...],
    profiles: tuple[Path, ...],
    settings: CompareSettings,
    files: ResultFiles,
) -> None:
    """Compare drafters by their TRACES, with the first: tau with trees of one size, speedups at batch sizes.

    Differences are paired by request where the traces were recorded on the same prompts.
    """
    files.check()
    record = compare_traces.compare(traces, profiles or None, settings=settings).record()
    named = dict(zip(record["meta"]["trace"], map(str, traces), strict=True))
    files.give("comparison", record, files=named)
