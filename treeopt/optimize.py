"""From a trace and a cost model to a plan: enumerate, price, replay, refine, report on requests held out.

Every size and depth cap is enumerated, so steps in the cost (kernel tiles, graph sizes) need no special care.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from treeopt.cost import CostModel, StepShape
from treeopt.errors import CostError, TraceError, UsageError
from treeopt.estimate import Estimate, paired_difference, ratio
from treeopt.plan import Choice, Plan, PlanEntry, Proof
from treeopt.provenance import this_run
from treeopt.published import EAGLE, MEDUSA, published_trees
from treeopt.searchers.best_first import Frontier, count_prefixes
from treeopt.searchers.renewal import grow, improve
from treeopt.trace import Trace
from treeopt.tree import Tree
from treeopt.walk import StepCounts, replay

Method = Literal["renewal", "best-first", "hydra"]
BASELINES = {"Medusa's tree": MEDUSA, "EAGLE-1's tree": EAGLE}
CHAIN = "best chain"
SHORTLIST = 16
REPLAYED = 8  # sizes of each depth cap that are replayed before the shortlist is drawn
REFINED = 2
DRAWN = ("leviathan", "block", "specinfer", "sequoia")  # rules whose candidates are drawn from the drafter's law
MIN_REQUESTS = 4


def search(
    trace: Trace,
    cost: CostModel,
    *,
    batch: int | Sequence[int] = 1,
    max_nodes: int = 63,
    max_depth: int | None = None,
    method: Method = "renewal",
    held_out: float = 0.5,
    context: int | None = None,
    seed: int = 0,
) -> Plan:
    """The fastest topology for each batch size, or none, chosen on one part of the requests and judged on the rest.

    Args:
        trace: what the drafter got right.
        cost: seconds of steps.
        batch: batch sizes.
        max_nodes: largest tree tried.
        max_depth: deepest tree tried, the trace's depth at most.
        method: `best-first` takes the best position-averaged trees and replays a shortlist; `renewal` also
            refines them for the positions they visit; `hydra` grows by replay, one node at a time.
        held_out: share of requests that predictions are made on.
        context: tokens a sequence in the cache; default what the cost model was made for.
        seed: of the split.

    Raises:
        UsageError: a setting without meaning.
        TraceError: too few requests to hold some out, or a rule whose acceptance ranks do not tell.
        CostError: a batch size or tree size that the cost model does not cover.
    """
    sizes: Sequence[int] = [batch] if isinstance(batch, int | np.integer) else batch
    batches = tuple(index(size) for size in sizes)
    max_depth = trace.depth if max_depth is None else min(max_depth, trace.depth)
    _check(batches, max_nodes, max_depth, held_out, method)
    if trace.meta.get("verification") in DRAWN:
        raise TraceError(
            f"rule {trace.meta['verification']} draws its candidates, so ranks do not say what it keeps: "
            "record sample-and-match"
        )
    if trace.requests < MIN_REQUESTS:
        raise TraceError(f"search holds requests out and needs at least {MIN_REQUESTS}, the trace has {trace.requests}")
    fit, held = trace.split(share=1 - held_out, rng=np.random.default_rng(seed))
    if held.requests < 2:
        raise TraceError(f"an interval needs at least 2 requests held out, {held_out} of {trace.requests} are fewer")
    bench = _Bench(fit, held, cost, context)
    options = _options(bench, method, max_nodes, max_depth)
    entries = tuple(_entry(bench, options, size, method, max_nodes, max_depth) for size in batches)
    meta = {
        "search": {
            "method": method,
            "max_nodes": max_nodes,
            "max_depth": max_depth,
            "held_out": held_out,
            "seed": seed,
            "requests_chosen_on": fit.requests,
            "requests_judged_on": held.requests,
            "anchors": trace.anchors,
        },
        "trace": dict(trace.meta),
        "cost": dict(cost.meta),
        "provenance": this_run(),
    }
    return Plan(entries, meta)


def _check(batches: Sequence[int], max_nodes: int, max_depth: int, held_out: float, method: str) -> None:
    if not batches:
        raise UsageError("at least one batch size is needed")
    for size in batches:
        if size < 1:
            raise UsageError(f"batch must be at least 1, got {size}")
    if len(set(batches)) < len(batches):
        raise UsageError(f"batch sizes must differ, got {', '.join(map(str, batches))}")
    if max_nodes < 1 or max_depth < 1:
        raise UsageError(f"max-nodes and max-depth must be at least 1, got {max_nodes} and {max_depth}")
    if not 0 < held_out < 1:
        raise UsageError(f"held-out must lie between 0 and 1, got {held_out}")
    if method not in ("renewal", "best-first", "hydra"):
        raise UsageError(f"method must be renewal, best-first or hydra, got {method}")


@dataclass
class _Bench:
    """The two parts of the trace and what was replayed on them so far."""

    fit: Trace
    held: Trace
    cost: CostModel
    context: int | None
    _fitted: dict[Tree, StepCounts] = field(default_factory=dict)
    _judged: dict[Tree, StepCounts] = field(default_factory=dict)

    def step_s(self, tree: Tree, batch: int) -> float:
        return float(self.cost.step_s([StepShape.of(tree, batch=batch, context=self.context)])[0])

    def tau(self, tree: Tree) -> float:
        """Replayed on the part that choices are made on."""
        if tree not in self._fitted:
            self._fitted[tree] = replay(tree, self.fit)
        return self._fitted[tree].tau

    def rate(self, tree: Tree, batch: int) -> float:
        """Tokens a second and sequence on the part that choices are made on."""
        return self.tau(tree) / self.step_s(tree, batch)

    def judged(self, tree: Tree) -> StepCounts:
        if tree not in self._judged:
            self._judged[tree] = replay(tree, self.held)
        return self._judged[tree]

    def choice(self, name: str, tree: Tree | None, batch: int) -> Choice:
        plain_s = self.cost.plain_s(batch=batch, context=self.context)
        if tree is None:
            one = Estimate(1.0, 1.0, 1.0)
            return Choice(name, None, one, plain_s, one)
        counts = self.judged(tree)
        tau = ratio(counts.committed, counts.steps)
        step_s = self.step_s(tree, batch)
        return Choice(name, tree, tau, step_s, tau.times(plain_s / step_s, relative_error=self.cost.relative_error))


@dataclass(frozen=True, eq=False)
class _Options:
    """Trees worth pricing, struct of arrays; `tree(i)` makes one.

    Attributes:
        tokens: float64 (n,), estimated tau on the fitted part.
        nodes: sizes.
        widths: fed widths of each.
        tree: the i-th topology.
    """

    tokens: NDArray[np.float64]
    nodes: Sequence[int]
    widths: Sequence[tuple[int, ...]]
    tree: Callable[[int], Tree]


def _options(bench: _Bench, method: Method, max_nodes: int, max_depth: int) -> _Options:
    if method == "hydra":
        trees = grow(bench.fit, nodes=max_nodes, depth=max_depth)
        taus = np.array([bench.tau(tree) for tree in trees])
        return _Options(taus, [t.nodes for t in trees], [t.fed_widths for t in trees], trees.__getitem__)
    return _enumerate(bench, count_prefixes(bench.fit, nodes=max_nodes, depth=max_depth), max_depth)


def _enumerate(bench: _Bench, frontier: Frontier, max_depth: int) -> _Options:
    """Best position-averaged trees of every size and depth cap; a cap that is not reached adds nothing."""
    tokens: list[NDArray[np.float64]] = []
    sizes: list[tuple[int, int]] = []
    widths: list[tuple[int, ...]] = []
    for cap in range(1, max_depth + 1):
        order = frontier.order(cap)
        expected = frontier.tokens(cap)
        fed = np.zeros(cap, dtype=np.int64)
        fed[0] = 1
        inner: set[int] = set()
        reached, first = 0, len(sizes)
        for nodes, node in enumerate(order.tolist(), 1):
            parent, depth = int(frontier.parent[node]), int(frontier.depth[node])
            reached = max(reached, depth)
            if parent >= 0 and parent not in inner:
                inner.add(parent)
                fed[depth - 1] += 1
            if reached == cap:
                sizes.append((nodes, cap))
                widths.append(tuple(fed.tolist()))
        tokens.append(_expected_on_walk(bench, frontier, [n for n, _ in sizes[first:]], cap, expected))
    return _Options(np.concatenate(tokens), [n for n, _ in sizes], widths, lambda i: frontier.tree(*sizes[i]))


def _expected_on_walk(
    bench: _Bench, frontier: Frontier, nodes: list[int], cap: int, expected: NDArray[np.float64]
) -> NDArray[np.float64]:
    """tau of each size: its average over positions, times the walk's share of it at a few sizes, interpolated.

    Averages promise too much, of deep trees most of all; ranked by them alone, a shortlist holds deep trees only.
    """
    if not nodes:
        return np.empty(0)
    spread = np.geomspace(nodes[0], nodes[-1], REPLAYED)
    grid = sorted({min(nodes, key=lambda n: abs(n - size)) for size in spread.tolist()})
    shares = [bench.tau(frontier.tree(n, cap)) / expected[n] for n in grid]
    return np.asarray(expected[nodes] * np.interp(np.log(nodes), np.log(grid), shares))


def _entry(bench: _Bench, options: _Options, batch: int, method: Method, max_nodes: int, max_depth: int) -> PlanEntry:
    chain = max(
        (Tree.chain(k) for k in range(1, min(max_depth, max_nodes) + 1)),
        key=lambda tree: bench.rate(tree, batch),
    )
    plain_s = bench.cost.plain_s(batch=batch, context=bench.context)
    best = _best(bench, options, batch, method)
    if best is None or bench.rate(chain, batch) >= bench.rate(best, batch):
        best = chain
    speculate = bench.rate(best, batch) > 1 / plain_s
    choice = bench.choice("chosen tree", best, batch) if speculate else bench.choice("no speculation", None, batch)

    compared = [bench.choice("no speculation", None, batch)] if speculate else []
    compared.append(bench.choice(CHAIN, chain, batch))
    skipped = {}
    for name, key in BASELINES.items():
        try:
            compared.append(bench.choice(name, published_trees()[key], batch))
        except (TraceError, CostError) as error:  # too deep, too wide or too large for what was recorded
            skipped[name] = str(error)
    gain = None
    if speculate and best != chain:
        a, b = bench.judged(best), bench.judged(chain)
        gain = paired_difference((a.committed, a.steps), (b.committed, b.steps))
    return PlanEntry(batch, choice, gain, tuple(compared), skipped, _proof(bench.cost, method, max_nodes, max_depth))


def _best(bench: _Bench, options: _Options, batch: int, method: Method) -> Tree | None:
    """The tree of most replayed tokens a second on the fitted part."""
    if len(options.tokens) == 0:
        return None
    shapes = [
        StepShape(batch, nodes + 1, widths, bench.context)
        for nodes, widths in zip(options.nodes, options.widths, strict=True)
    ]
    rates = options.tokens / bench.cost.step_s(shapes)
    shortlist = [options.tree(i) for i in np.argsort(-rates, kind="stable")[:SHORTLIST].tolist()]
    shortlist.sort(key=lambda tree: -bench.rate(tree, batch))
    if method == "renewal":
        shortlist += [improve(bench.fit, nodes=tree.nodes, depth=tree.depth).tree for tree in shortlist[:REFINED]]
    return max(shortlist, key=lambda tree: bench.rate(tree, batch))


def _proof(cost: CostModel, method: Method, max_nodes: int, max_depth: int) -> Proof:
    limits = f"trees of at most {max_nodes} nodes and depth {max_depth}"
    if method == "hydra":
        return Proof("replayed tokens a second", optimal=False, statement=f"best of the trees grown; {limits}")
    proved = cost.separable
    statement = (
        f"the candidates of each size and depth are {'proved ' if proved else ''}optimal for tokens averaged over "
        f"positions{'' if proved else ' alone: this cost depends on level widths'}; among them the choice is the "
        f"best found by replay on the fitted requests, not proved; {limits}"
    )
    return Proof("replayed tokens a second", optimal=False, statement=statement)
