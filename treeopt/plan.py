"""A plan: per batch size the topology to use, or none, with its prediction, its proof and what it was compared with."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treeopt.errors import PlanError, TreeError
from treeopt.estimate import Estimate
from treeopt.files import write_text
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
            record = json.loads(text)
        except ValueError as error:
            raise PlanError(f"not JSON: {error}") from error
        if not isinstance(record, dict) or record.get("schema") != SCHEMA:
            found = record.get("schema") if isinstance(record, dict) else type(record).__name__
            raise PlanError(f"schema must be {SCHEMA!r}, found {found!r}")
        entries = []
        for number, entry in enumerate(_get(record, "entries", list, "plan")):
            where = f"entries[{number}]"
            try:
                entries.append(_read_entry(entry, where))
            except (KeyError, TypeError, ValueError, TreeError) as error:
                what = f"`{error.args[0]}` is missing" if isinstance(error, KeyError) else str(error)
                raise PlanError(f"{where}: {what}") from error
        if not entries:
            raise PlanError("`entries` must hold at least one batch size")
        return cls(tuple(entries), _get(record, "meta", dict, "plan"))


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
        raise PlanError(f"{path}: cannot be read: {error}") from error
    try:
        return Plan.from_json(text)
    except PlanError as error:
        raise PlanError(f"{path}: {error}") from error


def _get(record: Mapping[str, Any], key: str, kind: type, where: str) -> Any:
    value = record.get(key)
    if not isinstance(value, kind):
        raise PlanError(f"{where}: `{key}` must be a {kind.__name__}, found {type(value).__name__}")
    return value


def _choice_record(choice: Choice) -> dict[str, Any]:
    tree = choice.tree
    return {
        "name": choice.name,
        "tree": None if tree is None else {"id": tree.id, "paths": [list(path) for path in tree.paths]},
        "tau": asdict(choice.tau),
        "step_s": choice.step_s,
        "speedup": asdict(choice.speedup),
    }


def _read_entry(record: Mapping[str, Any], where: str) -> PlanEntry:
    batch = _get(record, "batch", int, where)
    if batch < 1:
        raise PlanError(f"{where}: `batch` must be at least 1, found {batch}")
    gain = record["gain_over_chain"]
    return PlanEntry(
        batch=batch,
        choice=_read_choice(record["choice"]),
        gain=None if gain is None else _read_estimate(gain),
        compared=tuple(_read_choice(c) for c in record["compared"]),
        skipped={str(k): str(v) for k, v in record["skipped"].items()},
        proof=Proof(
            str(record["proof"]["objective"]),
            bool(record["proof"]["optimal"]),
            str(record["proof"]["statement"]),
        ),
    )


def _read_choice(record: Mapping[str, Any]) -> Choice:
    tree = None if record["tree"] is None else Tree.from_paths(record["tree"]["paths"])
    if tree is not None and record["tree"].get("id", tree.id) != tree.id:
        raise ValueError(f"tree of `{record['name']}`: id {record['tree']['id']} does not fit its paths ({tree.id})")
    step_s = float(record["step_s"])
    if not (math.isfinite(step_s) and step_s > 0):
        raise ValueError(f"`step_s` of `{record['name']}` must be positive, found {step_s}")
    return Choice(str(record["name"]), tree, _read_estimate(record["tau"]), step_s, _read_estimate(record["speedup"]))


def _read_estimate(record: Mapping[str, Any]) -> Estimate:
    return Estimate(float(record["value"]), float(record["low"]), float(record["high"]))
