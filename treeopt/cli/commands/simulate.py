"""`treeopt simulate`: a run of many requests, or a server's days."""

from pathlib import Path

import click

from simulate.runs.simulate_settings import SimulateSettings
from treeopt.api import simulate_requests
from treeopt.cli.options import general, output_files, printing
from treeopt.cli.options.help_sections import Command, examples
from treeopt.cli.options.output_files import ResultFiles
from treeopt.cli.options.settings_options import options_of
from treeopt.cli.options.trace_or_figure import options_of_source, trace_source
from treeopt.traces.trace import Trace

SECTIONS = {
    "Input": "trace_file acceptance profile_file",
    "Run": "plan tree length batch",
    "Server": "arrivals capacity ttft_s tpot_s",
    "Output": "output",
}
EXAMPLES = examples(
    "treeopt simulate --trace data/traces/medusa-t0.npz --tree 2 --batch 4",
    "treeopt simulate --trace data/traces/medusa-t0.npz --tree 1 --batch 4 --arrivals 20 --requests 100 --ttft-s 0.5",
)


@click.command(cls=Command, sections=SECTIONS, epilog=EXAMPLES)
@trace_source(general.FILE, "The requests and the recorded acceptance (.npz).", times="Step times")
@options_of(SimulateSettings, types={"plan": general.FILE})
@output_files.result_options()
def simulate(
    trace_file: Path | Trace,
    profile_file: Path | None,
    settings: SimulateSettings,
    files: ResultFiles,
) -> None:
    """Predict a run of all requests of a trace: tokens per second, latencies and their percentiles.

    Every request is replayed step by step; a step is priced by the number of requests in it. With --arrivals or
    --requests-file, requests come to a server of --batch rows, which changes between a plan's trees as its load
    changes; with --capacity, the highest rate that keeps the limits is found.
    """
    files.check()
    record = simulate_requests.simulate(trace_file, profile_file, settings=settings, progress=printing.progress)
    if files.as_json:
        printing.warn(record["warnings"])
    kind, plan = record["schema"].split(".")[1].split("/")[0], None if settings.plan is None else str(settings.plan)
    options = options_of_source(trace_file, record["meta"]["trace"], profile_file)
    files.give(kind, record, trace=options, plan=plan)
