"""Compare a plan's predictions with the real loop, live on fresh prompts or with the acceptance of a trace imposed."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from executor.decoding.decoder import Decoder, NewTokens
from executor.decoding.step_results import Step
from executor.drafters.base.drafter import Drafter
from executor.target.target_model import Target
from executor.verification.acceptance_rules import Rule
from executor.verification.replayed_acceptance import Imposed
from simulate.validation.end_to_end import Runs
from simulate.validation.predicted_vs_measured import Comparison, Figures
from simulate.validation.predictions import ClosedForms, judged_on, ways_of
from treeopt.defaults import BLOCKS, NEW_TOKENS
from treeopt.errors import ExecutorError, UsageError, counted
from treeopt.plans.plan import Choice, Plan, PlanEntry
from treeopt.policies import Policy
from treeopt.statistics.clustered_estimate import Estimate, ratio
from treeopt.statistics.robust_mean import TRIMMED_ERROR, trimmed_mean
from treeopt.traces.trace import Trace
from treeopt.tree import EMPTY, Tree

MAX_PIECES = 8  # of a block: each begins with a prefill
MAX_PASSES = 4  # over a block, at batch sizes that finish it sooner than others
WARM_UP = 3  # steps of each configuration before any is measured: libraries allocate, processors wake


@dataclass(frozen=True)
class Requests:
    """The requests of a comparison, and how they are decoded.

    Attributes:
        prompts: token ids; every configuration decodes every request.
        new_tokens: limit for every prompt, or one limit for each.
        stop: tokens that end a request.
        replayed: a trace of the same number of requests, whose acceptance is imposed; None: the rule decides.
        graphs: replay steps from CUDA graphs.
        rule: of verification, for plain decoding too; None: greedy.
    """

    prompts: Sequence[Sequence[int]]
    new_tokens: NewTokens = NEW_TOKENS
    stop: Sequence[int] = ()
    replayed: Trace | None = None
    graphs: bool = False
    rule: Rule | None = None

    def __post_init__(self) -> None:
        """Check that trace and prompts have the same number of requests.

        Raises:
            UsageError: their numbers differ.
        """
        if self.replayed is not None and self.replayed.requests != len(self.prompts):
            raise UsageError(
                f"{len(self.prompts)} prompts cannot replay a trace of {counted(self.replayed.requests, 'request')}"
            )

    @property
    def limits(self) -> list[int]:
        """The limit of each request; if a trace is replayed, no more tokens than it has."""
        given = self.new_tokens
        limits = [given] * len(self.prompts) if isinstance(given, int) else list(given)
        if self.replayed is None:
            return limits
        lengths = self.replayed.lengths.tolist()
        return [min(pair) for pair in zip(limits, lengths, strict=True)]

    @property
    def context(self) -> int:
        """Approximate tokens per sequence in the cache, the mean over a run in which no text ends early."""
        return round(float(np.mean([len(prompt) for prompt in self.prompts]) + np.mean(self.limits) / 2))

    def part(self, which: NDArray[np.int64]) -> "Requests":
        """Return some of the requests, given by ascending numbers."""
        numbers, limits = which.tolist(), self.limits
        trace = None if self.replayed is None else self.replayed.select(which)
        prompts, limits = [self.prompts[i] for i in numbers], [limits[i] for i in numbers]
        return replace(self, prompts=prompts, new_tokens=limits, replayed=trace)


@dataclass
class _Run:
    """Sums over the blocks of one configuration; step times piece by piece."""

    steps_of: dict[int, int] = field(default_factory=dict)
    committed_of: dict[int, int] = field(default_factory=dict)
    step_s: list[list[float]] = field(default_factory=list)
    wall_s: float = 0.0

    def add(self, steps: Sequence[Step], first: int) -> None:
        for step in steps:
            self.wall_s += step.draft_s + step.rest_s + step.admit_s
            for request, committed in zip(step.requests, step.committed, strict=True):
                if request >= 0:
                    number = first + request
                    self.steps_of[number] = self.steps_of.get(number, 0) + 1
                    self.committed_of[number] = self.committed_of.get(number, 0) + len(committed)
        self.step_s.append([step.draft_s + step.rest_s for step in steps if step.full])

    @property
    def tau(self) -> Estimate:
        return ratio(np.array(list(self.committed_of.values())), np.array(list(self.steps_of.values())))

    @property
    def tokens(self) -> int:
        return sum(self.committed_of.values())


def check_run(target: Target, drafter: Drafter, plan: Plan, requests: Requests, *, blocks: int) -> None:
    """Check that `compare` can run to its end.

    Raises:
        UsageError: a plan without trees, or too few prompts to fill the largest batch in every block.
        ExecutorError: a tree that the drafter cannot draft, or requests beyond the target's context.
        TraceError: a tree that the replayed trace does not cover.
    """
    if not any(_configurations(entry, requests) for entry in plan.entries):
        raise UsageError("the plan holds no tree: there is nothing to validate")
    for entry in plan.entries:
        for tree, choice in _configurations(entry, requests).items():
            try:
                _decoder(target, drafter, tree, entry.batch, requests)
            except ExecutorError as error:
                raise ExecutorError(f"{choice.name} at batch {entry.batch}: {error}") from error
    largest, count = max(entry.batch for entry in plan.entries), len(requests.prompts)
    if count < 2 * blocks * largest:
        raise UsageError(
            f"{blocks} blocks at batch {largest} need at least {2 * blocks * largest} prompts, got {count}"
        )
    trees = (tree for entry in plan.entries for tree in _configurations(entry, requests))
    largest_tree = max(trees, key=lambda tree: tree.nodes)
    _decoder(target, drafter, largest_tree, 1, requests).memory(requests.prompts, new_tokens=requests.limits)


def compare(
    target: Target,
    drafter: Drafter,
    plan: Plan,
    requests: Requests,
    *,
    blocks: int = BLOCKS,
    seed: int = 0,
    forms: Mapping[tuple[int, str], ClosedForms] | None = None,
    whole: Mapping[tuple[int, str], Estimate] | None = None,
    progress: Callable[[int], None] = lambda blocks: None,
) -> list[Comparison]:
    """Decode the requests plainly and with every tree and policy of each entry of the plan, in shuffled blocks.

    If a trace is replayed, policies are left out.

    In each block the batch sizes come in random order, and within each so do plain decoding and the trees, so that the
    machine's drift falls on all of them. Small batch sizes decode a block in several pieces, one piece with all
    configurations before the next. Batch sizes that the plan expects to finish in two thirds of the longest time or
    less decode it several times.

    Args:
        target: the model that the plan's trace was recorded with; any model if a trace is replayed.
        drafter: its drafter.
        plan: the plan to be checked.
        requests: what is decoded; none of them in the trace that the plan was made from.
        blocks: parts that the prompts are cut into; every part is decoded at all batch sizes before the next.
        seed: of the order.
        forms: closed forms to report with each tree, by batch size and tree id.
        whole: predictions of whole runs, by batch size and tree id.
        progress: called with 1 after every piece of one configuration.

    Raises:
        UsageError, ExecutorError, TraceError: see `check_run`.
    """
    check_run(target, drafter, plan, requests, blocks=blocks)
    rng = np.random.default_rng(seed)
    trees: dict[int, list[Tree | Policy]] = {
        entry.batch: [EMPTY, *_configurations(entry, requests)] for entry in plan.entries
    }
    runs = {(batch, tree): _Run() for batch, at_batch in trees.items() for tree in at_batch}
    parts = _parts(requests, blocks)
    for batch, tree in runs:
        _warm(target, drafter, tree, batch, requests.part(parts[0]))
    cuts = pieces(plan, replayed=requests.replayed is not None)
    for part in parts:
        for batch in rng.permutation(list(trees)).tolist():
            number, passes = cuts[batch]
            for piece in np.array_split(part, number) * passes:
                some = requests.part(piece)
                for index in rng.permutation(len(trees[batch])).tolist():
                    tree = trees[batch][index]
                    decoder = _decoder(target, drafter, tree, batch, some)
                    steps = list(decoder.steps(some.prompts, new_tokens=some.limits, stop=some.stop))
                    runs[batch, tree].add(steps, int(piece[0]))
                    progress(1)
    predicted = partial(Figures.of_run, judged=judged_on(plan), requests=len(requests.prompts))
    return [
        comparison
        for entry in plan.entries
        for comparison in _compared(
            entry, {tree: runs[entry.batch, tree] for tree in trees[entry.batch]}, predicted, forms or {}, whole or {}
        )
    ]


def pieces(plan: Plan, *, replayed: bool = False) -> dict[int, tuple[int, int]]:
    """Return, by batch size, the number of pieces that `compare` cuts a block into, and of passes over the block."""
    largest = max(entry.batch for entry in plan.entries)
    token_s = {entry.batch: _token_s(entry, replayed=replayed) for entry in plan.entries}
    longest = max(token_s.values())
    return {
        batch: (min(largest // batch, MAX_PIECES), min(round(longest / seconds), MAX_PASSES) if seconds else 1)
        for batch, seconds in token_s.items()
    }


def _token_s(entry: PlanEntry, *, replayed: bool) -> float:
    """Return the expected seconds per token, summed over all configurations; 0 if the plan has none of them."""
    plain = [choice for choice in (entry.choice, *entry.compared) if choice.plain][:1]
    return sum(1 / choice.tokens_s(entry.batch) for choice in (*plain, *ways_of(entry, static=replayed).values()))


def runs_of(target: Target, plan: Plan, requests: Requests, *, blocks: int) -> Runs:
    """Return the sizes of the runs that `compare` makes."""
    cuts = pieces(plan, replayed=requests.replayed is not None)
    sizes = {
        batch: tuple(len(piece) for part in _parts(requests, blocks) for piece in np.array_split(part, number))
        for batch, (number, _) in cuts.items()
    }
    given = requests.new_tokens
    late = Decoder(target).late
    return Runs(sizes, tuple(map(len, requests.prompts)), given if isinstance(given, int) else max(given), late)


def _parts(requests: Requests, blocks: int) -> list[NDArray[np.int64]]:
    """Return the numbers of the requests of each block."""
    return np.array_split(np.arange(len(requests.prompts)), blocks)


def blocks_of(plan: Plan, blocks: int, *, replayed: bool = False) -> int:
    """Return the number of pieces that `compare` decodes, over all configurations and passes."""
    cuts = pieces(plan, replayed=replayed)
    configurations = {entry.batch: 1 + len(ways_of(entry, static=replayed)) for entry in plan.entries}
    return blocks * sum(math.prod(cuts[batch]) * count for batch, count in configurations.items())


def _configurations(entry: PlanEntry, requests: Requests) -> dict[Tree | Policy, Choice]:
    """Return what is measured for an entry; if a trace is replayed, only static trees."""
    return ways_of(entry, static=requests.replayed is not None)


def _decoder(target: Target, drafter: Drafter, tree: Tree | Policy, batch: int, requests: Requests) -> Decoder:
    rule = requests.rule
    if requests.replayed is not None and isinstance(tree, Tree):
        rule = Imposed(requests.replayed, tree, rule=rule)
    return Decoder(target, drafter if tree.nodes else None, tree=tree, batch=batch, rule=rule, graphs=requests.graphs)


def _warm(target: Target, drafter: Drafter, tree: Tree | Policy, batch: int, requests: Requests) -> None:
    decoder = _decoder(target, drafter, tree, batch, requests)
    steps = decoder.steps(requests.prompts, new_tokens=requests.limits, stop=requests.stop)
    for _ in zip(range(WARM_UP), steps, strict=False):
        pass


def _compared(
    entry: PlanEntry,
    runs: Mapping[Tree | Policy, _Run],
    predicted: Callable[[Choice], Figures],
    forms: Mapping[tuple[int, str], ClosedForms],
    whole: Mapping[tuple[int, str], Estimate],
) -> list[Comparison]:
    """Return the comparisons of one entry, with plain decoding as the baseline."""
    plain, comparisons = runs[EMPTY], []
    predicted_s = next((choice.step_s for choice in (entry.choice, *entry.compared) if choice.plain), None)
    plain_s = None if predicted_s is None else (predicted_s, float(np.median(np.concatenate(plain.step_s))))
    for tree, choice in ways_of(entry).items():
        if tree not in runs:
            continue
        run, static = runs[tree], tree if isinstance(tree, Tree) else None
        key = None if static is None else (entry.batch, static.id)
        comparison = Comparison(
            entry.batch,
            choice.name,
            static,
            predicted(choice),
            _measured(run, plain, np.median if static else np.mean),
            end_to_end=run.tokens / run.wall_s * plain.wall_s / plain.tokens,
            forms=ClosedForms() if key is None else forms.get(key, ClosedForms()),
            plain_s=plain_s,
            grown=choice.grown,
            whole=None if key is None else whole.get(key),
        )
        comparisons.append(comparison)
    return comparisons


def _measured(run: _Run, plain: _Run, middle: Callable[[Sequence[float]], Any]) -> Figures:
    """Return tau, step time and speedup.

    Step times are compared piece by piece, since the runs of a piece follow one another on a machine that drifts.
    """
    step_s = float(middle([seconds for piece in run.step_s for seconds in piece]))
    quotients = np.array([middle(p) / middle(s) for p, s in zip(plain.step_s, run.step_s, strict=True)])
    spread = ratio(quotients, np.ones(len(quotients)))
    quotient = float(np.exp(trimmed_mean(np.log(quotients).tolist())))
    return Figures(run.tau, step_s, run.tau.times(quotient, relative_error=TRIMMED_ERROR * spread.relative))
