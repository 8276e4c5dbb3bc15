"""Fits the policy that drafts and verifies while it pays; proves nothing: it is as good as its replay."""

from dataclasses import replace

import numpy as np

from treeopt.policies import CostAware
from treeopt.policies.beam import Drafting
from treeopt.policies.reranking import Calibration, Shortlists
from treeopt.replay.dynamic_tree import CHUNK, Batches
from treeopt.searchers.dynamic_trees.step_prices import Prices, Timed, timed
from treeopt.statistics.isotonic_regression import Curve, isotonic

ROUNDS = 8
SETTLED = 1e-4  # of the rate


def fit_cost_aware(
    batches: Batches,
    lists: Shortlists,
    prices: Prices,
    *,
    nodes: int,
    drafting: Drafting,
    calibration: Calibration,
) -> tuple[CostAware, Timed]:
    """The policy of the best rate met, replayed: time is worth what the policy itself earns (Dinkelbach 1967).

    Args:
        batches: of the requests that it is fitted to.
        lists: of all their anchors, calibrated.
        prices: of steps.
        nodes: of a sequence, at most.
        drafting: how far candidates are drafted, at most.
        calibration: of the lists.

    Raises:
        CostError: steps that the cost model does not cover.
        TraceError: candidates that were not recorded.
    """
    table = prices.table(drafting, nodes, growth=CostAware.growth)
    if prices.padding == "full":
        table = np.full_like(table, table[-1, -1])
    seconds = tuple(map(tuple, table.tolist()))
    always = (Curve((0.0,), (0.0,)),) * (drafting.depth - 1)
    reach = (drafting.depth, drafting.beam, drafting.width)
    policy = CostAware(nodes, *reach, prices.padding == "none", 0.0, seconds, always, calibration)
    best: tuple[CostAware, Timed] | None = None
    for _ in range(ROUNDS):
        found = timed(batches.trace, batches.steps(policy, lists), policy, prices)
        if best is None or found.rate > best[1].rate:
            best = policy, found
        if abs(found.rate - policy.rate) <= SETTLED * found.rate:
            break
        policy = replace(policy, rate=found.rate)
        policy = replace(policy, advantage=_advantage(policy, lists))
    assert best is not None
    return best


def _advantage(policy: CostAware, lists: Shortlists) -> tuple[Curve, ...]:
    """Of drafting another level after 1, 2, ... levels, with later stops as good as these curves make them."""
    depth, anchors = policy.depth, len(lists.log)
    size = max(1, CHUNK // max(1, lists.log[0].size))
    worth = np.concatenate(
        [
            policy.best(lists.log[start : start + size, None, :depth, : policy.nodes])[0]
            for start in range(0, anchors, size)
        ]
    )
    curves: list[Curve] = []
    ahead = worth[:, depth - 1]
    for level in range(depth - 1, 0, -1):
        mass, here = lists.mass[:, level - 1], worth[:, level - 1]
        curve = isotonic(mass, ahead - here)
        ahead = np.where(curve.at(mass) >= 0, ahead, here)
        curves.append(curve)
    return tuple(reversed(curves))
