"""The choice between trees: the fastest, or of those as fast the steadiest and smallest, or none."""

from collections.abc import Mapping, Sequence

from treeopt.planning.evaluator import Judge
from treeopt.planning.search_settings import SearchSettings
from treeopt.planning.search_warnings import FEW_REQUESTS
from treeopt.planning.tree_candidates import Proposals
from treeopt.tree import Tree

STEADIER = 0.05  # most of the speed that is given up for a higher lower bound
Chosen = Mapping[int, Tree | None]  # by batch size; None decodes plainly


def choose(judge: Judge, settings: SearchSettings, proposals: Proposals) -> Chosen:
    """Return the tree of each batch size; None where not speculating is better."""
    tried = {size: proposals.trees(size) for size in settings.batch}
    return {size: preferred_tree(judge, trees, size, settings) for size, trees in tried.items()}


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


def preferred_tree(judge: Judge, trees: Sequence[Tree], batch: int, settings: SearchSettings) -> Tree | None:
    """Return the preferred one of the trees that are as fast as the fastest; not speculating is the smallest of all."""
    rates = {tree: judge.rate(tree, batch) for tree in trees}
    best, plain = max(trees, key=lambda tree: rates[tree], default=None), judge.rate(None, batch)
    if best is None or rates[best] <= plain:
        return None
    ceiling = 0.0 if settings.max_tpot_s is None else min(1 / settings.max_tpot_s, rates[best])
    if plain >= max((1 - settings.near) * rates[best], ceiling) and judge.fitted(best, batch).low <= 1:
        return None
    return _steadiest(judge, {t: r for t, r in rates.items() if r >= max(plain, ceiling)}, best, batch, settings)


def _steadiest(judge: Judge, rates: Mapping[Tree, float], best: Tree, batch: int, settings: SearchSettings) -> Tree:
    """Return the steadiest of the trees that are as fast as `best`, or the smallest that is within `near` of it.

    As fast is a tree that is slower by at most `near`, or by at most `STEADIER` with a paired difference whose interval
    holds 0 and can be trusted; within `max_tpot_s` if `best` is, and no slower than plain decoding. The steadiest has
    the highest lower bound. With `near` 0 the fastest is taken. Ties go to the shallower tree, then to the faster one.
    """

    def as_fast(tree: Tree) -> bool:
        if rates[tree] >= (1 - settings.near) * rates[best]:
            return True
        trusted = settings.near > 0 and judge.fit.requests >= FEW_REQUESTS
        close = trusted and rates[tree] >= (1 - STEADIER) * rates[best]
        return close and judge.fitted_loss(tree, best, batch).low <= 0

    low = {tree: judge.fitted(tree, batch).low for tree in rates if tree == best or as_fast(tree)}
    steadiest = max(low, key=lambda tree: (low[tree], tree == best))
    share = 1 - settings.near
    alike = [
        tree
        for tree in low
        if rates[tree] >= share * rates[steadiest] and (low[tree] >= share * low[steadiest] or tree == steadiest)
    ]
    return min(alike, key=lambda tree: (tree.nodes, tree.depth, -rates[tree]))
