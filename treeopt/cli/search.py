"""`treeopt search`: the fastest topology for each batch size."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from treeopt.cli import options
from treeopt.errors import CostError, UsageError
from treeopt.files import shipped
from treeopt.optimize import search as find
from treeopt.plan import Plan, save_plan
from treeopt.provenance import look
from treeopt.trace import Trace, load_trace

if TYPE_CHECKING:
    from simulate.profile import Profile


@click.command()
@click.option("--trace", "trace_file", type=options.FILE, required=True, help="What the drafter got right (.npz).")
@options.batches
@click.option(
    "--profile",
    "profile_file",
    type=options.FILE,
    help="Measured step times; default the trace's own, if found.",
)
@click.option("--max-nodes", type=click.IntRange(min=1), default=63, show_default=True, help="Largest tree.")
@click.option("--max-depth", type=click.IntRange(min=1), help="Deepest tree; default the trace's depth.")
@click.option(
    "--method",
    type=click.Choice(["renewal", "best-first", "hydra"]),
    default="renewal",
    show_default=True,
    help="How trees are proposed.",
)
@click.option("--held-out", type=float, default=0.5, show_default=True, help="Share of requests to predict on.")
@click.option("--context", type=click.IntRange(min=0), help="Tokens a sequence in the cache; default as profiled.")
@options.seed
@click.option("--output", type=options.FILE, help="Write the plan here.")
@options.as_json
def search(
    trace_file: Path,
    batch: tuple[int, ...],
    profile_file: Path | None,
    output: Path | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Choose the topology that makes most tokens a second, for each batch size.

    Chosen on one part of the trace's requests, predicted by replay on the rest, and compared with plain
    decoding, the best chain and published trees.
    """
    from simulate.profile import load_profile

    options.check_output(output)
    trace = load_trace(trace_file)
    profile = load_profile(profile_file) if profile_file else own_profile(trace, trace_file)
    _check_fits(trace, profile)
    if settings["max_depth"] is not None and settings["max_depth"] > trace.depth:
        raise UsageError(f"max-depth {settings['max_depth']}: the trace records depth {trace.depth}")
    plan = find(trace, profile, batch=batch, **settings)
    if output:
        save_plan(plan, output)
    if as_json:
        click.echo(plan.to_json())
        return
    from treeopt.report.tables import show_plan

    show_plan(plan, checks=live_checks(plan))
    if output:
        click.echo(f"plan written to {output}", err=True)


def own_profile(trace: Trace, trace_file: Path) -> "Profile":
    """The profile of the trace's target and drafter, beside the trace or shipped with treeopt.

    Raises:
        CostError: there is none.
    """
    from simulate.profile import load_profile

    for path in (*sorted(trace_file.parent.glob("*.json")), *sorted(shipped("profiles").glob("*.json"))):
        try:
            profile = load_profile(path)
        except CostError:
            continue  # a plan, a training log, ...
        if None not in _models(trace.meta) and _models(profile.meta) == _models(trace.meta):
            click.echo(f"profile: {path.name}", err=True)
            return profile
    raise CostError(
        f"{trace_file}: no profile of this target and drafter was found; measure one with `treeopt profile` "
        "and name it with --profile"
    )


def live_checks(plan: Plan) -> dict[int, str]:
    """By batch size, what a shipped validation measured of the very tree that was chosen, with the same models."""
    found: dict[int, str] = {}
    if look(plan.meta, "trace", "verification") != "greedy":  # validations decode greedily
        return found
    for path in sorted(shipped("validations").glob("*.json")):
        record = json.loads(path.read_text("utf-8"))
        if None in _models(record["meta"]) or _models(record["meta"]) != _models(plan.meta["trace"]):
            continue
        if _machine(record["meta"]) != _machine(plan.meta["cost"]):
            continue
        measured = {(cell["batch"], cell["tree"]["id"]): cell["measured"]["speedup"] for cell in record["cells"]}
        for entry in plan.entries:
            speedup = measured.get((entry.batch, entry.choice.tree.id)) if entry.choice.tree else None
            if speedup:
                found[entry.batch] = (
                    f"Checked: the live loop measured {speedup['value']:.2f} [{speedup['low']:.2f}, "
                    f"{speedup['high']:.2f}] for this tree, on {record['meta']['device']} "
                    f"({record['meta']['provenance']['processor']}), {record['meta']['prompts']} prompts."
                )
    return found


def _machine(meta: Any) -> tuple[Any, Any]:
    return look(meta, "device"), look(meta, "provenance", "processor")


def _models(meta: Any) -> tuple[Any, Any]:
    return look(meta, "target", "weights"), look(meta, "drafter", "weights")


def _check_fits(trace: Trace, profile: "Profile") -> None:
    if _models(trace.meta) != _models(profile.meta):
        click.echo(
            "Warning: trace and profile are of different models or number types: "
            f"{_named(trace.meta)} and {_named(profile.meta)}",
            err=True,
        )


def _named(meta: Any) -> str:
    name, dtype = (look(meta, "target", key) or "?" for key in ("name", "dtype"))
    return f"{name} ({dtype}) with {look(meta, 'drafter', 'kind') or '?'}"
