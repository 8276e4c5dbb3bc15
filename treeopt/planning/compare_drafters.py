"""Drafters side by side on the same prompts: with trees of one size, and each with its own best tree of a batch size.

The first is what the others are compared with, request by request. Trees are chosen on one part of the requests and
judged on the rest, as `search` does; at a batch size each drafter's own step times decide.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from treeopt.constraints import Constraint, broken
from treeopt.cost_model import CostModel
from treeopt.defaults import HELD_OUT
from treeopt.errors import TraceError, UsageError
from treeopt.planning.evaluator import Judge
from treeopt.planning.learning_curve import advice, resemblance
from treeopt.planning.same_prompts import Pairing, paired_by, unlike
from treeopt.planning.search_pipeline import hold_out, search
from treeopt.planning.trees_of_size import Size, sized_trees
from treeopt.plans.plan import Plan
from treeopt.replay.objective import THROUGHPUT
from treeopt.replay.static_tree import replay_tree
from treeopt.statistics.clustered_estimate import Counts, Estimate, in_logs, paired_ratio, ratio
from treeopt.storage.provenance import look, this_run
from treeopt.traces.trace import Trace
from treeopt.tree import Tree

if TYPE_CHECKING:
    import pandas as pd

PACE = 0.1  # by which plain steps of two drafters may differ before that is remarked on
SIZES = (Size("chain", 2), Size("chain", 4), Size("best", 25), Size("best", 63))


@dataclass(frozen=True)
class Standing:
    """A drafter with one way to decode, on the requests held out.

    Attributes:
        drafter: its name.
        tree: its topology; None decodes plainly.
        tau: tokens a step and sequence, bonus counted.
        over: how many times the first drafter's it is: speedup where steps have a price, else tau; None of the first
            itself, and where the first is not judged.
        step_s: seconds of a step, where steps have a price.
        plain_s: of a plain step, by the same step times.
        speedup: plain decoding's time a token over this one's.
    """

    drafter: str
    tree: Tree | None
    tau: Estimate
    over: Estimate | None
    step_s: float | None = None
    plain_s: float | None = None
    speedup: Estimate | None = None


@dataclass(frozen=True)
class Contest:
    """All drafters under one condition.

    Attributes:
        name: the condition, such as `chain of 4`.
        batch: sequences decoded together, each drafter with its own best tree; None: trees of one size, not priced.
        standings: in the order of the drafters.
        skipped: drafter -> why it is not judged.
    """

    name: str
    batch: int | None
    standings: tuple[Standing, ...]
    skipped: Mapping[str, str]


@dataclass(frozen=True)
class Comparison:
    """What `compare` found.

    Attributes:
        first: the drafter that the others are compared with.
        pairing: why requests are paired: the target wrote the same `texts`, they answer the same `prompts`, or the
            caller has `told` so; None: they are not.
        contests: sizes, then batch sizes.
        plans: of each drafter, where batch sizes were asked for.
        warnings: what a reader must know before believing it, one sentence each.
        meta: provenance; JSON values only.
    """

    first: str
    pairing: Pairing | None
    contests: tuple[Contest, ...]
    plans: Mapping[str, Plan]
    warnings: tuple[str, ...]
    meta: Mapping[str, Any]

    def frame(self) -> "pd.DataFrame":
        """One row a contest and drafter."""
        import pandas as pd

        rows = []
        for contest in self.contests:
            for each in contest.standings:
                row: dict[str, Any] = {"contest": contest.name, "batch": contest.batch, "drafter": each.drafter}
                row |= {name: getattr(each.tree, name, 0) for name in ("nodes", "depth")}
                row |= {"step_s": each.step_s, "plain_s": each.plain_s}
                for name in ("tau", "speedup", "over"):
                    estimate = getattr(each, name)
                    row |= {name: getattr(estimate, "value", None)}
                    row |= {f"{name}_{end}": getattr(estimate, end, None) for end in ("low", "high")}
                rows.append(row)
        return pd.DataFrame(rows)


def compare(
    traces: Mapping[str, Trace],
    costs: Mapping[str, CostModel] | None = None,
    *,
    batch: int | Sequence[int] = (),
    sizes: Sequence[Size] = SIZES,
    rules: Mapping[str, Sequence[Constraint]] | None = None,
    same_prompts: bool = False,
    max_nodes: int | None = None,
    max_depth: int | None = None,
    held_out: float = HELD_OUT,
    context: int | None = None,
    seed: int = 0,
) -> Comparison:
    """Drafters against the first of them.

    Args:
        traces: what each got right, by name.
        costs: seconds of each one's steps, for batch sizes.
        batch: batch sizes at which each has its own best tree.
        sizes: of the trees that all are judged with, whatever they cost.
        rules: that each one's trees must keep.
        same_prompts: request i of every trace is of one prompt, even if the traces do not say so.
        max_nodes: see `search`.
        max_depth: see `search`.
        held_out: share of requests that drafters are judged on.
        context: tokens a sequence in the cache; see `search`.
        seed: of the split.

    Raises:
        UsageError: fewer than two traces, batch sizes without costs, or prompts that are not the same.
        TraceError: see `hold_out`.
        CostError: see `search`.
    """
    if len(traces) < 2:
        raise UsageError(f"a comparison needs at least 2 traces, got {len(traces)}")
    batches: list[int] = np.atleast_1d(np.asarray(batch, dtype=np.int64)).tolist()
    costs, kept = costs or {}, {name: tuple((rules or {}).get(name, ())) for name in traces}
    if batches and (missing := [name for name in traces if name not in costs]):
        raise UsageError(f"a batch size needs the step times of every drafter, those of {missing[0]} are missing")
    pairing = paired_by(traces, same_prompts=same_prompts)
    parts = {name: hold_out(trace, held_out=held_out, seed=seed) for name, trace in traces.items()}
    paired = pairing is not None
    contests = _by_size(parts, sizes, kept, paired=paired)
    plans: dict[str, Plan] = {}
    limits: dict[str, Any] = {"max_nodes": max_nodes, "max_depth": max_depth, "held_out": held_out, "seed": seed}
    for name, trace in traces.items() if batches else ():
        how = limits | {"context": context}
        plans[name] = search(trace, costs[name], batch=batches, rules=kept[name], compare={}, **how)
    contests += _by_batch(parts, plans, costs, context, paired=paired)
    own = {name: plan.warnings for name, plan in plans.items()} or {
        name: (*advice(fit, max((size.nodes for size in sizes), default=1)), *resemblance(held))
        for name, (fit, held) in parts.items()
    }
    first = next(iter(traces))
    meta = {
        "requests_judged_on": parts[first][1].requests,
        "requests_chosen_on": parts[first][0].requests,
        **limits,
        "trace": {name: dict(trace.meta) for name, trace in traces.items()},
        "cost": {name: _priced_as(plan) for name, plan in plans.items()},
        "provenance": this_run(),
    }
    return Comparison(
        first,
        pairing,
        tuple(contests),
        plans,
        (*unlike(meta["trace"], meta["cost"], pairing), *_paces(contests, meta["cost"]), *_of_some(own)),
        meta,
    )


@dataclass(frozen=True, eq=False)
class _Judged:
    """A way to decode and what it counted on the requests held out, arrays (R,); with the times of its steps."""

    tree: Tree | None
    committed: Counts
    steps: Counts
    step_s: float | None = None
    plain_s: float | None = None
    error: float = 0.0

    @property
    def tau(self) -> float:
        """Tokens a step and sequence."""
        return float(self.committed.sum() / self.steps.sum())

    @property
    def gain(self) -> float:
        """Seconds of a plain step over those of this one; 1 where steps have no price."""
        return 1.0 if self.step_s is None or self.plain_s is None else self.plain_s / self.step_s

    def standing(self, drafter: str, first: "_Judged | None", *, paired: bool) -> Standing:
        """As it is shown."""
        tau, over = ratio(self.committed, self.steps), None
        speedup = None if self.step_s is None else tau.times(self.gain, relative_error=self.error)
        if first is not None:
            own, other = (self.committed, self.steps), (first.committed, first.steps)
            if paired:
                found = paired_ratio(own, other)
                apart = math.log(found.high / found.value)
            else:
                apart = math.hypot(tau.relative, ratio(*other).relative)
            alike = (self.tree, self.step_s, self.plain_s) == (first.tree, first.step_s, first.plain_s)
            unsure = 0.0 if alike else math.hypot(self.error, first.error)  # of one step over the other
            over = in_logs(self.tau * self.gain / (first.tau * first.gain), math.hypot(apart, unsure))
        return Standing(drafter, self.tree, tau, over, self.step_s, self.plain_s, speedup)


def _contest(name: str, batch: int | None, found: Mapping[str, _Judged | str], *, paired: bool) -> Contest:
    """Of what was judged, and of reasons why it was not; the first is what others are compared with."""
    skipped = {drafter: why for drafter, why in found.items() if isinstance(why, str)}
    judged = {drafter: each for drafter, each in found.items() if not isinstance(each, str)}
    leader = next(iter(found))
    standings = tuple(
        each.standing(drafter, None if drafter == leader else judged.get(leader), paired=paired)
        for drafter, each in judged.items()
    )
    return Contest(name, batch, standings, skipped)


def _by_size(
    parts: Mapping[str, tuple[Trace, Trace]],
    sizes: Sequence[Size],
    rules: Mapping[str, Sequence[Constraint]],
    *,
    paired: bool,
) -> list[Contest]:
    found: dict[str, dict[str, _Judged | str]] = {size.name: {} for size in sizes}
    for name, (fit, held) in parts.items():
        trees = sized_trees(sizes, fit, covered=partial(_keeps, rules=rules[name]))
        for size in sizes:
            found[size.name][name] = _replayed(trees.get(size.name), held, rules[name])
    return [_contest(name, None, judged, paired=paired) for name, judged in found.items()]


def _keeps(tree: Tree, rules: Sequence[Constraint]) -> bool:
    return not broken(tree, rules)


def _replayed(tree: Tree | None, held: Trace, rules: Sequence[Constraint]) -> _Judged | str:
    """The tree on the requests held out, or why it cannot be judged."""
    if tree is None:
        return "no candidate was ever kept"
    if reason := broken(tree, rules):
        return reason
    try:
        counts = replay_tree(tree, held)
    except TraceError as error:  # deeper than was recorded
        return str(error)
    return _Judged(tree, counts.committed, counts.steps)


def _by_batch(
    parts: Mapping[str, tuple[Trace, Trace]],
    plans: Mapping[str, Plan],
    costs: Mapping[str, CostModel],
    context: int | None,
    *,
    paired: bool,
) -> list[Contest]:
    found: dict[int, dict[str, _Judged | str]] = {}
    for name, plan in plans.items():
        judge = Judge(*parts[name], costs[name], THROUGHPUT, context=context)
        for entry in plan.entries:
            tree, batch = entry.choice.tree, entry.batch
            committed = judge.held.lengths
            steps = committed if tree is None else judge.counts(tree).steps
            times = entry.choice.step_s, judge.plain_s(batch), judge.error(tree, batch)
            found.setdefault(batch, {})[name] = _Judged(tree, committed, steps, *times)
    return [
        _contest(f"batch {batch}, each with its own best tree", batch, judged, paired=paired)
        for batch, judged in found.items()
    ]


def _priced_as(plan: Plan) -> dict[str, Any]:
    """Provenance of a plan's step times, with the context that they are priced at."""
    return {**plan.meta["cost"], "priced_at": plan.meta["search"]["context"]}


def _paces(contests: Sequence[Contest], costs: Mapping[str, Any]) -> list[str]:
    """Where plain steps, which should take the same, do not."""
    said = []
    measured = all(look(cost, "predicted") is None and look(cost, "transfer") is None for cost in costs.values())
    why = "the machine was not alike when they were measured, and drafters need not slow down as plain steps do"
    for contest in contests:
        plain = [each.plain_s for each in contest.standings if each.plain_s is not None]
        if plain and max(plain) > (1 + PACE) * min(plain):
            told = f"{min(plain) * 1e3:.2f} to {max(plain) * 1e3:.2f} ms by the drafters' step times"
            reason = why if measured else "these are not of one target, device and context, or not all predicted alike"
            said.append(f"batch {contest.batch}: plain steps, which should take the same, take {told}: {reason}")
    return said


def _of_some(warnings: Mapping[str, Sequence[str]]) -> list[str]:
    """Each sentence once, with the drafters that it is of unless it is of all."""
    of: dict[str, list[str]] = {}
    for name, sentences in warnings.items():
        for sentence in dict.fromkeys(sentences):
            of.setdefault(sentence, []).append(name)
    return [each if len(names) == len(warnings) else f"{', '.join(names)}: {each}" for each, names in of.items()]
