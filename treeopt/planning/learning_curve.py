"""The learning curve: tau on held-out requests by the number of requests trees are chosen on, and how many suffice."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from treeopt.errors import TraceError, UsageError, counted
from treeopt.planning.held_out_split import check_requests
from treeopt.plans import Plan
from treeopt.replay.static_tree import replay_tree
from treeopt.searchers.best_first import count_prefixes, fit_strength
from treeopt.statistics import Estimate, paired_difference, quantile, ratio
from treeopt.storage.provenance import look
from treeopt.traces.trace import Trace
from treeopt.tree import Tree

NARROWEST = 1e-6  # smallest relative half-width that some number of requests might reach
WIDE = 0.1  # share of tau: where the interval of a loss is wider, a curve cannot be called flat


@dataclass(frozen=True)
class Point:
    """The best tree that was chosen on some number of requests.

    Attributes:
        requests: number of requests that it was chosen on.
        anchors: anchors of these requests.
        tree: the tree.
        fitted: its tau on the requests that it was chosen on.
        held_out: its tau on the requests held out.
        loss: held-out tau of the last point's tree minus that of this tree; paired by request.
    """

    requests: int
    anchors: int
    tree: Tree
    fitted: float
    held_out: Estimate
    loss: Estimate


@dataclass(frozen=True)
class LearningCurve:
    """tau of trees of one size on requests held out, by the number of requests they were chosen on, rising."""

    nodes: int
    points: tuple[Point, ...]

    @property
    def flat(self) -> Point | None:
        """The first point from which on no loss against the last point is significant, and no interval of it wide.

        At a point that loses nothing, the interval contains 0 in 97.5 of 100 cases. None if only the last point
        qualifies.
        """
        *before, _ = self.points
        level = list(takewhile(lambda point: point.loss.low <= 0 and not self._wide(point), reversed(before)))
        return level[-1] if level else None

    @property
    def vague(self) -> bool:
        """True if the trace is too small to show whether the curve is flat: the last loss has a wide interval."""
        *before, _ = self.points
        return bool(before) and before[-1].loss.low <= 0 and self._wide(before[-1])

    def _wide(self, point: Point) -> bool:
        return point.loss.high - point.loss.low > WIDE * self.points[-1].held_out.value


def learning_curves(
    trace: Trace, *, nodes: Sequence[int], depth: int, seed: int, points: int = 8, shrink: bool = False
) -> tuple[LearningCurve, ...]:
    """Return a curve for each tree size: trees chosen on 1 up to half of the requests, evaluated on the other half.

    Trees are the most frequent prefixes (`count_prefixes`). Each set of requests contains the one before.

    Args:
        trace: what the drafter got right.
        nodes: tree sizes.
        depth: deepest tree.
        seed: seed of the split and of the order of requests.
        points: largest number of points, evenly spaced on a logarithmic scale.
        shrink: shrink counts, with the strength from `fit_strength`.

    Raises:
        TraceError: fewer than 4 requests, or a rule that may accept several siblings.
    """
    check_requests(trace)
    rng = np.random.default_rng(seed)
    chosen_on, held = trace.split(share=0.5, rng=rng)
    order = rng.permutation(chosen_on.requests)
    numbers = np.unique(np.geomspace(1, len(order), points).round().astype(int))
    trees: dict[int, list[tuple[Trace, Tree]]] = {size: [] for size in nodes}
    for number in numbers.tolist():
        part = chosen_on.select(np.sort(order[:number]))
        weight = fit_strength(part, nodes=max(nodes), depth=depth) if shrink else 0.0
        frontier = count_prefixes(part, nodes=max(nodes), depth=depth, shrink=weight)
        for size in trees:
            trees[size].append((part, frontier.tree(size, depth)))
    return tuple(_curve(size, chosen, held) for size, chosen in trees.items())


def _curve(nodes: int, chosen: Sequence[tuple[Trace, Tree]], held: Trace) -> LearningCurve:
    counts = {tree: replay_tree(tree, held) for _, tree in chosen}
    last = counts[chosen[-1][1]]
    return LearningCurve(
        nodes,
        tuple(
            Point(
                part.requests,
                part.anchors,
                tree,
                replay_tree(tree, part).tau,
                ratio(counts[tree].committed, counts[tree].steps, held.domain),
                paired_difference((last.committed, last.steps), (counts[tree].committed, counts[tree].steps)),
            )
            for part, tree in chosen
        ),
    )


def requests_needed(estimate: Estimate, requests: int, target: float) -> int:
    """Return how many requests to add so that an estimate's 95 % half-width is at most a share of its value.

    The half-width of a clustered ratio is t(R − 1) s / sqrt(R) (`statistics.ratio`); s is assumed to stay what
    these requests show. Where a part is held out, it is this part that must grow.

    Args:
        estimate: estimate of a ratio other than 0.
        requests: R, the requests behind the estimate.
        target: half-width wanted, relative to the value: 0.01 for 1 %.

    Raises:
        UsageError: a target below what any number of requests might reach.
        TraceError: an estimate from fewer than two requests, without an interval, or of value 0.

    >>> requests_needed(Estimate(2.0, 1.98, 2.02), requests=100, target=0.005)  # half the width: four times as many
    293
    """
    if not target >= NARROWEST:
        raise UsageError(f"a target interval must be at least {NARROWEST:g}, got {target}")
    if requests < 2 or estimate.value == 0 or not math.isfinite(estimate.relative):
        raise TraceError(
            f"an interval needs at least 2 requests and a value other than 0, found {counted(requests, 'request')}"
        )
    target *= 1 + 1e-9  # accepts an interval that is as narrow as wanted but for rounding
    spread = estimate.relative * math.sqrt(requests) / quantile(requests)
    enough = max(requests, math.ceil((spread * quantile(requests) / target) ** 2))
    numbers = range(requests, enough)
    return bisect_left(numbers, True, key=lambda number: spread * quantile(number) / math.sqrt(number) <= target)


def more_requests(plan: Plan, target: float) -> list[str]:
    """Return a sentence for each batch size that speculates: requests to add until tau is known to within `target`.

    Args:
        plan: from `search`.
        target: half-width wanted, relative to tau: 0.01 for 1 %.

    Raises:
        UsageError: a target below what any number of requests might reach.
    """
    held, share = (look(plan.meta, "search", key) for key in ("requests_judged_on", "held_out"))
    sentences = []
    for entry in plan.entries:
        if entry.choice.plain:
            continue
        needed = requests_needed(entry.choice.tau, held, target)
        sentences.append(
            f"batch {entry.batch}: tau is known to {entry.choice.tau.relative:.1%}; "
            + (f"{math.ceil(needed / share)} more requests would make it {target:.1%}" if needed else "that is enough")
        )
    return sentences
