"""Kinds of dynamic policies: one entry per file of this folder, its JSON record, and the settings that search tries.

A new policy is one file: the class, its record, the sweeps that search it, and `ENTRY`.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Annotated, Any

from msgspec import Meta

from treeopt.errors import CostError, EngineError, TraceError, TreeError, TreeoptError, UsageError
from treeopt.policies.beam import Drafting
from treeopt.policies.policy import Policy, policy_text, settings
from treeopt.policies.reranking import Calibration
from treeopt.registry import Registry
from treeopt.statistics import Curve
from treeopt.storage.json_records import RecordError
from treeopt.storage.typed_records import Finite, Record
from treeopt.traces.trace import Trace
from treeopt.tree import MAX_NODES

Size = Annotated[int, Meta(ge=1, le=MAX_NODES)]
Probability = Annotated[float, Meta(ge=0, lt=1)]
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 63, 80, 96, 127, 160, 192, 255)
KNOTS = 16  # of the curves of a calibration that changes nothing


class CurveRecord(Record, frozen=True):
    """A function that does not fall, by its knots: straight lines between them, constant beyond the outer ones."""

    x: tuple[Finite, ...]
    y: tuple[Finite, ...]

    def __post_init__(self) -> None:
        """Check the order of the knots."""
        try:
            Curve(self.x, self.y)
        except UsageError as error:
            raise ValueError(str(error)) from error


CalibrationRecord = Annotated[
    tuple[tuple[CurveRecord, ...], ...],
    Meta(description="by depth and rank: drafter's probability, given the parent, to observed frequency"),
]


@dataclass
class Sweep:
    """The search among the settings of one kind: the policies replayed so far on the requests that it is made on.

    Attributes:
        trace: these requests.
        drafting: limits of drafting.
        max_nodes: largest number of nodes per sequence.
        rate: replays a policy and returns its tokens per second; raises an error where it cannot be run or replayed.
        lists: makes the shortlists of so many nodes that all settings share.
        rates: tokens per second of each policy.
        refused: settings -> error, for policies that could not be replayed.
    """

    trace: Trace
    drafting: Drafting
    max_nodes: int
    rate: Callable[[Policy], float]
    lists: Callable[[Drafting, int, Calibration | None], object]
    rates: dict[Policy, float] = field(default_factory=dict)
    refused: dict[str, TreeoptError] = field(default_factory=dict)

    def sizes(self, depth: int) -> list[int]:
        """Return the numbers of nodes worth trying at a depth, up to and including the largest possible."""
        largest = min(self.max_nodes, replace(self.drafting, depth=depth).candidates)
        return [*(n for n in SIZES if n < largest), largest]

    def depths(self) -> range:
        """Return the numbers of levels to try."""
        return range(1, self.drafting.depth + 1)

    def prepare(self, calibration: Calibration | None = None) -> None:
        """Make the shortlists that all settings share."""
        self.lists(self.drafting, min(self.max_nodes, self.drafting.candidates), calibration)

    def consider(self, policy: Policy) -> None:
        """Replay a policy, or record the error."""
        if policy in self.rates or policy_text(policy) in self.refused:
            return
        try:
            self.rates[policy] = self.rate(policy)
        except (TraceError, CostError, EngineError) as error:
            self.refused[policy_text(policy)] = error

    def consider_stops(self, make: Callable[[int, int, float], Policy], stops: tuple[float, ...]) -> None:
        """Try policies `make(nodes, depth, stop)`: all without a stop, then vary two settings of the best at a time."""
        tried = {make(n, depth, stops[0]): (n, depth) for depth in self.depths() for n in self.sizes(depth)}
        before = None
        while True:
            for policy in tried:
                self.consider(policy)
            best = max(self.rates, key=self.rates.__getitem__, default=None)
            if best is None or best == before:
                return
            before = best
            nodes, depth = tried[best]
            for stop in stops:
                tried |= {make(n, depth, stop): (n, depth) for n in self.sizes(depth)}
                tried |= {make(nodes, d, stop): (nodes, d) for d in self.depths() if nodes in self.sizes(d)}


@dataclass(frozen=True)
class PolicyKind:
    """A kind of dynamic policy.

    Attributes:
        name: the `kind` of its JSON records.
        policy: the class of its policies.
        record: the typed JSON record, tagged with `name`.
        sweeps: name in `search --policy` -> what tries its settings.
        growths: kind of drafting in the decoding loop -> a policy of this many nodes and this reach that never stops
            early, by which its overhead is measured.
    """

    name: str
    policy: type[Any]
    record: type[Record]
    sweeps: Mapping[str, Callable[[Sweep], None]]
    growths: Mapping[str, Callable[[int, Drafting], Policy]]


POLICIES: Registry[PolicyKind] = Registry("policy", "treeopt.policies", group="treeopt.policies")


def growths() -> tuple[str, ...]:
    """Return the kinds of dynamic drafting in the decoding loop: each has its own overhead."""
    return tuple(growth for kind in POLICIES.values() for growth in kind.growths)


def sweeps() -> dict[str, Callable[[Sweep], None]]:
    """Return what tries the settings of each kind that `search --policy` names."""
    return {name: sweep for kind in POLICIES.values() for name, sweep in kind.sweeps.items()}


def unchanged(drafting: Drafting) -> Calibration:
    """Return a calibration that changes nothing."""
    line = tuple(i / (KNOTS - 1) for i in range(KNOTS))
    return ((Curve(line, line),) * drafting.width,) * drafting.depth


def to_record(policy: Policy) -> dict[str, Any]:
    """Return the policy's kind and fields, with everything that was fitted."""
    (name,) = (kind.name for kind in POLICIES.values() if isinstance(policy, kind.policy))
    return {"kind": name, **asdict(policy)}  # type: ignore[call-overload]


def identity(policy: Policy) -> dict[str, Any]:
    """Return the policy's kind and settings, and a hash of its whole record (`to_record`)."""
    record = to_record(policy)
    sha256 = hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
    return {"kind": record["kind"], **settings(policy), "sha256": sha256}


def policy_of(record: Record, where: str) -> Policy:
    """Return the policy of a record.

    Raises:
        RecordError: names the setting that cannot be.
    """
    (kind,) = (kind for kind in POLICIES.values() if isinstance(record, kind.record))
    values = {field.name: _value(getattr(record, field.name)) for field in fields(kind.policy)}
    try:
        policy: Policy = kind.policy(**values)
    except TreeError as error:
        raise RecordError(f"{where}: {error}") from error
    return policy


def _value(value: Any) -> Any:
    """Return a field as a policy holds it: curves in the place of their records."""
    if isinstance(value, CurveRecord):
        return Curve(value.x, value.y)
    return tuple(_value(part) for part in value) if isinstance(value, tuple) else value
