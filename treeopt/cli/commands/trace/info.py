"""`treeopt trace info`: describe a trace."""

from pathlib import Path

import click

from treeopt.acceptance_rules import takes_chains_only
from treeopt.cli.options import general, printing
from treeopt.cli.options.help_sections import Command, examples
from treeopt.cli.options.value_types import Numbers, numbers_text
from treeopt.defaults import INFO_NODES
from treeopt.errors import TraceError
from treeopt.planning.learning_curve import learning_curves
from treeopt.planning.search_warnings import advice, interval_warnings, resemblance
from treeopt.replay.sampled_rules import with_drawn_ranks
from treeopt.storage.provenance import assumed_in, look
from treeopt.traces.resumable_shards import load_file_or_shards, optional_in
from treeopt.traces.trace import Trace

EXAMPLES = examples(
    "treeopt trace info data/traces/medusa-t0.npz",
    "treeopt trace info data/traces/eagle-t0.npz --learning-curve --nodes 4,16 --json",
)


@click.command(cls=Command, epilog=EXAMPLES)
@click.argument("trace_file", type=general.FOLDER)
@click.option(
    "--learning-curve",
    is_flag=True,
    help="Also choose trees on few and on more of the requests, and judge them on the others.",
)
@click.option(
    "--nodes",
    type=Numbers("tree sizes"),
    default=numbers_text(INFO_NODES),
    show_default=True,
    help="Tree sizes (nodes) to give advice about.",
)
@general.seed
@general.as_json
@general.verbose
def info(trace_file: Path, learning_curve: bool, nodes: tuple[int, ...], seed: int, as_json: bool) -> None:
    """Describe a trace or a folder of shards: size, models, acceptance by depth, repeated text, what to beware of."""
    from treeopt.results.trace import curve_record, describe

    trace = load_file_or_shards(trace_file, ranks_only=True)
    ranked = with_drawn_ranks(trace, seed)
    warnings = _warnings(trace, ranked, max(nodes))
    if learning_curve and takes_chains_only(look(trace.meta, "verification")):
        raise TraceError("a learning curve needs trees, but the trace's rule verifies only chains")
    curves = learning_curves(ranked, nodes=nodes, depth=trace.depth, seed=seed) if learning_curve else ()
    if as_json:
        stored = {"optional": optional_in(trace_file)} if trace_file.is_dir() else {}
        drawn = {"learning_curves": [curve_record(curve) for curve in curves]} if learning_curve else {}
        printing.print_json(describe(trace) | stored | {"advice": warnings} | drawn)
        return
    beware = [*(f"assumed: {sentence}" for sentence in assumed_in(trace.meta)), *warnings]
    printing.show("trace", trace, file=str(trace_file), beware=beware, curves=curves)


def _warnings(trace: Trace, ranked: Trace, nodes: int) -> tuple[str, ...]:
    """Return what to beware of when a tree of this size is chosen on the trace."""
    try:
        warnings = advice(trace, nodes)
    except TraceError as error:  # the trace can be described all the same
        warnings = (str(error),)
    if ranked is not trace:
        warnings += ("its rule draws candidates: the ranks shown are the drafter's, not what steps accept",)
    doubts = tuple(sentence for sentence in interval_warnings(ranked) if sentence not in warnings)
    return warnings + doubts + tuple(resemblance(ranked))
