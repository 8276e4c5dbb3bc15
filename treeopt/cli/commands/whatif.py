"""`treeopt whatif`: the best plan on devices, batch sizes and contexts that were not measured."""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from treeopt.cli.commands.search import drawn, engine_rules, rules_of
from treeopt.cli.options import general
from treeopt.cli.options.devices import KINDS, WITHOUT_SIZES, kind_of, prices_of, settings_of, too_long, weight_bytes
from treeopt.cli.options.matching_files import warn_unless_same
from treeopt.cli.options.whatif_record import RENTED, cell, conditions
from treeopt.errors import UsageError
from treeopt.planning.search_settings import DEFAULT_MAX_NODES
from treeopt.plans.plan import Plan
from treeopt.plans.plan_json import SCHEMA as PLAN
from treeopt.plans.plan_json import save_plan
from treeopt.storage.atomic_files import write_text
from treeopt.storage.json_records import RecordError, parse
from treeopt.storage.provenance import look, this_run
from treeopt.traces.trace import load_trace

if TYPE_CHECKING:
    from simulate.profiles.profile import Profile
    from simulate.whatif.scenarios import Scenario, Setting


@click.command()
@click.option("--trace", "trace_file", type=general.FILE, required=True, help="What the drafter got right (.npz).")
@click.option(
    "--hardware",
    required=True,
    help="Devices, such as h100,4xh100,l40s; names of data/hardware.json, 4x: four of a node share every layer.",
)
@click.option("--target", type=general.FOLDER, required=True, help="The target's folder or config.json: its sizes.")
@click.option("--drafter", type=general.FOLDER, help="The drafter's folder or config.json; default as the target's.")
@click.option("--kind", type=click.Choice(KINDS), help="What the drafter is; default as the trace says.")
@click.option("--batch", type=general.Numbers(), default="1-64", show_default=True, help="Batch sizes; 1-64 doubles.")
@click.option(
    "--context",
    type=general.Numbers("context lengths"),
    default="512",
    show_default=True,
    help="Tokens in the cache; 8k is 8192.",
)
@click.option("--profile", "profile_file", type=general.FILE, help="Step times measured on another device.")
@click.option("--measured-on", help="The device of --profile.")
@click.option("--bandwidth", type=general.Real(min=0, min_open=True), help="GB/s of a device of your own.")
@click.option("--flops", type=general.Real(min=0, min_open=True), help="Its TFLOP/s, dense bf16.")
@click.option(
    "--link",
    help="GB/s that each of several devices sends, and microseconds that an exchange takes at least, such as 20,25; of "
    "devices of which that is not known.",
)
@click.option("--memory", type=general.Real(0, 1e9, min_open=True), help="Its GB; default: not looked at.")
@click.option("--like", help="A known device that it is like; for one of no fitted class, whose constants to take.")
@click.option(
    "--weight-bytes",
    type=general.Real(min=0, min_open=True),
    help="Bytes of a weight of the target as it is stored and read, of its LM head at least 2; default 2.",
)
@click.option(
    "--draft-bytes",
    type=general.Real(min=0, min_open=True),
    help="Bytes of a weight of the drafter; default 2, or as the target's if those take more.",
)
@click.option(
    "--kv-bytes",
    type=general.Real(min=0, min_open=True),
    default=2.0,
    show_default=True,
    help="Bytes of a number in the cache of keys and values.",
)
@click.option("--price", help="What an hour of one device costs, such as h100=2.5,l40s=0.9: prices tokens, too.")
@click.option(
    "--max-tpot-ms",
    type=general.Real(min=0, min_open=True),
    help="With --price: most milliseconds a token of the cheapest.",
)
@engine_rules
@general.max_nodes
@general.max_depth
@general.seed
@click.option(
    "--plans",
    type=click.Path(path_type=Path, file_okay=False),
    help="A folder for a plan of each device and context, which `treeopt export` reads.",
)
@click.option(
    "--profiles",
    "tables",
    type=click.Path(path_type=Path, file_okay=False),
    help="A folder for the step times of each device, for --profile of search, compare and simulate.",
)
@click.option("--output", type=general.FILE, help="Write the result here (.json).")
@general.as_json
def whatif(
    trace_file: Path,
    hardware: str,
    target: Path,
    drafter: Path | None,
    kind: str | None,
    batch: tuple[int, ...],
    context: tuple[int, ...],
    profile_file: Path | None,
    plans: Path | None,
    tables: Path | None,
    output: Path | None,
    as_json: bool,
    price: str | None,
    max_tpot_ms: float | None,
    engine: str | None,
    seed: int,
    max_nodes: int | None,
    max_depth: int | None,
    **device: Any,
) -> None:
    """Choose a tree for each device, context and batch size, and say where speculation stops paying.

    Step times come from the models' sizes and the devices' data sheets; with --profile, from times measured on
    another device, scaled to each. Acceptance is the trace's everywhere. With --price of an hour, in any currency, also
    what a million tokens cost, and where they are the cheapest.
    """
    from simulate.profiles.profile import SCHEMA as PROFILE
    from simulate.profiles.profile import load_profile, save_profile
    from simulate.whatif.price_per_token import cheapest
    from simulate.whatif.scenarios import explore, limits

    general.check_output(output)
    for folder, option in ((plans, "--plans"), (tables, "--profiles")):
        if folder is not None:
            general.check_output(folder / "x" if folder.is_dir() else folder, option)
    if max_tpot_ms is not None and price is None:
        raise UsageError("--max-tpot-ms is of the cheapest way: give --price")
    trace = load_trace(trace_file)
    if (profile_file is None) != (device["measured_on"] is None):
        raise UsageError("--profile and --measured-on need each other")
    kind = kind_of(trace, kind)
    if kind == "language-model" and drafter is None:
        raise UsageError("a language model that drafts has sizes of its own: name its folder with --drafter")
    for option, given in (("--drafter", drafter), ("--draft-bytes", device["draft_bytes"])):
        if kind in WITHOUT_SIZES and given is not None:
            raise UsageError(f"{option} is of a model's sizes, {kind} has none: leave it out")
    profile = load_profile(profile_file) if profile_file else None
    if profile is not None:
        warn_unless_same("trace and profile", trace.meta, profile.meta)
        if str(look(profile.meta, "device")).startswith("cpu"):
            said = f"the profile was measured on {look(profile.meta, 'device')}, not on {device['measured_on']}"
            click.echo(f"Warning: {said}: what is carried over from there means nothing", err=True)
        if look(profile.meta, "predicted") is not None:
            raise UsageError(f"{profile_file}: its step times are predicted themselves: leave --profile out")
        if look(profile.meta, "imported") is not None:
            told = "an engine's, which do not tell drafting from verification, and these are carried over apart"
            raise UsageError(f"{profile_file}: its step times are {told}: leave --profile out")
    device["weight_bytes"] = weight_bytes(target, device["weight_bytes"], "--weight-bytes")
    default = max(2.0, device["weight_bytes"])
    device["draft_bytes"] = weight_bytes(drafter, device["draft_bytes"], "--draft-bytes", default=default)
    settings = settings_of(hardware, context, target, drafter, kind, trace.depth, profile, device)
    limit = None if max_tpot_ms is None else max_tpot_ms / 1e3
    prices = None if price is None else prices_of(price, settings)
    for folder, option, schema in ((plans, "--plans", PLAN), (tables, "--profiles", PROFILE)):
        if folder is not None and folder.is_dir():
            for name in _files(settings, by_context=folder is plans):
                general.check_output(folder / name, option)
                _check_own(folder / name, schema, option)
    how: dict[str, Any] = {"seed": seed, "max_nodes": max_nodes, "max_depth": max_depth, "compare": {}}
    searched, own = drawn(trace, seed)
    rules = (*own, *rules_of(engine, searched))
    with general.progress("searching", len(settings)) as done:
        found = explore(searched, settings, batch=batch, done=done, rules=rules, **how)
    warnings = list(dict.fromkeys([*too_long(target, context), *(one for each in found for one in each.warnings)]))
    for warning in warnings:
        click.echo(f"Warning: {warning}.", err=True)
    record = {
        "schema": "treeopt.whatif/1",
        "cells": [cell(scenario, prices) for scenario in found],
        "limits": [
            {"device": name, "context": tokens, "pays_up_to": pays, "surely_up_to": surely}
            for (name, tokens), (pays, surely) in limits(found).items()
        ],
        "cheapest": [] if prices is None else [asdict(each) for each in cheapest(found, prices, max_tpot_s=limit)],
        "conditions": conditions(trace, found, profile, kind, engine) + ([] if prices is None else [RENTED]),
        "warnings": warnings,
        "meta": {
            "settings": {
                "kind": kind,
                "batch": batch,
                "context": context,
                "prices": prices,
                "engine": engine,
                **device,
                **how,
            },
            "trace": dict(trace.meta),
            "costs": [dict(setting.cost.meta) for setting in settings],
            "provenance": this_run(),
        },
    }
    if plans is not None:
        plans.mkdir(exist_ok=True)
        for name, plan in zip(_files(settings, by_context=True), _plans(found), strict=True):
            save_plan(plan, plans / name)
            click.echo(f"plan written to {plans / name}", err=True)
    if tables is not None:
        tables.mkdir(exist_ok=True)
        sizes = {"batches": batch, "nodes": max_nodes or DEFAULT_MAX_NODES, "depth": max_depth or trace.depth}
        for name, times in zip(_files(settings), _profiles(settings, sizes, target, kind), strict=True):
            save_profile(times, tables / name)
            click.echo(f"step times written to {tables / name}", err=True)
    if output:
        write_text(output, json.dumps(record, indent=1) + "\n")
    if as_json:
        general.print_json(record)
        return
    from treeopt.report.whatif_tables import show_scenarios

    show_scenarios(record)


def _files(settings: "Sequence[Setting]", *, by_context: bool = False) -> list[str]:
    """A file for each device, or for each device and context, in their order."""
    slugs = {each.device: re.sub(r"[^a-z0-9]+", "-", each.device.casefold()).strip("-") for each in settings}
    named = {device: slug or "device" for device, slug in slugs.items()}
    if by_context:
        return [f"{named[each.device]}-{each.context}.json" for each in settings]
    return [f"{name}.json" for name in named.values()]


def _check_own(path: Path, schema: str, option: str) -> None:
    """Refuse to write over what no command like this one wrote: what was measured, or is something else.

    Raises:
        UsageError: names the file.
    """
    if not path.exists():
        return
    try:
        record = parse(path.read_text("utf-8"), schema)
    except (OSError, UnicodeDecodeError, RecordError):
        record = {}
    meta = record.get("meta")
    if not record or (schema != PLAN and look(meta, "predicted") is None and look(meta, "transfer") is None):
        raise UsageError(f"{option}: {path} is there already, and is none that this command wrote: it would be lost")


def _plans(found: "Sequence[Scenario]") -> "list[Plan]":
    """Of each device and context."""
    return list({(each.device, each.context): each.plan for each in found if each.plan is not None}.values())


def _profiles(settings: "list[Setting]", sizes: dict[str, Any], target: Path, kind: str) -> "list[Profile]":
    """The step times of each device, at all contexts."""
    from simulate.roofline.roofline_model import Roofline
    from simulate.whatif.predicted_profile import joined, tabulated

    name = (target if target.is_dir() else target.parent).resolve().name
    meta = {"target": {"name": name}, "drafter": {"kind": kind}, "provenance": this_run()}
    found: dict[str, list[Profile]] = {}
    for each in settings:
        times: Any = each.cost
        if isinstance(times, Roofline):
            times = tabulated(times, context=each.context, meta=meta, **sizes)
        found.setdefault(each.device, []).append(times)
    return [joined(profiles) for profiles in found.values()]
