"""The tree with the most tokens per second by integer programme, for rules and costs with stairs or level widths.

Proves: a bound on the tokens per second of every tree that keeps the rules, also when the work is cut short. Dinkelbach
(1967): with price λ, if no tree has E(T) − λ C(T) > F, then none has E(T) / C(T) > λ + F / C_min. E is averaged over
anchors and ignores the walk. "Every tree" means trees of any ranks that the drafter has, also trees filled up with
nodes without value because a larger size costs less.

In the programme for CP-SAT one boolean per node states that it is taken. Costs by count (verified tokens, nodes fed at
a level) are split into stretches of equal slope: y_k states that stretch k is reached and z_k how far, so that a
staircase is a sum of y and a straight line is one z. Nodes that are no candidates, of any rank within the rules, are
represented by their number at each level and the number of nodes that only they continue. They take up size, feed the
drafter, and are worth as much as the best of them may be worth, 0 where all nodes of any value are candidates.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from treeopt.constraints import Constraint, Limits, joined
from treeopt.cost_model import CostParts
from treeopt.errors import CostError, EngineError
from treeopt.searchers.best_first import Frontier
from treeopt.searchers.choose_method import Fitting, Nodes, fitting, ranks_within
from treeopt.tree import Path, Tree

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

SCALE = 10**8
"""Scale of coefficients, which must be integers; all are rounded up."""

Term = tuple[float, Any]  # a coefficient and its variable
Point = tuple[int, float]  # a count and its seconds


@dataclass(eq=False)
class Formulation:
    """The programme, ready for an objective.

    Attributes:
        model: variables and rules.
        taken: one boolean per node.
        pads: number of nodes at depth 1, 2, ... that are no candidates.
        opened: number of nodes at depth 0 (the root), 1, ... that only such nodes continue.
        gain: terms of the expected tokens, without the bonus.
        seconds: terms of the step's time.
        fixed_s: the part of the step's time that no variable changes.
    """

    model: "cp_model.CpModel"
    taken: list[Any]
    pads: list[Any] = field(default_factory=list)
    opened: list[Any] = field(default_factory=list)
    gain: list[Term] = field(default_factory=list)
    seconds: list[Term] = field(default_factory=list)
    fixed_s: float = 0.0

    def aim(self, price: float) -> int:
        """Set the objective to (gain − price · seconds) · `SCALE`, rounded up; return its constant part."""
        terms = [(math.ceil(weight * SCALE), variable) for weight, variable in self.gain]
        terms += [(math.ceil(-price * weight * SCALE), variable) for weight, variable in self.seconds]
        self.model.maximize(sum(weight * variable for weight, variable in terms if weight))
        return math.ceil((1 - price * self.fixed_s) * SCALE)


def formulate(nodes: Nodes, limits: Limits, verify: Sequence[Point], draft: NDArray[np.float64]) -> Formulation:
    """Return the programme of all trees of at least one node within the limits, of any ranks.

    Args:
        nodes: candidates.
        limits: limits that the rules set.
        verify: allowed numbers of nodes, rising, with the seconds of each.
        draft: as `CostParts.draft_s`; every node can be on one of its levels.
    """
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    taken = [model.new_bool_var("") for _ in nodes.value]
    form = Formulation(model, taken)
    worth = np.where(nodes.known, nodes.value, nodes.beyond)
    form.gain = [(float(value), variable) for value, variable in zip(worth, taken, strict=True) if value > 0]
    expanded = _precede(model, nodes, limits, taken)
    deeper = _levels(form, nodes, limits, expanded, draft, verify[-1][0])
    _cost(form, sum(taken) + sum(form.pads), verify)
    if limits.min_depth > 1:
        model.add_bool_or(deeper[limits.min_depth - 1 : limits.min_depth])
    return form


def tables(parts: CostParts, limits: Limits, *, size: int, depth: int) -> tuple[list[Point], NDArray[np.float64]]:
    """Return the known costs of trees of 1 to `size` nodes and 1 to `depth` levels."""
    largest = min(size, len(parts.verify_s) - 2)
    verify = [(n, float(parts.verify_s[n + 1])) for n in range(1, largest + 1) if np.isfinite(parts.verify_s[n + 1])]
    draft = parts.draft_s[: min(depth, limits.depth), :]
    first = np.arange(len(draft)) == 0  # the drafter is fed the root alone
    known = np.where(first, np.isfinite(draft[:, 1:2]).all(axis=1), np.isfinite(draft[:, 1:]).any(axis=1))
    return verify, draft[: int(np.argmin(known)) if not known.all() else len(draft)]


def _levels(
    form: Formulation,
    nodes: Nodes,
    limits: Limits,
    expanded: dict[int, Any],
    draft: NDArray[np.float64],
    size: int,
) -> list[Any]:
    """Add each level's width, the nodes that feed it and their cost; return a boolean per depth that has nodes."""
    model = form.model
    children = min(limits.ranks, size)
    form.fixed_s += float(draft[0, 1])
    deeper = [model.new_constant(1)]
    fed: Any = 1
    form.opened.append(0)
    for level in range(1, len(draft) + 1):
        on_level = np.flatnonzero(nodes.depth == level).tolist()
        pads = model.new_int_var(0, size, "")
        form.pads.append(pads)
        if nodes.beyond > 0:
            form.gain.append((nodes.beyond, pads))
        width = sum(form.taken[node] for node in on_level) + pads
        model.add(width <= children * fed)
        model.add(pads >= form.opened[-1])
        if level == len(draft):
            break
        form.opened.append(model.new_int_var(0, size, ""))
        fed = sum(expanded[node] for node in on_level if node in expanded) + form.opened[-1]
        model.add(fed <= width)
        points = [(count, float(cost)) for count, cost in enumerate(draft[level].tolist()[: size + 1])]
        deeper.append(_cost(form, fed, [point for point in points if math.isfinite(point[1])]))
    return deeper


def _cost(form: Formulation, count: Any, points: Sequence[Point]) -> Any:
    """Restrict a count to these points and add their seconds; return a boolean for a count beyond the first."""
    model = form.model
    stretches = _stretches(points)
    start, cost = points[0]
    form.fixed_s += cost
    total: Any = start
    before: Any = None
    reached: list[Any] = []
    for index, (first, last) in enumerate(stretches):
        length = points[last][0] - points[first][0]
        slope = (points[last][1] - points[first][1]) / length if length else 0.0
        if index:
            starts = model.new_bool_var("")
            end, end_s = points[first - 1]
            total += (points[first][0] - end) * starts
            form.seconds.append((points[first][1] - end_s, starts))
            if reached:
                model.add_implication(starts, reached[-1])
            if before is not None:
                model.add(before[0] == before[1]).only_enforce_if(starts)
            reached.append(starts)
        before = None
        if length:
            along = model.new_int_var(0, length, "")
            total += along
            form.seconds.append((slope, along))
            if index:
                model.add(along <= length * reached[-1])
            before = (along, length)
    model.add(count == total)
    return reached[0] if reached else model.new_constant(0)


def _stretches(points: Sequence[Point]) -> list[tuple[int, int]]:
    """Return first and last index of each run of equal slope; a level that is not drafted is a run of its own."""
    runs: list[tuple[int, int]] = []
    first = 0
    while first < len(points):
        last = first
        while last + 1 < len(points) and points[first][0] > 0:
            step, rise = points[last + 1][0] - points[last][0], points[last + 1][1] - points[last][1]
            slope = points[first + 1][1] - points[first][1]
            if step != 1 or abs(rise - slope) > 1e-12 * (abs(points[last][1]) + abs(points[last + 1][1])):
                break
            last += 1
        runs.append((first, last))
        first = last + 1
    return runs


def _precede(model: "cp_model.CpModel", nodes: Nodes, limits: Limits, taken: Sequence[Any]) -> dict[int, Any]:
    """Require parents and better siblings; return a boolean for each node that is continued."""
    expanded: dict[int, Any] = {}
    for above in range(-1, len(nodes.value)):
        start, end = nodes.first[above + 1 : above + 3].tolist()
        if start == end:
            continue
        if limits.contiguous:
            for node in range(start + 1, end):
                model.add_implication(taken[node], taken[node - 1])
        if above < 0:
            continue
        if limits.contiguous:
            expanded[above] = taken[start]
        else:
            expanded[above] = model.new_bool_var("")
            for node in range(start, end):
                model.add_implication(taken[node], expanded[above])
            model.add_bool_or(taken[start:end]).only_enforce_if(expanded[above])
        model.add_implication(expanded[above], taken[above])
    return expanded


CANDIDATES = 400
WORK = 0.75  # at most three to four seconds of one quiet core of an AVX2 EPYC
TOLERANCE = 1e-5
"""Relative: above the rounding of coefficients, far below the accuracy of costs."""


@dataclass(frozen=True)
class _Priced:
    """A tree with its tokens and seconds.

    Attributes:
        tree: the tree.
        tokens: expected tokens per step, averaged over anchors, bonus counted.
        seconds: seconds of a step.
    """

    tree: Tree
    tokens: float
    seconds: float

    @property
    def rate(self) -> float:
        """The tokens per second and sequence."""
        return self.tokens / self.seconds


@dataclass(frozen=True)
class Refined(_Priced):
    """The best tree found and what is proved about it.

    Attributes:
        bound: upper bound on the rate of every tree within the rules, size, depth and ranks.
    """

    bound: float

    @property
    def gap(self) -> float:
        """The share by which the bound exceeds the rate."""
        return self.bound / self.rate - 1

    @property
    def optimal(self) -> bool:
        """True if the bound is reached, to one part in 100 000."""
        return self.gap <= TOLERANCE


def refine(
    frontier: Frontier,
    parts: CostParts,
    rules: Sequence[Constraint],
    *,
    nodes: int,
    depth: int,
    width: int | None = None,
    known: Fitting | None = None,
    candidates: int = CANDIDATES,
    work: float = WORK,
    workers: int = 1,
    seed: int = 0,
) -> Refined:
    """Return the tree with the most tokens per second under the rules, or the best found within `work`, with a bound.

    Args:
        frontier: the pool of nodes to choose from; it should hold several times `nodes`, because nodes that it may lack
            loosen the bound.
        parts: seconds of all steps.
        rules: rules, all of which must be kept.
        nodes: largest size wanted.
        depth: deepest level wanted.
        width: number of ranks that the drafter has, 0 to `width` − 1; None for any that the rules allow.
        known: trees that keep the rules, to start from; default those of `fitting`.
        candidates: number of nodes, the most valuable ones, that are modelled one by one.
        work: work of the solver in CP-SAT's deterministic time, of which 0.25 takes about a second; the result at that
            point is returned, and with one worker does not depend on the machine's load.
        workers: threads of the solver.
        seed: seed of the solver.

    Raises:
        EngineError: no tree keeps the rules.
        CostError: no tree that was found to keep the rules has a known cost.
    """
    limits = ranks_within(joined(rules), width)
    no_tree: EngineError | None = None
    if known is None:
        try:
            known = fitting(frontier, rules, nodes=nodes, depth=depth, width=width)
        except EngineError as error:  # a grown tree may be missed
            no_tree = error
    verify, draft = tables(parts, limits, size=min(nodes, limits.nodes), depth=depth)
    chosen = Nodes.of(frontier, limits, depth=len(draft), most=candidates)
    pricer = _Pricer(frontier, chosen, parts, rules, limits.ranks)
    best, bound = None, np.inf
    if verify and len(draft) >= max(limits.min_depth, 1):
        min_s = _min_s(verify, draft, limits.min_depth)
        best = None if known is None else _cheapest(known, parts)
        largest = verify[-1][0]
        solve = _Solver(formulate(chosen, limits, verify, draft), work, workers, seed)
        bound = (1 + float(np.sort(chosen.value)[::-1][:largest].sum()) + chosen.beyond * largest) / min_s
        best, bound = _dinkelbach(solve, pricer, best, bound, min_s)
    if best is None:
        best = pricer.fastest(map(Tree.chain, range(1, min(nodes, depth) + 1)))
    if best is None:
        raise no_tree or CostError("no tree that keeps the rules has a known cost")
    bound = max(bound, best.rate)
    return Refined(best.tree, best.tokens, best.seconds, bound)


def _dinkelbach(
    solve: "_Solver",
    pricer: "_Pricer",
    best: _Priced | None,
    bound: float,
    min_s: float,
) -> tuple[_Priced | None, float]:
    """Return the best tree found and a bound on all; raise the price until no tree is worth it or work runs out."""
    while True:
        price = best.rate if best else 0.0
        chosen, surplus = solve(price, pricer.nodes, best.tree if best else None)
        bound = min(bound, price + max(surplus, 0.0) / min_s)
        better = None if chosen is None else pricer(chosen)
        if better is None or better.rate <= price:
            return best, bound
        best = better
        if bound <= best.rate * (1 + TOLERANCE):
            return best, bound


@dataclass(frozen=True, eq=False)
class _Chosen:
    """The programme's solution: candidates, bool (n,), and per level the numbers of other and of continued nodes."""

    taken: NDArray[np.bool_]
    pads: list[int]
    opened: list[int]


class _Solver:
    """CP-SAT on one programme, with a limit of work for all calls together."""

    def __init__(self, form: Formulation, work: float, workers: int, seed: int) -> None:
        self.form, self.left, self.workers, self.seed = form, work, workers, seed

    def __call__(self, price: float, nodes: Nodes, hint: Tree | None) -> tuple[_Chosen | None, float]:
        """Return the best solution at this price, if any was found, and a bound on gain minus price times seconds."""
        from ortools.sat.python import cp_model

        if self.left <= 0:
            return None, np.inf
        constant = self.form.aim(price)
        self.form.model.clear_hints()  # type: ignore[no-untyped-call]
        if hint is not None:
            for variable, value in zip(self.form.taken, _nodes_of(nodes, hint), strict=True):
                self.form.model.add_hint(variable, bool(value))
        solver = cp_model.CpSolver()
        solver.parameters.max_deterministic_time = self.left
        solver.parameters.num_workers = self.workers
        solver.parameters.random_seed = self.seed
        solver.parameters.linearization_level = 2  # relaxations of trees are tight: without it, bounds come late
        solver.parameters.cp_model_probing_level = 0
        status = solver.solve(self.form.model)
        self.left -= solver.response_proto.deterministic_time
        if status == cp_model.INFEASIBLE:
            return None, -np.inf
        bound = (solver.best_objective_bound + constant) / SCALE
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None, np.inf
        taken = np.array([solver.boolean_value(variable) for variable in self.form.taken], dtype=np.bool_)
        return _Chosen(taken, list(map(solver.value, self.form.pads)), list(map(solver.value, self.form.opened))), bound


def _nodes_of(nodes: Nodes, tree: Tree) -> NDArray[np.bool_]:
    """Return the nodes that a tree holds, bool (n,)."""
    keys = zip(nodes.parent.tolist(), nodes.rank.tolist(), strict=True)
    place = {key: node for node, key in enumerate(keys)}
    inside = np.zeros(len(nodes.value), dtype=np.bool_)
    places: list[int | None] = []
    for parent, rank in zip(tree.parents, tree.ranks, strict=True):
        above = places[parent] if parent >= 0 else -1
        node = None if above is None else place.get((above, rank))
        places.append(node)
        if node is not None:
            inside[node] = True
    return inside


class _Pricer:
    """Makes trees from solutions of the programme, with their prices."""

    def __init__(
        self, frontier: Frontier, nodes: Nodes, parts: CostParts, rules: Sequence[Constraint], ranks: int
    ) -> None:
        self.nodes, self.parts, self.rules, self.ranks = nodes, parts, rules, ranks
        self.value: dict[Path, float] = dict(zip(frontier.paths, frontier.value.tolist(), strict=True))

    def __call__(self, chosen: _Chosen) -> _Priced | None:
        """Return the faster of the candidates alone and filled up; None if neither keeps the rules at a known cost."""
        bare = self.nodes.tree(chosen.taken)
        full = fill_ranks(bare, self.ranks, chosen.pads, chosen.opened) if sum(chosen.pads) else None
        return self.fastest(tree for tree in (bare, full) if tree is not None)

    def fastest(self, trees: Iterable[Tree]) -> _Priced | None:
        """Return the fastest of these trees; None if none keeps the rules at a known cost."""
        return max(filter(None, map(self._with_prices, trees)), key=lambda tree: tree.rate, default=None)

    def _with_prices(self, tree: Tree) -> _Priced | None:
        if tree.nodes == 0 or any(rule.check(tree) for rule in self.rules):
            return None
        seconds = self.parts.step_s(np.array([tree.nodes + 1]), np.array([tree.fed_widths]))[0]
        tokens = 1 + sum(self.value.get(path, 0.0) for path in tree.paths)
        return _Priced(tree, tokens, float(seconds)) if np.isfinite(seconds) else None


def fill_ranks(tree: Tree, ranks: int, pads: Sequence[int], opened: Sequence[int]) -> Tree | None:
    """Return the tree with nodes without value added at the lowest free ranks; None where they do not all fit.

    Args:
        tree: a tree of ranks below `ranks`.
        ranks: number of ranks.
        pads: number of nodes to add at depth 1, 2, ...
        opened: at depth 0 (the root), 1, ..., number of nodes without children that get some.

    >>> fill_ranks(Tree.chain(2), 8, [1, 2], [0, 1]).paths
    ((0,), (1,), (0, 0), (0, 1), (1, 0))
    """
    children: dict[Path, set[int]] = {(): set()}  # their ranks
    for path in tree.paths:
        children[path] = set()
        children[path[:-1]].add(path[-1])
    parents: list[Path] = [()]
    for count, new in zip(pads, opened, strict=True):
        ends = sorted((path for path in parents if path and not children[path]), key=lambda path: (path[-1], path))
        if new > min(count, len(ends)):
            return None
        free = ends[:new]
        for path in parents:
            if children[path] or not path or path in free:
                free += [path] * (ranks - len(children[path]) - (path in ends))
        for path in free[:count]:
            rank = next(rank for rank in range(ranks) if rank not in children[path])
            children[path].add(rank)
            children[*path, rank] = set()
        if len(free) < count:
            return None
        parents = sorted((*path, rank) for path in parents for rank in children[path])
    return Tree.from_paths(path for path in children if path)


def _cheapest(known: Fitting, parts: CostParts) -> _Priced | None:
    """Return the known tree with the most tokens per second."""
    seconds = parts.step_s(known.nodes + 1, known.widths)
    if not np.isfinite(seconds).any():  # also if there are no trees
        return None
    best = int(np.argmax(known.tokens / seconds))
    return _Priced(known.tree(best), float(known.tokens[best]), float(seconds[best]))


def _min_s(verify: Sequence[Point], draft: NDArray[np.float64], min_depth: int) -> float:
    """Return a lower bound on the seconds of every tree."""
    min_s = min(seconds for _, seconds in verify) + float(draft[0, 1])
    for level, row in enumerate(draft[1:], 2):
        fed = float(row[1:].min())
        min_s += fed if level <= min_depth else min(fed, 0.0)
    if not min_s > 0:
        raise CostError(f"steps must take time, the cheapest would take {min_s} s")
    return min_s
