"""`treeopt compare`: drafters side by side on the same prompts."""

import json
from pathlib import Path

import click

from treeopt.api import compare_traces
from treeopt.cli.options import general, output_files, printing
from treeopt.cli.options.help_sections import Command, examples
from treeopt.cli.options.settings_options import options_of
from treeopt.comparison.compare_drafters import CompareSettings
from treeopt.storage.atomic_files import write_text

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
@click.option("--output", type=general.FILE, help="Write the result to this file (.json).")
@general.table
@general.as_json
@general.verbose
@general.quiet
def compare(
    traces: tuple[Path, ...],
    profiles: tuple[Path, ...],
    settings: CompareSettings,
    output: Path | None,
    table_file: Path | None,
    as_json: bool,
) -> None:
    """Compare drafters by their TRACES, with the first: tau with trees of one size, speedups at batch sizes.

    Differences are paired by request where the traces were recorded on the same prompts.
    """
    printing.hold_warnings()
    output_files.check_output(output)
    output_files.check_output(table_file, "--table")
    result = compare_traces.compare(traces, profiles or None, settings=settings)
    record = result.record()
    if output:
        write_text(output, json.dumps(record, indent=1) + "\n")
    output_files.write_table(table_file, result.frame)
    if as_json:
        printing.print_json(record)
        return
    files = dict(zip(record["meta"]["trace"], map(str, traces), strict=True))
    printing.show("comparison", record, files=files)
