"""The data of the page's sliders; `sliders.js` computes with them in the browser.

With replayed tau, conditional acceptance rates a_1, a_2, ... of the walk (a_d: share of the steps that accepted d - 1
drafted tokens that accept one more), a scale s of acceptance, a scale v of the cost of speculating, and a price per
hour:

* F(s) = 1 + sum over depths d of min(1, s a_1) ... min(1, s a_d): tokens per step of a chain with these rates;
* tau(s) = tau F(s) / F(1), exact at s = 1, an approximation elsewhere: the walk would change with acceptance;
* step(v) = plain + v (step - plain), where step and plain are the library's predictions for the batch size;
* speedup = tau(s) plain / step(v), with tau's interval and the error of step times (`Estimate.times`);
* tokens/s = batch tau(s) / step(v); time per token = step(v) / tau(s); price of a million tokens = price per hour over
  tokens per hour, in millions.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from treeopt.cost_model import StepShape
from treeopt.errors import CostError, TraceError, counted
from treeopt.replay.static_tree import replay_tree, step_seconds
from treeopt.results.words import describe_models, device_words
from treeopt.searchers.best_first import count_prefixes
from treeopt.statistics import Estimate, ratio
from treeopt.traces.trace import Trace
from treeopt.tree import Tree

SIZES = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 63)  # nodes of best trees


@dataclass(frozen=True)
class Drafted:
    """A static tree that a slider can choose, with what was replayed of it.

    Attributes:
        name: in words.
        shape: `chain` or `tree`.
        nodes: drafted nodes.
        depth: drafted levels.
        tau: replayed tokens per step.
        rates: a_1, a_2, ...: conditional acceptance by depth along the walk.
        step_s: batch size -> seconds per step; batch sizes at which it has no price are missing.
        error: batch size -> relative error of step / plain step, half of a 95 % interval.
    """

    name: str
    shape: str
    nodes: int
    depth: int
    tau: Estimate
    rates: tuple[float, ...]
    step_s: Mapping[int, float]
    error: Mapping[int, float]


def conditional_rates(accepted_counts: Sequence[int]) -> tuple[float, ...]:
    """Return a_1, a_2, ... from the numbers of steps that accepted 0, 1, ... drafted tokens.

    >>> conditional_rates([2, 1, 1])
    (0.5, 0.5)
    """
    left = [sum(accepted_counts[depth:]) for depth in range(len(accepted_counts))]
    return tuple(after / before if before else 0.0 for before, after in pairwise(left))


def finite(estimate: Estimate) -> Estimate:
    """Return the estimate with ends that JSON can hold: an infinite interval ends at 0 and twice the value."""
    if math.isfinite(estimate.low) and math.isfinite(estimate.high):
        return estimate
    return Estimate(estimate.value, 0.0, 2 * estimate.value)


def slider_data(trace: Trace, profile: Any, *, name: str) -> dict[str, Any] | None:
    """Return the data of the sliders, JSON values; None if the trace determines no acceptance or no tree has a price.

    Args:
        trace: ranks that determine acceptance.
        profile: measured step times.
        name: of the trace's file.
    """
    batches = sorted({times.batch for times in profile.batches})
    try:
        priced = [_drafted(shape, tree, trace, profile, batches) for shape, tree in _trees(trace)]
    except TraceError:
        return None
    drafted = [tree for tree in priced if tree is not None]
    if not any(tree.shape == "chain" for tree in drafted):
        return None
    plain = {batch: profile.plain_s(batch=batch) for batch in batches}
    models = describe_models(trace.meta)
    device = device_words(profile.meta) if "device" in profile.meta else "a device that is not recorded"
    about = (
        f"Acceptance: replayed over all {counted(trace.requests, 'request')} of {name} ({models}); the trees of each "
        f"size are chosen on the same requests, a little too favourably. Step times: {device}."
    )
    return {
        "plain_s": {str(batch): seconds for batch, seconds in plain.items()},
        "trees": [asdict(tree) for tree in drafted],
        "about": about,
    }


def _trees(trace: Trace) -> Iterator[tuple[str, Tree]]:
    """Yield chains of every length, then the best trees by size, that are no chains."""
    for length in range(1, trace.depth + 1):
        yield "chain", Tree.chain(length)
    frontier = count_prefixes(trace, nodes=max(SIZES), depth=trace.depth)
    seen = set()
    for nodes in SIZES:
        tree = frontier.tree(nodes, trace.depth)
        if not tree.is_chain and tree not in seen:
            seen.add(tree)
            yield "tree", tree


def _drafted(shape: str, tree: Tree, trace: Trace, profile: Any, batches: Sequence[int]) -> Drafted | None:
    """Return a tree with its replay and prices; None if it has no price at any batch size."""
    counts = replay_tree(tree, trace)
    tau = finite(ratio(counts.committed, counts.steps, trace.domain))
    step_s, error = {}, {}
    for batch in batches:
        try:
            step_s[batch] = step_seconds(
                tree, profile, batch=batch, committed=counts.tau, drafted=counts.drafted_counts
            )
        except CostError:
            continue
        error[batch] = profile.error(StepShape.of(tree, batch=batch))
    if not step_s:
        return None
    name = f"a chain of {tree.nodes}" if shape == "chain" else f"the best tree of {tree.nodes} nodes"
    rates = conditional_rates(counts.accepted_counts.tolist())
    return Drafted(name, shape, tree.nodes, tree.depth, tau, rates, step_s, error)
