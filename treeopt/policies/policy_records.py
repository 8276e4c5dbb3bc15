"""The JSON records of policies, one for each `kind`: fields and limits, as plan files hold them."""

from typing import Annotated, Any

from msgspec import Meta

from treeopt.errors import TreeError, UsageError
from treeopt.policies.cost_aware import CostAware
from treeopt.policies.eagle2 import DynamicTree
from treeopt.policies.opt_tree import OptTree
from treeopt.policies.policy import Policy
from treeopt.statistics.isotonic_regression import Curve
from treeopt.storage.json_records import RecordError
from treeopt.storage.typed_records import Finite, NotNegative, Record
from treeopt.tree import MAX_NODES

Size = Annotated[int, Meta(ge=1, le=MAX_NODES)]
Probability = Annotated[float, Meta(ge=0, lt=1)]


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


Calibration = Annotated[
    tuple[tuple[CurveRecord, ...], ...],
    Meta(description="by depth and rank: drafter's probability, given the parent, to observed frequency"),
]


class LiveRecord(Record, frozen=True, forbid_unknown_fields=True):
    """Settings of a `dynamic-tree` without calibration, as `treeopt.plan/2` holds them."""

    nodes: Size
    depth: Size
    beam: Size
    width: Size | None
    min_probability: Probability
    budget: Size | None


class DynamicTreeRecord(LiveRecord, frozen=True, tag_field="kind", tag="dynamic-tree"):
    """Expansion and re-ranking, as EAGLE-2 drafts."""

    calibration: Calibration | None


class OptTreeRecord(Record, frozen=True, tag_field="kind", tag="opt-tree", forbid_unknown_fields=True):
    """Levels are drafted while another adds enough, as OPT-Tree drafts."""

    nodes: Size
    depth: Size
    threshold: NotNegative
    beam: Size | None
    width: Size | None


class CostAwareRecord(Record, frozen=True, tag_field="kind", tag="cost-aware", forbid_unknown_fields=True):
    """Levels are drafted and nodes verified while it pays."""

    nodes: Size
    depth: Size
    beam: Size
    width: Size
    shared: bool
    rate: Annotated[NotNegative, Meta(description="tokens per second of each sequence that time is worth")]
    seconds: Annotated[tuple[tuple[Finite, ...], ...], Meta(description="of a step, by levels and nodes of every row")]
    advantage: Annotated[
        tuple[CurveRecord, ...], Meta(description="tokens gained by drafting another level, after 1, 2, ... levels")
    ]
    calibration: Calibration


PolicyRecord = DynamicTreeRecord | OptTreeRecord | CostAwareRecord

KINDS: dict[type[Any], type[Any]] = {
    LiveRecord: DynamicTree,
    DynamicTreeRecord: DynamicTree,
    OptTreeRecord: OptTree,
    CostAwareRecord: CostAware,
}


def policy_of(record: PolicyRecord | LiveRecord, where: str) -> Policy:
    """Return the policy of a record.

    Raises:
        RecordError: names the setting that cannot be.
    """
    values = {name: _value(getattr(record, name)) for name in record.__struct_fields__}
    try:
        policy: Policy = KINDS[type(record)](**values)
    except TreeError as error:
        raise RecordError(f"{where}: {error}") from error
    return policy


def _value(value: Any) -> Any:
    """Return a field as a policy holds it: curves in the place of their records."""
    if isinstance(value, CurveRecord):
        return Curve(value.x, value.y)
    return tuple(_value(part) for part in value) if isinstance(value, tuple) else value
