"""Predictions that are fixed before anything is measured: a plan, closed forms, whole runs, and a hash; their files.

A whole run is a run of treeopt's loop: prefill, steps, rows that idle until the last request ends.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from msgspec import Meta, structs

from simulate.paper_formulas import walltime_speedup, weight_speedup
from simulate.profiles.profile import Profile
from simulate.runs.batch_record import run
from simulate.runs.timeline import Ints, Timeline, speedup
from treeopt.cost_model import CostModel, StepShape
from treeopt.errors import PlanError
from treeopt.plans import Choice, EstimateRecord, Plan, PlanEntry, PlanRecord, plan_of, to_json
from treeopt.policies import Policy
from treeopt.replay.static_tree import replay_tree
from treeopt.replay.walk import StepCounts
from treeopt.statistics import Estimate
from treeopt.storage.json_records import RecordError, parse, reading
from treeopt.storage.provenance import look
from treeopt.storage.typed_records import Count, Finite, Record, read_field, read_record
from treeopt.storage.user_files import read_text, write_text
from treeopt.traces.trace import Trace
from treeopt.tree import Tree

SCHEMA = "treeopt.predictions/1"


class FormsRecord(Record, frozen=True):
    """Speedups by the closed forms; null where their inputs are not known."""

    leviathan: Finite | None  # Theorem 3.8 of Leviathan et al., from the measured cost ratio and acceptance
    coral: Finite | None  # Eq. 6 of CORAL, from the predicted tau and weight counts


NO_FORMS = FormsRecord(None, None)


class TreeFormsRecord(FormsRecord, frozen=True, kw_only=True):
    """Speedups of one tree by the closed forms; null where their inputs are not known."""

    batch: Count
    tree: Annotated[str, Meta(description="id of the tree")]


class WholeRunRecord(EstimateRecord, frozen=True, kw_only=True):
    """Speedup of a whole run of one tree, prefill and idle rows included, with its 95 % interval."""

    batch: Count
    tree: Annotated[str, Meta(description="id of the tree")]


class PredictionsRecord(Record, frozen=True, tag_field="schema", tag=SCHEMA, kw_only=True):
    """Predictions that are fixed before anything is measured."""

    plan: PlanRecord
    closed_forms: tuple[TreeFormsRecord, ...]
    whole_runs: tuple[WholeRunRecord, ...] = ()
    meta: Annotated[dict[str, Any], Meta(description="hashes of what the predictions were made of, and provenance")]
    sha256: Annotated[
        str, Meta(description="SHA-256 of the rest of the file as JSON: keys sorted, no spaces, ASCII only")
    ]


@dataclass(frozen=True)
class Predictions:
    """Predictions for trees at batch sizes.

    Attributes:
        plan: the plan, with every tree that is to be measured and its intervals.
        forms: speedups by the closed forms, by batch size and tree id.
        meta: hashes of all inputs, and provenance; JSON values only.
        whole: speedups of whole runs, prefill and idle rows included, by batch size and tree id.
        said: hash in the file that the predictions were read from; None if they were not read.
    """

    plan: Plan
    forms: Mapping[tuple[int, str], FormsRecord] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)
    whole: Mapping[tuple[int, str], Estimate] = field(default_factory=dict)
    said: str | None = field(default=None, compare=False)

    @property
    def record(self) -> dict[str, Any]:
        """The predictions as JSON values, without the hash."""
        return {
            "schema": SCHEMA,
            "plan": json.loads(to_json(self.plan)),
            "closed_forms": [{"batch": b, "tree": of} | structs.asdict(forms) for (b, of), forms in self.forms.items()],
            "whole_runs": [{"batch": b, "tree": tree, **asdict(speedup)} for (b, tree), speedup in self.whole.items()],
            "meta": dict(self.meta),
        }

    @property
    def sha256(self) -> str:
        """SHA-256 of the canonical JSON (keys sorted, no spaces, ASCII), or the one in the file they were read from."""
        return _hash(self.record) if self.said is None else self.said


def judged_on(plan: Plan) -> int:
    """Return the number of requests that a plan's figures were judged on; 0 if the plan does not record it."""
    count = look(plan.meta, "search", "requests_judged_on")
    return count if type(count) is int and count > 0 else 0


def ways_of(entry: PlanEntry, *, static: bool = False) -> dict[Tree | Policy, Choice]:
    """Return the trees and policies of an entry that draft something, the chosen one first.

    A tree that has several names in the entry gets all of them, joined by commas.

    Args:
        entry: the entry.
        static: leave out policies.
    """
    named: dict[Tree | Policy, list[Choice]] = {}
    for choice in (entry.choice, *entry.compared):
        drafted = choice.grown.policy if choice.grown else choice.tree
        if drafted is not None and drafted.nodes and (choice.tree or not static):
            named.setdefault(drafted, []).append(choice)
    return {
        drafted: replace(choices[0], name=", ".join(choice.name for choice in choices))
        for drafted, choices in named.items()
    }


def closed_forms(
    plan: Plan,
    *,
    trace: Trace | None = None,
    cost: CostModel | None = None,
    weights: tuple[int, int] | None = None,
    context: int | None = None,
) -> dict[tuple[int, str], FormsRecord]:
    """Return the closed-form speedups of every static tree of a plan, by batch size and tree id.

    Args:
        plan: the plan, which holds tau of every tree.
        trace: requests that acceptance is measured on; Leviathan's form needs it and `cost`.
        cost: seconds of drafting and of plain steps.
        weights: weights read by one drafter forward and by one plain step of the target; CORAL's form needs them.
        context: tokens per sequence in the cache; None leaves it to the cost model.
    """
    forms = {}
    for entry in plan.entries:
        for tree, choice in ways_of(entry).items():
            if not isinstance(tree, Tree):
                continue
            leviathan = coral = None
            if trace is not None and cost is not None:
                alpha = acceptance(replay_tree(tree, trace))
                plain_s = cost.plain_s(batch=entry.batch, context=context)
                ratio = draft_s(tree, cost, entry.batch, context=context) / tree.depth / plain_s
                if np.isfinite(ratio) and ratio > 0:  # 0: the step times do not separate drafting
                    leviathan = float(walltime_speedup(alpha=alpha, gamma=tree.depth, cost_ratio=ratio))
            if weights is not None:
                draft, target = weights
                tau = max(1.0, choice.tau.value)
                coral = float(weight_speedup(tau=tau, gamma=tree.depth, draft_weights=draft, target_weights=target))
            forms[entry.batch, tree.id] = FormsRecord(leviathan, coral)
    return forms


def acceptance(counts: StepCounts) -> float:
    """Return the share of reached levels at which a node was accepted: Leviathan's alpha for a chain.

    >>> acceptance(StepCounts(np.array([4]), np.array([7]), np.array([2, 1, 1])))  # chain of 2; accepted 0, 0, 1 and 2
    0.5
    """
    accepted = np.arange(len(counts.accepted_counts))
    reached = np.minimum(accepted + 1, len(accepted) - 1)
    return float((accepted * counts.accepted_counts).sum() / (reached * counts.accepted_counts).sum())


def draft_s(tree: Tree, cost: CostModel, batch: int, *, context: int | None = None) -> float:
    """Return the seconds per step that drafting this tree takes; inf if they are not known level by level."""
    widths = tree.fed_widths
    parts = cost.parts(batch=batch, tokens=tree.nodes + 1, depth=tree.depth, width=max(widths), context=context)
    return float(parts.draft_s[np.arange(tree.depth), list(widths)].sum())


def save_predictions(predictions: Predictions, path: Path) -> None:
    """Write predictions and their hash, whole or not at all."""
    write_text(path, json.dumps({**predictions.record, "sha256": predictions.sha256}, indent=1) + "\n")


def load_predictions(path: Path) -> Predictions:
    """Read predictions and check that the file was not changed since it was written.

    Raises:
        PlanError: missing, broken or changed; names file and field.
    """
    with reading(path, PlanError):
        record = parse(read_text(path), SCHEMA)
        written = read_field(record, "sha256", str)
        actual = _hash({key: value for key, value in record.items() if key != "sha256"})
        if written != actual:
            raise RecordError(
                f"was changed after it was written: its `sha256` is {written:.16}, its content's {actual:.16}"
            )
        read = read_record(record, PredictionsRecord)
        forms = {(form.batch, form.tree): FormsRecord(form.leviathan, form.coral) for form in read.closed_forms}
        whole = {(run.batch, run.tree): Estimate(run.value, run.low, run.high) for run in read.whole_runs}
        return Predictions(plan_of(read.plan, "plan."), forms, read.meta, whole, read.sha256)


def _hash(record: Mapping[str, Any]) -> str:
    text = json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


@dataclass(frozen=True)
class Runs:
    """The runs that are predicted: the number of requests of each, and their lengths.

    Attributes:
        pieces: by batch size, the number of requests of each run, one run after the other.
        prompts: tokens of each request's prompt.
        new_tokens: maximum new tokens per request.
        late: steps by which the host reads results late.
    """

    pieces: Mapping[int, tuple[int, ...]]
    prompts: tuple[int, ...]
    new_tokens: int
    late: int = 0

    @property
    def record(self) -> dict[str, Any]:
        """The runs as JSON values."""
        pieces = {str(batch): list(sizes) for batch, sizes in self.pieces.items()}
        return asdict(self) | {"pieces": pieces, "prompts": list(self.prompts)}


def whole_runs(plan: Plan, trace: Trace, profile: Profile, runs: Runs) -> dict[tuple[int, str], Estimate]:
    """Predict the speedup of these runs with each static tree of a plan, by batch size and tree id.

    Intervals are those of runs of as many requests, as in `simulate.validation.predicted_vs_measured.Figures.of_run`.
    The result is empty if the profile has no prefill. Steps cost what full ones do, since idle rows are computed too;
    prompts that join together are padded and read at once.

    Args:
        plan: a plan with every tree.
        trace: requests that are replayed, none of which the trees were chosen on; their prompts count as long as those
            of the runs, in turn.
        profile: step times and prefill.
        runs: the runs.

    Raises:
        CostError: prompts shorter than the profile's prefill covers, or contexts that the profile does not cover.
    """
    speedups: dict[tuple[int, str], Estimate] = {}
    prefill = profile.prefill
    if prefill is None:
        return speedups
    tokens = _spread(np.array(runs.prompts), trace.requests)
    for entry in plan.entries:

        def timed(tree: Tree | None, batch: int = entry.batch) -> Timeline:
            options: dict[str, Any] = {"by_context": profile.apart, "fixed_shape": True, "late": runs.late}
            options |= {"prompt_tokens": tokens, "prefill_s": partial(prefill.seconds, drafted=tree is not None)}
            return run(trace, tree, profile, batch=batch, piece=runs.pieces[batch], **options)

        plain = timed(None)
        for tree in ways_of(entry, static=True):
            assert isinstance(tree, Tree)
            error = profile.error(StepShape.of(tree, batch=entry.batch))
            throughput = speedup(timed(tree), plain).throughput  # over all requests like the trace's
            sampling = throughput.relative * math.sqrt(trace.requests / len(runs.prompts))
            speedups[entry.batch, tree.id] = throughput.times(1.0, relative_error=math.hypot(error, sampling))
    return speedups


def _spread(values: Ints, count: int) -> Ints:
    """Return `count` of the values: repeated in turn if there are fewer, at equal distances if there are more.

    >>> _spread(np.arange(3), 5).tolist(), _spread(np.arange(5), 2).tolist()
    ([0, 1, 2, 0, 1], [0, 2])
    """
    return np.resize(values, count) if len(values) <= count else values[np.arange(count) * len(values) // count]
