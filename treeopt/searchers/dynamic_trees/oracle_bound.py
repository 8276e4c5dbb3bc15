"""The oracle bound: an upper bound on the speed of any policy, from knowing the target's tokens before verification."""

import numpy as np
from numpy.typing import NDArray

from treeopt.errors import TraceError
from treeopt.policies.beam import Drafting
from treeopt.replay.walk import walk_steps
from treeopt.searchers.dynamic_trees.step_prices import Prices, Timed
from treeopt.traces.trace import Trace


def upper_bound(trace: Trace, prices: Prices, *, nodes: int, depth: int) -> Timed:
    """Return the fewest seconds of each request if only true candidates are verified.

    At each anchor a chain of 0, 1, ... true candidates may be verified, as far as they were recorded. It costs what the
    cheapest step that is large enough costs: at least as many levels and nodes as the chain has tokens. Where trees are
    packed (padding `none`), a row may use the nodes of the whole batch. No policy on these candidates is faster on any
    request, provided that wider levels cost no less.

    Args:
        trace: trace with candidates.
        prices: prices of steps.
        nodes: largest number of nodes per sequence.
        depth: largest number of levels.

    Raises:
        TraceError: the trace holds no candidates.
        CostError: steps that the cost model does not cover.
    """
    if trace.candidates is None:
        raise TraceError(
            "a bound on dynamic policies needs recorded candidates, the trace has none: record it with `treeopt "
            "trace collect --candidates`"
        )
    anchor = np.repeat(np.arange(trace.anchors), np.diff(trace.candidates.offset))
    reach = np.bincount(anchor[trace.candidates.hit], minlength=trace.anchors)
    price = _prices(prices, nodes, depth)
    seconds = np.full(trace.anchors + 1, np.inf)  # from each anchor to the end of its request
    accepted = np.zeros(trace.anchors, dtype=np.int64)
    for back in range(1, int(trace.lengths.max()) + 1):
        anchors = np.flatnonzero(trace.left == back)
        for tokens, step in enumerate(price[:back]):
            ahead = seconds[anchors + tokens + 1] if tokens + 1 < back else 0.0
            total = np.where(reach[anchors] >= tokens, step + ahead, np.inf)
            better = total < seconds[anchors]
            seconds[anchors[better]], accepted[anchors[better]] = total[better], tokens
    steps = walk_steps(accepted, trace)
    drafted = np.bincount(steps.request, steps.accepted, minlength=trace.requests).astype(np.int64)
    return Timed(
        committed=trace.lengths,
        steps=np.bincount(steps.request, minlength=trace.requests),
        seconds=seconds[trace.starts],
        nodes=drafted,
        levels=drafted,
    )


def _prices(prices: Prices, nodes: int, depth: int) -> NDArray[np.float64]:
    """Return seconds of steps for chains of 0, 1, ... tokens, if the other rows of the batch accept none."""
    chain = Drafting(depth, 1, 1)
    plain = prices.cost.plain_s(batch=prices.batch, context=prices.context)
    seconds = [min(plain, float(prices.table(chain, nodes, committed=1).min()))]
    for tokens in range(1, min(nodes, depth) + 1):
        room = -(-tokens // prices.batch) if prices.padding == "none" else tokens
        table = prices.table(chain, nodes, committed=1 + tokens / prices.batch)
        seconds.append(float(table[tokens - 1 :, room - 1 :].min()))
    return np.array(seconds)
