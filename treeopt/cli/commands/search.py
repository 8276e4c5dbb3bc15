"""`treeopt search`: the fastest tree for each batch size."""

from pathlib import Path
from typing import Any, get_args

import click

from treeopt.api import search_trace
from treeopt.api.file_loading import as_profile, load_trace
from treeopt.cli.options import general, output_files, printing
from treeopt.cli.options.help_sections import Command, examples
from treeopt.cli.options.value_types import Real, Whole
from treeopt.cli.options.what_to_draft import Dynamic, NamedTree
from treeopt.defaults import HELD_OUT, NEAR
from treeopt.engines import ENGINE_RULES
from treeopt.planning.search_pipeline import baselines
from treeopt.planning.search_settings import METHODS
from treeopt.plans.plan_json import save_plan, to_json
from treeopt.policies import Policy
from treeopt.replay.objective import OBJECTIVES, THROUGHPUT
from treeopt.searchers.dynamic_trees.choose_policy import KINDS
from treeopt.searchers.dynamic_trees.step_prices import Padding
from treeopt.tree import Tree
from treeopt.tree_files.paper_trees import published_trees

SECTIONS = {
    "Input": "trace_file profile_file",
    "Question": "batch engine context max_nodes max_depth max_tpot_ms compared",
    "Output": "output as_json",
}
EXAMPLES = examples(
    "treeopt search --trace data/traces/medusa-t0.npz --batch 4",
    "treeopt search --trace data/traces/eagle-t0.npz --batch 1,4 --engine sglang --output plan.json",
)
engine_rules = click.option(
    "--engine",
    type=click.Choice(list(ENGINE_RULES)),
    help="Only trees that this engine can run; plans record the cost of each rule that binds.",
)


@click.command(cls=Command, sections=SECTIONS, epilog=EXAMPLES)
@click.option(
    "--trace",
    "trace_file",
    type=general.FOLDER,
    required=True,
    help="The recorded acceptance: .npz, or the folder of `trace collect --parts`.",
)
@general.batches
@click.option(
    "--profile",
    "profile_file",
    type=general.FILE,
    help="Measured step times; default the profile of the trace's models, beside the trace or shipped.",
)
@general.max_nodes
@general.max_depth
@click.option(
    "--method", type=click.Choice(METHODS), default=METHODS[0], show_default=True, help="How trees are proposed."
)
@click.option(
    "--objective",
    type=click.Choice(list(OBJECTIVES)),
    default=THROUGHPUT.name,
    show_default=True,
    help="Tokens over all requests, request by request, or in the worst domain.",
)
@click.option(
    "--max-tpot-ms",
    type=Real(min=0, min_open=True),
    help="Recommend a batch size that takes at most this many milliseconds per token.",
)
@click.option("--shapes", type=Whole(min=1), help="Maximum number of different trees; default one per batch size.")
@click.option(
    "--near",
    type=Real(0, 1, max_open=True),
    default=NEAR,
    show_default=True,
    help="Take the smallest tree within this share of the fastest, where intervals overlap.",
)
@click.option(
    "--shrink",
    type=Real(min=0),
    help="Strength of shrinkage towards similar paths, in pseudo-anchors. Default: fitted on the requests; 0: none.",
)
@engine_rules
@click.option(
    "--policy",
    "policies",
    type=click.Choice([*KINDS, "all"]),
    multiple=True,
    help="Also sweep this kind of dynamic policy, on a trace with candidates; may be given several times.",
)
@click.option(
    "--dynamic",
    type=Dynamic(),
    multiple=True,
    help="Also judge this dynamic tree, such as the one that your engine runs: nodes=16,depth=5,beam=4,width=4, on a "
    "trace with candidates; may be given several times.",
)
@click.option(
    "--padding",
    type=click.Choice(get_args(Padding)),
    help="With --policy or --dynamic: pad the batch's trees to the largest possible (full; CUDA graphs), to the widest "
    "of the batch (widest; treeopt's loop; the default), or not at all (none).",
)
@click.option(
    "--target-interval",
    type=Real(min=0, min_open=True),
    help="Print how many more requests make the intervals of tau this narrow: 0.01 for 1 %.",
)
@click.option(
    "--compare",
    "compared",
    type=NamedTree(),
    multiple=True,
    help="Also judge this tree: rank paths, FILE[:NAME] with these or a growmap, or the name of a published tree; may "
    "be given several times.",
)
@click.option("--published", is_flag=True, help="Also judge all published trees, not only Medusa's and EAGLE-1's.")
@click.option(
    "--held-out",
    type=float,
    default=HELD_OUT,
    show_default=True,
    help="Share of requests that predictions are made on.",
)
@general.context
@general.seed
@click.option("--output", type=general.FILE, help="Write the plan to this file (.json).")
@general.table
@general.as_json
@general.verbose
@general.quiet
def search(
    trace_file: Path,
    profile_file: Path | None,
    output: Path | None,
    table_file: Path | None,
    as_json: bool,
    max_tpot_ms: float | None,
    compared: tuple[tuple[str, Tree], ...],
    published: bool,
    policies: tuple[str, ...],
    dynamic: tuple[Policy, ...],
    **settings: Any,
) -> None:
    """Choose the tree that decodes the most tokens per second, for each batch size.

    The tree is chosen on one part of the trace's requests, predicted by replay on the others, and compared with plain
    decoding, the best chain and published trees.
    """
    printing.hold_warnings()
    output_files.check_output(output)
    output_files.check_output(table_file, "--table")
    trace = load_trace(trace_file, ranks_only=not policies and not dynamic)
    profile = as_profile(profile_file, trace, trace_file, engine=settings["engine"])
    plan = search_trace.search(
        trace,
        profile,
        max_tpot_s=None if max_tpot_ms is None else max_tpot_ms / 1e3,
        compare=(published_trees() if published else baselines()) | dict(compared),
        policies=policies,
        dynamic=dynamic,
        progress=printing.progress,
        **settings,
    )
    if output:
        save_plan(plan, output)
    output_files.write_table(table_file, plan.frame)
    if as_json:
        click.echo(to_json(plan))
        return
    from simulate.validation.find_validation import live_checks
    from treeopt.results.plan import plan_blocks

    file = None if output is None else str(output)
    printing.show(plan_blocks(plan, checks=live_checks(plan), file=file))
    if output:
        printing.say(f"plan written to {output}")
