"""Plans as JSON: written, read and checked."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from treeopt.errors import PlanError, TreeError
from treeopt.plans.plan import Choice, Grown, Plan, PlanEntry, Price, Proof, Switch
from treeopt.policies.policy_json import from_record, to_record
from treeopt.statistics.clustered_estimate import Estimate
from treeopt.storage.atomic_files import why, write_text
from treeopt.storage.json_records import RecordError, get, given, parse
from treeopt.tree import Tree

SCHEMA = "treeopt.plan/3"
BEFORE = "treeopt.plan/2"


def to_json(plan: Plan) -> str:
    """The plan as JSON text."""
    entries = [
        {
            "batch": e.batch,
            "choice": _choice_record(e.choice),
            "gain_over_chain": None if e.gain is None else asdict(e.gain),
            "compared": [_choice_record(c) for c in e.compared],
            "skipped": dict(e.skipped),
            "proof": asdict(e.proof),
            "prices": [asdict(price) for price in e.prices],
        }
        for e in plan.entries
    ]
    record = {
        "schema": SCHEMA,
        "entries": entries,
        "switches": [asdict(switch) for switch in plan.switches],
        "best": plan.best,
        "warnings": list(plan.warnings),
        "meta": dict(plan.meta),
    }
    return json.dumps(record, indent=2)


def from_json(text: str) -> Plan:
    """The plan that `to_json` wrote.

    Raises:
        PlanError: names the field that is missing or wrong.
    """
    try:
        record = parse(text, SCHEMA, BEFORE)
        entries = tuple(
            _read_entry(entry, f"entries[{number}]")
            for number, entry in enumerate(get(record, "entries", list, "plan"))
        )
        switches = tuple(
            Switch(*(get(each, key, int, f"switches[{i}]") for key in ("small", "large", "up", "down")))
            for i, each in enumerate(get(record, "switches", list, "plan"))
        )
        best = get(record, "best", int, "plan") if given(record, "best", "plan") else None
        warnings = _strings(get(record, "warnings", list, "plan"), "warnings")
        meta = get(record, "meta", dict, "plan")
    except RecordError as error:
        raise PlanError(str(error)) from error
    sizes = [entry.batch for entry in entries]
    if not sizes or len(set(sizes)) < len(sizes):
        raise PlanError(f"`entries` must hold different batch sizes, at least one, found {sizes}")
    named = [batch for switch in switches for batch in (switch.small, switch.large)]
    for batch in (*named, *([] if best is None else [best])):
        if batch not in sizes:
            raise PlanError(f"batch {batch} is named by `switches` or `best`, `entries` hold {sizes}")
    return Plan(entries, meta, switches, best, warnings)


def save_plan(plan: Plan, path: Path) -> None:
    """Write a plan, whole or not at all."""
    write_text(path, to_json(plan) + "\n")


def load_plan(path: Path) -> Plan:
    """Read a plan.

    Raises:
        PlanError: missing or broken; names file and field.
    """
    try:
        text = Path(path).read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"{path}: cannot be read: {why(error)}") from error
    try:
        return from_json(text)
    except PlanError as error:
        raise PlanError(f"{path}: {error}") from error


def _choice_record(choice: Choice) -> dict[str, Any]:
    tree = choice.tree
    return {
        "name": choice.name,
        "tree": None if tree is None else {"id": tree.id, "paths": [list(path) for path in tree.paths]},
        "grown": None if choice.grown is None else _grown_record(choice.grown),
        "tau": asdict(choice.tau),
        "step_s": choice.step_s,
        "speedup": asdict(choice.speedup),
        "behind": None if choice.behind is None else asdict(choice.behind),
    }


def _grown_record(grown: Grown) -> dict[str, Any]:
    return {
        "kind": grown.kind,
        "settings": dict(grown.settings),
        "nodes": grown.nodes,
        "depth": grown.depth,
        "policy": None if grown.policy is None else to_record(grown.policy),
    }


def _read_entry(record: Any, where: str) -> PlanEntry:
    batch = get(record, "batch", int, where)
    if batch < 1:
        raise RecordError(f"{where}: `batch` must be at least 1, found {batch}")
    compared = get(record, "compared", list, where)
    skipped = get(record, "skipped", dict, where)
    proof = get(record, "proof", dict, where)
    prices = get(record, "prices", list, where)
    return PlanEntry(
        batch=batch,
        choice=_read_choice(get(record, "choice", dict, where), f"{where}.choice"),
        gain=_read_estimate(record, "gain_over_chain", where) if given(record, "gain_over_chain", where) else None,
        compared=tuple(_read_choice(choice, f"{where}.compared[{i}]") for i, choice in enumerate(compared)),
        skipped={name: get(skipped, name, str, f"{where}.skipped") for name in skipped},
        proof=Proof(
            objective=get(proof, "objective", str, f"{where}.proof"),
            optimal=get(proof, "optimal", bool, f"{where}.proof"),
            statement=get(proof, "statement", str, f"{where}.proof"),
        ),
        prices=tuple(_read_price(price, f"{where}.prices[{i}]") for i, price in enumerate(prices)),
    )


def _read_price(record: Any, where: str) -> Price:
    rule, source = (get(record, key, str, where) for key in ("rule", "source"))
    return Price(rule, source, _read_estimate(record, "share", where))


def _read_choice(record: Any, where: str) -> Choice:
    name, step_s = get(record, "name", str, where), get(record, "step_s", float, where)
    if step_s <= 0:
        raise RecordError(f"{where}: `step_s` must be positive, found {step_s}")
    tau, speedup = (_read_estimate(record, key, where) for key in ("tau", "speedup"))
    if tau.value < 1 or speedup.value <= 0:
        raise RecordError(f"{where}: tau is at least 1 and a speedup positive, found {tau.value} and {speedup.value}")
    tree, grown = None, None
    if given(record, "tree", where):
        tree = _read_tree(get(record, "tree", dict, where), f"{where}.tree")
    if given(record, "grown", where):
        grown = _read_grown(get(record, "grown", dict, where), f"{where}.grown")
    if tree is not None and grown is not None:
        raise RecordError(f"{where}: `tree` and `grown` exclude one another")
    behind = _read_estimate(record, "behind", where) if given(record, "behind", where) else None
    return Choice(name, tree, tau, step_s, speedup, grown, behind)


def _read_tree(record: Any, where: str) -> Tree:
    paths = get(record, "paths", list, where)
    for number, path in enumerate(paths):
        if not isinstance(path, list):
            raise RecordError(f"{where}.paths[{number}] must be a list of ranks, found {type(path).__name__}")
    try:
        tree = Tree.from_paths(paths)
    except TreeError as error:
        raise RecordError(f"{where}: {error}") from error
    if get(record, "id", str, where) != tree.id:
        raise RecordError(f"{where}: `id` {record['id']} does not fit the paths, whose id is {tree.id}")
    return tree


def _read_grown(record: Any, where: str) -> Grown:
    if isinstance(record, dict) and "live" in record:  # of the version before, which ran expansion and re-ranking alone
        live = record["live"] and {"kind": "dynamic-tree", "calibration": None, **get(record, "live", dict, where)}
        record = {**record, "policy": live}
    policy = from_record(record["policy"], f"{where}.policy") if given(record, "policy", where) else None
    nodes, depth = (get(record, key, float, where) for key in ("nodes", "depth"))
    if min(nodes, depth) < 0:
        raise RecordError(f"{where}: `nodes` and `depth` must be 0 or more, found {nodes} and {depth}")
    return Grown(get(record, "kind", str, where), get(record, "settings", dict, where), nodes, depth, policy)


def _read_estimate(record: Any, key: str, where: str) -> Estimate:
    values = get(record, key, dict, where)
    value, low, high = (get(values, part, float, f"{where}.{key}") for part in ("value", "low", "high"))
    if not low <= value <= high:
        raise RecordError(f"{where}: `{key}` must lie in its interval, found {value} and [{low}, {high}]")
    return Estimate(value, low, high)


def _strings(values: list[Any], name: str) -> tuple[str, ...]:
    for i, value in enumerate(values):
        if not isinstance(value, str):
            raise RecordError(f"`{name}`[{i}] must be a string, found {type(value).__name__}")
    return tuple(values)
