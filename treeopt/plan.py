"""A plan: per batch size the topology to use, or none, with its prediction, its proof and what it was compared with."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treeopt.errors import PlanError, TreeError
from treeopt.estimate import Estimate
from treeopt.files import why, write_text
from treeopt.records import RecordError, get, given, parse
from treeopt.tree import Tree

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "treeopt.plan/1"


@dataclass(frozen=True)
class Choice:
    """One way to decode and its prediction, replayed on requests that no choice was made on.

    Attributes:
        name: what it is called in tables.
        tree: the topology; None decodes plainly.
        tau: tokens a step and sequence, bonus counted.
        step_s: seconds of a step.
        speedup: tokens a second over plain decoding's.
    """

    name: str
    tree: Tree | None
    tau: Estimate
    step_s: float
    speedup: Estimate

    def tokens_s(self, batch: int) -> float:
        """Tokens a second of the whole batch."""
        return batch * self.tau.value / self.step_s


@dataclass(frozen=True)
class Proof:
    """What is known about a choice: `objective` names what was maximised, `optimal` whether that is proved."""

    objective: str
    optimal: bool
    statement: str


@dataclass(frozen=True)
class PlanEntry:
    """The choice for one batch size.

    Attributes:
        batch: sequences decoded together.
        choice: what to use.
        gain: difference of tau over the best chain, paired by request; None when the chain itself was chosen.
        compared: the other ways, in the order of the table.
        skipped: name -> reason, for ways that the trace cannot judge.
        proof: what is proved.
    """

    batch: int
    choice: Choice
    gain: Estimate | None
    compared: tuple[Choice, ...]
    skipped: Mapping[str, str]
    proof: Proof


@dataclass(frozen=True)
class Plan:
    """Entries by batch size, and provenance."""

    entries: tuple[PlanEntry, ...]
    meta: Mapping[str, Any] = field(default_factory=dict)

    def frame(self) -> "pd.DataFrame":
        """One row a batch size and way of decoding."""
        import pandas as pd

        rows = []
        for entry in self.entries:
            for choice in (entry.choice, *entry.compared):
                rows.append(
                    {
                        "batch": entry.batch,
                        "name": choice.name,
                        "chosen": choice is entry.choice,
                        "nodes": choice.tree.nodes if choice.tree else 0,
                        "depth": choice.tree.depth if choice.tree else 0,
                        "tau": choice.tau.value,
                        "tau_low": choice.tau.low,
                        "tau_high": choice.tau.high,
                        "step_s": choice.step_s,
                        "tokens_s": choice.tokens_s(entry.batch),
                        "speedup": choice.speedup.value,
                        "speedup_low": choice.speedup.low,
                        "speedup_high": choice.speedup.high,
                    }
                )
        return pd.DataFrame(rows)

    def to_json(self) -> str:
        """The plan as JSON text."""
        entries = [
            {
                "batch": e.batch,
                "choice": _choice_record(e.choice),
                "gain_over_chain": None if e.gain is None else asdict(e.gain),
                "compared": [_choice_record(c) for c in e.compared],
                "skipped": dict(e.skipped),
                "proof": asdict(e.proof),
            }
            for e in self.entries
        ]
        return json.dumps({"schema": SCHEMA, "entries": entries, "meta": dict(self.meta)}, indent=2)

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """The plan that `to_json` wrote.

        Raises:
            PlanError: names the field that is missing or wrong.
        """
        try:
            record = parse(text, SCHEMA)
            entries = tuple(
                _read_entry(entry, f"entries[{number}]")
                for number, entry in enumerate(get(record, "entries", list, "plan"))
            )
            meta = get(record, "meta", dict, "plan")
        except RecordError as error:
            raise PlanError(str(error)) from error
        sizes = [entry.batch for entry in entries]
        if not sizes or len(set(sizes)) < len(sizes):
            raise PlanError(f"`entries` must hold different batch sizes, at least one, found {sizes}")
        return cls(entries, meta)


def save_plan(plan: Plan, path: Path) -> None:
    """Write a plan, whole or not at all."""
    write_text(path, plan.to_json() + "\n")


def load_plan(path: Path) -> Plan:
    """Read a plan.

    Raises:
        PlanError: missing or broken; names file and field.
    """
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"{path}: cannot be read: {why(error)}") from error
    try:
        return Plan.from_json(text)
    except PlanError as error:
        raise PlanError(f"{path}: {error}") from error


def _choice_record(choice: Choice) -> dict[str, Any]:
    tree = choice.tree
    return {
        "name": choice.name,
        "tree": None if tree is None else {"id": tree.id, "paths": [list(path) for path in tree.paths]},
        "tau": asdict(choice.tau),
        "step_s": choice.step_s,
        "speedup": asdict(choice.speedup),
    }


def _read_entry(record: Any, where: str) -> PlanEntry:
    batch = get(record, "batch", int, where)
    if batch < 1:
        raise RecordError(f"{where}: `batch` must be at least 1, found {batch}")
    compared = get(record, "compared", list, where)
    skipped = get(record, "skipped", dict, where)
    proof = get(record, "proof", dict, where)
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
    )


def _read_choice(record: Any, where: str) -> Choice:
    name, step_s = get(record, "name", str, where), get(record, "step_s", float, where)
    if step_s <= 0:
        raise RecordError(f"{where}: `step_s` must be positive, found {step_s}")
    tau, speedup = (_read_estimate(record, key, where) for key in ("tau", "speedup"))
    if tau.value < 1 or speedup.value <= 0:
        raise RecordError(f"{where}: tau is at least 1 and a speedup positive, found {tau.value} and {speedup.value}")
    tree = None
    if given(record, "tree", where):
        tree = _read_tree(get(record, "tree", dict, where), f"{where}.tree")
    return Choice(name, tree, tau, step_s, speedup)


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


def _read_estimate(record: Any, key: str, where: str) -> Estimate:
    values = get(record, key, dict, where)
    value, low, high = (get(values, part, float, f"{where}.{key}") for part in ("value", "low", "high"))
    if not low <= value <= high:
        raise RecordError(f"{where}: `{key}` must lie in its interval, found {value} and [{low}, {high}]")
    return Estimate(value, low, high)
