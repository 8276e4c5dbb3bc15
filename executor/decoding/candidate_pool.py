"""The candidate pool that dynamic trees are chosen from: drafted level by level, the most probable nodes expanded."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from executor.drafters.base.drafter import Drafter
from executor.verification.acceptance_rules import Rule
from treeopt.policies.beam import Drafting
from treeopt.policies.reranking import Calibration


class Chances:
    """A calibration as tables on the device: how often candidates of a depth, rank and probability were right."""

    def __init__(self, calibration: Calibration, drafting: Drafting, device: torch.device) -> None:
        """Keep the depths and ranks that are drafted."""
        curves = [depth[: drafting.width] for depth in calibration[: drafting.depth]]
        knots = 1 + max(len(curve.x) for depth in curves for curve in depth)
        far = float("inf")  # beyond the last knot a curve is flat

        def table(rows: list[list[list[float]]]) -> Tensor:
            return torch.tensor(rows, dtype=torch.float64, device=device)

        self.x = table([[[*c.x, *[far] * (knots - len(c.x))] for c in depth] for depth in curves])
        self.y = table([[[*c.y, *[c.y[-1]] * (knots - len(c.y))] for c in depth] for depth in curves])
        self.last = table([[[c.x[-1]] for c in depth] for depth in curves])

    def logs(self, level: int, logs: Tensor) -> Tensor:
        """Return calibrated log-probabilities given the parent, in place of `logs`.

        Args:
            level: from 0.
            logs: float32 (batch, e, width).
        """
        x, y = self.x[level], self.y[level]
        drafted = logs.double().exp().permute(2, 0, 1).flatten(1).contiguous()
        within = drafted.clamp(min=x[:, :1]).clamp(max=self.last[level])
        knot = torch.searchsorted(x, within, right=True) - 1
        y_knot, x_knot = y.gather(1, knot), x.gather(1, knot)
        following = (knot + 1).clamp(max=x.shape[1] - 1)
        slope = (y.gather(1, following) - y_knot) / (x.gather(1, following) - x_knot)
        chance = slope * (within - x_knot) + y_knot
        return chance.log().float().view(len(x), *logs.shape[:2]).permute(1, 2, 0)


@dataclass(frozen=True, eq=False)
class Pool:
    """Candidates of each sequence, in order of depth and rank path, so that a stable sort settles ties.

    Attributes:
        tokens: int64 (batch, size).
        logs: float32 (batch, size), the drafter's log-probability given the parent.
        value: float32 (batch, size), their sum along the path, from the root on: the best are expanded.
        log: float32 (batch, size), the same of calibrated probabilities, else `value` itself: the best are verified.
        above: int64 (batch, size), place of the parent, -1 for the root.
        fed: int64 (batch, fed), places of the nodes that the drafter was fed for them; -1 for the root.
        scores: (batch, fed, vocabulary), the drafter's scores after those; None unless the rule needs them.
    """

    tokens: Tensor
    logs: Tensor
    value: Tensor
    log: Tensor
    above: Tensor
    fed: Tensor
    scores: Tensor | None

    def order(self) -> Tensor:
        """Return the places of all candidates, int64 (batch, size): the most probable first, ties by the drafter."""
        order = sorted_places(self.value)
        if self.log is self.value:
            return order
        return order.gather(1, sorted_places(self.log.gather(1, order)))


def draft_levels(
    drafting: Drafting,
    drafter: Drafter,
    state: Any,
    root: Tensor,
    rule: Rule,
    *,
    chances: Chances | None = None,
) -> Iterator[tuple[Pool, ...]]:
    """Draft the candidates below `root`, int64 (batch,), and yield after each level a tuple of all levels so far.

    A level is drafted when the iterator is advanced. Places count from the first candidate of the first level.
    """
    zero = torch.zeros(len(root), 1, dtype=torch.long, device=root.device)
    tokens, parents, place = root[:, None], zero, zero - 1
    value = log = zero.float()
    levels: tuple[Pool, ...] = ()
    seen = 0
    for depth, expanded in enumerate(drafting.expanded):
        if levels:
            last = levels[-1]
            chosen = best_places(last.value, expanded)
            tokens, value, log = (part.gather(1, chosen) for part in (last.tokens, last.value, last.log))
            parents, place = chosen // drafting.width, chosen + seen - last.value.shape[1]
        scores = drafter.level(state, tokens, parents).expand(-1, expanded, -1)
        best = rule.candidates(scores, drafting.width)
        logs = scores.log_softmax(-1, dtype=torch.float32).gather(2, best).clamp(max=0)
        values = (value[..., None] + logs).flatten(1)
        trusted = values if chances is None else (log[..., None] + chances.logs(depth, logs)).flatten(1)
        above = place[..., None].expand(-1, -1, drafting.width).flatten(1)
        needed = scores if rule.needs_scores else None
        levels = (*levels, Pool(best.flatten(1), logs.flatten(1), values, trusted, above, place, needed))
        seen += expanded * drafting.width
        yield levels


def join_levels(levels: Sequence[Pool]) -> Pool:
    """Return all levels as one pool."""

    def joined(name: str) -> Tensor:
        return torch.cat([getattr(level, name) for level in levels], 1)

    value = joined("value")
    log = value if levels[0].log is levels[0].value else joined("log")
    scores = None if levels[0].scores is None else joined("scores")
    return Pool(joined("tokens"), joined("logs"), value, log, joined("above"), joined("fed"), scores)


def sorted_places(value: Tensor) -> Tensor:
    """Return places from the largest to the smallest, the first of equals first; int64, as `value` (batch, n)."""
    return value.sort(dim=1, descending=True, stable=True).indices


def best_places(value: Tensor, count: int) -> Tensor:
    """Return the places of the `count` largest, the first of equals, in ascending order; int64 (batch, count)."""
    return sorted_places(value)[:, :count].sort(1).values
