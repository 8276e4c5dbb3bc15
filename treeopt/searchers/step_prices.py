"""Seconds of replayed steps of dynamic policies: each step has its own number of verified nodes and drafted levels.

The engine determines how a batch of trees of different sizes becomes one forward (`--padding`):

* `full`: forwards always have the policy's largest shape (CUDA graphs, or a loop that never reads from the device);
* `widest`: every row is padded to the largest tree of its batch (treeopt's own loop on CPU);
* `none`: verified tokens are packed; a step costs as much as one with their mean number, rounded up, in every row.

Levels are saved only where the whole batch stops, and never with `full`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from treeopt.cost_model import CostModel, StepShape
from treeopt.policies import Policy
from treeopt.policies.beam import Drafting
from treeopt.replay.dynamic_tree import Steps
from treeopt.statistics import Estimate, ratio
from treeopt.traces.trace import Trace

Padding = Literal["full", "widest", "none"]


@dataclass(frozen=True)
class Prices:
    """Prices of steps: a cost model with batch size, padding and context.

    Attributes:
        cost: seconds of steps.
        batch: sequences decoded together.
        padding: how trees of different sizes become one forward.
        context: cached tokens per sequence; None leaves it to the cost model.
    """

    cost: CostModel
    batch: int
    padding: Padding = "none"
    context: int | None = None

    def seconds(
        self,
        drafting: Drafting,
        nodes: Sequence[int],
        levels: Sequence[int],
        committed: Sequence[float | None],
        growth: str | None = None,
    ) -> NDArray[np.float64]:
        """Return the seconds of n steps, float64 (n,).

        Args:
            drafting: limits of drafting, which give the widths of levels.
            nodes: nodes that each step verifies in every row; 0 counts as 1, because something was drafted.
            levels: levels that each step drafts.
            committed: mean tokens per row that each step commits; None leaves it to the cost model.
            growth: how the policy builds its trees; None: steps of static trees, a lower bound on any policy's.

        Raises:
            CostError: a step that the cost model does not cover.
        """
        shapes = [
            StepShape(self.batch, 1 + max(1, n), drafting.expanded[:level], self.context, tokens, growth)
            for n, level, tokens in zip(nodes, levels, committed, strict=True)
        ]
        return self.cost.step_s(shapes)

    def table(
        self, drafting: Drafting, nodes: int, *, committed: float | None = None, growth: str | None = None
    ) -> NDArray[np.float64]:
        """Return the seconds of steps with 1, 2, ... levels and 1, 2, ... nodes per row, float64 (depth, nodes)."""
        levels, sizes = np.indices((drafting.depth, nodes)).reshape(2, -1) + 1
        tokens = [committed] * levels.size
        seconds = self.seconds(drafting, sizes.tolist(), levels.tolist(), tokens, growth)
        return seconds.reshape(drafting.depth, nodes)

    def of(self, policy: Policy, steps: Steps) -> NDArray[np.float64]:
        """Return the seconds of replayed steps, float64 (time, batches)."""
        levels = steps.levels
        if self.padding == "full":
            nodes, levels = np.full_like(levels, policy.nodes), np.full_like(levels, policy.drafting.depth)
        elif self.padding == "widest":
            nodes = steps.nodes.max(-1)
        else:
            nodes = -(-steps.nodes.sum(-1) // steps.nodes.shape[-1])
        accepted = steps.accepted.sum(-1)
        shapes, which = np.unique(np.stack([a.ravel() for a in (nodes, levels, accepted)]), axis=1, return_inverse=True)
        nodes, levels, accepted = shapes
        committed = 1 + accepted / steps.accepted.shape[-1]
        priced = self.seconds(policy.drafting, nodes.tolist(), levels.tolist(), committed.tolist(), policy.growth)
        return priced[which].reshape(steps.levels.shape)


@dataclass(frozen=True, eq=False)
class Timed:
    """Counts and seconds of a replay, by request; each request counts once.

    Attributes:
        committed: int64 (R,), tokens.
        steps: int64 (R,), steps.
        seconds: float64 (R,), seconds of the steps that the request took part in.
        nodes: int64 (R,), drafted nodes verified in its steps.
        levels: int64 (R,), levels drafted in its steps.
    """

    committed: NDArray[np.int64]
    steps: NDArray[np.int64]
    seconds: NDArray[np.float64]
    nodes: NDArray[np.int64]
    levels: NDArray[np.int64]

    @property
    def tau(self) -> Estimate:
        """Committed tokens per step, the bonus counted; interval clustered by request."""
        return ratio(self.committed, self.steps)

    @property
    def tokens_s(self) -> Estimate:
        """Tokens per second and sequence; interval clustered by request, without the error of step times."""
        return ratio(self.committed, self.seconds)

    def per_step(self, values: NDArray[np.floating] | NDArray[np.int64]) -> float:
        """Return the mean over steps of one of the arrays."""
        return float(values.sum() / self.steps.sum())

    @property
    def rate(self) -> float:
        """Tokens per second and sequence."""
        return float(self.committed.sum() / self.seconds.sum())


def price_replay(trace: Trace, steps: Steps, policy: Policy, prices: Prices) -> Timed:
    """Return the counts and seconds of the counted steps.

    Raises:
        CostError: a step that the cost model does not cover.
    """
    counted = steps.counted
    request = trace.request_index[steps.anchors[counted]]

    def total(values: NDArray[np.floating] | NDArray[np.int64]) -> NDArray[np.float64]:
        weights = np.broadcast_to(values, counted.shape)[counted].astype(np.float64)
        return np.asarray(np.bincount(request, weights, minlength=trace.requests))

    return Timed(
        committed=trace.lengths,
        steps=np.bincount(request, minlength=trace.requests),
        seconds=total(prices.of(policy, steps)[..., None]),
        nodes=total(steps.nodes).astype(np.int64),
        levels=total(steps.levels[..., None]).astype(np.int64),
    )
