"""`treeopt search`: the fastest tree for each batch size."""

from pathlib import Path

import click

from treeopt.api import search_trace
from treeopt.cli.options import general, output_files, printing
from treeopt.cli.options.help_sections import Command, examples
from treeopt.cli.options.output_files import ResultFiles
from treeopt.cli.options.settings_options import options_of
from treeopt.cli.options.trace_or_figure import trace_source
from treeopt.cli.options.value_types import LIMITING, NAMED_TREE
from treeopt.planning.search_pipeline import baselines
from treeopt.plans import to_json
from treeopt.traces.trace import Trace
from treeopt.tree import Tree
from treeopt.tree_files.choice_lists import published_trees

SECTIONS = {
    "Input": "trace_file acceptance profile_file",
    "Question": "batch engine context max_nodes max_depth max_tpot_s compared",
    "Output": "output as_json",
}
EXAMPLES = examples(
    "treeopt search --trace data/traces/medusa-t0.npz --batch 4",
    "treeopt search --trace data/traces/medusa-t0.npz --batch 1,4 --for medusa --output plan.json",
)


@click.command(cls=Command, sections=SECTIONS, epilog=EXAMPLES, renamed={"--engine": "--for"})
@trace_source(
    general.FOLDER,
    "The recorded acceptance: .npz, or the folder of `trace collect --parts`.",
    times="Measured step times",
)
@options_of(search_trace.TraceSearch, types={"engine": LIMITING}, required=("batch",))
@click.option(
    "--compare",
    "compared",
    type=NAMED_TREE,
    multiple=True,
    help="Also judge this tree: rank paths, FILE[:NAME] with these or a growmap, or the name of a published tree; may "
    "be given several times.",
)
@click.option("--published", is_flag=True, help="Also judge all published trees, not only Medusa's and EAGLE-1's.")
@output_files.result_options("plan")
def search(
    trace_file: Path | Trace,
    profile_file: Path | None,
    settings: search_trace.TraceSearch,
    files: ResultFiles,
    compared: tuple[tuple[str, Tree], ...],
    published: bool,
) -> None:
    """Choose the tree that decodes the most tokens per second, for each batch size.

    The tree is chosen on one part of the trace's requests, predicted by replay on the others, and compared with plain
    decoding, the best chain and published trees.
    """
    files.check()
    compare = (published_trees() if published else baselines()) | dict(compared)
    plan = search_trace.search(
        trace_file, profile_file, settings=settings.changed(compare=compare), progress=printing.progress
    )
    from simulate.validation.predicted_vs_measured import live_checks

    file = None if files.output is None else str(files.output)
    checks = {} if files.as_json else live_checks(plan)
    files.give("plan", plan, json_text=to_json(plan) if files.as_json else "", checks=checks, file=file)
    if file and not files.as_json:
        printing.say(f"plan written to {file}")
