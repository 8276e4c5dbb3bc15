"""The integer programme for CP-SAT: trees under rules, with variables, rules and costs; `dinkelbach` solves it.

One boolean per node states that it is taken. Costs by count (verified tokens, nodes fed at a level) are split into
stretches of equal slope: y_k states that stretch k is reached and z_k how far, so that a staircase is a sum of y and
a straight line is one z.

Nodes that are no candidates, of any rank that the rules allow, are represented by their number at each level and the
number of nodes that only they continue. They take up size, feed the drafter, and are worth as much as the best of them
may be worth, 0 where all nodes of any value are candidates.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from treeopt.constraints import Limits
from treeopt.cost_model import CostParts
from treeopt.searchers.node_pool import Nodes

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
