"""Predictions fixed before anything is measured: a plan, closed forms beside it, and a hash over both."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from simulate.closed_forms.speedup_formulas import walltime_speedup, weight_speedup
from simulate.validation.validation_records import PredictionsRecord
from treeopt.cost_model import CostModel
from treeopt.errors import PlanError
from treeopt.plans.plan import Choice, Plan, PlanEntry
from treeopt.plans.plan_json import plan_of, to_json
from treeopt.policies import Policy
from treeopt.replay.static_tree import StepCounts, replay_tree
from treeopt.statistics.clustered_estimate import Estimate
from treeopt.storage.atomic_files import why, write_text
from treeopt.storage.json_records import RecordError, get, parse
from treeopt.storage.provenance import look
from treeopt.storage.typed_records import read_record
from treeopt.traces.trace import Trace
from treeopt.tree import Tree

SCHEMA = "treeopt.predictions/1"


@dataclass(frozen=True)
class ClosedForms:
    """Speedups by the baselines; None where their inputs are not known.

    Attributes:
        leviathan: Theorem 3.8, of the measured cost ratio and acceptance.
        coral: Eq. 6, of the predicted tau and weight counts.
    """

    leviathan: float | None = None
    coral: float | None = None


@dataclass(frozen=True)
class Predictions:
    """What was predicted of trees at batch sizes.

    Attributes:
        plan: with every tree that is to be measured, and its intervals.
        forms: by batch size and tree id.
        meta: hashes of what the predictions were made of, and provenance; JSON values only.
        whole: speedups of whole runs, prefill and idle rows included, by batch size and tree id.
        said: the hash of the file that they were read from.
    """

    plan: Plan
    forms: Mapping[tuple[int, str], ClosedForms] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)
    whole: Mapping[tuple[int, str], Estimate] = field(default_factory=dict)
    said: str | None = field(default=None, compare=False)

    @property
    def record(self) -> dict[str, Any]:
        """As JSON values, without the hash."""
        return {
            "schema": SCHEMA,
            "plan": json.loads(to_json(self.plan)),
            "closed_forms": [{"batch": b, "tree": tree, **asdict(each)} for (b, tree), each in self.forms.items()],
            "whole_runs": [{"batch": b, "tree": tree, **asdict(each)} for (b, tree), each in self.whole.items()],
            "meta": dict(self.meta),
        }

    @property
    def sha256(self) -> str:
        """Hash of the canonical JSON, keys sorted, no spaces, ASCII; of a file's predictions the file's own."""
        return _hash(self.record) if self.said is None else self.said


def judged_on(plan: Plan) -> int:
    """Requests that a plan's figures are of; 0: it does not say."""
    count = look(plan.meta, "search", "requests_judged_on")
    return count if type(count) is int and count > 0 else 0


def ways_of(entry: PlanEntry, *, static: bool = False) -> dict[Tree | Policy, Choice]:
    """What an entry would draft, the chosen way first; one that has several names is called by all of them.

    With `static` trees that are the same in every step alone.
    """
    named: dict[Tree | Policy, list[Choice]] = {}
    for choice in (entry.choice, *entry.compared):
        way = choice.grown.policy if choice.grown else choice.tree
        if way is not None and way.nodes and (choice.tree or not static):
            named.setdefault(way, []).append(choice)
    return {
        way: replace(choices[0], name=", ".join(choice.name for choice in choices)) for way, choices in named.items()
    }


def closed_forms(
    plan: Plan,
    *,
    trace: Trace | None = None,
    cost: CostModel | None = None,
    weights: tuple[int, int] | None = None,
    context: int | None = None,
) -> dict[tuple[int, str], ClosedForms]:
    """The baselines for every static tree of a plan, by batch size and tree id.

    Args:
        plan: with tau of every tree.
        trace: requests that acceptance is measured on; with `cost` it gives Leviathan's form.
        cost: seconds of drafting and of plain steps.
        weights: read by one drafter forward and by a plain step of the target; they give CORAL's form.
        context: tokens a sequence in the cache; None leaves it to the cost model.
    """
    found = {}
    for entry in plan.entries:
        for tree, choice in ways_of(entry).items():
            if not isinstance(tree, Tree):
                continue
            leviathan = coral = None
            if trace is not None and cost is not None:
                alpha = acceptance(replay_tree(tree, trace))
                plain_s = cost.plain_s(batch=entry.batch, context=context)
                ratio = draft_s(tree, cost, entry.batch, context=context) / tree.depth / plain_s
                if np.isfinite(ratio):
                    leviathan = float(walltime_speedup(alpha=alpha, gamma=tree.depth, cost_ratio=ratio))
            if weights is not None:
                draft, target = weights
                tau = max(1.0, choice.tau.value)
                coral = float(weight_speedup(tau=tau, gamma=tree.depth, draft_weights=draft, target_weights=target))
            found[entry.batch, tree.id] = ClosedForms(leviathan, coral)
    return found


def acceptance(counts: StepCounts) -> float:
    """Share of the levels reached at which a node was kept: Leviathan's alpha of a chain, and the like of a tree.

    >>> acceptance(StepCounts(np.array([4]), np.array([7]), np.array([2, 1, 1])))  # kept 0, 0, 1 and 2 of a chain of 2
    0.5
    """
    kept = np.arange(len(counts.accepted_counts))
    reached = np.minimum(kept + 1, len(kept) - 1)
    return float((kept * counts.accepted_counts).sum() / (reached * counts.accepted_counts).sum())


def draft_s(tree: Tree, cost: CostModel, batch: int, *, context: int | None = None) -> float:
    """Seconds that drafting takes of a step with this tree; inf where they are not known level by level."""
    widths = tree.fed_widths
    parts = cost.parts(batch=batch, tokens=tree.nodes + 1, depth=tree.depth, width=max(widths), context=context)
    return float(parts.draft_s[np.arange(tree.depth), list(widths)].sum())


def save_predictions(predictions: Predictions, path: Path) -> None:
    """Write predictions and their hash, whole or not at all."""
    write_text(path, json.dumps({**predictions.record, "sha256": predictions.sha256}, indent=1) + "\n")


def load_predictions(path: Path) -> Predictions:
    """Read predictions that nobody has changed since they were written.

    Raises:
        PlanError: missing, broken or changed; names file and field.
    """
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"{path}: cannot be read: {why(error)}") from error
    try:
        record = parse(text, SCHEMA)
        said = get(record, "sha256", str, "predictions")
        own = _hash({key: value for key, value in record.items() if key != "sha256"})
        if said != own:
            raise RecordError(f"was changed after it was written: its `sha256` is {said:.16}, its content's {own:.16}")
        read = read_record(record, PredictionsRecord)
        forms = {(each.batch, each.tree): ClosedForms(each.leviathan, each.coral) for each in read.closed_forms}
        whole = {(each.batch, each.tree): Estimate(each.value, each.low, each.high) for each in read.whole_runs}
        return Predictions(plan_of(read.plan, "plan."), forms, read.meta, whole, read.sha256)
    except (RecordError, PlanError) as error:
        raise PlanError(f"{path}: {error}") from error


def _hash(record: Mapping[str, Any]) -> str:
    text = json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()
