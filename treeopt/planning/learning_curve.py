"""How much data a tree needs: what trees chosen on few requests keep on others, and how many more requests would do."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from treeopt.errors import TraceError, UsageError
from treeopt.plans.plan import Plan
from treeopt.replay.static_tree import covers, replay_tree
from treeopt.searchers.static_trees.best_first import count_prefixes
from treeopt.searchers.static_trees.shrinkage import fitted
from treeopt.statistics.clustered_estimate import Estimate, paired_difference, quantile, ratio
from treeopt.storage.provenance import look
from treeopt.traces.trace import Trace
from treeopt.tree import Tree

MIN_REQUESTS = 4  # two to choose on, two to judge on: one cluster has no interval
FEW_REQUESTS = 30
ANCHORS_A_NODE = 50  # below, raw counts choose badly and promise too much: reference tree_search.md §3.5
LARGE_REQUEST = 0.1
REPEATED = 0.1  # more of the written text than of the prompts
NARROWEST = 1e-6  # of a value: intervals that some number of requests might have
MANY_DOMAINS = 25  # more are sources of text; fewer are kinds that somebody chose, and tell little of a spread
WIDER = 1.3  # what 25 domains come to by chance 1 time in 25: 400 draws of labels for each of two shipped traces
CHAIN = 5  # whose tau tells whether requests resemble each other
WIDE = 0.1  # of tau: an interval of a loss that is wider tells of no curve that it is flat


@dataclass(frozen=True)
class Point:
    """The best tree, chosen on some requests.

    Attributes:
        requests: chosen on.
        anchors: of these requests.
        tree: chosen.
        fitted: its tau on the requests that it was chosen on.
        held_out: its tau on the requests held out.
        loss: tau held out of the tree chosen on all of the other requests, less its own; paired by request.
    """

    requests: int
    anchors: int
    tree: Tree
    fitted: float
    held_out: Estimate
    loss: Estimate


@dataclass(frozen=True)
class LearningCurve:
    """What trees of one size keep on requests held out, by the number of requests they were chosen on, growing."""

    nodes: int
    points: tuple[Point, ...]

    @property
    def flat(self) -> Point | None:
        """The first point from which on no loss against the last is beyond its interval, nor that interval wide.

        At a point that loses nothing, the interval says so in 97.5 of 100 cases. None where only the last is so.
        """
        *before, _ = self.points
        level = list(takewhile(lambda point: point.loss.low <= 0 and not self._wide(point), reversed(before)))
        return level[-1] if level else None

    @property
    def vague(self) -> bool:
        """Whether nobody can tell if the curve is flat: its end loses nothing that is seen, within a wide interval."""
        *before, _ = self.points
        return bool(before) and before[-1].loss.low <= 0 and self._wide(before[-1])

    def _wide(self, point: Point) -> bool:
        return point.loss.high - point.loss.low > WIDE * self.points[-1].held_out.value


def learning_curves(
    trace: Trace, *, nodes: Sequence[int], depth: int, seed: int, points: int = 8, shrink: bool = False
) -> tuple[LearningCurve, ...]:
    """A curve for each size: trees chosen on 1, ... up to half of the requests, judged on the other half.

    Trees are the most frequent prefixes (`count_prefixes`), on requests that each hold the last ones and more.

    Args:
        trace: what the drafter got right.
        nodes: sizes of trees.
        depth: deepest tree.
        seed: of the split and of the order of requests.
        points: most numbers of requests, evenly spaced on a logarithmic scale.
        shrink: shrink counts, as far as `shrinkage.fitted` says.

    Raises:
        UsageError: no size, or one below 1.
        TraceError: fewer than 4 requests, or a rule that may keep several siblings.
    """
    if not nodes or min(nodes) < 1 or depth < 1 or points < 2:
        raise UsageError(
            f"a learning curve needs nodes and depth of 1 or more and 2 points, got {nodes}, {depth}, {points}"
        )
    _check_requests(trace)
    rng = np.random.default_rng(seed)
    chosen_on, held = trace.split(share=0.5, rng=rng)
    order = rng.permutation(chosen_on.requests)
    numbers = np.unique(np.geomspace(1, len(order), points).round().astype(int))
    found: dict[int, list[tuple[Trace, Tree]]] = {size: [] for size in nodes}
    for number in numbers.tolist():
        part = chosen_on.select(np.sort(order[:number]))
        weight = fitted(part, nodes=max(nodes), depth=depth) if shrink else 0.0
        frontier = count_prefixes(part, nodes=max(nodes), depth=depth, shrink=weight)
        for size in found:
            found[size].append((part, frontier.tree(size, depth)))
    return tuple(_curve(size, chosen, held) for size, chosen in found.items())


def _curve(nodes: int, chosen: Sequence[tuple[Trace, Tree]], held: Trace) -> LearningCurve:
    judged = {tree: replay_tree(tree, held) for _, tree in chosen}
    last = judged[chosen[-1][1]]
    return LearningCurve(
        nodes,
        tuple(
            Point(
                part.requests,
                part.anchors,
                tree,
                replay_tree(tree, part).tau,
                ratio(judged[tree].committed, judged[tree].steps),
                paired_difference((last.committed, last.steps), (judged[tree].committed, judged[tree].steps)),
            )
            for part, tree in chosen
        ),
    )


def advice(trace: Trace, nodes: int) -> tuple[str, ...]:
    """What to beware of when a tree of so many nodes is chosen on this trace; empty where nothing is.

    Raises:
        TraceError: too little data for any answer, naming the rule: fewer than 4 requests (two to choose on and two
            to judge on; one has no interval), or fewer anchors than nodes (each node would be held by one anchor or
            by none: chosen by chance).
    """
    _check_requests(trace)
    if trace.anchors < nodes:
        raise TraceError(
            f"a tree of {nodes} nodes needs at least {nodes} anchors, one a node; the trace has {trace.anchors}"
        )
    found = []
    if trace.anchors < ANCHORS_A_NODE * nodes:
        found.append(
            f"{trace.anchors} anchors are few for {nodes} nodes: below {ANCHORS_A_NODE} a node "
            f"({ANCHORS_A_NODE * nodes}), trees fit chance; "
            f"{'shrink counts, or ' if trace.tree_kept is None else ''}record more"
        )
    if trace.requests < FEW_REQUESTS:
        found.append(
            f"{trace.requests} requests are few: below {FEW_REQUESTS}, intervals rest on little and are wide "
            "(Student's t); record more requests rather than longer ones"
        )
    longest = int(trace.lengths.argmax())
    if trace.lengths[longest] > LARGE_REQUEST * trace.anchors:
        found.append(
            f"request {trace.request[trace.starts[longest]]} holds {trace.lengths[longest] / trace.anchors:.0%} of the "
            f"anchors, more than {LARGE_REQUEST:.0%}: results say much of it and little of others"
        )
    written, prompts = (look(trace.meta, "repeated_4grams", part) for part in ("written", "prompts"))
    if isinstance(written, float) and isinstance(prompts, float) and written > prompts + REPEATED:
        found.append(
            f"{written:.1%} of the written 4-grams are repeated, {prompts:.1%} of the prompts': the target loops, "
            "which flatters every drafter"
        )
    again = look(trace.meta, "repeated_prompts")
    if type(again) is int and again > 0:
        found.append(
            f"{again} prompts of the recording are repetitions of others: requests that count as independent are not, "
            "and intervals are too narrow"
        )
    return tuple(found)


def resemblance(trace: Trace) -> tuple[str, ...]:
    """Whether intervals that are clustered by request are too narrow, since requests of one domain resemble each other.

    Looked at is the tau of a chain. Empty if nothing tells: fewer than `MANY_DOMAINS` domains, or tau without spread.
    """
    if trace.domain is None or len(labels := np.unique(trace.domain)) < MANY_DOMAINS:
        return ()
    chain = next((each for k in range(CHAIN, 0, -1) if covers(trace, each := Tree.chain(k))), None)
    if chain is None:
        return ()
    counts = replay_tree(chain, trace)
    committed, steps = (np.bincount(trace.domain, each)[labels] for each in (counts.committed, counts.steps))
    by_request, by_domain = ratio(counts.committed, counts.steps).relative, ratio(committed, steps).relative
    if by_request == 0 or by_domain <= WIDER * by_request:
        return ()
    return (
        "those of one domain resemble each other: clustered by domain, intervals of tau would be "
        f"{by_domain / by_request:.1f} times as wide",
    )


def _check_requests(trace: Trace) -> None:
    if trace.requests < MIN_REQUESTS:
        raise TraceError(
            f"trees need at least {MIN_REQUESTS} requests, two to choose on and two to judge on; the trace has "
            f"{trace.requests}"
        )


def requests_needed(estimate: Estimate, requests: int, target: float) -> int:
    """Requests to add so that an estimate's 95 % half-width is at most a share of its value.

    The half-width of a clustered ratio is t(R − 1) s / sqrt(R) (`estimate.ratio`); s is taken to stay what these
    requests show. Where a part is held out, it is this part that must grow.

    Args:
        estimate: of a ratio, not 0.
        requests: R, that the estimate rests on.
        target: half-width wanted, relative to the value: 0.01 for 1 %.

    Raises:
        UsageError: a target below what any number of requests might reach.
        TraceError: an estimate of fewer than two requests, without an interval or of value 0.

    >>> requests_needed(Estimate(2.0, 1.98, 2.02), requests=100, target=0.005)  # half the width: four times as many
    293
    """
    if not target >= NARROWEST:
        raise UsageError(f"a target interval must be at least {NARROWEST:g}, got {target}")
    if requests < 2 or estimate.value == 0 or not math.isfinite(estimate.relative):
        raise TraceError(
            f"an interval rests on at least 2 requests and a value other than 0, found {requests} requests"
        )
    target *= 1 + 1e-9  # of an interval that is as wide as wanted but for rounding
    spread = estimate.relative * math.sqrt(requests) / quantile(requests)
    low, high = requests, requests
    while spread * quantile(high) / math.sqrt(high) > target:
        low, high = high, 2 * high
    while low < high:
        middle = (low + high) // 2
        if spread * quantile(middle) / math.sqrt(middle) > target:
            low = middle + 1
        else:
            high = middle
    return high - requests


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
