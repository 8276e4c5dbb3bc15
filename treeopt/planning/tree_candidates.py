"""Candidate trees of a search: every size and depth cap enumerated and priced, the most promising refined by replay.

Because every size and depth cap is enumerated, steps in the cost (kernel tiles, graph sizes) need no special care.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from treeopt.constraints import Constraint, broken, joined
from treeopt.cost_model import CostParts, StepShape
from treeopt.errors import CostError, EngineError
from treeopt.planning.evaluator import Judge
from treeopt.planning.search_settings import SearchSettings
from treeopt.planning.search_warnings import FEW_REQUESTS
from treeopt.replay.many_trees import Replayer
from treeopt.replay.objective import Objective
from treeopt.replay.static_tree import covers
from treeopt.searchers.best_first import Frontier, count_prefixes, fit_strength
from treeopt.searchers.choose_method import Fitting, fitting
from treeopt.searchers.hydra_growth import grow
from treeopt.searchers.integer_programme import Refined, refine
from treeopt.searchers.renewal_local_search import improve, ready
from treeopt.traces.trace import Trace
from treeopt.tree import MAX_NODES, Tree

SHORTLIST = 16  # trees that are replayed per batch size
REPLAYED = 8  # sizes of each depth that are replayed before the shortlist is made
REFINED = 1  # trees of the shortlist that are refined
REFINED_ON = 2**16  # anchors, about, in two halves; larger traces contribute every n-th request
GROWN_ON = 2**15  # anchors, about, where trees can only be grown
RULED = 4  # pool size as a multiple of the nodes wanted: rules may require nodes that a free tree would not take
WIDER = 4  # growth of a pool that proves nothing because of the nodes that it lacks


class Proposals:
    """Candidate trees that keep some rules, for any batch size, from one enumeration.

    Attributes:
        shrink: strength of shrinkage of path counts.
        counted: True if the frequencies of rank paths give the acceptance of trees.
        grown: True if trees are grown by replay, one node at a time.
        chains: all chains within the limits.
        pool: nodes that trees are made of, with the values that counts give them; None unless `counted`.
        options: the trees that were enumerated, with their estimated tokens per step on the fitted requests.
    """

    def __init__(self, judge: Judge, settings: SearchSettings, rules: Sequence[Constraint]) -> None:
        """Enumerate.

        Args:
            judge: evaluates trees on the requests.
            settings: limits and method; its own rules are ignored.
            rules: rules that trees must keep.

        Raises:
            EngineError: no tree keeps the rules; names the one that cannot be kept.
        """
        self.judge, self.settings, self.rules = judge, settings, tuple(rules)
        # If several siblings may be accepted, acceptance is no sum over nodes, and trees cannot be enumerated.
        self.counted = judge.fit.tree_kept is None
        self.grown = settings.method == "hydra" or not self.counted
        self.shrink = settings.shrink or 0.0
        if settings.shrink is None and self.counted:
            self.shrink = fit_strength(judge.fit, nodes=settings.nodes, depth=settings.depth)
        self._refined: dict[int, Refined] = {}
        self._improvements: dict[Tree, tuple[Tree, ...]] = {}
        chains = (Tree.chain(k) for k in range(1, min(settings.depth, settings.nodes) + 1))
        self.chains = [chain for chain in chains if broken(chain, rules) is None and covers(judge.fit, chain)]
        multiple = RULED if rules or not judge.cost.separable else 1
        self.pool = self._pool(multiple * settings.nodes) if self.counted else None
        self.options = self._grow_trees() if self.grown else self._enumerate_trees()

    def trees(self, batch: int) -> list[Tree]:
        """Return trees to replay for a batch size: the best chain, the shortlist, and the smallest tree near its best.

        Raises:
            CostError: a batch size or tree size that the cost model does not cover.
        """
        options = self.options
        chain = [max(self.chains, key=lambda tree: self.judge.rate(tree, batch))] if self.chains else []
        if len(options.tokens) == 0:
            return chain
        rates = options.tokens / self.seconds(batch)
        if not rates.any():
            return chain
        best = [i for i in np.argsort(-rates, kind="stable")[:SHORTLIST].tolist() if rates[i]]
        close = np.flatnonzero(rates >= (1 - 2 * self.settings.near) * rates.max()).tolist()
        small = min(close, key=lambda i: options.nodes[i])
        listed = [options.tree(i) for i in dict.fromkeys([*best, small])]
        if refined := self.refined(batch):
            listed.append(refined.tree)
        listed.sort(key=lambda tree: -self.judge.rate(tree, batch))
        if self.settings.method == "renewal" and not self.grown:
            listed += [t for tree in listed[:REFINED] for t in self._improve_trees(tree) if self._with_prices(t, batch)]
        return [tree for tree in dict.fromkeys([*listed, *chain]) if broken(tree, self.rules) is None]

    def seconds(self, batch: int) -> NDArray[np.float64]:
        """Return the seconds of a step with each option, float64 (n,); inf where no levels as wide were measured.

        Raises:
            CostError: see `trees`.
        """
        options, context, cost = self.options, self.judge.context, self.judge.cost
        tokens = options.nodes + 1
        parts = self._parts(batch)
        narrow = np.minimum(options.widths, 1)
        for i in np.flatnonzero(np.isinf(parts.step_s(tokens, narrow)))[:1].tolist():
            widths = (1,) * int(narrow[i].sum())
            cost.step_s([StepShape(batch, int(tokens[i]), widths, context)])  # raises the error that names the limit
            raise CostError(f"a step of {tokens[i]} tokens and {len(widths)} levels has no finite cost")
        return parts.step_s(tokens, options.widths)

    def refined(self, batch: int) -> Refined | None:
        """Return the tree with the most position-averaged tokens per second by integer programme, with its certificate.

        None where enumeration already proves it, without solver work, or where steps have no one price (`drafted`).
        """
        needed = not self.grown and not (self.options.exact and self.separable(batch))
        needed = needed and self.judge.fit.drafted is None  # else a step's price depends on the walk
        if not needed or self.settings.solver_work <= 0 or self.pool is None or len(self.pool.value) == 0:
            return None
        if batch not in self._refined:
            self._refined[batch] = refine(
                self.pool,
                self._parts(batch),
                self.rules,
                nodes=self.settings.nodes,
                depth=self.settings.depth,
                width=self.judge.fit.width,
                known=self._enumeration,
                work=self.settings.solver_work,
            )
        return self._refined[batch]

    def separable(self, batch: int) -> bool:
        """Return True if step times at this batch size do not depend on the widths of levels."""
        known = self.judge.cost.separable or len(self.options.tokens) == 0
        return known or self._parts(batch).separable

    def _parts(self, batch: int) -> CostParts:
        """Return the cost tables of all steps that trees within the limits may take."""
        nodes, depth = self.settings.nodes, self.settings.depth
        width, context = max(int(self.options.widths.max()), nodes), self.judge.context
        return self.judge.cost.parts(batch=batch, tokens=nodes + 1, depth=depth, width=width, context=context)

    def _with_prices(self, tree: Tree, batch: int) -> bool:
        try:
            self.judge.step_s(tree, batch)
        except CostError:
            return False
        return True

    def _improve_trees(self, tree: Tree) -> tuple[Tree, ...]:
        """Return better trees for the positions they visit: found on one half of the requests, confirmed on the other.

        A large tree gains on the requests that it is refined on what it loses on others.
        """
        if tree not in self._improvements:
            confirmed = []
            objective, settings = self.judge.objective, self.settings
            halves = _halves(self.judge.fit, nodes=settings.nodes, depth=settings.depth)
            for refined_on, checked_on in (halves, halves[::-1]) if halves else ():
                better = _improved(refined_on, nodes=tree.nodes, depth=tree.depth, objective=objective)
                steps = (checked_on.replay(candidate).steps for candidate in (better, tree))
                after, before = (objective.tokens(count, checked_on.trace) for count in steps)
                confirmed += [better] if after > before else []
            self._improvements[tree] = tuple(confirmed)
        return self._improvements[tree]

    def _pool(self, size: int) -> Frontier:
        """Return the most frequent nodes that the rules allow."""
        fit, settings, limits = self.judge.fit, self.settings, joined(self.rules)
        prices = self.judge.objective.prices(fit).mean(axis=0)
        weights = None if np.ptp(prices) == 0 else np.repeat(prices, fit.lengths)
        pool = count_prefixes(
            fit,
            nodes=size,
            depth=settings.depth,
            levels=limits.depth,
            weights=weights,
            shrink=self.shrink,
            ranks=limits.ranks,
        )
        likely = pool.paths[: MAX_NODES - settings.depth]
        self.judge.expect(Tree.from_paths([*likely, *(chain.paths[-1] for chain in self.chains)]))
        return pool

    def _grow_trees(self) -> Fitting:
        """Return trees grown under every depth cap: levels that each add a little may cost more than they bring."""
        fit = self.judge.fit
        early = [rule for rule in self.rules if not rule.limits.min_depth]  # kept at every step if at the end
        requests = {} if self.counted else {"requests": max(1, GROWN_ON * fit.requests // fit.anchors)}
        keeps = (lambda tree: broken(tree, early) is None) if early else None
        caps = range(1, self.settings.depth + 1)
        grown = (grow(fit, nodes=self.settings.nodes, depth=cap, keeps=keeps, **requests) for cap in caps)
        distinct = dict.fromkeys(tree for nested in grown for tree in nested)
        trees = [tree for tree in distinct if broken(tree, self.rules) is None]
        if self.rules and not trees and not self.chains:
            if self.pool is None:
                raise EngineError(
                    "no tree grown from the tree that the trace was recorded with keeps the rules: record another tree"
                )
            # raises the error that names the rule
            self._fitting(self.pool)
            raise EngineError("no tree grown node by node keeps the rules: use another --method")
        widths = np.zeros((len(trees), self.settings.depth), dtype=np.int64)
        for row, tree in zip(widths, trees, strict=True):
            row[: tree.depth] = tree.fed_widths
        tokens = np.array([self.judge.tokens(tree) for tree in trees])
        sizes = np.array([tree.nodes for tree in trees], dtype=np.int64)
        return Fitting(tokens, sizes, widths, False, True, trees.__getitem__)

    def _enumerate_trees(self) -> Fitting:
        """Return the best position-averaged trees of every size and depth."""
        assert self.pool is not None
        if len(self.pool.value) == 0:
            self._fitting(self.pool)  # raises the error that names a rule which no tree keeps
            none = np.empty(0, dtype=np.int64)
            return Fitting(np.empty(0), none, none[:, None], True, True, lambda i: self.chains[i])
        trees, size = self._fitting(self.pool), self.pool.limit
        while not trees.closed and size < MAX_NODES:
            size = min(WIDER * size, MAX_NODES)
            self.pool = self._pool(size)
            trees = self._fitting(self.pool)
        self._enumeration = trees
        tokens = trees.tokens.copy()
        depths = (trees.widths > 0).sum(axis=1)
        for depth in np.unique(depths).tolist():
            rows = np.flatnonzero(depths == depth)
            tokens[rows] *= self._walk_ratios(trees, rows)
        return replace(trees, tokens=tokens)

    def _fitting(self, pool: Frontier) -> Fitting:
        settings = self.settings
        return fitting(pool, self.rules, nodes=settings.nodes, depth=settings.depth, width=self.judge.fit.width)

    def _walk_ratios(self, trees: Fitting, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return walked over position-averaged tokens of these rows: replayed at a few sizes, interpolated between.

        Averages promise too much, most of all for deep trees; ranked by averages, a shortlist holds only deep trees.
        """
        sizes = trees.nodes[rows]
        spread = np.geomspace(sizes.min(), sizes.max(), REPLAYED)
        grid = {int(sizes[i]): int(rows[i]) for i in np.abs(sizes - spread[:, None]).argmin(axis=1).tolist()}
        shares = [self.judge.tokens(trees.tree(grid[size])) / trees.tokens[grid[size]] for size in sorted(grid)]
        return np.asarray(np.interp(np.log(sizes), np.log(sorted(grid)), shares))


@lru_cache(maxsize=2)
def _halves(fit: Trace, *, nodes: int, depth: int) -> tuple[Replayer, ...]:
    """Return two halves of the fitted requests; none where there is only one request."""
    stride = max(2, round(2 * fit.anchors / REFINED_ON))
    if fit.requests < 2:
        return ()
    parts = (fit.select(np.arange(first, fit.requests, min(stride, fit.requests))) for first in (0, 1))
    return tuple(ready(part, nodes=nodes, depth=depth) for part in parts)


@lru_cache(maxsize=256)
def _improved(replayer: Replayer, *, nodes: int, depth: int, objective: Objective) -> Tree:
    """Return `improve`'s tree, which searches of one trace for several devices share: it depends on no cost."""
    return improve(replayer.trace, nodes=nodes, depth=depth, objective=objective, replayer=replayer)


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
