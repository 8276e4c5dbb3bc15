"""The JSON record of a comparison: fields, limits and units."""

from typing import Annotated, Any, Literal

from msgspec import Meta

from treeopt.comparison.compare_drafters import SCHEMA
from treeopt.plans.plan_json import EstimateRecord, SpeedupRecord, TauRecord, TreeRecord
from treeopt.storage.typed_records import Count, Index, Positive, Record


class ComparedTreeRecord(TreeRecord, frozen=True):
    """A static tree with its size."""

    nodes: Index
    depth: Index


class StandingRecord(Record, frozen=True, kw_only=True):
    """A drafter in one contest; step times and speedup are null where steps have no price."""

    drafter: str
    tree: ComparedTreeRecord | None
    tau: TauRecord
    over: Annotated[EstimateRecord | None, Meta(description="ratio to the first drafter; null for the first itself")]
    step_s: Annotated[Positive | None, Meta(description="seconds per step")]
    plain_s: Annotated[Positive | None, Meta(description="seconds per step of plain decoding")]
    speedup: SpeedupRecord | None


class ContestRecord(Record, frozen=True):
    """All drafters under one condition."""

    name: str
    batch: Annotated[Count | None, Meta(description="null: trees of one size, which have no price")]
    standings: Annotated[tuple[StandingRecord, ...], Meta(min_length=1)]
    skipped: Annotated[dict[str, str], Meta(description="by drafter: why it is not judged")]

    def __post_init__(self) -> None:
        """Check that priced contests have speedups."""
        if self.batch is not None and any(standing.speedup is None for standing in self.standings):
            raise ValueError("`standings` of a batch size must have a `speedup`")


class ComparisonRecord(Record, frozen=True, tag_field="schema", tag=SCHEMA):
    """Drafters side by side."""

    first: Annotated[str, Meta(description="the drafter that the others are compared with")]
    pairing: Annotated[Literal["texts", "prompts", "caller"] | None, Meta(description="null: not paired")]
    contests: tuple[ContestRecord, ...]
    warnings: tuple[str, ...]
    meta: Annotated[dict[str, Any], Meta(description="provenance of traces and step times; settings")]
