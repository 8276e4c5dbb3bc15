"""Trees as tensors on the device: what is needed to mask, accept and commit without asking the host."""

from dataclasses import dataclass

import torch
from torch import Tensor

from treeopt.tree import Tree


@dataclass(frozen=True, eq=False)
class Topology:
    """Trees of `count` = nodes + 1 entries, the root first: one for all sequences (b = 1) or one each (b = batch).

    Attributes:
        parent: int64 (b, count), before its children; the root is its own parent.
        depth: int64 (b, count), 0 for the root.
        ancestors: bool (b, count, count), row is below or equal to column.
        path: int64 (b, count, depth + 1), a node's ancestors by depth, then itself repeated.
        present: bool (b, count), False for entries that only fill the shape; None when there are none.
    """

    parent: Tensor
    depth: Tensor
    ancestors: Tensor
    path: Tensor
    present: Tensor | None = None

    @classmethod
    def of(cls, tree: Tree, device: torch.device) -> "Topology":
        """One static tree for all sequences."""
        parents = torch.tensor([[0, *(parent + 1 for parent in tree.parents)]], device=device)
        return cls.from_parents(parents, tree.depth)

    @classmethod
    def from_parents(cls, parent: Tensor, deepest: int, present: Tensor | None = None) -> "Topology":
        """Trees known by their parents, int64 (b, count), none deeper than `deepest`; no host read."""
        own = torch.arange(parent.shape[1], device=parent.device).expand_as(parent)
        above = [own]  # above[h]: the ancestor h levels up, the root above the root
        for _ in range(deepest):
            above.append(parent.gather(1, above[-1]))
        lines = torch.stack(above, -1)
        depth = (lines[..., :-1] != 0).sum(-1)
        ancestors = torch.zeros(*parent.shape, parent.shape[1], dtype=torch.bool, device=parent.device)
        ancestors.scatter_(2, lines, True)
        column = torch.arange(deepest + 1, device=parent.device)
        path = lines.gather(2, (depth[..., None] - column).clamp(min=0))
        return cls(parent, depth, ancestors, path, present)

    @property
    def count(self) -> int:
        """Entries of each tree, the root and fillers included."""
        return self.parent.shape[1]

    def expand(self, batch: int) -> "Topology":
        """The same with b = batch; copies nothing."""
        return Topology(
            self.parent.expand(batch, -1),
            self.depth.expand(batch, -1),
            self.ancestors.expand(batch, -1, -1),
            self.path.expand(batch, -1, -1),
            None if self.present is None else self.present.expand(batch, -1),
        )


@dataclass(frozen=True, eq=False)
class Draft:
    """What a step proposes.

    Attributes:
        tokens: int64 (batch, count), the root first.
        topology: the trees.
        fed: int64 (b, count), place of each node in the order in which they were fed to the drafter (the root is
            0), -1 for nodes that never were.
        scores: (batch, fed nodes, vocabulary), the drafter's scores after each fed node, when the rule asks for them.
    """

    tokens: Tensor
    topology: Topology
    fed: Tensor
    scores: Tensor | None = None
