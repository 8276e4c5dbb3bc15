"""Two parts of a trace, one to choose on and one to judge on, and what replays on them say of ways to decode."""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from treeopt.cost_model import CostModel, StepShape
from treeopt.plans.plan import Choice
from treeopt.replay.many_trees import Replayer
from treeopt.replay.objective import Objective
from treeopt.replay.walk import StepCounts
from treeopt.statistics.clustered_estimate import Estimate, ratio
from treeopt.traces.trace import Trace
from treeopt.tree import EMPTY, Tree

PLAIN = "no speculation"


class Judge:
    """What is known of trees; every replay is done once.

    Attributes:
        fit: requests that choices are made on.
        held: requests that predictions are made on.
        cost: seconds of steps.
        objective: how tokens a step are counted.
        context: tokens a sequence in the cache; None leaves it to the cost model.
    """

    def __init__(
        self, fit: Trace, held: Trace, cost: CostModel, objective: Objective, *, context: int | None = None
    ) -> None:
        """Without replays."""
        self.fit, self.held, self.cost, self.objective, self.context = fit, held, cost, objective, context
        self._fitted, self._judged = _Replays(fit), _Replays(held)

    def expect(self, pool: Tree) -> None:
        """Trees to come are mostly closed parts of this one: makes their replays fast."""
        self._fitted.pool = self._judged.pool = pool

    def step_s(self, tree: Tree, batch: int) -> float:
        """Seconds of a step, committing what it does on the requests that choices are made on."""
        return float(self.cost.step_s([self._shape(tree, batch)])[0])

    def plain_s(self, batch: int) -> float:
        """Seconds of a plain step."""
        return self.cost.plain_s(batch=batch, context=self.context)

    def tokens(self, tree: Tree) -> float:
        """Tokens a step as the objective counts them, on the requests that choices are made on."""
        return self.objective.tokens(self._fitted[tree].steps, self.fit)

    def rate(self, tree: Tree | None, batch: int) -> float:
        """Tokens a second and sequence, on the requests that choices are made on."""
        return 1 / self.plain_s(batch) if tree is None else self.tokens(tree) / self.step_s(tree, batch)

    def fitted(self, tree: Tree, batch: int) -> Estimate:
        """Speedup on the requests that choices are made on."""
        return self._speedup(tree, batch, self._fitted[tree], self.fit)

    def choice(self, name: str, tree: Tree | None, batch: int) -> Choice:
        """A way to decode with its prediction on the requests held out."""
        if tree is None:
            one = Estimate(1.0, 1.0, 1.0)
            return Choice(name, None, one, self.plain_s(batch), one)
        counts = self._judged[tree]
        tau = ratio(counts.committed, counts.steps)
        return Choice(name, tree, tau, self.step_s(tree, batch), self._speedup(tree, batch, counts, self.held))

    def counts(self, tree: Tree) -> StepCounts:
        """On the requests held out."""
        return self._judged[tree]

    def error(self, tree: Tree | None, batch: int) -> float:
        """What the cost model leaves open of a step over a plain one, a share (95 % half-width)."""
        return 0.0 if tree is None else self.cost.error(self._shape(tree, batch))

    def seconds(self, tree: Tree | None, batch: int) -> NDArray[np.float64]:
        """Of each request held out, float64 (R,)."""
        if tree is None:
            return np.float64(self.plain_s(batch)) * self.held.lengths
        return np.float64(self.step_s(tree, batch)) * self._judged[tree].steps

    def loss(self, own_s: NDArray[np.float64], best_s: NDArray[np.float64]) -> Estimate:
        """Share of the tokens a second of one way that another loses, on the requests held out, paired.

        Args:
            own_s: float64 (R,), seconds of each request held out.
            best_s: the same of the way that is lost to.
        """
        kept = self.objective.share(own_s, best_s, self.held)
        return Estimate(1 - kept.value, 1 - kept.high, 1 - kept.low)

    def _speedup(self, tree: Tree, batch: int, counts: StepCounts, part: Trace) -> Estimate:
        tokens = self.objective.estimate(counts.steps, part)
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

    @cached_property
    def _replayer(self) -> Replayer:
        return Replayer(self._trace, self.pool)

    def __getitem__(self, tree: Tree) -> StepCounts:
        if tree not in self._known:
            self._known[tree] = self._replayer.replay(tree)
        return self._known[tree]
