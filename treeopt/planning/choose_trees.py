"""The choice of the tree for each batch size, the smallest of equally fast ones, and what each rule costs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from treeopt.constraints import broken
from treeopt.errors import CostError
from treeopt.planning.evaluator import Judge
from treeopt.planning.search_settings import SearchSettings
from treeopt.planning.tree_candidates import Proposals
from treeopt.plans.plan import Price, Switch
from treeopt.policies import Policy
from treeopt.replay.objective import THROUGHPUT
from treeopt.tree import Tree

Chosen = Mapping[int, Tree | None]  # by batch size; None decodes plainly
Configuration = Tree | Policy | None


def choose(judge: Judge, settings: SearchSettings, proposals: Proposals) -> Chosen:
    """Return the tree of each batch size; None where not speculating is better."""
    tried = {size: proposals.trees(size) for size in settings.batch}
    return {size: _fastest(judge, trees, size, settings) for size, trees in tried.items()}


def faster_trees(
    judge: Judge, settings: SearchSettings, proposals: Proposals, chosen: Chosen
) -> dict[str, dict[str, float]]:
    """Return by batch size the fastest tree on the fitted requests, where a smaller one or none was preferred to it."""
    passed: dict[str, dict[str, float]] = {}
    for size, tree in chosen.items():
        best = max(proposals.trees(size), key=lambda tree: judge.rate(tree, size), default=None)
        gain = 0.0 if best is None else judge.rate(best, size) / judge.rate(tree, size) - 1
        if best is not None and gain > 0:
            passed[str(size)] = {"nodes": best.nodes, "depth": best.depth, "gain": gain}
    return passed


def prices(judge: Judge, settings: SearchSettings) -> dict[int, tuple[Price, ...]]:
    """Return by batch size what each binding rule costs by itself, and the objective against plain throughput.

    The trees that are compared for this are not refined, neither for their walk nor by integer programme.
    """
    settings = replace(settings, method="best-first", solver_work=0.0)
    costs: dict[int, list[Price]] = {size: [] for size in settings.batch}
    free: Chosen = {}
    if settings.rules:
        free = choose(judge, settings, Proposals(judge, settings, ()))
        for rule in settings.rules:
            binding = [size for size, tree in free.items() if tree is not None and broken(tree, [rule])]
            alone = choose(judge, settings, Proposals(judge, settings, (rule,))) if binding else {}
            for size in binding:
                share = judge.loss(judge.seconds(alone[size], size), judge.seconds(free[size], size))
                costs[size].append(Price(rule.name, rule.source, share))
    several = [size for size, rule_costs in costs.items() if len(rule_costs) > 1]
    ruled: Chosen = {}
    if several or judge.objective is not THROUGHPUT:
        ruled = choose(judge, settings, Proposals(judge, settings, settings.rules))
    for size in several:
        share = judge.loss(judge.seconds(ruled[size], size), judge.seconds(free[size], size))
        costs[size].append(Price("all rules together", "trees not refined", share))
    if judge.objective is not THROUGHPUT:
        average = Judge(judge.fit, judge.held, judge.cost, THROUGHPUT, context=judge.context)
        fastest = choose(average, settings, Proposals(average, settings, settings.rules))
        for size, tree in ruled.items():
            share = average.loss(average.seconds(tree, size), average.seconds(fastest[size], size))
            costs[size].append(Price(f"objective {judge.objective.name}", "against throughput", share))
    return {size: tuple(rule_costs) for size, rule_costs in costs.items()}


def changes(
    chosen: Mapping[int, Configuration], rate: Callable[[Configuration, int], float], *, near: float
) -> tuple[Switch, ...]:
    """Return where a running engine changes its configuration; `rate` is tokens per second of one at a batch size."""
    sizes = sorted(chosen)
    configurations = list(dict.fromkeys(chosen[size] for size in sizes))
    rates = np.array([[rate(configuration, size) for configuration in configurations] for size in sizes])
    return switches(sizes, [configurations.index(chosen[size]) for size in sizes], rates, margin=near)


def switches(
    batches: Sequence[int], chosen: Sequence[int], rates: NDArray[np.float64], *, margin: float
) -> tuple[Switch, ...]:
    """Return where to change between the configurations of neighbouring batch sizes, with a dead band against flutter.

    Args:
        batches: planned batch sizes, rising.
        chosen: configuration of each, an index into the columns of `rates`.
        rates: float64 (batch sizes, configurations), tokens per second of each, plain decoding among them.
        margin: share by which a configuration must be better before it is changed to.

    >>> rates = np.array([[3.0, 2.0], [2.01, 2.0], [1.0, 1.2]])
    >>> switches([1, 2, 4], [0, 0, 1], rates, margin=0.01)
    (Switch(small=2, large=4, up=4, down=1),)
    """
    points = []
    for i in range(len(batches) - 1):
        if chosen[i] == chosen[i + 1]:
            continue
        gain = rates[:, chosen[i + 1]] / rates[:, chosen[i]] - 1
        up = next((j for j in range(i + 1, len(batches)) if gain[j] > margin), i + 1)
        down = next((j for j in range(i, -1, -1) if gain[j] < -margin), i)
        points.append(Switch(small=batches[i], large=batches[i + 1], up=batches[up], down=batches[down]))
    return tuple(points)


def _rate(judge: Judge, tree: Tree | None, batch: int) -> float:
    """Return `judge.rate`, or 0 where the cost model does not cover the tree."""
    try:
        return judge.rate(tree, batch)
    except CostError:
        return 0.0


def _fastest(judge: Judge, trees: Sequence[Tree], batch: int, settings: SearchSettings) -> Tree | None:
    """Return the smallest of the trees that are as fast as the fastest; not speculating is the smallest of all."""
    rates = {tree: judge.rate(tree, batch) for tree in trees}
    best, plain = max(trees, key=lambda tree: rates[tree], default=None), judge.rate(None, batch)
    if best is None or rates[best] <= plain:
        return None
    if plain >= _lowest_rate(rates[best], settings) and judge.fitted(best, batch).low <= 1:
        return None
    return _smallest(judge, trees, best, [batch], settings)


def _smallest(judge: Judge, trees: Sequence[Tree], best: Tree, sizes: Sequence[int], settings: SearchSettings) -> Tree:
    """Return the smallest of the trees that are as fast as `best` at all these batch sizes.

    "As fast" means within `near` with overlapping intervals, within `max_tpot_s` if `best` is, and no slower than plain
    decoding. Ties go to the shallower tree, then to the faster one.
    """
    lowest = {size: max(_lowest_rate(judge.rate(best, size), settings), judge.rate(None, size)) for size in sizes}
    low = {size: judge.fitted(best, size).low for size in sizes}

    def as_fast(tree: Tree) -> bool:
        return all(_rate(judge, tree, s) >= lowest[s] and judge.fitted(tree, s).high >= low[s] for s in sizes)

    equal = [tree for tree in trees if tree == best or as_fast(tree)]
    return min(equal, key=lambda tree: (tree.nodes, tree.depth, -sum(judge.rate(tree, size) for size in sizes)))


def _lowest_rate(rate: float, settings: SearchSettings) -> float:
    """Return the lowest rate, in tokens per second, that counts as fast as `rate`."""
    ceiling = 0 if settings.max_tpot_s is None else min(1 / settings.max_tpot_s, rate)
    return max((1 - settings.near) * rate, ceiling)
