"""Draft trees as tensors on the device, so that masking, accepting and committing need no host synchronisation."""

from collections import Counter
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from treeopt.tree import Tree


@dataclass(frozen=True, eq=False)
class Topology:
    """Trees of `count` = nodes + 1 entries, root first: one for all sequences (b = 1) or one per sequence (b = batch).

    Attributes:
        parent: int64 (b, count), before its children; the root is its own parent.
        depth: int64 (b, count), 0 for the root.
        ancestors: bool (b, count, count), the mask of ancestors: True where the row is the column or below it.
        below: bool (b, count, count), the same without the root's column, which every row is below.
        path: int64 (b, count, depth + 1), a node's ancestors by depth, then itself repeated.
        children: int64 (b, count, width), a node's children in the order of their entries, which is the order of
            their ranks; 0 for an absent child (the root is no child).
        inner: int64 (b, inner), all entries that have children, in order, and perhaps some that have none.
        which: int64 (b,), 0, 1, ...: the index of each sequence's tree.
        present: bool (b, count), False for entries that only fill the shape; None if every entry is present.
    """

    parent: Tensor
    depth: Tensor
    ancestors: Tensor
    below: Tensor
    path: Tensor
    children: Tensor
    inner: Tensor
    which: Tensor
    present: Tensor | None = None

    @classmethod
    def of(cls, tree: Tree, device: torch.device) -> "Topology":
        """Return the topology of one static tree for all sequences."""
        parents = torch.tensor([[0, *(parent + 1 for parent in tree.parents)]], device=device)
        widest = max(Counter(tree.parents).values(), default=1)
        return cls.from_parents(parents, tree.depth, width=widest, inner=sum(tree.fed_widths))

    @classmethod
    def from_parents(
        cls,
        parent: Tensor,
        deepest: int,
        present: Tensor | None = None,
        *,
        width: int | None = None,
        inner: int | None = None,
    ) -> "Topology":
        """Return the trees with these parents; reads nothing on the host.

        Args:
            parent: int64 (b, count), before its children; arbitrary for an absent entry.
            deepest: upper bound of the depth.
            present: bool (b, count), None if all are.
            width: upper bound of an entry's children; children beyond it would be lost.
            inner: upper bound of the number of entries with children. Verification reads only these, so a close bound
                saves time; a bound that does not hold would bias the rules.
        """
        entry = torch.arange(parent.shape[1], device=parent.device).expand_as(parent)
        above = [entry]  # above[h]: the ancestor h levels up, the root above the root
        for _ in range(deepest):
            above.append(parent.gather(1, above[-1]))
        lines = torch.stack(above, -1)
        depth = (lines[..., :-1] != 0).sum(-1)
        ancestors = torch.zeros(*parent.shape, parent.shape[1], dtype=torch.bool, device=parent.device)
        ancestors.scatter_(2, lines, True)
        column = torch.arange(deepest + 1, device=parent.device)
        path = lines.gather(2, (depth[..., None] - column).clamp(min=0))
        children = _children(parent, entry, present, width or max(1, parent.shape[1] - 1))
        if inner is None:
            nodes = entry[:, : max(1, parent.shape[1] - 1)]  # the last entry has no children
        else:
            nodes = (children[..., 0] == 0).to(torch.int8).argsort(dim=1, stable=True)[:, : max(1, inner)]
        which = torch.arange(len(parent), device=parent.device)
        return cls(parent, depth, ancestors, ancestors & (entry != 0)[:, None], path, children, nodes, which, present)

    @property
    def count(self) -> int:
        """Entries of each tree, root and fillers included."""
        return self.parent.shape[1]

    @property
    def nodes(self) -> Tensor:
        """The nodes of each tree that are present, int64 (b,)."""
        if self.present is None:
            return torch.full_like(self.which, self.count - 1)
        return self.present.sum(1) - 1

    @property
    def width(self) -> int:
        """Upper bound of an entry's children."""
        return self.children.shape[2]

    def expand(self, batch: int) -> "Topology":
        """Return the same trees with b = batch; copies nothing."""
        if len(self.parent) == batch:
            return self
        parts = {name: part for name, part in vars(self).items() if part is not None and name != "which"}
        return replace(self, **{name: part.expand(batch, *part.shape[1:]) for name, part in parts.items()})


def _children(parent: Tensor, entry: Tensor, present: Tensor | None, width: int) -> Tensor:
    """Return each entry's children in order, 0 for none: int64 (b, count, width)."""
    child = entry != 0 if present is None else (entry != 0) & present
    sibling = (parent[:, :, None] == parent[:, None]) & child[:, None]
    rank = (sibling & (entry[:, None] < entry[:, :, None])).sum(-1)
    slot = torch.where(child, rank, width).clamp(max=width)  # the last column takes entries that are no child
    table = torch.zeros(parent.shape[0], parent.shape[1] * (width + 1), dtype=torch.int64, device=parent.device)
    table.scatter_(1, parent * (width + 1) + slot, entry)
    return table.view(*parent.shape, width + 1)[..., :width]


def below(above: Tensor, parents: Tensor) -> Tensor:
    """Return which fed nodes one level's nodes see, themselves at the end: bool (b, nodes, fed + nodes).

    Args:
        above: bool (b, nodes of the level before, fed), the same for the level before.
        parents: int64 (b, nodes), places of their parents in the level before.
    """
    batch, nodes = parents.shape
    lines = above.expand(batch, -1, -1).gather(1, parents[..., None].expand(-1, -1, above.shape[2]))
    itself = torch.eye(nodes, dtype=torch.bool, device=parents.device).expand(batch, -1, -1)
    return torch.cat([lines, itself], 2)


@dataclass(frozen=True, eq=False)
class Draft:
    """The drafted tokens and trees of one step.

    Attributes:
        tokens: int64 (batch, count), the root first.
        topology: the trees.
        fed: int64 (b, count), place of each node in the order in which nodes were fed to the drafter (the root is
            0), -1 for nodes that were not fed.
        scores: (batch, fed nodes, vocabulary), the drafter's scores after each fed node, if the rule needs them.
    """

    tokens: Tensor
    topology: Topology
    fed: Tensor
    scores: Tensor | None = None
