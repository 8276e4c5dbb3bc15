"""Trees worth a replay: every size and depth cap enumerated and priced, the most promising refined for their walk.

Every size and depth cap is enumerated, so steps in the cost (kernel tiles, graph sizes) need no special care.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from treeopt.constraints import Constraint, broken, hereditary
from treeopt.cost_model import CostParts, StepShape
from treeopt.errors import CostError, EngineError
from treeopt.planning.evaluator import Judge
from treeopt.planning.search_request import Ask
from treeopt.replay.many_trees import Replayer
from treeopt.replay.static_tree import covers
from treeopt.searchers.constrained_trees.choose_method import Fitting, fitting
from treeopt.searchers.constrained_trees.dinkelbach import Refined, refine
from treeopt.searchers.static_trees.best_first import Frontier, count_prefixes
from treeopt.searchers.static_trees.renewal import grow, improve, ready
from treeopt.searchers.static_trees.shrinkage import fitted
from treeopt.tree import MAX_NODES, Tree

SHORTLIST = 16
REPLAYED = 8  # sizes of each depth that are replayed before the shortlist is drawn
REFINED = 1
REFINED_ON = 2**16  # anchors, about, in two halves: of larger traces every n-th request
GROWN_ON = 2**15  # anchors, about, where trees are grown for want of another way
RULED = 4  # times the nodes wanted: a rule may ask for nodes that no free tree would take


@dataclass(frozen=True, eq=False)
class Options:
    """Trees worth pricing, struct of arrays; `tree(i)` makes one.

    Attributes:
        tokens: float64 (n,), estimated tokens a step on the requests that choices are made on.
        nodes: int64 (n,), sizes.
        widths: int64 (n, levels), fed widths of each, 0 below its deepest level.
        exact: whether no other tree of the same size and depth has more tokens averaged over positions.
        tree: the i-th topology.
    """

    tokens: NDArray[np.float64]
    nodes: NDArray[np.int64]
    widths: NDArray[np.int64]
    exact: bool
    tree: Callable[[int], Tree]


class Proposals:
    """Trees that keep some rules, for any batch size, from one enumeration.

    Attributes:
        shrink: of path counts.
        counted: frequencies of rank paths say what trees keep.
        grown: trees are grown by replay, one node at a time.
        chains: all of them.
        pool: nodes that trees are made of, with the values that counts give them; None where these tell nothing.
        options: what was enumerated.
    """

    def __init__(self, judge: Judge, ask: Ask, rules: Sequence[Constraint]) -> None:
        """Enumerate.

        Args:
            judge: the requests.
            ask: what is looked for; its own rules are not looked at.
            rules: that trees must keep.

        Raises:
            EngineError: no tree keeps the rules; names the one that cannot be kept.
        """
        self.judge, self.ask, self.rules = judge, ask, tuple(rules)
        # Where several siblings may be kept, no sum over nodes says what a tree keeps: nothing can be enumerated.
        self.counted = judge.fit.tree_kept is None
        self.grown = ask.method == "hydra" or not self.counted
        self.shrink = ask.shrink or 0.0
        if ask.shrink is None and self.counted:
            self.shrink = fitted(judge.fit, nodes=ask.nodes, depth=ask.depth)
        self._refined: dict[int, Refined] = {}
        self._improvements: dict[Tree, tuple[Tree, ...]] = {}
        chains = (Tree.chain(k) for k in range(1, min(ask.depth, ask.nodes) + 1))
        self.chains = [chain for chain in chains if broken(chain, rules) is None and covers(judge.fit, chain)]
        self.pool = self._pool() if self.counted else None
        self.options = self._grown() if self.grown else self._enumerated()

    def trees(self, batch: int) -> list[Tree]:
        """Trees to replay for a batch size: the best chain, the most promising, and the smallest near the best of them.

        Raises:
            CostError: a batch size or tree size that the cost model does not cover.
        """
        options = self.options
        found = [max(self.chains, key=lambda tree: self.judge.rate(tree, batch))] if self.chains else []
        if len(options.tokens) == 0:
            return found
        rates = options.tokens / self.seconds(batch)
        if not rates.any():
            return found
        best = [i for i in np.argsort(-rates, kind="stable")[:SHORTLIST].tolist() if rates[i]]
        close = np.flatnonzero(rates >= (1 - 2 * self.ask.near) * rates.max()).tolist()
        small = min(close, key=lambda i: options.nodes[i])
        listed = [options.tree(i) for i in dict.fromkeys([*best, small])]
        if refined := self.refined(batch):
            listed.append(refined.tree)
        listed.sort(key=lambda tree: -self.judge.rate(tree, batch))
        if self.ask.method == "renewal" and not self.grown:
            listed += [t for tree in listed[:REFINED] for t in self._improved(tree) if self._priced(t, batch)]
        return [tree for tree in dict.fromkeys([*listed, *found]) if broken(tree, self.rules) is None]

    def seconds(self, batch: int) -> NDArray[np.float64]:
        """Of a step with each option, float64 (n,); inf where the cost model knows no levels as wide.

        Raises:
            CostError: see `trees`.
        """
        options, context, cost = self.options, self.judge.context, self.judge.cost
        tokens = options.nodes + 1
        parts = self._parts(batch)
        narrow = np.minimum(options.widths, 1)
        for i in np.flatnonzero(np.isinf(parts.step_s(tokens, narrow)))[:1].tolist():
            widths = (1,) * int(narrow[i].sum())
            cost.step_s([StepShape(batch, int(tokens[i]), widths, context)])  # says what it does not cover
            raise CostError(f"a step of {tokens[i]} tokens and {len(widths)} levels has no finite cost")
        return parts.step_s(tokens, options.widths)

    def refined(self, batch: int) -> Refined | None:
        """The tree of most position-averaged tokens a second with its certificate; None where enumeration has it."""
        needed = not self.grown and not (self.options.exact and self.judge.cost.separable)
        if not needed or self.ask.solver_work <= 0 or self.pool is None or len(self.pool.value) == 0:
            return None
        if batch not in self._refined:
            self._refined[batch] = refine(
                self.pool,
                self._parts(batch),
                self.rules,
                nodes=self.ask.nodes,
                depth=self.ask.depth,
                width=self.judge.fit.width,
                known=self._found,
                work=self.ask.solver_work,
            )
        return self._refined[batch]

    def _parts(self, batch: int) -> CostParts:
        """Of all steps that trees within the limits may take."""
        nodes, depth = self.ask.nodes, self.ask.depth
        width, context = max(int(self.options.widths.max()), nodes), self.judge.context
        return self.judge.cost.parts(batch=batch, tokens=nodes + 1, depth=depth, width=width, context=context)

    def _priced(self, tree: Tree, batch: int) -> bool:
        try:
            self.judge.step_s(tree, batch)
        except CostError:
            return False
        return True

    def _improved(self, tree: Tree) -> tuple[Tree, ...]:
        """Better trees for the positions they visit: found on one half of the requests, and better on the other too.

        On the requests that a large tree is refined on it gains what it loses on others.
        """
        if tree not in self._improvements:
            found = []
            for own, other in (self._halves, self._halves[::-1]) if self._halves else ():
                objective, size = self.judge.objective, {"nodes": tree.nodes, "depth": tree.depth}
                better = improve(own.trace, **size, objective=objective, replayer=own).tree
                steps = (other.replay(each).steps for each in (better, tree))
                gained, had = (objective.tokens(each, other.trace) for each in steps)
                found += [better] if gained > had else []
            self._improvements[tree] = tuple(found)
        return self._improvements[tree]

    @cached_property
    def _halves(self) -> tuple[Replayer, ...]:
        """Two parts of the requests that choices are made on, none where there is only one."""
        fit = self.judge.fit
        stride = max(2, round(2 * fit.anchors / REFINED_ON))
        if fit.requests < 2:
            return ()
        parts = (fit.select(np.arange(first, fit.requests, min(stride, fit.requests))) for first in (0, 1))
        return tuple(ready(part, nodes=self.ask.nodes, depth=self.ask.depth) for part in parts)

    def _pool(self) -> Frontier:
        weights = self.judge.objective.prices(self.judge.fit).mean(axis=0)[self.judge.fit.request_index]
        nodes = self.ask.nodes * (RULED if self.rules or not self.judge.cost.separable else 1)
        pool = count_prefixes(self.judge.fit, nodes=nodes, depth=self.ask.depth, weights=weights, shrink=self.shrink)
        likely = pool.paths[: MAX_NODES - self.ask.depth]
        self.judge.expect(Tree.from_paths([*likely, *(chain.paths[-1] for chain in self.chains)]))
        return pool

    def _grown(self) -> Options:
        """Trees grown under every depth cap: levels that each add a little may cost more than they bring."""
        fit, early = self.judge.fit, [rule for rule in self.rules if hereditary(rule)]
        requests = {} if self.counted else {"requests": max(1, GROWN_ON * fit.requests // fit.anchors)}
        keeps = (lambda tree: broken(tree, early) is None) if early else None
        caps = range(1, self.ask.depth + 1)
        grown = (grow(fit, nodes=self.ask.nodes, depth=cap, keeps=keeps, **requests) for cap in caps)
        found = dict.fromkeys(tree for each in grown for tree in each)
        trees = [tree for tree in found if broken(tree, self.rules) is None]
        if self.rules and not trees and not self.chains:
            if self.pool is None:
                raise EngineError(
                    "no part of the tree that the trace was recorded with keeps the rules, of those grown"
                )
            fitting(self.pool, self.rules, nodes=self.ask.nodes, depth=self.ask.depth)  # names what cannot be
            raise EngineError("no tree that is grown keeps the rules: use another method")
        widths = np.zeros((len(trees), self.ask.depth), dtype=np.int64)
        for row, tree in zip(widths, trees, strict=True):
            row[: tree.depth] = tree.fed_widths
        tokens = np.array([self.judge.tokens(tree) for tree in trees])
        return Options(tokens, np.array([t.nodes for t in trees], dtype=np.int64), widths, False, trees.__getitem__)

    def _enumerated(self) -> Options:
        """Best position-averaged trees of every size and depth."""
        assert self.pool is not None
        if len(self.pool.value) == 0:
            none = np.empty(0, dtype=np.int64)
            return Options(np.empty(0), none, none[:, None], True, lambda i: self.chains[i])
        found = self._found = fitting(
            self.pool, self.rules, nodes=self.ask.nodes, depth=self.ask.depth, width=self.judge.fit.width
        )
        tokens = found.tokens.copy()
        depths = (found.widths > 0).sum(axis=1)
        for depth in np.unique(depths).tolist():
            of = np.flatnonzero(depths == depth)
            tokens[of] *= self._walked(found, of)
        return Options(tokens, found.nodes, found.widths, found.exact, found.tree)

    def _walked(self, found: Fitting, of: NDArray[np.int64]) -> NDArray[np.float64]:
        """Share of their average over positions that trees have on their walk: replayed at a few sizes, interpolated.

        Averages promise too much, of deep trees most of all; ranked by them alone, a shortlist holds deep trees only.
        """
        sizes = found.nodes[of]
        spread = np.geomspace(sizes.min(), sizes.max(), REPLAYED)
        grid = {int(sizes[i]): int(of[i]) for i in np.abs(sizes - spread[:, None]).argmin(axis=1).tolist()}
        shares = [self.judge.tokens(found.tree(grid[size])) / found.tokens[grid[size]] for size in sorted(grid)]
        return np.asarray(np.interp(np.log(sizes), np.log(sorted(grid)), shares))
