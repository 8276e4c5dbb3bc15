"""Compare drafters on the same prompts: with trees of one size, and each with its own best tree at a batch size.

The others are compared with the first, request by request. Trees are chosen on one part of the requests and evaluated
on the rest, as in `search`; at a batch size each drafter's own step times decide.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from typing import Annotated, Any, Literal

from msgspec import Meta, to_builtins

from treeopt import defaults
from treeopt.comparison.mismatch_warnings import Pairing, paired_by, unlike
from treeopt.comparison.trees_of_size import Size, parse_sizes, sized_trees
from treeopt.constraints import Constraint, broken
from treeopt.cost_model import CostModel
from treeopt.defaults import HELD_OUT
from treeopt.display_methods import ValueMethods
from treeopt.errors import TraceError, UsageError
from treeopt.planning.evaluator import Judge
from treeopt.planning.held_out_split import hold_out
from treeopt.planning.search_pipeline import search
from treeopt.planning.search_settings import context, deepest_tree, largest_tree
from treeopt.planning.search_warnings import fitting_warnings, reporting_warnings
from treeopt.plans import EstimateRecord, Plan, SpeedupRecord, TauRecord, TreeRecord
from treeopt.replay.objective import THROUGHPUT
from treeopt.replay.static_tree import replay_tree
from treeopt.settings import Settings, setting, takes
from treeopt.statistics import Counts, Estimate, Groups, in_logs, paired_ratio, quantile, ratio
from treeopt.storage.provenance import assumption, look, this_run
from treeopt.storage.typed_records import Count, Index, Positive, Record
from treeopt.traces.trace import Trace
from treeopt.tree import Tree

SCHEMA = "treeopt.comparison/2"
DRIFT = 0.1  # share by which plain steps of two drafters may differ without a warning


@dataclass(frozen=True, kw_only=True)
class CompareSettings(Settings):
    """The settings of `compare`."""

    batch: tuple[int, ...] = setting(
        (), least=1, help="Also compare at these batch sizes, each drafter with its own best tree."
    )
    sizes: str | tuple[Size, ...] = setting(
        "chain:2,chain:4,best:25,best:63",
        option="--shapes",
        help="Sizes of the trees that all drafters are judged with.",
    )
    requests: int | None = setting(None, least=4, help="Use only the first N requests of each trace; default all.")
    same_prompts: bool = setting(
        False, help="Assume that request i of every trace answers one prompt, even without proof."
    )
    context: int | None = context()
    max_nodes: int | None = largest_tree()
    max_depth: int | None = deepest_tree()
    held_out: float = setting(
        HELD_OUT, above=0, below=1, option="", help="Share of requests that drafters are judged on."
    )
    seed: int = defaults.seed()

    @property
    def shapes(self) -> tuple[Size, ...]:
        """The sizes of trees.

        Raises:
            UsageError: a text that names none.
        """
        return parse_sizes(self.sizes) if isinstance(self.sizes, str) else self.sizes


class ComparedTree(TreeRecord, frozen=True):
    """A static tree with its size."""

    nodes: Index
    depth: Index


class Standing(Record, frozen=True, kw_only=True):
    """A drafter in one contest, on the requests held out; without step times and speedup where steps have no price.

    `over` is the ratio of speedups where steps have a price, else of taus; null if the first could not be evaluated.
    """

    drafter: str
    tree: ComparedTree | None
    tau: TauRecord
    over: Annotated[EstimateRecord | None, Meta(description="ratio to the first drafter; null for the first itself")]
    step_s: Annotated[Positive | None, Meta(description="seconds per step")]
    plain_s: Annotated[Positive | None, Meta(description="seconds per step of plain decoding")]
    speedup: SpeedupRecord | None


class Contest(Record, frozen=True):
    """All drafters under one condition."""

    name: str
    batch: Annotated[Count | None, Meta(description="null: trees of one size, which have no price")]
    standings: Annotated[tuple[Standing, ...], Meta(min_length=1)]
    skipped: Annotated[dict[str, str], Meta(description="by drafter: why it is not judged")]
    best: Annotated[str | None, Meta(description="best drafter of the requests that trees are chosen on")] = None
    second: Annotated[str | None, Meta(description="next best drafter of these requests")] = None
    lead: Annotated[EstimateRecord | None, Meta(description="ratio of the best to the second; held out")] = None

    def __post_init__(self) -> None:
        """Check that priced contests have speedups."""
        if self.batch is not None and any(standing.speedup is None for standing in self.standings):
            raise ValueError("`standings` of a batch size must have a `speedup`")


@dataclass(frozen=True)
class Comparison(ValueMethods):
    """The result of `compare`.

    Attributes:
        first: the drafter that the others are compared with.
        pairing: why requests are paired: the target wrote the same `texts`, they answer the same `prompts`, or the
            caller vouches for it (`caller`); None: they are not paired.
        contests: tree sizes, then batch sizes.
        plans: the plan of each drafter, where batch sizes were given.
        warnings: caveats, one sentence each.
        meta: provenance; JSON values only.
    """

    first: str
    pairing: Pairing | None
    contests: tuple[Contest, ...]
    plans: Mapping[str, Plan]
    warnings: tuple[str, ...]
    meta: Mapping[str, Any]

    def record(self) -> dict[str, Any]:
        """Return the comparison as JSON values, as `treeopt compare` writes it."""
        return {
            "schema": SCHEMA,
            "first": self.first,
            "pairing": self.pairing,
            "contests": to_builtins(self.contests, str_keys=True),
            "warnings": list(self.warnings),
            "meta": dict(self.meta),
        }


@takes(CompareSettings)
def compare(
    traces: Mapping[str, Trace],
    costs: Mapping[str, CostModel] | None = None,
    *,
    settings: CompareSettings,
    rules: Mapping[str, Sequence[Constraint]] | None = None,
) -> Comparison:
    """Compare drafters with the first of them.

    Args:
        traces: what each drafter got right, by name.
        costs: seconds of each drafter's steps, for batch sizes.
        rules: rules that each drafter's trees must keep.

    Raises:
        UsageError: fewer than two traces, batch sizes without costs, or prompts that are not the same.
        TraceError: see `hold_out`.
        CostError: see `search`.
    """
    if len(traces) < 2:
        raise UsageError(f"a comparison needs at least 2 traces, got {len(traces)}: one trace is for `treeopt search`")
    batches, sizes = settings.batch, settings.shapes
    costs, drafter_rules = costs or {}, {name: tuple((rules or {}).get(name, ())) for name in traces}
    if batches and (missing := [name for name in traces if name not in costs]):
        raise UsageError(
            f"a batch size needs the step times of every drafter, those of {missing[0]} are missing: give --profile"
        )
    pairing = paired_by(traces, same_prompts=settings.same_prompts)
    chains = [trace for trace in traces.values() if trace.width == 1]
    if len(chains) == len(traces) or any("imported" in trace.meta for trace in chains):  # trees are not known of all
        longest = min(trace.depth for trace in traces.values())
        sizes = tuple(dict.fromkeys(Size("chain", min(size.nodes, longest)) for size in sizes))
    parts = {name: hold_out(trace, held_out=settings.held_out, seed=settings.seed) for name, trace in traces.items()}
    paired = pairing is not None
    judged = _by_size(parts, sizes, drafter_rules, paired=paired)
    contests = [contest for contest in judged if contest.standings]
    left_out = [f"{one.name} is left out: {next(iter(one.skipped.values()))}" for one in judged if not one.standings]
    if left_out and not contests and not batches:
        raise UsageError(f"--shapes: {'; '.join(left_out)}")
    plans: dict[str, Plan] = {}
    limits: dict[str, Any] = {name: getattr(settings, name) for name in ("max_nodes", "max_depth", "held_out", "seed")}
    for name, trace in traces.items() if batches else ():
        plans[name] = search(
            trace, costs[name], batch=batches, rules=drafter_rules[name], compare={}, context=settings.context, **limits
        )
    contests += _by_batch(parts, plans, costs, settings.context, paired=paired)
    warnings = {name: plan.warnings for name, plan in plans.items()} or {
        name: (
            *assumption(fit.meta),
            *fitting_warnings(fit, max((size.nodes for size in sizes), default=1)),
            *reporting_warnings(held, fit),
        )
        for name, (fit, held) in parts.items()
    }
    first = next(iter(traces))
    meta = {
        "requests_judged_on": parts[first][1].requests,
        "requests_chosen_on": parts[first][0].requests,
        **limits,
        "trace": {name: dict(trace.meta) for name, trace in traces.items()},
        "cost": {
            name: {**plan.meta["cost"], "priced_at": plan.meta["search"]["context"]} for name, plan in plans.items()
        },
        "provenance": this_run(),
    }
    doubts = (*left_out, *unlike(meta["trace"], meta["cost"], pairing))
    return Comparison(
        first,
        pairing,
        tuple(contests),
        plans,
        (*doubts, *_drift(contests, meta["cost"]), *_merge_sentences(warnings)),
        meta,
    )


@dataclass(frozen=True, eq=False)
class _Result:
    """A configuration, its counts on the requests held out, arrays (R,), and the times of its steps.

    `fitted` is its tau, or its speedup where steps have a price, on the requests that trees are chosen on.
    """

    tree: Tree | None
    fitted: float
    committed: Counts
    steps: Counts
    step_s: float | None = None
    plain_s: float | None = None
    error: float = 0.0
    domain: Groups = None

    @property
    def tau(self) -> float:
        """Tokens per step and sequence."""
        return float(self.committed.sum() / self.steps.sum())

    @property
    def gain(self) -> float:
        """Seconds of a plain step over seconds of this step; 1 where steps have no price."""
        return 1.0 if self.step_s is None or self.plain_s is None else self.plain_s / self.step_s

    def standing(self, drafter: str, over: Estimate | None) -> Standing:
        """Return it as shown, with the ratio to the first drafter."""
        tree, tau = self.tree, ratio(self.committed, self.steps, self.domain)
        priced = None if self.step_s is None else astuple(tau.times(self.gain, relative_error=self.error))
        return Standing(
            drafter=drafter,
            tree=None if tree is None else ComparedTree(tree.id, tree.paths, tree.nodes, tree.depth),
            tau=TauRecord(*astuple(tau)),
            over=None if over is None else EstimateRecord(*astuple(over)),
            step_s=self.step_s,
            plain_s=self.plain_s,
            speedup=None if priced is None else SpeedupRecord(*priced),
        )

    def over(self, other: "_Result", *, paired: bool, comparisons: int) -> Estimate:
        """Return the ratio to another configuration; the intervals of all `comparisons` hold together with 95 %."""
        counts, others = (self.committed, self.steps), (other.committed, other.steps)
        if paired:
            estimate = paired_ratio(counts, others, self.domain)
            tau_error = math.log(estimate.high / estimate.value)
        else:
            tau_error = math.hypot(ratio(*counts, self.domain).relative, ratio(*others, other.domain).relative)
        clusters = max(min(len(self.steps), len(other.steps)), 2)
        tau_error *= quantile(clusters, comparisons) / quantile(clusters)
        same_step = (self.tree, self.step_s, self.plain_s) == (other.tree, other.step_s, other.plain_s)
        step_error = 0.0 if same_step else math.hypot(self.error, other.error)
        return in_logs(self.tau * self.gain / (other.tau * other.gain), math.hypot(tau_error, step_error))


def _contest(name: str, batch: int | None, results: Mapping[str, _Result | str], *, paired: bool) -> Contest:
    """Return a contest from each drafter's result, or the reason why it has none; the first is the reference."""
    skipped = {drafter: reason for drafter, reason in results.items() if isinstance(reason, str)}
    measured = {drafter: result for drafter, result in results.items() if not isinstance(result, str)}
    first, comparisons = next(iter(results)), max(len(measured) - 1, 1)
    over = partial(_Result.over, paired=paired, comparisons=comparisons)
    standings = tuple(
        result.standing(drafter, None if drafter == first or first not in measured else over(result, measured[first]))
        for drafter, result in measured.items()
    )
    ranked = sorted(measured, key=lambda drafter: -measured[drafter].fitted)
    if len(ranked) < 2:
        return Contest(name, batch, standings, skipped, next(iter(ranked), None))
    best, second, *_ = ranked
    lead = EstimateRecord(*astuple(over(measured[best], measured[second])))
    return Contest(name, batch, standings, skipped, best, second, lead)


def _by_size(
    parts: Mapping[str, tuple[Trace, Trace]],
    sizes: Sequence[Size],
    rules: Mapping[str, Sequence[Constraint]],
    *,
    paired: bool,
) -> list[Contest]:
    results: dict[str, dict[str, _Result | str]] = {size.name: {} for size in sizes}
    for name, (fit, held) in parts.items():
        trees = sized_trees(sizes, fit, covered=partial(_keeps, rules=rules[name]))
        for size in sizes:
            results[size.name][name] = _replay_parts(trees.get(size.name), fit, held, rules[name])
    return [_contest(size, None, by_drafter, paired=paired) for size, by_drafter in results.items()]


def _keeps(tree: Tree, rules: Sequence[Constraint]) -> bool:
    return not broken(tree, rules)


def _replay_parts(tree: Tree | None, fit: Trace, held: Trace, rules: Sequence[Constraint]) -> _Result | str:
    """Return the tree's counts on both parts of the requests, or the reason why it cannot be replayed."""
    if tree is None:
        return "no candidate was ever accepted"
    if reason := broken(tree, rules):
        return reason
    try:
        fitted, counts = replay_tree(tree, fit).tau, replay_tree(tree, held)
    except TraceError as error:  # deeper than was recorded
        return str(error)
    return _Result(tree, fitted, counts.committed, counts.steps, domain=held.domain)


def _by_batch(
    parts: Mapping[str, tuple[Trace, Trace]],
    plans: Mapping[str, Plan],
    costs: Mapping[str, CostModel],
    context: int | None,
    *,
    paired: bool,
) -> list[Contest]:
    results: dict[int, dict[str, _Result | str]] = {
        batch: dict.fromkeys(plans, "outside its step times")
        for batch in sorted({entry.batch for plan in plans.values() for entry in plan.entries})
    }
    for name, plan in plans.items():
        judge = Judge(*parts[name], costs[name], THROUGHPUT, context=context)
        for entry in plan.entries:
            tree, batch = entry.choice.tree, entry.batch
            committed = judge.held.lengths
            steps = committed if tree is None else judge.counts(tree).steps
            times = entry.choice.step_s, judge.plain_s(batch), judge.error(tree, batch)
            fitted = 1.0 if tree is None else judge.fitted(tree, batch).value
            results[batch][name] = _Result(tree, fitted, committed, steps, *times, judge.held.domain)
    return [
        _contest(f"batch {batch}, each with its own best tree", batch, by_drafter, paired=paired)
        for batch, by_drafter in results.items()
    ]


def _drift(contests: Sequence[Contest], costs: Mapping[str, Any]) -> list[str]:
    """Warn where plain steps, which should take the same time for all drafters, do not."""
    warnings = []
    measured = all(look(cost, "predicted") is None and look(cost, "transfer") is None for cost in costs.values())
    if measured:
        reason = "the machine's speed differed, so speedups compare badly; profile the drafters again in one go"
    else:
        reason = "they differ in target, device or context, or only some are predicted; use step times of one kind"
    for contest in contests:
        plain = [standing.plain_s for standing in contest.standings if standing.plain_s is not None]
        if plain and max(plain) > (1 + DRIFT) * min(plain):
            times = f"{min(plain) * 1e3:.2f} to {max(plain) * 1e3:.2f} ms by the drafters' step times"
            warnings.append(f"batch {contest.batch}: plain steps, which should be equal, take {times}: {reason}")
    return warnings


def _merge_sentences(warnings: Mapping[str, Sequence[str]]) -> list[str]:
    """Return each sentence once, preceded by the drafters that it applies to unless it applies to all."""
    drafters: dict[str, list[str]] = {}
    for name, sentences in warnings.items():
        for sentence in dict.fromkeys(sentences):
            drafters.setdefault(sentence, []).append(name)
    return [
        sentence if len(names) == len(warnings) else f"{', '.join(names)}: {sentence}"
        for sentence, names in drafters.items()
    ]


class ComparisonRecord(Record, frozen=True, tag_field="schema", tag=SCHEMA):
    """Drafters side by side."""

    first: Annotated[str, Meta(description="the drafter that the others are compared with")]
    pairing: Annotated[Literal["texts", "prompts", "caller"] | None, Meta(description="null: not paired")]
    contests: tuple[Contest, ...]
    warnings: tuple[str, ...]
    meta: Annotated[dict[str, Any], Meta(description="provenance of traces and step times; settings")]
