"""Chosen trees against published ones on the shipped traces: replayed tau, predicted tokens a second.

Run as `python -m tests.benchmarks.bench_published [--candidates TRACE] [--output FILE] [DRAFTER...]`. Everything is
judged on requests held out, and differences are paired by request. With `--candidates`, a trace of the EAGLE drafter
that holds candidates as wide as EAGLE-2's defaults, these are judged too: `treeopt trace collect ... --depth 6
--candidates depth=6,beam=10,width=10` records one.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from simulate.profiles.profile import Profile, load_profile
from treeopt.cost_model import StepShape
from treeopt.planning.evaluator import Judge
from treeopt.planning.held_out_split import hold_out
from treeopt.planning.search_pipeline import search
from treeopt.plans import Choice, Grown, Plan
from treeopt.policies import DynamicTree
from treeopt.replay.objective import THROUGHPUT
from treeopt.searchers.choose_policy import Bench
from treeopt.searchers.step_prices import Prices
from treeopt.storage.provenance import this_run
from treeopt.storage.user_files import shipped, write_text
from treeopt.traces.trace_files import load_trace
from treeopt.tree import Tree
from treeopt.tree_files.choice_lists import EAGLE, published_trees

BATCHES = (1, 4, 16)
DRAFTERS = ("medusa", "hydra", "eagle")


def plan_of(drafter: str) -> Plan:
    """The plan for the shipped greedy trace and profile, compared with every published tree."""
    trace = load_trace(shipped(f"traces/{drafter}-t0.npz"))
    return search(trace, profile_of(drafter), batch=BATCHES, compare=distinct())


def profile_of(drafter: str) -> Profile:
    """The shipped one."""
    return load_profile(shipped(f"profiles/{drafter}-cpu.json"))


def eagle2_defaults(file: Path) -> list[dict[str, Any]]:
    """EAGLE-2 as its evaluation scripts run it (60 tokens with the root, depth 5, top 10) beside the chosen tree."""
    trace, rivals = load_trace(file), {"eagle1/mc_sim_7b_63": published_trees()[EAGLE]}
    fit, held = hold_out(trace)
    rows, cost = [], profile_of("eagle")
    judge = Judge(fit, held, cost, THROUGHPUT)
    for entry in search(trace, cost, batch=BATCHES, compare=rivals).entries:
        rows += [row("eagle, candidates", entry.batch, choice) for choice in (entry.choice, *entry.compared)]
        bench = Bench(held, Prices(cost, entry.batch, "widest"), seed=0)
        found = bench.replayed(DynamicTree(nodes=59, depth=6, beam=10))
        speedup = found.tokens_s.times(
            judge.plain_s(entry.batch), relative_error=cost.error(StepShape(entry.batch, 60, (1,) * 6))
        )
        choice = Choice(
            "EAGLE-2 defaults (59 nodes, 6 levels, top 10)",
            None,
            found.tau,
            found.per_step(found.seconds),
            speedup,
            Grown("eagle2", {}, nodes=59, depth=6),
            judge.loss(found.seconds, judge.seconds(entry.choice.tree, entry.batch)),
        )
        rows.append(row("eagle, candidates", entry.batch, choice))
    return rows


def distinct() -> dict[str, Tree]:
    """Published trees; of equal ones the first stands for all, and says so."""
    names: dict[Tree, list[str]] = {}
    for name, tree in published_trees().items():
        names.setdefault(tree, []).append(name)
    return {" = ".join(same): tree for tree, same in names.items()}


def row(drafter: str, batch: int, choice: Choice) -> dict[str, Any]:
    """One line of the table."""
    return {
        "drafter": drafter,
        "batch": batch,
        "way": choice.name,
        "nodes": choice.nodes,
        "depth": choice.depth,
        "tau": asdict(choice.tau),
        "tokens_s": choice.tokens_s(batch),
        "speedup": asdict(choice.speedup),
        "behind": None if choice.behind is None else asdict(choice.behind),
    }


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """One line a drafter and way, batch sizes side by side; of Medusa's lists the best and the worst."""
    ways: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
    for each in rows:
        if not each["way"].startswith("medusa/"):
            ways.setdefault((each["drafter"], each["way"]), {})[each["batch"]] = each
            continue
        lists = [r for r in rows if (r["drafter"], r["batch"]) == (each["drafter"], each["batch"])]
        lists = [r for r in lists if r["way"].startswith("medusa/")]
        for name, pick in (("best of Medusa's nine lists", max), ("worst of them", min)):
            ways.setdefault((each["drafter"], name), {})[each["batch"]] = pick(lists, key=lambda r: r["tokens_s"])
    heads = " | ".join(f"batch {batch}: tau; tokens/s; % behind" for batch in BATCHES)
    lines = [f"| drafter | way | {heads} |", "|---|---|" + "---|" * len(BATCHES)]
    for (drafter, way), by_batch in ways.items():
        cells = " | ".join(_cell(by_batch[batch]) if batch in by_batch else "" for batch in BATCHES)
        lines.append(f"| {drafter} | {way} | {cells} |")
    return "\n".join(lines)


def _cell(each: dict[str, Any]) -> str:
    size = f"{each['nodes']:.3g} nodes; " if each["way"] in ("chosen tree", "best chain") else ""
    tau = "{value:.2f} [{low:.2f}, {high:.2f}]".format(**each["tau"])
    behind = each["behind"]
    lost = (
        ""
        if behind is None
        else "; {value:.1f} [{low:.1f}, {high:.1f}]".format(**{key: 100 * share for key, share in behind.items()})
    )
    return f"{size}{tau}; {each['tokens_s']:.0f}{lost}"


@click.command()
@click.argument("drafters", nargs=-1)
@click.option("--candidates", type=click.Path(path_type=Path), help="Trace with candidates 6 deep and 10 wide.")
@click.option("--output", type=click.Path(path_type=Path), help="Write all figures here.")
def main(drafters: tuple[str, ...], candidates: Path | None, output: Path | None) -> None:
    """Print the table, and write it."""
    rows, meta = [], {}
    for drafter in drafters or DRAFTERS:
        plan = plan_of(drafter)
        meta[drafter] = {key: plan.meta[key] for key in ("search", "cost")}
        for entry in plan.entries:
            rows += [row(drafter, entry.batch, choice) for choice in (entry.choice, *entry.compared)]
            rows[-1]["skipped"] = dict(entry.skipped)
    if candidates:
        rows += eagle2_defaults(candidates)
    click.echo(markdown(rows))
    if output:
        record = {
            "schema": "treeopt.published-trees/1",
            "rows": rows,
            "meta": {**meta, "provenance": this_run()},
        }
        write_text(output, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
