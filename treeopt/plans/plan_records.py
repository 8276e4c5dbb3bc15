"""The JSON record of a plan file, `treeopt.plan/3` and the one before: fields, limits and units."""

from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

from msgspec import Meta

from treeopt.policies import POLICIES
from treeopt.storage.typed_records import AtLeastOne, Count, Finite, Index, Integer, NotNegative, Positive, Record

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


class GrownRecord(Record, frozen=True):
    """A dynamic tree: a policy draws it at each step."""

    kind: str
    settings: dict[str, Any]
    nodes: Annotated[NotNegative, Meta(description="mean number of drafted nodes that a step verifies")]
    depth: Annotated[NotNegative, Meta(description="mean number of levels that a step drafts")]
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

    def __post_init__(self) -> None:
        """Check that there is at most one kind of tree."""
        if self.tree is not None and self.grown is not None:
            raise ValueError("`tree` and `grown` exclude one another")


class ProofRecord(Record, frozen=True):
    """The proof of a choice: what is known about it."""

    objective: Annotated[str, Meta(description="what was maximised")]
    optimal: Annotated[bool, Meta(description="whether the choice is proved to be the best")]
    statement: str


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
    proof: ProofRecord
    prices: tuple[PriceRecord, ...]


class SwitchRecord(Record, frozen=True):
    """Where a running engine changes between the configurations of two neighbouring batch sizes."""

    small: Count
    large: Count
    up: Annotated[Integer, Meta(description="change to the larger one's when the batch reaches this size")]
    down: Annotated[Integer, Meta(description="change back when it falls to this size")]


class PlanRecord(Record, frozen=True):
    """The result of a search: per batch size a topology, a policy or no speculation, with its prediction."""

    schema: Literal["treeopt.plan/3", "treeopt.plan/2"]
    entries: Annotated[tuple[EntryRecord, ...], Meta(min_length=1)]
    switches: tuple[SwitchRecord, ...]
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
