"""The fit of the cost-aware policy, which drafts and verifies while it pays; proves nothing beyond its replay."""

from dataclasses import replace

import numpy as np

from treeopt.errors import CostError, TraceError
from treeopt.policies import CostAware
from treeopt.policies.beam import Drafting
from treeopt.policies.reranking import Calibration, Shortlists, calibrate
from treeopt.replay.dynamic_tree import CHUNK, Batches
from treeopt.searchers.choose_policy import Sweep
from treeopt.searchers.step_prices import Prices, Timed, price_replay
from treeopt.statistics import Curve, isotonic

ROUNDS = 8
SETTLED = 1e-4  # share of the rate


def sweep_depths(sweep: Sweep) -> None:
    """Try every depth with the most nodes that the cost model covers; with `full` padding, all sizes."""
    bench = sweep.bench
    curves = calibrate(bench.trace, sweep.drafting)
    sweep.prepare(curves)
    for depth in sweep.depths():
        drafting = replace(sweep.drafting, depth=depth)
        for nodes in reversed(sweep.sizes(depth)):
            try:
                lists = bench.lists(drafting, nodes, curves)
                policy, replay = fit_cost_aware(
                    bench.batches, lists, bench.prices, nodes=nodes, drafting=drafting, calibration=curves
                )
            except (TraceError, CostError) as error:
                sweep.refused[f"cost-aware, {nodes} nodes, {drafting}"] = error
                if isinstance(error, TraceError):  # candidates are missing, which no other size changes
                    break
            else:
                sweep.rates[policy] = replay.rate
                if bench.prices.padding != "full":
                    break


def fit_cost_aware(
    batches: Batches,
    lists: Shortlists,
    prices: Prices,
    *,
    nodes: int,
    drafting: Drafting,
    calibration: Calibration,
) -> tuple[CostAware, Timed]:
    """Return the policy with the best rate found, and its replay; its own rate prices time (Dinkelbach 1967).

    Args:
        batches: batches of the requests that it is fitted to.
        lists: shortlists of all their anchors, calibrated.
        prices: prices of steps.
        nodes: largest number of nodes per sequence.
        drafting: limits of drafting.
        calibration: calibration of the lists.

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
        replay = price_replay(batches.trace, batches.steps(policy, lists), policy, prices)
        if best is None or replay.rate > best[1].rate:
            best = policy, replay
        if abs(replay.rate - policy.rate) <= SETTLED * replay.rate:
            break
        policy = replace(policy, rate=replay.rate)
        policy = replace(policy, advantage=_advantage(policy, lists))
    assert best is not None
    return best


def _advantage(policy: CostAware, lists: Shortlists) -> tuple[Curve, ...]:
    """Return the advantage of drafting another level after 1, 2, ... levels, if later stops follow these curves."""
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
        mass, stopped = lists.mass[:, level - 1], worth[:, level - 1]
        curve = isotonic(mass, ahead - stopped)
        ahead = np.where(curve.at(mass) >= 0, ahead, stopped)
        curves.append(curve)
    return tuple(reversed(curves))
