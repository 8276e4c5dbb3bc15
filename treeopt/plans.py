"""A plan: the tree, policy or plain decoding to use at each batch size, with predictions, proofs and comparisons.

Plan files are of the schema `treeopt.plan/3` or the one before. Records state their fields, limits and units.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

from msgspec import Meta

from treeopt.display_methods import ValueMethods
from treeopt.errors import PlanError, TreeError, UsageError
from treeopt.policies import POLICIES, Policy
from treeopt.policies.policy_kinds import policy_of, to_record
from treeopt.settings import typed
from treeopt.statistics import Estimate
from treeopt.storage.json_records import RecordError, parse, reading
from treeopt.storage.typed_records import (
    AtLeastOne,
    Count,
    Finite,
    Index,
    Integer,
    NotNegative,
    Positive,
    Record,
    read_record,
)
from treeopt.storage.user_files import read_text, write_text
from treeopt.tree import Tree


@dataclass(frozen=True)
class Grown:
    """A dynamic tree: a policy draws it at each step.

    Attributes:
        kind: kind of policy, as `treeopt.searchers.choose_policy` names it.
        settings: settings of that kind, in words.
        nodes: mean number of drafted nodes that a step verifies.
        depth: mean number of levels that a step drafts.
        policy: the policy that the decoding loop runs, fitted curves included; None for a bound, which cannot run.
    """

    kind: str
    settings: Mapping[str, Any]
    nodes: float
    depth: float
    policy: Policy | None = None


@dataclass(frozen=True)
class Choice:
    """A configuration and its prediction, replayed on requests that no choice was made on.

    Attributes:
        name: name in tables.
        tree: the static tree; None for plain decoding and for dynamic trees.
        tau: tokens per step and sequence, bonus counted.
        step_s: seconds per step, the mean where steps differ.
        speedup: time per token of plain decoding over that of this configuration, both as the plan's objective
            counts them.
        grown: the dynamic tree; None for plain decoding and for static trees.
        behind: share of the chosen configuration's tokens per second that this one loses, paired by request, without
            the error of step times; None for the chosen configuration itself.
        accepted: shares of the steps that accept at least 1, 2, ... drafted tokens; empty where they are not known.
    """

    name: str
    tree: Tree | None
    tau: Estimate
    step_s: float
    speedup: Estimate
    grown: Grown | None = None
    behind: Estimate | None = None
    accepted: tuple[float, ...] = ()

    @property
    def plain(self) -> bool:
        """True if nothing is drafted."""
        return self.tree is None and self.grown is None

    @property
    def nodes(self) -> float:
        """Drafted nodes per step, the mean where steps differ."""
        return self.grown.nodes if self.grown else self.tree.nodes if self.tree else 0

    @property
    def depth(self) -> float:
        """Drafted levels per step, the mean where steps differ."""
        return self.grown.depth if self.grown else self.tree.depth if self.tree else 0

    def tokens_s(self, batch: int) -> float:
        """Return the tokens per second of the whole batch."""
        return batch * self.tau.value / self.step_s


@dataclass(frozen=True)
class Proof:
    """The proof of a choice: what is known about it."""

    objective: Annotated[str, Meta(description="what was maximised")]
    optimal: Annotated[bool, Meta(description="whether the choice is proved to be the best")]
    statement: str


@dataclass(frozen=True)
class Price:
    """The cost of one engine rule by itself.

    Attributes:
        rule: the rule in words.
        source: file and line of the engine.
        share: share of tokens per second that is lost to the best tree without this rule.
    """

    rule: str
    source: str
    share: Estimate


@dataclass(frozen=True)
class PlanEntry:
    """The choice for one batch size.

    Attributes:
        batch: sequences decoded together.
        choice: the configuration to use.
        gain: tau minus that of the best chain, paired by request; None if the chain itself was chosen.
        compared: the other configurations, in the order of the table.
        skipped: name -> reason, for configurations that the trace cannot judge.
        proof: the proof of the choice.
        prices: costs of the rules that keep the engine from the best tree of all.
    """

    batch: int
    choice: Choice
    gain: Estimate | None
    compared: tuple[Choice, ...]
    skipped: Mapping[str, str]
    proof: Proof
    prices: tuple[Price, ...] = ()

    @property
    def tpot_s(self) -> float:
        """Time per output token of the choice: seconds per token and sequence, tokens counted as the objective does."""
        plain = next((choice for choice in self.compared if choice.plain), None)
        return self.choice.step_s / self.choice.tau.value if plain is None else plain.step_s / self.choice.speedup.value


@dataclass(frozen=True)
class Switch:
    """Where a running engine changes between the configurations of two neighbouring batch sizes."""

    # Between `down` and `up` it stays with the one it runs: neither is known to be better by more than the margin.
    small: Count
    large: Count
    up: Annotated[Integer, Meta(description="change to the larger one's when the batch reaches this size")]
    down: Annotated[Integer, Meta(description="change back when it falls to this size")]


@dataclass(frozen=True)
class Plan(ValueMethods):
    """The result of a search: an entry per batch size, and its provenance.

    Attributes:
        entries: one entry per batch size.
        meta: provenance; JSON values only.
        switches: changes between entries of different shapes, by rising batch size.
        best: batch size of the entry that the objective prefers; None if it prefers none.
        warnings: sentences that a reader must know before believing the plan.
    """

    entries: tuple[PlanEntry, ...]
    meta: Mapping[str, Any] = field(default_factory=dict)
    switches: tuple[Switch, ...] = ()
    best: int | None = None
    warnings: tuple[str, ...] = ()

    @property
    def captures(self) -> tuple[tuple[int, int], ...]:
        """Shapes to capture CUDA graphs for: (batch, tokens per sequence) of each entry's largest verify forward."""
        policies = [entry.choice.grown and entry.choice.grown.policy for entry in self.entries]
        pairs = zip(self.entries, policies, strict=True)
        return tuple((entry.batch, 1 + math.ceil((policy or entry.choice).nodes)) for entry, policy in pairs)

    @typed
    def entry(self, batch: int | None) -> PlanEntry:
        """Return the entry for a batch size, or the only entry.

        Raises:
            UsageError: there are several entries, and no batch size was given.
            PlanError: there is no entry for this batch size.
        """
        sizes = ", ".join(str(entry.batch) for entry in self.entries)
        if batch is None and len(self.entries) > 1:
            raise UsageError(f"the plan is for batch {sizes}: choose one of these batch sizes")
        for entry in self.entries:
            if batch in (None, entry.batch):
                return entry
        raise PlanError(
            f"the plan is for batch {sizes}, not {batch}: choose one of these batch sizes, or search again for {batch}"
        )


SCHEMA = "treeopt.plan/3"
BEFORE = "treeopt.plan/2"
RENAMED = {"gain_over_chain": "gain"}  # fields of records -> of values


if TYPE_CHECKING:
    PolicyRecord = Record
else:  # the record of any kind, told apart by its `kind`
    PolicyRecord = Union[tuple(kind.record for kind in POLICIES.values())]  # noqa: UP007


class EstimateRecord(Record, frozen=True):
    """A figure with its 95 % interval."""

    value: Finite
    low: Finite
    high: Finite

    def __post_init__(self) -> None:
        """Check the order."""
        if not self.low <= self.value <= self.high:
            raise ValueError(f"must lie in its interval, found {self.value} and [{self.low}, {self.high}]")


class TauRecord(EstimateRecord, frozen=True):
    """Tokens per step and sequence, bonus counted, with its 95 % interval."""

    value: AtLeastOne


class SpeedupRecord(EstimateRecord, frozen=True):
    """Time per token of plain decoding over that of the choice, with its 95 % interval."""

    value: Positive


class TreeRecord(Record, frozen=True):
    """A static tree."""

    id: Annotated[str, Meta(description="hash of the topology; must fit `paths`")]
    paths: Annotated[
        tuple[tuple[Index, ...], ...],
        Meta(description="rank paths of the nodes, the root excluded: the candidate rank taken at each depth"),
    ]


class PolicyInWords(Record, frozen=True):
    """The policy of a dynamic tree, in words."""

    kind: str
    settings: dict[str, Any]
    nodes: Annotated[NotNegative, Meta(description="mean number of drafted nodes that a step verifies")]
    depth: Annotated[NotNegative, Meta(description="mean number of levels that a step drafts")]


class GrownRecord(PolicyInWords, frozen=True):
    """A dynamic tree: a policy draws it at each step."""

    policy: Annotated[PolicyRecord | None, Meta(description="all that draws the same trees again; null: a bound")]


class ChoiceRecord(Record, frozen=True):
    """A configuration and its prediction; without `tree` and `grown` it does not speculate."""

    name: str
    tree: TreeRecord | None
    grown: GrownRecord | None
    tau: TauRecord
    step_s: Annotated[Positive, Meta(description="seconds per step")]
    speedup: SpeedupRecord
    behind: Annotated[
        EstimateRecord | None,
        Meta(description="share of the choice's tokens per second that is lost; null for the choice itself"),
    ]
    accepted: Annotated[
        tuple[NotNegative, ...],
        Meta(description="shares of the steps that accept at least 1, 2, ... drafted tokens; empty: not known"),
    ] = ()

    def __post_init__(self) -> None:
        """Check that there is at most one kind of tree."""
        if self.tree is not None and self.grown is not None:
            raise ValueError("`tree` and `grown` exclude one another")


class PriceRecord(Record, frozen=True):
    """The cost of one engine rule by itself."""

    rule: str
    source: str
    share: Annotated[EstimateRecord, Meta(description="share of tokens per second lost to the best tree without it")]


class EntryRecord(Record, frozen=True):
    """The choice for one batch size."""

    batch: Count
    choice: ChoiceRecord
    gain_over_chain: Annotated[
        EstimateRecord | None, Meta(description="difference of tau, paired by request; null: the chain was chosen")
    ]
    compared: tuple[ChoiceRecord, ...]
    skipped: Annotated[dict[str, str], Meta(description="by name: why a configuration is not judged")]
    proof: Proof
    prices: tuple[PriceRecord, ...]


class PlanRecord(Record, frozen=True):
    """The result of a search: per batch size a topology, a policy or no speculation, with its prediction."""

    schema: Literal["treeopt.plan/3", "treeopt.plan/2"]
    entries: Annotated[tuple[EntryRecord, ...], Meta(min_length=1)]
    switches: tuple[Switch, ...]
    best: Annotated[Count | None, Meta(description="batch size that the objective prefers")]
    warnings: tuple[str, ...]
    meta: Annotated[
        dict[str, Any], Meta(description="provenance: the search's settings, the trace's and the profile's")
    ]

    def __post_init__(self) -> None:
        """Check that entries differ and that the others name them."""
        sizes = [entry.batch for entry in self.entries]
        if len(set(sizes)) < len(sizes):
            raise ValueError(f"`entries` must hold different batch sizes, found {sizes}")
        named = [batch for switch in self.switches for batch in (switch.small, switch.large)]
        for batch in (*named, *([] if self.best is None else [self.best])):
            if batch not in sizes:
                raise ValueError(f"batch {batch} is named by `switches` or `best`, `entries` hold {sizes}")


VALUES: dict[type[Record], type[Any]] = {  # by the records that hold their fields
    EstimateRecord: Estimate,
    TauRecord: Estimate,
    SpeedupRecord: Estimate,
    PriceRecord: Price,
    GrownRecord: Grown,
    ChoiceRecord: Choice,
    EntryRecord: PlanEntry,
}


def to_json(plan: Plan) -> str:
    """Return the plan as JSON text."""
    record = {name: _written(getattr(plan, name)) for name in PlanRecord.__struct_fields__ if name != "schema"}
    return json.dumps({"schema": SCHEMA, **record}, indent=2)


def _written(value: Any) -> Any:
    """Return a value of a plan as JSON values; what has a record has its fields, in their order."""
    if isinstance(value, Tree):
        return {"id": value.id, "paths": [list(path) for path in value.paths]}
    if isinstance(value, tuple):
        return [_written(part) for part in value]
    if any(isinstance(value, kind.policy) for kind in POLICIES.values()):
        return to_record(value)
    record = next((record for record, kind in VALUES.items() if isinstance(value, kind)), None)
    if record is not None:
        names = (name for name in record.__struct_fields__ if name != "accepted" or value.accepted)
        return {name: _written(getattr(value, RENAMED.get(name, name))) for name in names}
    return asdict(value) if isinstance(value, Proof | Switch) else dict(value) if isinstance(value, Mapping) else value


def from_json(text: str) -> Plan:
    """Return the plan that a JSON text holds, of this schema or the one before.

    Raises:
        PlanError: names the field that is missing or wrong.
    """
    try:
        return plan_of(read_record(parse(text, SCHEMA, BEFORE), PlanRecord))
    except RecordError as error:
        raise PlanError(str(error)) from error


def plan_of(record: PlanRecord, where: str = "") -> Plan:
    """Return the plan of a record.

    Args:
        record: the record that was read.
        where: path of the plan in its file, with a dot at the end; empty if the file is a plan.

    Raises:
        RecordError: names the field that is wrong.
    """
    entries = _read(record.entries, f"{where}entries")
    return Plan(entries, record.meta, record.switches, record.best, record.warnings)


def _read(record: Any, where: str) -> Any:
    """Return the value of a record, which stands at a path of its file."""
    if isinstance(record, TreeRecord):
        return _tree(record, where)
    if isinstance(record, tuple):
        return tuple(_read(part, f"{where}[{i}]") for i, part in enumerate(record))
    if (kind := VALUES.get(type(record))) is not None:
        fields = {name: getattr(record, name) for name in record.__struct_fields__}
        return kind(**{RENAMED.get(name, name): _read(value, f"{where}.{name}") for name, value in fields.items()})
    return policy_of(record, where) if isinstance(record, Record) else record


def save_plan(plan: Plan, path: Path) -> None:
    """Write a plan, whole or not at all."""
    write_text(path, to_json(plan) + "\n")


def load_plan(path: Path) -> Plan:
    """Read a plan.

    Raises:
        PlanError: missing or broken; names file and field.
    """
    with reading(path, PlanError):
        return from_json(read_text(path))


def _tree(record: TreeRecord, where: str) -> Tree:
    try:
        tree = Tree.from_paths(record.paths)
    except TreeError as error:
        raise RecordError(f"{where}: {error}") from error
    if record.id != tree.id:
        raise RecordError(f"{where}: `id` {record.id} does not fit the paths, whose id is {tree.id}")
    return tree
