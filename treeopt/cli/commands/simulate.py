"""`treeopt simulate`: a run of many requests, or a server's days."""

import json
from pathlib import Path
from typing import Any

import click

from treeopt.api import simulate_requests
from treeopt.cli.options import general, output_files, printing
from treeopt.cli.options.help_sections import Command, examples
from treeopt.cli.options.value_types import SECONDS, Real, Tokens, Whole
from treeopt.cli.options.what_to_draft import Static
from treeopt.defaults import SERVER
from treeopt.storage.atomic_files import write_text

SECTIONS = {
    "Input": "trace_file profile_file",
    "Run": "plan_file tree batch prompt_tokens",
    "Server": "arrivals capacity ttft_s tpot_s",
    "Output": "output as_json",
}
EXAMPLES = examples(
    "treeopt simulate --trace data/traces/medusa-t0.npz --tree 2 --batch 4",
    "treeopt simulate --trace data/traces/medusa-t0.npz --tree 1 --batch 4 --arrivals 20 --requests 100 --ttft-s 0.5",
)


@click.command(cls=Command, sections=SECTIONS, epilog=EXAMPLES)
@click.option(
    "--trace", "trace_file", type=general.FILE, required=True, help="The requests and the recorded acceptance (.npz)."
)
@click.option(
    "--profile",
    "profile_file",
    type=general.FILE,
    help="Step times; default the profile of the trace's models, beside the trace or shipped.",
)
@click.option("--plan", "plan_file", type=general.FILE, help="Decode with the plan's trees for the batch size.")
@click.option(
    "--tree", type=Static(), help="A static tree: the length of a chain, rank paths, FILE[:NAME], or a published tree."
)
@click.option("--batch", type=Whole(min=1), help="Maximum number of requests decoded together; default the plan's.")
@click.option("--prefill-s", type=SECONDS, help="Prefill seconds per prompt; default the profile's.")
@click.option("--prefill-s-per-token", type=SECONDS, help="Additional prefill seconds per prompt token.")
@click.option(
    "--prompt-tokens",
    type=Tokens(min=1),
    help="Prompt length in tokens; also sets the context at which steps are priced. Default: the lengths recorded in "
    "the trace, if any.",
)
@click.option(
    "--pad/--no-pad",
    default=True,
    show_default=True,
    help="Price batch sizes below the profile's smallest as that one, or raise an error. Sizes between two profiled "
    "ones are interpolated.",
)
@click.option("--arrivals", type=Real(1e-9, 1e9), help="Simulate a server: requests per second.")
@click.option(
    "--capacity",
    type=Real(0, 1, min_open=True),
    help="In place of --arrivals: find the highest rate at which this share of the requests keeps --ttft-s and "
    "--tpot-s.",
)
@click.option(
    "--requests-file",
    type=general.FILE,
    help="Lengths of the server's requests: JSON lines with prompt_tokens, tokens [, arrived_s].",
)
@click.option(
    "--requests",
    type=Whole(min=2),
    help=f"Number of arrivals; default {SERVER['requests']}, or the file's.",
)
@click.option(
    "--replications",
    type=Whole(min=2),
    help=f"Number of independent days; default {SERVER['replications']}.",
)
@click.option("--warmup", type=Real(0, 0.9), help=f"Share of each day that is left out; default {SERVER['warmup']}.")
@click.option("--ttft-s", type=Real(0, min_open=True), help="Goodput: maximum seconds to the first token.")
@click.option("--tpot-s", type=Real(0, min_open=True), help="Goodput: maximum seconds per token after the first.")
@click.option("--switch-s", type=SECONDS, help="Seconds that a change to another tree takes; default 0.")
@general.seed
@click.option("--output", type=general.FILE, help="Write the result to this file (.json).")
@general.table
@general.as_json
@general.verbose
@general.quiet
def simulate(
    trace_file: Path,
    profile_file: Path | None,
    plan_file: Path | None,
    output: Path | None,
    table_file: Path | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Predict a run of all requests of a trace: tokens per second, latencies and their percentiles.

    Every request is replayed step by step; a step is priced by the number of requests in it. With --arrivals or
    --requests-file, requests come to a server of --batch rows, which changes between a plan's trees as its load
    changes; with --capacity, the highest rate that keeps the limits is found. Servers need simpy.
    """
    printing.hold_warnings()
    output_files.check_output(output)
    output_files.check_output(table_file, "--table")
    record = simulate_requests.simulate(
        trace_file, profile_file, plan=plan_file, progress=printing.progress, **settings
    )
    if output:
        write_text(output, json.dumps(record, indent=1) + "\n")
    output_files.write_table(table_file, record.frame)
    if as_json:
        printing.warn(record["warnings"])
        printing.print_json(record)
        return
    kind, plan = record["schema"].split(".")[1].split("/")[0], None if plan_file is None else str(plan_file)
    printing.show(kind, record, trace=str(trace_file), plan=plan)
