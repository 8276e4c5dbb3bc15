"""`treeopt verdict`: no speculation, a fixed length, a schedule or adaptive verification."""

from pathlib import Path

import click

from simulate.runs.simulate_settings import VerdictSettings
from treeopt.api import simulate_requests
from treeopt.cli.options import general, output_files
from treeopt.cli.options.help_sections import Command, examples
from treeopt.cli.options.output_files import ResultFiles
from treeopt.cli.options.settings_options import options_of
from treeopt.cli.options.trace_or_figure import options_of_source, trace_source
from treeopt.traces.trace import Trace

SECTIONS = {
    "Input": "trace_file acceptance profile_file",
    "Load": "batch running arms prompt_tokens",
    "Output": "output",
}
EXAMPLES = examples(
    "treeopt verdict --arms docs/examples/vllm_52362_arms.csv --accepted-length 3@7",
    "treeopt verdict --trace data/traces/medusa-t0.npz --batch 1,4 --output verdict.json",
)


@click.command(cls=Command, sections=SECTIONS, epilog=EXAMPLES)
@trace_source(
    general.FILE, "The requests and the recorded acceptance (.npz), best with confidences.", times="Step times"
)
@options_of(VerdictSettings)
@output_files.result_options()
def verdict(trace_file: Path | Trace, profile_file: Path | None, settings: VerdictSettings, files: ResultFiles) -> None:
    """Say which draft lengths pay at which load: none, a fixed one, a schedule, or adaptive verification.

    All four decode the same requests, step by step, at each number of running requests. The simplest one within 3 % of
    the fastest is the verdict. Without confidences in the trace, those of adaptive verification are assumed.
    """
    files.check()
    output_files.check_output(settings.cost_table, "--cost-table")
    record = simulate_requests.verdict(trace_file, profile_file, settings=settings)
    source = options_of_source(trace_file, record["meta"]["trace"], profile_file)
    files.give("verdict", record, trace=None if settings.arms else source)  # `simulate` takes no arms
