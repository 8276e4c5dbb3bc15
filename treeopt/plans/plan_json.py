"""Plan files: write plans as JSON, read and check them."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treeopt.errors import PlanError, TreeError
from treeopt.plans.plan import Choice, Grown, Plan, PlanEntry, Price, Proof, Switch
from treeopt.policies.policy_kinds import policy_of, to_record
from treeopt.statistics.clustered_estimate import Estimate
from treeopt.storage.atomic_files import why, write_text
from treeopt.storage.json_records import RecordError, parse
from treeopt.storage.user_files import read_text
from treeopt.tree import Tree

if TYPE_CHECKING:
    from treeopt.plans.plan_records import (
        ChoiceRecord,
        EntryRecord,
        EstimateRecord,
        GrownRecord,
        PlanRecord,
        TreeRecord,
    )

SCHEMA = "treeopt.plan/3"
BEFORE = "treeopt.plan/2"


def to_json(plan: Plan) -> str:
    """Return the plan as JSON text."""
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
    """Return the plan that a JSON text holds, of this schema or the one before.

    Raises:
        PlanError: names the field that is missing or wrong.
    """
    from treeopt.plans.plan_records import PlanRecord  # loads msgspec, which only reading needs
    from treeopt.storage.typed_records import read_record

    try:
        return plan_of(read_record(parse(text, SCHEMA, BEFORE), PlanRecord))
    except RecordError as error:
        raise PlanError(str(error)) from error


def plan_of(record: "PlanRecord", where: str = "") -> Plan:
    """Return the plan of a record.

    Args:
        record: the record that was read.
        where: path of the plan in its file, with a dot at the end; empty if the file is a plan.

    Raises:
        RecordError: names the field that is wrong.
    """
    entries = tuple(_entry(entry, f"{where}entries[{i}]") for i, entry in enumerate(record.entries))
    switches = tuple(Switch(switch.small, switch.large, switch.up, switch.down) for switch in record.switches)
    return Plan(entries, record.meta, switches, record.best, record.warnings)


def save_plan(plan: Plan, path: Path) -> None:
    """Write a plan, whole or not at all."""
    write_text(path, to_json(plan) + "\n")


def load_plan(path: Path) -> Plan:
    """Read a plan.

    Raises:
        PlanError: missing or broken; names file and field.
    """
    try:
        text = read_text(path)
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


def _entry(record: "EntryRecord", where: str) -> PlanEntry:
    return PlanEntry(
        batch=record.batch,
        choice=_choice(record.choice, f"{where}.choice"),
        gain=None if record.gain_over_chain is None else _estimate(record.gain_over_chain),
        compared=tuple(_choice(choice, f"{where}.compared[{i}]") for i, choice in enumerate(record.compared)),
        skipped=record.skipped,
        proof=Proof(record.proof.objective, record.proof.optimal, record.proof.statement),
        prices=tuple(Price(price.rule, price.source, _estimate(price.share)) for price in record.prices),
    )


def _choice(record: "ChoiceRecord", where: str) -> Choice:
    return Choice(
        name=record.name,
        tree=None if record.tree is None else _tree(record.tree, f"{where}.tree"),
        tau=_estimate(record.tau),
        step_s=record.step_s,
        speedup=_estimate(record.speedup),
        grown=None if record.grown is None else _grown(record.grown, f"{where}.grown"),
        behind=None if record.behind is None else _estimate(record.behind),
    )


def _tree(record: "TreeRecord", where: str) -> Tree:
    try:
        tree = Tree.from_paths(record.paths)
    except TreeError as error:
        raise RecordError(f"{where}: {error}") from error
    if record.id != tree.id:
        raise RecordError(f"{where}: `id` {record.id} does not fit the paths, whose id is {tree.id}")
    return tree


def _grown(record: "GrownRecord", where: str) -> Grown:
    policy = None if record.policy is None else policy_of(record.policy, f"{where}.policy")
    return Grown(record.kind, record.settings, record.nodes, record.depth, policy)


def _estimate(record: "EstimateRecord") -> Estimate:
    return Estimate(record.value, record.low, record.high)
