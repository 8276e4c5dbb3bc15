"""Which tree serves which batch size, under rules or none, and what each condition costs by itself."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from treeopt.constraints import broken
from treeopt.errors import CostError
from treeopt.planning.evaluator import Judge
from treeopt.planning.few_shapes import assign, switches
from treeopt.planning.search_request import Ask
from treeopt.planning.tree_candidates import Proposals
from treeopt.plans.plan import Price, Switch
from treeopt.policies import Policy
from treeopt.replay.objective import THROUGHPUT
from treeopt.tree import Tree

Chosen = Mapping[int, Tree | None]  # by batch size; None decodes plainly
Way = Tree | Policy | None


def choose(judge: Judge, ask: Ask, proposals: Proposals) -> Chosen:
    """The tree of each batch size; None where not speculating is better."""
    tried = {size: proposals.trees(size) for size in ask.batches}
    own = {size: _fastest(judge, trees, size, ask) for size, trees in tried.items()}
    if ask.shapes is None or len(set(own.values()) - {None}) <= ask.shapes:
        return own
    pool = list(dict.fromkeys(tree for trees in tried.values() for tree in trees))
    rates = np.array([[_rate(judge, tree, size) for tree in pool] for size in tried])
    plain = np.array([judge.rate(None, size) for size in tried])
    picked = dict(zip(tried, assign(rates, plain, shapes=ask.shapes), strict=True))
    chosen: dict[int, Tree | None] = dict.fromkeys(tried)
    for j in set(picked.values()) - {-1}:
        served = [size for size, each in picked.items() if each == j]
        chosen |= dict.fromkeys(served, _smallest(judge, pool, pool[j], served, ask))
    return chosen


def prices(judge: Judge, ask: Ask) -> dict[int, tuple[Price, ...]]:
    """By batch size, what each binding rule costs by itself, and the objective against plain throughput.

    Trees that conditions are priced with are not refined, for their walk or by integer programme, on either side.
    """
    ask = replace(ask, method="best-first", solver_work=0.0)
    found: dict[int, list[Price]] = {size: [] for size in ask.batches}
    free: Chosen = {}
    if ask.rules:
        free = choose(judge, ask, Proposals(judge, ask, ()))
        for rule in ask.rules:
            binding = [size for size, tree in free.items() if tree is not None and broken(tree, [rule])]
            alone = choose(judge, ask, Proposals(judge, ask, (rule,))) if binding else {}
            for size in binding:
                share = judge.loss(judge.seconds(alone[size], size), judge.seconds(free[size], size))
                found[size].append(Price(rule.name, rule.source, share))
    several = [size for size, each in found.items() if len(each) > 1]
    kept = choose(judge, ask, Proposals(judge, ask, ask.rules)) if several or judge.objective is not THROUGHPUT else {}
    for size in several:
        share = judge.loss(judge.seconds(kept[size], size), judge.seconds(free[size], size))
        found[size].append(Price("all rules together", "trees not refined", share))
    if judge.objective is not THROUGHPUT:
        average = Judge(judge.fit, judge.held, judge.cost, THROUGHPUT, context=judge.context)
        fastest = choose(average, ask, Proposals(average, ask, ask.rules))
        for size, tree in kept.items():
            share = average.loss(average.seconds(tree, size), average.seconds(fastest[size], size))
            found[size].append(Price(f"objective {judge.objective.name}", "against throughput", share))
    return {size: tuple(each) for size, each in found.items()}


def changes(chosen: Mapping[int, Way], rate: Callable[[Way, int], float], *, near: float) -> tuple[Switch, ...]:
    """Where a running engine changes from way to way; `rate` is tokens a second of one at a batch size."""
    sizes = sorted(chosen)
    ways = list(dict.fromkeys(chosen[size] for size in sizes))
    rates = np.array([[rate(way, size) for way in ways] for size in sizes])
    return switches(sizes, [ways.index(chosen[size]) for size in sizes], rates, margin=near)


def _rate(judge: Judge, tree: Tree | None, batch: int) -> float:
    """0 where the cost model does not cover the tree."""
    try:
        return judge.rate(tree, batch)
    except CostError:
        return 0.0


def _fastest(judge: Judge, trees: Sequence[Tree], batch: int, ask: Ask) -> Tree | None:
    """The smallest of the ways that are as good as the fastest; not speculating is the smallest of all."""
    rates = {tree: judge.rate(tree, batch) for tree in trees}
    best, plain = max(trees, key=lambda tree: rates[tree], default=None), judge.rate(None, batch)
    if best is None or rates[best] <= plain:
        return None
    if plain >= _least(rates[best], ask) and judge.fitted(best, batch).low <= 1:
        return None
    return _smallest(judge, trees, best, [batch], ask)


def _smallest(judge: Judge, trees: Sequence[Tree], best: Tree, sizes: Sequence[int], ask: Ask) -> Tree:
    """The smallest of the trees that are as good as `best` at all these batch sizes."""
    least = {size: max(_least(judge.rate(best, size), ask), judge.rate(None, size)) for size in sizes}
    low = {size: judge.fitted(best, size).low for size in sizes}

    def close(tree: Tree) -> bool:
        return all(_rate(judge, tree, s) >= least[s] and judge.fitted(tree, s).high >= low[s] for s in sizes)

    same = [tree for tree in trees if tree == best or close(tree)]
    return min(same, key=lambda tree: (tree.nodes, tree.depth, -sum(judge.rate(tree, size) for size in sizes)))


def _least(rate: float, ask: Ask) -> float:
    """Tokens a second that count as good as `rate`."""
    return max((1 - ask.near) * rate, 0 if ask.max_tpot_s is None else min(1 / ask.max_tpot_s, rate))
