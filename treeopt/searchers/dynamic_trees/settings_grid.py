"""The grid of settings for each kind of dynamic policy, replayed one by one on the fitted requests."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from treeopt.errors import CostError, EngineError, TraceError, TreeoptError
from treeopt.policies import CostAware, DynamicTree, OptTree, Policy, named
from treeopt.policies.beam import Drafting
from treeopt.policies.reranking import Calibration, Shortlists, calibrate, shortlists
from treeopt.replay.dynamic_tree import CHUNK, Batches
from treeopt.searchers.dynamic_trees.step_prices import Prices, Timed, timed
from treeopt.statistics.isotonic_regression import Curve, isotonic
from treeopt.traces.trace import Trace
from treeopt.tree import MAX_NODES

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 63, 80, 96, 127, 160, 192, 255)
PROBABILITIES = (0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.18, 0.25, 0.35, 0.5)
THRESHOLDS = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7)
FACTORS = (3, 1, 2, 5, 8)  # largest number of nodes per sequence over its share of a budget


EAGLE2 = "eagle2"  # the kind that inference engines run
CannotRun = Callable[[Policy, int], str | None]  # why an engine cannot run a policy at a batch size, None if it can


class Bench:
    """A part of the trace, with the shortlists that were made from it last."""

    def __init__(self, trace: Trace, prices: Prices, *, seed: int) -> None:
        """Order the requests by `seed`."""
        self.trace, self.prices = trace, prices
        self.batches = Batches(trace, batch=prices.batch, seed=seed)
        self._lists: dict[tuple[int, int, Calibration | None], Shortlists] = {}

    def lists(self, drafting: Drafting, nodes: int, calibration: Calibration | None) -> Shortlists:
        """Return shortlists of at least `nodes` nodes and the levels of `drafting`."""
        key = (drafting.beam, drafting.width, calibration)
        lists = self._lists.get(key)
        if lists is None or lists.log.shape[1] < drafting.depth or lists.log.shape[2] < nodes:
            lists = shortlists(self.trace, drafting, nodes=nodes, calibration=calibration)
            self._lists = {key: lists}  # only the last, because they are large
        return lists

    def replayed(self, policy: Policy) -> Timed:
        """Return the policy's counts and seconds; raises what `Batches.steps` and `timed` raise."""
        drafting = policy.drafting
        for beam, width, calibration in self._lists:
            usable = (width, calibration) == (drafting.width, policy.calibration)
            if isinstance(policy, OptTree) and policy.nodes <= drafting.beam < beam and usable:
                drafting = replace(drafting, beam=beam)  # a wider beam finds the same nodes
        lists = self.lists(drafting, policy.nodes, policy.calibration)
        return timed(self.trace, self.batches.steps(policy, lists), policy, self.prices)


@dataclass
class Sweep:
    """The policies replayed so far on the fitted requests.

    Attributes:
        bench: the fitted requests.
        drafting: limits of drafting.
        max_nodes: largest number of nodes per sequence.
        cannot_run: policies with a reason are left out; None: all can run.
        rates: tokens per second of each policy.
        refused: settings -> error, for policies that could not be replayed.
    """

    bench: Bench
    drafting: Drafting
    max_nodes: int
    cannot_run: CannotRun | None = None
    rates: dict[Policy, float] = field(default_factory=dict)
    refused: dict[str, TreeoptError] = field(default_factory=dict)

    @property
    def best(self) -> Policy:
        """The policy with the most tokens per second; there must be one."""
        return max(self.rates, key=self.rates.__getitem__)

    def sizes(self, depth: int) -> list[int]:
        """Return the numbers of nodes worth trying at a depth, up to and including the largest possible."""
        largest = min(self.max_nodes, replace(self.drafting, depth=depth).candidates)
        return [*(n for n in SIZES if n < largest), largest]

    def depths(self) -> range:
        """Return the numbers of levels to try."""
        return range(1, self.drafting.depth + 1)

    def prepare(self, calibration: Calibration | None = None) -> None:
        """Make the shortlists that all settings share."""
        self.bench.lists(self.drafting, min(self.max_nodes, self.drafting.candidates), calibration)

    def consider(self, policy: Policy) -> None:
        """Replay a policy, or record the error."""
        if policy in self.rates or named(policy) in self.refused:
            return
        reason = None if self.cannot_run is None else self.cannot_run(policy, self.bench.prices.batch)
        if reason is not None:
            self.refused[named(policy)] = EngineError(reason)
            return
        try:
            self.rates[policy] = self.bench.replayed(policy).rate
        except (TraceError, CostError) as error:
            self.refused[named(policy)] = error

    def consider_stops(self, make: Callable[[int, int, float], Policy], stops: tuple[float, ...]) -> None:
        """Try policies `make(nodes, depth, stop)`: all without a stop, then vary two settings of the best at a time."""
        tried = {make(n, depth, stops[0]): (n, depth) for depth in self.depths() for n in self.sizes(depth)}
        before = None
        while True:
            for policy in tried:
                self.consider(policy)
            if not self.rates or self.best == before:
                return
            before = self.best
            nodes, depth = tried[before]
            for stop in stops:
                tried |= {make(n, depth, stop): (n, depth) for n in self.sizes(depth)}
                tried |= {make(nodes, d, stop): (nodes, d) for d in self.depths() if nodes in self.sizes(d)}


def eagle2(sweep: Sweep) -> None:
    """Try `DynamicTree` of every size and depth."""
    beam, width = sweep.drafting.beam, sweep.drafting.width
    sweep.prepare()
    for depth in sweep.depths():
        for nodes in sweep.sizes(depth):
            sweep.consider(DynamicTree(nodes, depth, beam, width))


def opt_tree(sweep: Sweep) -> None:
    """Try `OptTree` of sizes, depths and thresholds; a beam wider than its nodes finds nothing that it takes."""
    beam, width = sweep.drafting.beam, sweep.drafting.width
    sweep.prepare()
    sweep.consider_stops(lambda nodes, depth, stop: OptTree(nodes, depth, stop, min(nodes, beam), width), THRESHOLDS)


def best_first(sweep: Sweep) -> None:
    """Try `DynamicTree` of sizes, depths and confidence stops."""
    beam, width = sweep.drafting.beam, sweep.drafting.width
    sweep.prepare()
    sweep.consider_stops(lambda nodes, depth, stop: DynamicTree(nodes, depth, beam, width, stop), PROBABILITIES)


def calibrated(sweep: Sweep) -> None:
    """Try `DynamicTree` of sizes, depths and confidence stops, with a calibration."""
    beam, width = sweep.drafting.beam, sweep.drafting.width
    curves = calibrate(sweep.bench.trace, sweep.drafting)
    sweep.prepare(curves)

    def make(nodes: int, depth: int, stop: float) -> Policy:
        return DynamicTree(nodes, depth, beam, width, stop, None, curves)

    sweep.consider_stops(make, PROBABILITIES)


def cost_awares(sweep: Sweep) -> None:
    """Try `CostAware` of every depth with the most nodes that the cost model covers; with `full` padding, all sizes."""
    curves = calibrate(sweep.bench.trace, sweep.drafting)
    sweep.prepare(curves)
    for depth in sweep.depths():
        drafting = replace(sweep.drafting, depth=depth)
        for nodes in reversed(sweep.sizes(depth)):
            try:
                lists = sweep.bench.lists(drafting, nodes, curves)
                policy, replay = fit_cost_aware(
                    sweep.bench.batches, lists, sweep.bench.prices, nodes=nodes, drafting=drafting, calibration=curves
                )
            except (TraceError, CostError) as error:
                sweep.refused[f"cost-aware, {nodes} nodes, {drafting}"] = error
                if isinstance(error, TraceError):  # candidates are missing, which no other size changes
                    break
            else:
                sweep.rates[policy] = replay.rate
                if sweep.bench.prices.padding != "full":
                    break


def shared_budget(sweep: Sweep) -> None:
    """Try `DynamicTree` of every depth and budget for the batch, calibrated or not; the best also with other limits."""
    beam, width = sweep.drafting.beam, sweep.drafting.width
    for calibration in (None, calibrate(sweep.bench.trace, sweep.drafting)):
        sweep.prepare(calibration)
        _budgets(sweep, partial(DynamicTree, beam=beam, width=width, calibration=calibration))


def _budgets(sweep: Sweep, make: Callable[..., Policy]) -> None:
    batch = sweep.bench.prices.batch

    def consider(share: int, depth: int, factor: int) -> Policy:
        largest = min(sweep.max_nodes, replace(sweep.drafting, depth=depth).candidates)
        policy = make(min(share * factor, largest), depth, budget=share * batch)
        sweep.consider(policy)
        return policy

    tried = {
        consider(share, depth, FACTORS[0]): (share, depth)
        for depth in sweep.depths()
        for share in sweep.sizes(depth)
        if share * batch <= MAX_NODES
    }
    replayed = [policy for policy in tried if policy in sweep.rates]
    if replayed:
        for factor in FACTORS[1:]:
            consider(*tried[max(replayed, key=sweep.rates.__getitem__)], factor)


GRIDS: dict[str, Callable[[Sweep], None]] = {
    EAGLE2: eagle2,
    "opt-tree": opt_tree,
    "best-first": best_first,
    "calibrated": calibrated,
    "cost-aware": cost_awares,
    "shared-budget": shared_budget,
}


ROUNDS = 8
SETTLED = 1e-4  # share of the rate


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
        replay = timed(batches.trace, batches.steps(policy, lists), policy, prices)
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
