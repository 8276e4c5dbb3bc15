"""`treeopt search`: the fastest topology for each batch size."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import click
import numpy as np

from treeopt.cli.options import general
from treeopt.cli.options.matching_files import live_checks, profile_for, warn_unless_same
from treeopt.cli.options.what_to_draft import NamedTree
from treeopt.constraints import Constraint, ContiguousRanks, DepthAtMost, broken
from treeopt.engines import ENGINE_RULES
from treeopt.errors import UsageError
from treeopt.planning.learning_curve import requests_needed
from treeopt.planning.search_pipeline import baselines
from treeopt.planning.search_pipeline import search as find
from treeopt.plans.plan import Plan
from treeopt.plans.plan_json import save_plan, to_json
from treeopt.replay.objective import OBJECTIVES, THROUGHPUT
from treeopt.searchers.dynamic_trees.choose_policy import KINDS
from treeopt.searchers.dynamic_trees.step_prices import Padding
from treeopt.storage.provenance import look
from treeopt.traces.resumable_shards import Shards, ranks_of
from treeopt.traces.trace import Trace, load_trace
from treeopt.tree import Tree
from treeopt.tree_files.paper_trees import published_trees

engine_rules = click.option(
    "--engine",
    type=click.Choice(list(ENGINE_RULES)),
    help="Only trees that this engine can run; plans say what each binding rule costs.",
)


@click.command()
@click.option(
    "--trace",
    "trace_file",
    type=general.FOLDER,
    required=True,
    help="What the drafter got right: .npz, or the folder of `trace collect --parts`.",
)
@general.batches
@click.option(
    "--profile",
    "profile_file",
    type=general.FILE,
    help="Measured step times; default the trace's own, if found.",
)
@general.max_nodes
@general.max_depth
@click.option(
    "--method",
    type=click.Choice(["renewal", "best-first", "hydra"]),
    default="renewal",
    show_default=True,
    help="How trees are proposed.",
)
@click.option(
    "--objective",
    type=click.Choice(list(OBJECTIVES)),
    default=THROUGHPUT.name,
    show_default=True,
    help="Tokens over all requests, request by request, or in the worst domain.",
)
@click.option("--max-tpot-ms", type=general.Real(min=0, min_open=True), help="Most milliseconds a token.")
@click.option("--shapes", type=click.IntRange(min=1), help="Most different trees; default one a batch size.")
@click.option(
    "--near",
    type=general.Real(0, 1, max_open=True),
    default=0.01,
    show_default=True,
    help="Take the smallest tree within this share of the fastest, where intervals overlap.",
)
@click.option(
    "--shrink",
    type=general.Real(min=0),
    help="Anchors' worth of what is known of similar paths, added to the counts of each; default found on the "
    "requests, 0 takes counts as they are.",
)
@engine_rules
@click.option(
    "--policy",
    "policies",
    type=click.Choice([*KINDS, "all"]),
    multiple=True,
    help="Also sweep trees that are drawn anew at each step, on a trace with candidates; may be given several times.",
)
@click.option(
    "--padding",
    type=click.Choice(get_args(Padding)),
    help="Of policies' trees: to the largest (CUDA graphs), to the widest of the batch (treeopt's loop; the default), "
    "none.",
)
@click.option(
    "--target-interval",
    type=general.Real(min=0, min_open=True),
    help="Say how many more requests make the intervals of tau this narrow: 0.01 for 1 %.",
)
@click.option(
    "--compare",
    "compared",
    type=NamedTree(),
    multiple=True,
    help="Also judge this tree: FILE[:NAME], a choice list or growmap; may be given several times.",
)
@click.option("--published", is_flag=True, help="Also judge all published trees, not only Medusa's and EAGLE-1's.")
@click.option("--held-out", type=float, default=0.5, show_default=True, help="Share of requests to predict on.")
@click.option(
    "--context",
    type=click.IntRange(min=0),
    help="Tokens a sequence in the cache; default as profiled, of several contexts the shortest.",
)
@general.seed
@click.option("--output", type=general.FILE, help="Write the plan here.")
@general.as_json
def search(
    trace_file: Path,
    batch: tuple[int, ...],
    profile_file: Path | None,
    output: Path | None,
    as_json: bool,
    objective: str,
    max_tpot_ms: float | None,
    compared: tuple[tuple[str, Tree], ...],
    published: bool,
    engine: str | None,
    policies: tuple[str, ...],
    target_interval: float | None,
    **settings: Any,
) -> None:
    """Choose the topology that makes most tokens a second, for each batch size.

    Chosen on one part of the trace's requests, predicted by replay on the rest, and compared with plain
    decoding, the best chain and published trees.
    """
    general.check_output(output)
    trace = load(trace_file, whole=bool(policies))
    profile = profile_for(trace, trace_file, profile_file)
    warn_unless_same("trace and profile", trace.meta, profile.meta)
    if settings["max_depth"] is not None and settings["max_depth"] > trace.depth:
        raise UsageError(f"max-depth {settings['max_depth']}: the trace records depth {trace.depth}")
    settings |= {"objective": OBJECTIVES[objective], "max_tpot_s": None if max_tpot_ms is None else max_tpot_ms / 1e3}
    if settings["padding"] is not None and not policies:
        raise UsageError("--padding is of trees that are drawn anew: give --policy")
    settings["padding"] = settings["padding"] or "widest"
    settings["policies"] = KINDS if "all" in policies else tuple(dict.fromkeys(policies))
    trace, own = drawn(trace, settings["seed"])
    settings["rules"] = (*own, *rules_of(engine, trace))
    rivals = published_trees() if published else baselines()
    settings["compare"] = _judged(rivals | dict(compared), own)
    context = settings["context"]
    if context is None and profile.apart:
        click.echo(f"context: {profile.priced_at()} tokens a sequence, the shortest that was profiled", err=True)
    plan = find(trace, profile, batch=batch, **settings)
    if target_interval is not None:
        plan = replace(plan, meta={**plan.meta, "missing": missing(plan, target_interval)})
    if output:
        save_plan(plan, output)
    if as_json:
        click.echo(to_json(plan))
        return
    from treeopt.report.plan_tables import show_plan

    show_plan(plan, checks=live_checks(plan))
    if context is not None or profile.apart:
        click.echo(f"Steps are priced at {plan.meta['search']['context']} tokens a sequence in the cache.")
    if target_interval is not None:
        for line in plan.meta["missing"]:
            click.echo(line)
    if output:
        click.echo(f"plan written to {output}", err=True)


def load(path: Path, *, whole: bool) -> Trace:
    """A trace, or the ranks of a folder of shards, or all of it."""
    if not path.is_dir():
        return load_trace(path)
    return Shards.read(path).whole() if whole else ranks_of(path)


def kept_ranks(trace: Trace, seed: int) -> Trace:
    """The trace, or of a rule that draws its candidates one with ranks that it might have kept."""
    if trace.kept is None:
        return trace
    from treeopt.replay.sampled_rules import drawn_ranks

    return drawn_ranks(trace, np.random.default_rng(seed))


def drawn(trace: Trace, seed: int) -> tuple[Trace, tuple[Constraint, ...]]:
    """The trace, and (); of a rule that draws its candidates with ranks that it might have kept, and its own rules."""
    if trace.kept is None:
        return trace, ()
    from treeopt.replay.sampled_rules import rules

    return kept_ranks(trace, seed), rules(trace)


def _judged(trees: dict[str, Tree], rules: tuple[Constraint, ...]) -> dict[str, Tree]:
    """The trees that keep the rules; says on stderr which do not."""
    reasons = {name: reason for name, tree in trees.items() if (reason := broken(tree, rules))}
    for name, reason in reasons.items():
        click.echo(f"not judged: {name}: {reason}", err=True)
    return {name: tree for name, tree in trees.items() if name not in reasons}


def rules_of(engine: str | None, trace: Trace) -> tuple[Constraint, ...]:
    """What the engine can run; of a drafter with heads, no deeper than these.

    A rank of Sequoia's vectors is worth what they say only where the ranks before it are drafted, too.
    """
    if look(trace.meta, "imported", "format") == "sequoia-vector":
        return (ContiguousRanks(source="the vector's own"), *(() if engine is None else ENGINE_RULES[engine].rules))
    if engine is None:
        return ()
    heads = look(trace.meta, "drafter", "heads")
    deep = (DepthAtMost(heads, source="one head a depth"),) if type(heads) is int and heads < trace.depth else ()
    return (*ENGINE_RULES[engine].rules, *deep)


def missing(plan: Plan, target: float) -> list[str]:
    """How many more requests each batch size's interval of tau needs, one line each."""
    held, share = (look(plan.meta, "search", key) for key in ("requests_judged_on", "held_out"))
    found = []
    for entry in plan.entries:
        if entry.choice.plain:
            continue
        more = requests_needed(entry.choice.tau, held, target)
        found.append(
            f"batch {entry.batch}: tau is known to {entry.choice.tau.relative:.1%}; "
            + (f"{math.ceil(more / share)} more requests would make it {target:.1%}" if more else "that is enough")
        )
    return found
