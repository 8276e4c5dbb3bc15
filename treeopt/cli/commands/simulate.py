"""`treeopt simulate`: what a run of many requests, or a server's day, adds up to."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from treeopt.cli.options import general, prompt_lengths, server_load
from treeopt.cli.options.matching_files import (
    profile_for,
    warn_of_another_device,
    warn_of_another_rule,
    warn_unless_same,
)
from treeopt.cli.options.what_to_draft import Static
from treeopt.cost_model import StepShape
from treeopt.errors import PlanError, UsageError
from treeopt.planning.baselines import STATIC
from treeopt.planning.evaluator import PLAIN
from treeopt.plans.plan import Plan, PlanEntry
from treeopt.plans.plan_json import load_plan
from treeopt.storage.atomic_files import write_text
from treeopt.storage.provenance import assumed_in, look, this_run
from treeopt.traces.trace import Trace, load_trace
from treeopt.tree import Tree

if TYPE_CHECKING:
    from simulate.profiles.profile import Profile
    from simulate.runs.timeline import Timeline

MODES = {"lock_step": "in lock-step", "fixed_shape": "all steps of full batches"}


@click.command()
@click.option("--trace", "trace_file", type=general.FILE, required=True, help="Requests, and what is kept (.npz).")
@click.option("--profile", "profile_file", type=general.FILE, help="Step times; default the trace's own, if found.")
@click.option("--plan", "plan_file", type=general.FILE, help="Decode as this plan says for the batch size.")
@click.option("--tree", type=Static(), help="A static tree: the length of a chain, or rank paths as JSON.")
@click.option("--batch", type=click.IntRange(min=1), help="Requests decoded together, at most; default the plan's.")
@prompt_lengths.prompts
@click.option("--drain", is_flag=True, help="Begin a batch when all requests of the last have ended.")
@click.option("--lock-step", is_flag=True, help="All sequences advance by the smallest number of tokens.")
@click.option(
    "--fixed-shape",
    is_flag=True,
    help="Idle rows cost what busy ones do, and the profile's prefill pads prompts that join, as in `treeopt decode`.",
)
@click.option(
    "--pad/--no-pad",
    default=True,
    show_default=True,
    help="Batches that the profile lacks cost what the nearest above does, or are refused.",
)
@server_load.load
@general.seed
@click.option("--output", type=general.FILE, help="Write the result here (.json).")
@general.as_json
def simulate(
    trace_file: Path,
    profile_file: Path | None,
    plan_file: Path | None,
    tree: Tree | None,
    batch: int | None,
    prompts: prompt_lengths.Given,
    load: server_load.Load,
    seed: int,
    output: Path | None,
    as_json: bool,
    **how: bool,
) -> None:
    """Predict a run of all requests of a trace: tokens a second, latencies and their percentiles.

    Every request is replayed step by step, with steps priced at the number of requests that are in them. With
    --arrivals or --requests-file requests come to a server of --batch rows, which changes between a plan's trees as
    its load changes; with --capacity the highest rate is found that keeps the limits. simpy is needed for that.
    """
    general.check_output(output)
    if load.given:
        for name in ("drain", "lock_step", "fixed_shape"):
            if how[name]:
                raise UsageError(f"--{name.replace('_', '-')} is for a run without arrivals")
    if plan_file is not None and tree is not None:
        raise UsageError("give one of --plan and --tree")
    plan = None if plan_file is None else load_plan(plan_file)
    trace = load_trace(trace_file)
    cost = profile_for(trace, trace_file, profile_file)
    warn_unless_same("trace and profile", trace.meta, cost.meta)
    if plan is not None:
        warn_unless_same("trace and plan", trace.meta, look(plan.meta, "trace"))
        warn_of_another_rule(plan, trace.meta)
        warn_of_another_device(plan, cost.meta)
    asked = prompts.on(trace, cost, file=load.requests_file)
    if load.given:
        record = _server(trace, cost, plan, tree, batch, asked, load, seed=seed, pad=how["pad"])
    else:
        record = _batch(trace, cost, plan, tree, batch, asked, how, seed=seed)
    if plan is not None:
        record["conditions"] += _seen(plan, trace)
    unknown = cost.caveats(context=asked.context, trace=trace.meta)
    assumed = (f"assumed: {each}" for each in assumed_in(trace.meta))
    free = (prompt_lengths.FREE,) if load.given and asked.free else ()
    warned = [*(plan.warnings if plan else ()), *assumed, *unknown, *asked.warnings, *free, *record.get("warnings", ())]
    record["warnings"] = list(dict.fromkeys(warned))
    for warning in record["warnings"]:
        click.echo(f"Warning: {warning}.", err=True)
    record["meta"] = {
        "settings": prompts.settings | how | (load.settings if load.given else {}) | {"seed": seed},
        "trace": dict(trace.meta),
        "cost": dict(cost.meta),
        "provenance": this_run(),
    }
    if output:
        write_text(output, json.dumps(record, indent=1) + "\n")
    if as_json:
        general.print_json(record)
        return
    from treeopt.report.simulate_tables import show_capacity, show_runs, show_serving

    (show_capacity if load.capacity else show_serving if load.given else show_runs)(record)


def _batch(
    trace: Trace,
    cost: "Profile",
    plan: Plan | None,
    tree: Tree | None,
    batch: int | None,
    prompts: prompt_lengths.Prompts,
    how: dict[str, bool],
    *,
    seed: int,
) -> dict[str, Any]:
    """A run of all requests, as JSON values."""
    from simulate.runs.batch_run import run
    from simulate.runs.timeline import speedup

    name, chosen, size = _way(plan, tree, batch)
    trace = _with_ranks(trace, [chosen], seed)
    settings: dict[str, Any] = {
        "batch": size,
        "prompt_tokens": prompts.tokens,
        "by_context": prompts.by_context,
        "piece": size if how["drain"] else None,
        **{name: how[name] for name in ("lock_step", "pad", "fixed_shape")},
    }
    read_s, drafted_s = (prompts.seconds(prompts.tokens, drafted=drafted) for drafted in (False, True))
    plain = run(trace, None, cost, prefill_s=read_s, **settings)
    ways = {PLAIN: plain}
    gain = None
    if chosen is not None and chosen.nodes:
        ways = {name: run(trace, chosen, cost, prefill_s=drafted_s, **settings)} | ways
        gain = asdict(speedup(ways[name], plain, relative_error=cost.error(StepShape.of(chosen, batch=size))))
    told = (
        f"{trace.requests} requests, {trace.anchors} tokens. A request's time to first token counts from when its row "
        "is free. 95 % intervals by request; speedups with the step times' error."
    )
    return {
        "schema": "treeopt.run/1",
        "batch": size,
        "mode": _mode(how),
        "tree": None if chosen is None else {"id": chosen.id, "paths": [list(path) for path in chosen.paths]},
        "ways": [{"name": way, **_figures(timeline, seed)} for way, timeline in ways.items()],
        "speedup": gain,
        "conditions": [told, *_conditions(trace, cost, prompts.told(), how["pad"])],
    }


def _server(
    trace: Trace,
    cost: "Profile",
    plan: Plan | None,
    tree: Tree | None,
    batch: int | None,
    prompts: prompt_lengths.Prompts,
    load: server_load.Load,
    *,
    pad: bool,
    seed: int,
) -> dict[str, Any]:
    """A server's days, as JSON values."""
    from simulate.runs.plan_switching import Switching

    ways = {PLAIN: Switching((None,))}
    if plan is not None:
        taken = tuple(static(entry) for entry in plan.entries)
        plan = replace(plan, entries=taken, switches=plan.switches if taken == plan.entries else ())
        switching = Switching.of(plan, **{name: load.settings[name] for name in ("hysteresis", "switch_s")})
        ways = {"plan": switching} | ways
        batch = batch or max(entry.batch for entry in plan.entries)
    elif load.hysteresis is not None or load.switch_s is not None:
        raise UsageError("--hysteresis and --switch-s are for a --plan of several trees")
    elif tree is not None and tree.nodes:
        ways = {"tree": Switching((tree,))} | ways
    if batch is None:
        raise UsageError("give --batch, the rows of the server, or a --plan")
    trace = _with_ranks(trace, [tree for switching in ways.values() for tree in switching.trees], seed)
    schema, recorded = "treeopt.serving/1", server_load.serving_record
    if load.capacity is not None:
        schema, recorded = "treeopt.capacity/1", server_load.capacity_record
    record = recorded(trace, cost, ways, prompts, load, rows=batch, pad=pad, seed=seed)
    conditions = [server_load.serving_conditions(load, trace), *_conditions(trace, cost, prompts.told(), pad)]
    return {"schema": schema, **record, "conditions": conditions}


def _with_ranks(trace: Trace, trees: Sequence[Tree | None], seed: int) -> Trace:
    """The trace with ranks that say what its rule keeps of these trees: its own, or drawn.

    Raises:
        TraceError: the trace cannot say, or the rule cannot verify a tree.
    """
    from treeopt.replay.sampled_rules import check_tree, drawn_ranks, evidence

    if evidence(trace) == "rank":
        return trace
    drawn = drawn_ranks(trace, np.random.default_rng(seed))
    for tree in trees:
        if tree is not None:
            check_tree(tree, trace)
    return drawn


def static(entry: PlanEntry) -> PlanEntry:
    """The entry, with the best static tree in place of a choice that grows its trees at each step; stderr says so.

    Raises:
        PlanError: the entry holds no static tree.
    """
    if entry.choice.grown is None:
        return entry
    said = f"the plan's choice {entry.choice.name!r} for batch {entry.batch} grows a tree at each step"
    for choice in entry.compared:
        if choice.name == STATIC:
            click.echo(f"Note: {said}; runs are of static trees: its {STATIC} is taken.", err=True)
            return replace(entry, choice=choice)
    raise PlanError(f"{said}; runs are of static trees, and the plan holds no {STATIC}")


def _way(plan: Plan | None, tree: Tree | None, batch: int | None) -> tuple[str, Tree | None, int]:
    """Name and tree of the way to decode, and the batch size."""
    if plan is None:
        if batch is None:
            raise UsageError("give --batch, or a --plan for one batch size")
        return "tree", tree, batch
    entry = static(plan.entry(batch))
    return entry.choice.name, entry.choice.tree, entry.batch


def _mode(how: dict[str, bool]) -> str:
    batches = "draining batches" if how["drain"] else "rows refilled at once"
    more = [said for name, said in MODES.items() if how[name]]
    return ", ".join([batches, *more])


def _figures(timeline: "Timeline", seed: int) -> dict[str, Any]:
    """What is told of a run, as JSON values."""
    from treeopt.report.simulate_tables import LATENCIES, PERCENTS

    shares = tuple(percent / 100 for percent in PERCENTS)
    latencies = {
        key: {
            f"p{percent}": None if math.isnan(value.value) else asdict(value)
            for percent, value in zip(PERCENTS, timeline.percentiles(key[:-2], shares, seed=seed), strict=True)
        }
        for key in LATENCIES
    }
    return {
        "tokens": int(timeline.tokens.sum()),
        "steps": len(timeline.step_s),
        "total_s": timeline.total_s,
        "tokens_s": asdict(timeline.rate),
        "tau": timeline.tau,
        "occupancy": timeline.mean_occupancy,
        **latencies,
    }


def _seen(plan: Plan, trace: Trace) -> list[str]:
    """What to know where the requests that are replayed are those that the plan was made of."""
    texts = look(trace.meta, "text_sha256")
    if texts is None or texts != look(plan.meta, "trace", "text_sha256"):
        return []
    fitted = look(plan.meta, "search", "requests_chosen_on")
    return [f"The plan's trees were chosen on {fitted} of these requests, which flatters them."]


def _conditions(trace: Trace, cost: "Profile", read: str, pad: bool) -> list[str]:
    from treeopt.report.terminal_text import measured_told, models_told, rule_told

    return [
        read + ("; batches that were not measured cost what the nearest above does." if pad else "."),
        f"Trace: {models_told(trace.meta)}; {rule_told(trace.meta)}"
        f"{'' if trace.kept is None else '; what is kept is drawn, given the texts'}.",
        f"Step times: {measured_told(cost.meta)}.",
    ]
