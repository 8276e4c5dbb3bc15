"""Evaluate trees by replay on the two parts of a trace: the one to choose on, or the one held out."""

from dataclasses import replace
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treeopt.cost_model import CostModel, StepShape
from treeopt.plans import Choice
from treeopt.replay.many_trees import replayed
from treeopt.replay.objective import Objective
from treeopt.replay.static_tree import step_seconds
from treeopt.replay.walk import StepCounts, total_counts
from treeopt.statistics import Estimate, ratio
from treeopt.traces.trace import Trace
from treeopt.tree import EMPTY, Tree

PLAIN = "no speculation"


class Judge:
    """The evaluator: tokens, rate, speedup and error of trees; every tree is replayed once per part.

    Attributes:
        fit: requests that choices are made on.
        held: requests that predictions are made on.
        cost: seconds of steps.
        objective: how tokens per step are counted.
        context: cached tokens per sequence; None leaves it to the cost model.
    """

    def __init__(
        self, fit: Trace, held: Trace, cost: CostModel, objective: Objective, *, context: int | None = None
    ) -> None:
        """Store the parts; nothing is replayed yet."""
        self.fit, self.held, self.cost, self.objective, self.context = fit, held, cost, objective, context
        self._fitted, self._judged = _Replays(fit), _Replays(held)
        self._step_s: dict[tuple[Tree, int], float] = {}

    def expect(self, pool: Tree) -> None:
        """Set the tree that the next trees are mostly subtrees of, which makes their replays fast."""
        self._fitted.pool = self._judged.pool = pool

    def step_s(self, tree: Tree, batch: int) -> float:
        """Return the seconds of a step that commits what the tree commits on the fitted requests."""
        if (tree, batch) not in self._step_s:
            counts = self._fitted[tree]
            said: dict[str, Any] = {"context": self.context, "committed": counts.tau, "drafted": counts.drafted_counts}
            self._step_s[tree, batch] = step_seconds(tree, self.cost, batch=batch, **said)
        return self._step_s[tree, batch]

    def plain_s(self, batch: int) -> float:
        """Return the seconds of a plain step."""
        return self.cost.plain_s(batch=batch, context=self.context)

    def tokens(self, tree: Tree) -> float:
        """Return tokens per step as the objective counts them, on the fitted requests."""
        return self.objective.tokens(self._fitted[tree].steps, self.fit)

    def rate(self, tree: Tree | None, batch: int) -> float:
        """Return tokens per second and sequence, on the fitted requests; None decodes plainly."""
        return 1 / self.plain_s(batch) if tree is None else self.tokens(tree) / self.step_s(tree, batch)

    def fitted(self, tree: Tree, batch: int) -> Estimate:
        """Return the speedup on the fitted requests."""
        return self._speedup(tree, batch, self._fitted[tree], self.fit)

    def fitted_loss(self, tree: Tree, best: Tree, batch: int) -> Estimate:
        """Return the share of tokens per second that a tree loses to another on the fitted requests, paired by request.

        Of the error of step times, what both have in common is left out: the smaller of the two.
        """
        own_s, best_s = (self._fitted[t].steps * np.float64(self.step_s(t, batch)) for t in (tree, best))
        larger, smaller = sorted((self.error(tree, batch), self.error(best, batch)), reverse=True)
        share = self.objective.share(own_s, best_s, self.fit).times(1.0, relative_error=(larger**2 - smaller**2) ** 0.5)
        return Estimate(1 - share.value, 1 - share.high, 1 - share.low)

    def choice(self, name: str, tree: Tree | None, batch: int) -> Choice:
        """Return a configuration with its prediction on the requests held out."""
        if tree is None:
            one = Estimate(1.0, 1.0, 1.0)
            return Choice(name, None, one, self.plain_s(batch), one)
        counts = self._judged[tree]
        tau = ratio(counts.committed, counts.steps, self.held.domain)
        accepted = (np.cumsum(counts.accepted_counts[::-1])[::-1] / counts.accepted_counts.sum())[1:].tolist()
        speedup = self._speedup(tree, batch, counts, self.held)
        return Choice(name, tree, tau, self.step_s(tree, batch), speedup, accepted=tuple(accepted))

    def counts(self, tree: Tree) -> StepCounts:
        """Return the counts of a tree on the requests held out."""
        return self._judged[tree]

    def error(self, tree: Tree | None, batch: int) -> float:
        """Return the relative error of the tree's step time over a plain step (95 % half-width)."""
        return 0.0 if tree is None else self.cost.error(self._shape(tree, batch))

    def seconds(self, tree: Tree | None, batch: int) -> NDArray[np.float64]:
        """Return the seconds of each request held out, float64 (R,)."""
        if tree is None:
            return np.float64(self.plain_s(batch)) * self.held.lengths
        return np.float64(self.step_s(tree, batch)) * self._judged[tree].steps

    def loss(self, own_s: NDArray[np.float64], best_s: NDArray[np.float64]) -> Estimate:
        """Return the share of tokens per second that one configuration loses to another, paired by request.

        Args:
            own_s: float64 (R,), seconds of each request held out.
            best_s: float64 (R,), the same for the configuration that it is compared with.
        """
        share = self.objective.share(own_s, best_s, self.held)
        return Estimate(1 - share.value, 1 - share.high, 1 - share.low)

    def _speedup(self, tree: Tree, batch: int, counts: StepCounts, part: Trace) -> Estimate:
        """Return the speedup on one part; the worst domain is chosen on the fitted requests."""
        row = self.objective.row(self._fitted[tree].steps, self.fit)
        tokens = self.objective.estimate(counts.steps, part, row=row)
        ratio_s = self.plain_s(batch) / self.step_s(tree, batch)
        return tokens.times(ratio_s, relative_error=self.error(tree, batch))

    def _shape(self, tree: Tree, batch: int) -> StepShape:
        return StepShape.of(tree, batch=batch, context=self.context, committed=self._fitted[tree].tau)


class _Replays:
    """Counts of trees on one trace, each replayed once."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._known: dict[Tree, StepCounts] = {}
        self.pool = EMPTY

    def __getitem__(self, tree: Tree) -> StepCounts:
        if tree not in self._known:
            counts = total_counts(self._trace.map(replayed, repeat(self.pool), repeat(tree)))
            self._known[tree] = replace(counts, committed=self._trace.lengths)
        return self._known[tree]
