"""The JSON record of a profile file, `treeopt.profile/2`: fields, limits and units."""

from typing import Annotated, Any

from msgspec import Meta, field

from treeopt.storage.typed_records import AtLeastOne, Count, Finite, Index, NotNegative, Positive, Record

Points = tuple[tuple[Count, Finite], ...]


class GrowingRecord(Record, frozen=True):
    """Seconds that drafting a dynamic tree takes beyond a static tree of the same shape."""

    step_s: Annotated[NotNegative, Meta(description="per step")]
    level_s: Annotated[NotNegative, Meta(description="per drafted level")]
    node_s: Annotated[NotNegative, Meta(description="per node that the drafter is fed")]
    token_s: Annotated[NotNegative, Meta(description="per verified token of a sequence")]
    widest: Annotated[Count, Meta(description="widest level that was measured")]
    spread: Annotated[NotNegative, Meta(description="error on shapes that a fit had not seen, as a share of a step")]


class BatchRecord(Record, frozen=True):
    """Medians measured at one batch size and context."""

    batch: Count
    plain_s: Annotated[Positive, Meta(description="seconds per plain decoding step")]
    draft: Annotated[Points, Meta(description="[depth, seconds of drafting a chain], depth rising")]
    rest: Annotated[Points, Meta(description="[tokens per sequence, seconds of a step except drafting], tokens rising")]
    widths: Annotated[
        Points,
        Meta(description="[nodes fed to a level, seconds more than for one node], from [1, 0.0]; empty: no difference"),
    ]
    context: Annotated[NotNegative, Meta(description="mean tokens per sequence in the cache; 0: contexts are mixed")]
    commit_s: Annotated[NotNegative, Meta(description="seconds more per further committed token of a sequence")]
    relative_error: Annotated[
        NotNegative | None,
        Meta(description="half-width of the 95 % interval of step / plain step; null: see the profile's"),
    ]
    growth: Annotated[dict[str, GrowingRecord], Meta(description="by how dynamic trees are drafted")] = field(
        default_factory=dict
    )
    widths_told: Annotated[
        bool | None, Meta(description="whether enough trees were measured to know `widths`; null: not recorded")
    ] = None


class ExpertsRecord(Record, frozen=True):
    """Experts of a layer of the target, and how many a token picks."""

    count: Count
    active: Count


class BasisRecord(Record, frozen=True):
    """How time moves between measured sizes: a sum of terms."""

    seconds: Annotated[dict[str, NotNegative], Meta(description="by term: seconds per unit")]
    experts: ExpertsRecord | None
    spread: Annotated[
        Finite, Meta(description="share of a token by which tokens after the first pick experts of their own")
    ]


class PrefillRecord(Record, frozen=True):
    """Seconds of prefill, as [tokens of the prompts that are read at once, seconds], tokens rising."""

    plain: Annotated[Points, Meta(description="before plain decoding")]
    drafted: Annotated[Points, Meta(description="before speculative decoding, the drafter's work included")]


class ProfileRecord(Record, frozen=True, tag_field="schema", tag="treeopt.profile/2"):
    """Measured step times of one target and drafter on one device."""

    batches: Annotated[tuple[BatchRecord, ...], Meta(description="by rising batch size, then by rising context")]
    context: Annotated[tuple[Index, Index], Meta(description="fewest and most tokens per sequence in the cache")]
    relative_error: Annotated[NotNegative, Meta(description="half-width of the 95 % interval of step / plain step")]
    meta: Annotated[dict[str, Any], Meta(description="provenance")]
    basis: BasisRecord | None
    committed: Annotated[AtLeastOne, Meta(description="tokens per sequence and step that `rest` holds for")]
    captured: Annotated[
        tuple[Count, ...], Meta(description="tokens of a batch that CUDA graphs are captured for, rising")
    ]
    prefill: PrefillRecord | None = None
