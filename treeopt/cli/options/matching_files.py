"""Which files are of the same models: profiles and validations that fit a trace, and warnings where two do not."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from treeopt.cli.options import models_and_prompts
from treeopt.errors import CostError
from treeopt.planning.same_prompts import device_of
from treeopt.plans.plan import Plan
from treeopt.storage.atomic_files import shipped
from treeopt.storage.provenance import GREEDY, look, same_choosing, same_model
from treeopt.traces.trace import Trace

if TYPE_CHECKING:
    from simulate.profiles.profile import Profile


PARTS = ("target", "drafter")
CHOSEN = {"verification": None, "temperature": None, "top_k": 0, "top_p": 1.0}  # how tokens are; what silence says


def profile_for(trace: Trace, trace_file: Path, named: Path | None) -> "Profile":
    """The profile that was named, else one of the trace's target and drafter, beside the trace or shipped with treeopt.

    Of several the first whose steps chose tokens as the trace's did, or the first.

    Raises:
        CostError: it cannot be read, or there is none.
    """
    from simulate.profiles.profile import load_profile

    if named is not None:
        return load_profile(named)
    found: dict[str, Profile] = {}
    for path in (*sorted(trace_file.parent.glob("*.json")), *sorted(shipped("profiles").glob("*.json"))):
        try:
            profile = load_profile(path)
        except CostError:
            continue  # a plan, a training log, ...
        if _told(trace.meta) and not differing(profile.meta, trace.meta):
            found.setdefault(path.name, profile)
    if not found:
        raise CostError(
            f"{trace_file}: no profile of this target and drafter was found; measure one with `treeopt profile` "
            "and name it with --profile"
        )
    name = min(found, key=lambda name: not same_choosing(GREEDY | dict(found[name].meta), trace.meta))
    click.echo(f"profile: {name}{', of CUDA graphs' if look(found[name].meta, 'graphs') else ''}", err=True)
    return found[name]


def live_checks(plan: Plan) -> dict[int, str]:
    """By batch size, what a shipped validation measured of the very tree that was chosen, with the same models."""
    found: dict[int, str] = {}
    from simulate.validation.agreement import SCHEMA, Figures
    from simulate.validation.predictions import judged_on

    for path in sorted(shipped("validations").glob("*.json")):
        record = json.loads(path.read_text("utf-8"))
        if record["schema"] != SCHEMA or record["meta"]["acceptance"] != "live":  # predictions lie beside them
            continue
        if not _told(record["meta"]) or differing(record["meta"], plan.meta["trace"]):
            continue
        if _machine(record["meta"]) != _machine(plan.meta["cost"]):
            continue
        if _chosen(plan.meta["trace"]) != _chosen(GREEDY | record["meta"]):
            continue
        measured = {
            (cell["batch"], cell["tree"]["id"]): cell["measured"]["speedup"] for cell in record["cells"] if cell["tree"]
        }
        for entry in plan.entries:
            speedup = measured.get((entry.batch, entry.choice.tree.id)) if entry.choice.tree else None
            if speedup:
                requests = record["meta"]["prompts"]
                said = Figures.of_run(entry.choice, judged=judged_on(plan), requests=requests).speedup
                outside = f", outside the predicted interval of such a run, [{said.low:.2f}, {said.high:.2f}]"
                within = said.low <= speedup["value"] <= said.high
                found[entry.batch] = (
                    f"Checked: the live loop measured {speedup['value']:.2f} [{speedup['low']:.2f}, "
                    f"{speedup['high']:.2f}] for this tree{'' if within else outside}, on "
                    f"{record['meta']['device']} ({record['meta']['provenance']['processor']}), "
                    f"{record['meta']['prompts']} prompts."
                )
    return found


def warn_unless_same(what: str, one: Any, other: Any) -> None:
    """Warn on stderr if two files' provenance names different models; `what` says whose, such as "trace and plan".

    Step times that are predicted from sizes are of no weights, but of a kind of drafter; an engine's are of nobody
    knows which.
    """
    if look(other, "imported", "format") == "times":
        return
    if look(other, "predicted") is not None:
        kinds = [look(each, "drafter", "kind") for each in (one, other)]
        if None not in kinds and kinds[0] != kinds[1]:
            told = f"{kinds[0]} and {kinds[1]}: what is priced is not what was recorded"
            click.echo(f"Warning: {what} are of different kinds of drafters, {told}", err=True)
        return
    others = differing(one, other)
    if others:
        named = f"{_named(one)} and {_named(other)}"
        parts = " and ".join(f"{part}s" for part in others)
        click.echo(f"Warning: {what} are of different {parts} or number types: {named}", err=True)


def warn_of_others(plan: Plan, here: Mapping[str, Any], *, source: str = "trace", graphs: bool = False) -> None:
    """Warn on stderr if a plan was made for other models than those `here`, which `identity` told.

    `source` is what the plan was made of and must fit: its trace, or its cost where acceptance is none of the models'.
    `graphs` says whether steps will be replayed from CUDA graphs, which changes what they take.
    """
    if look(plan.meta, "cost", "graphs") not in (None, graphs) and models_and_prompts.is_main_rank():
        click.echo(f"Warning: the plan's step times are {'not ' * graphs}those of --graphs", err=True)
    told = {"trace": "trace was recorded", "cost": "step times were measured"}[source]
    made = look(plan.meta, source)
    for part in differing(made, here):
        if look(made, part, "weights") is not None and part in here and models_and_prompts.is_main_rank():
            click.echo(f"Warning: the plan's {told} with another {part} or number type", err=True)


def warn_of_another_rule(plan: Plan, here: Any) -> None:
    """Warn on stderr if a plan's trace was verified otherwise than `here`, which tells it as traces do."""
    told = zip(CHOSEN, _chosen(look(plan.meta, "trace")), _chosen(here), strict=True)
    differ = [one for one in told if None not in one[1:] and one[1] != one[2]]
    for key, planned, found in differ if look(plan.meta, "trace", "verification") else ():
        if models_and_prompts.is_main_rank():
            click.echo(f"Warning: the plan's trace was recorded with {key} {planned}, this is with {found}", err=True)


def warn_of_another_device(plan: Plan, here: Any) -> None:
    """Warn on stderr if a plan's steps were priced on another device than the profile `here` is of."""
    planned, found = device_of(look(plan.meta, "cost")), device_of(here)
    if None not in (planned, found) and planned != found:
        click.echo(f"Warning: the plan's step times are of {planned}, the profile's of {found}", err=True)


def differing(one: Any, other: Any) -> list[str]:
    """Which of `target` and `drafter` differ in two files' provenance: by weights, and by settings where both tell."""
    return [part for part in PARTS if not same_model(look(one, part), look(other, part))]


def _chosen(meta: Any) -> tuple[Any, ...]:
    """How tokens are chosen, in the order of `CHOSEN`."""
    told = {name: look(meta, name) for name in CHOSEN}
    return tuple(CHOSEN[name] if value is None else value for name, value in told.items())


def _told(meta: Any) -> bool:
    return all(look(meta, part, "weights") is not None for part in PARTS)


def _machine(meta: Any) -> tuple[Any, Any, bool]:
    return look(meta, "device"), look(meta, "provenance", "processor"), bool(look(meta, "graphs"))


def _named(meta: Any) -> str:
    name, dtype = (look(meta, "target", key) or "?" for key in ("name", "dtype"))
    return f"{name} ({dtype}) with {look(meta, 'drafter', 'kind') or '?'}"
