"""A bound, not a policy: what could be had by one who knows the target's tokens before they are verified."""

import numpy as np
from numpy.typing import NDArray

from treeopt.errors import TraceError
from treeopt.policies.beam import Drafting
from treeopt.replay.walk import walked
from treeopt.searchers.dynamic_trees.step_prices import Prices, Timed
from treeopt.traces.trace import Trace


def upper_bound(trace: Trace, prices: Prices, *, nodes: int, depth: int) -> Timed:
    """The fastest way through every request with true candidates alone: of each request the fewest seconds.

    At each anchor a chain of 0, 1, ... true candidates may be verified, as long as the recorded ones reach. It costs
    what the cheapest step does that is large enough for it: as many levels as it has tokens, and as many nodes; where
    trees are packed (padding `none`) a row may have the nodes of the whole batch. No policy on these candidates is
    faster on any request, if wider levels cost no less.

    Args:
        trace: with candidates.
        prices: of steps.
        nodes: of a sequence, at most.
        depth: levels, at most.

    Raises:
        TraceError: the trace holds no candidates.
        CostError: steps that the cost model does not cover.
    """
    if trace.candidates is None:
        raise TraceError("a bound on dynamic trees needs recorded candidates, the trace has none")
    anchor = np.repeat(np.arange(trace.anchors), np.diff(trace.candidates.offset))
    reach = np.bincount(anchor[trace.candidates.hit], minlength=trace.anchors)
    price = _prices(prices, nodes, depth)
    seconds = np.full(trace.anchors + 1, np.inf)  # from each anchor to the end of its request
    accepted = np.zeros(trace.anchors, dtype=np.int64)
    for back in range(1, int(trace.lengths.max()) + 1):
        here = np.flatnonzero(trace.left == back)
        for tokens, step in enumerate(price[:back]):
            ahead = seconds[here + tokens + 1] if tokens + 1 < back else 0.0
            total = np.where(reach[here] >= tokens, step + ahead, np.inf)
            better = total < seconds[here]
            seconds[here[better]], accepted[here[better]] = total[better], tokens
    steps = walked(accepted, trace)
    kept = np.bincount(steps.request, steps.accepted, minlength=trace.requests).astype(np.int64)
    return Timed(
        committed=trace.lengths,
        steps=np.bincount(steps.request, minlength=trace.requests),
        seconds=seconds[trace.starts],
        nodes=kept,
        levels=kept,
    )


def _prices(prices: Prices, nodes: int, depth: int) -> NDArray[np.float64]:
    """Of chains with 0, 1, ... tokens, the other rows of the batch keeping none."""
    chain = Drafting(depth, 1, 1)
    plain = prices.cost.plain_s(batch=prices.batch, context=prices.context)
    found = [min(plain, float(prices.table(chain, nodes, committed=1).min()))]
    for tokens in range(1, min(nodes, depth) + 1):
        room = -(-tokens // prices.batch) if prices.padding == "none" else tokens
        table = prices.table(chain, nodes, committed=1 + tokens / prices.batch)
        found.append(float(table[tokens - 1 :, room - 1 :].min()))
    return np.array(found)
