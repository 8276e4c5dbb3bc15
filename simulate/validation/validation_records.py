"""The JSON records of prediction and validation files: fields, limits and units."""

from typing import Annotated, Any

from msgspec import Meta

from treeopt.plans.plan_records import EstimateRecord, PlanRecord, SpeedupRecord, TauRecord, TreeRecord
from treeopt.storage.typed_records import Count, Finite, Index, NotNegative, Positive, Record

Share = Annotated[float, Meta(ge=0, le=1)]
Error = Annotated[NotNegative, Meta(description="|predicted / measured - 1|")]
SpeedupRatio = Annotated[Positive, Meta(description="speedup over plain decoding")]


class FormsRecord(Record, frozen=True):
    """Speedups by the closed forms; null where their inputs are not known."""

    leviathan: Finite | None
    coral: Finite | None


class TreeFormsRecord(FormsRecord, frozen=True, kw_only=True):
    """Speedups of one tree by the closed forms; null where their inputs are not known."""

    batch: Count
    tree: Annotated[str, Meta(description="id of the tree")]


class WholeRunRecord(EstimateRecord, frozen=True, kw_only=True):
    """Speedup of a whole run of one tree, prefill and idle rows included, with its 95 % interval."""

    batch: Count
    tree: Annotated[str, Meta(description="id of the tree")]


class PredictionsRecord(Record, frozen=True, tag_field="schema", tag="treeopt.predictions/1", kw_only=True):
    """Predictions that are fixed before anything is measured."""

    plan: PlanRecord
    closed_forms: tuple[TreeFormsRecord, ...]
    whole_runs: tuple[WholeRunRecord, ...] = ()
    meta: Annotated[dict[str, Any], Meta(description="hashes of what the predictions were made of, and provenance")]
    sha256: Annotated[
        str, Meta(description="SHA-256 of the rest of the file as JSON: keys sorted, no spaces, ASCII only")
    ]


class FiguresRecord(Record, frozen=True):
    """tau, step time and speedup of one tree."""

    tau: TauRecord
    step_s: Annotated[Positive, Meta(description="seconds per step")]
    speedup: SpeedupRecord


class MeasuredPolicyRecord(Record, frozen=True):
    """The policy of a dynamic tree, in words."""

    kind: str
    settings: dict[str, Any]
    nodes: Annotated[NotNegative, Meta(description="mean number of drafted nodes that a step verifies")]
    depth: Annotated[NotNegative, Meta(description="mean number of levels that a step drafts")]


class CellRecord(Record, frozen=True, kw_only=True):
    """One configuration at one batch size, predicted and measured."""

    batch: Count
    name: str
    tree: TreeRecord | None
    grown: MeasuredPolicyRecord | None = None
    predicted: FiguresRecord
    closed_forms: FormsRecord
    measured: FiguresRecord
    end_to_end: Annotated[SpeedupRatio, Meta(description="measured over the whole run")]
    end_to_end_predicted: EstimateRecord | None = None
    error: Annotated[Finite, Meta(description="predicted speedup / measured speedup - 1")]
    covered: Annotated[bool, Meta(description="whether the predicted interval holds the measured speedup")]


class ErrorsRecord(Record, frozen=True):
    """Mean and largest error over some cells."""

    cells: Count
    mean_error: Error
    max_error: Error


class FormErrorsRecord(Record, frozen=True):
    """Errors of each closed form; null where it has no figure."""

    leviathan: ErrorsRecord | None
    coral: ErrorsRecord | None


class WholeErrorsRecord(ErrorsRecord, frozen=True):
    """Errors over whole runs, and in how many cells the interval holds the measurement."""

    covered: Index


class ShareRecord(EstimateRecord, frozen=True, kw_only=True):
    """A share of cells with its exact binomial 95 % interval."""

    cells: Index


class CoverageRecord(Record, frozen=True):
    """In how many cells the predicted interval holds the measured speedup."""

    nominal: Share
    cells: Count
    covered: ShareRecord


class BestRecord(Record, frozen=True):
    """The tree predicted to be the fastest at one batch size, beside the one measured to be."""

    batch: Count
    predicted: str
    measured: str
    behind: Annotated[Share, Meta(description="measured speedup that the first loses to the second, as a share")]
    near: Share
    within: Annotated[bool, Meta(description="whether `behind` is at most `near`")]


class PlainRecord(Record, frozen=True):
    """Seconds per plain decoding step at one batch size."""

    batch: Count
    predicted_s: Positive
    measured_s: Positive


class ValidationRecord(Record, frozen=True, tag_field="schema", tag="treeopt.validation/2", kw_only=True):
    """Predicted speedups beside measured ones."""

    meta: Annotated[dict[str, Any], Meta(description="provenance: models, device, rule, prompts, predictions")]
    mean_error: Error
    max_error: Error
    closed_forms: FormErrorsRecord
    end_to_end: Annotated[WholeErrorsRecord | None, Meta(description="null: no whole run was predicted")] = None
    coverage: CoverageRecord
    best: tuple[BestRecord, ...]
    plain: tuple[PlainRecord, ...] = ()
    cells: tuple[CellRecord, ...]
