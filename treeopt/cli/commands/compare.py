"""`treeopt compare`: drafters side by side on the same prompts."""

from pathlib import Path

import click

from treeopt.api import compare_traces
from treeopt.cli.options import general, output_files
from treeopt.cli.options.help_sections import Command, examples
from treeopt.cli.options.output_files import ResultFiles
from treeopt.cli.options.settings_options import options_of
from treeopt.cli.options.trace_or_figure import FIGURE, FIGURE_TYPE, LENGTH, LENGTH_TYPE, options_of_source
from treeopt.comparison.compare_drafters import CompareSettings
from treeopt.traces.trace import Trace

SECTIONS = {
    "Comparison": "sizes requests same_prompts",
    "Batch sizes": "batch profiles context max_nodes",
    "Output": "output as_json",
}
EXAMPLES = examples(
    "treeopt compare data/traces/medusa-t0.npz --acceptance 0.48@3 --shapes chain:2",
    "treeopt compare data/traces/medusa-t0.npz --acceptance 0.6 --shapes chain:1 --output drafters.json",
)


@click.command(cls=Command, sections=SECTIONS, epilog=EXAMPLES)
@click.argument("traces", type=general.FOLDER, nargs=-1)
@click.option("--acceptance", "figures", type=FIGURE_TYPE, multiple=True, help=f"{FIGURE} May be given several times.")
@click.option("--accepted-length", "lengths", type=LENGTH_TYPE, multiple=True, help=LENGTH)
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
    figures: tuple[Trace, ...],
    lengths: tuple[Trace, ...],
    profiles: tuple[Path, ...],
    settings: CompareSettings,
    files: ResultFiles,
) -> None:
    """Compare drafters by their TRACES or figures of acceptance, with the first: tau and speedups.

    Differences are paired by request where the traces were recorded on the same prompts.
    """
    files.check()
    sources = compare_traces.names_of_files(traces) | compare_traces.names_of_figures((*figures, *lengths))
    record = compare_traces.compare(sources, profiles or None, settings=settings).record()
    times = profiles or [None] * len(sources)
    options = {
        name: options_of_source(source, record["meta"]["trace"][name], profile)
        for (name, source), profile in zip(sources.items(), times, strict=True)
    }
    files.give("comparison", record, files=options)
