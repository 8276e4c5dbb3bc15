"""The longest path of accepted nodes in a draft tree, and the outcome of a step: accepted tokens and the bonus."""

from dataclasses import dataclass

import torch
from torch import Tensor

from executor.verification.tree_tensors import Draft, Topology


@dataclass(frozen=True)
class Accepted:
    """The outcome of a step, in tensors of the batch.

    Attributes:
        count: int64 (batch,), accepted drafted tokens.
        path: int64 (batch, depth + 1), nodes of the accepted path, the root first; entries beyond `count` repeat.
        emitted: int64 (batch, depth + 1), committed tokens: the accepted ones, then the bonus at `count` and all
            entries beyond it.
    """

    count: Tensor
    path: Tensor
    emitted: Tensor

    @classmethod
    def of(cls, draft: Draft, count: Tensor, path: Tensor, bonus: Tensor) -> "Accepted":
        """Return the outcome with the drafted tokens of `path`, then the bonus, int64 (batch, 1)."""
        step = torch.arange(path.shape[1], device=path.device)
        tokens = draft.tokens.gather(1, path).roll(-1, 1)
        return cls(count, path, torch.where(step < count[:, None], tokens, bonus))

    @property
    def last(self) -> Tensor:
        """The node at which the path ends: int64 (batch,)."""
        return self.path[:, -1]


def follow(draft: Draft, emitted: Tensor) -> Accepted:
    """Accept the longest path on which every drafted token equals what its parent emitted.

    Args:
        draft: the trees. Siblings hold distinct tokens, so the path is unique.
        emitted: int64 (batch, count), the token that the rule emits at each node.
    """
    above = emitted.gather(1, draft.topology.parent.expand_as(emitted))
    count, path = deepest(draft.topology, draft.tokens != above)
    return Accepted(count, path, emitted.gather(1, path))


def deepest(topology: Topology, missed: Tensor, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the longest path of nodes that match: length, int64 (batch,), and nodes, int64 (batch, depth + 1).

    Args:
        topology: the trees.
        missed: bool (batch, count), nodes that do not match; the root always matches, an absent entry never.
        weight: (batch, count); among paths of equal length the largest sum over the nodes wins. Default: the first
            path wins.
    """
    if topology.present is not None:
        missed = missed | ~topology.present
    length = topology.depth.masked_fill(cut_off(topology, missed), -1)
    count, best = length.max(1)
    if weight is not None:
        sums = (topology.below * torch.where(missed, 0, weight)[:, None]).sum(-1)
        best = torch.where(length == count[:, None], sums, -torch.inf).argmax(1)
    return count, topology.path[topology.which, best]


def cut_off(topology: Topology, missed: Tensor) -> Tensor:
    """Return the nodes that do not match or have an ancestor that does not: bool (batch, count), as `missed`."""
    return (topology.below & missed[:, None]).any(-1)


def best_of(logits: Tensor) -> Tensor:
    """Return the argmax of each row, the first of equals: (..., vocabulary) -> int64 (...).

    On CPU `argmax` of bf16 numbers takes four times as long (torch 2.13).
    """
    return logits.max(-1).indices


def rows(values: Tensor, nodes: Tensor) -> Tensor:
    """Select the rows of `nodes`, int64 (batch, k), from (batch, count, n): (batch, k, n)."""
    return values[torch.arange(len(nodes), device=nodes.device)[:, None], nodes]
