"""A tree as tensors on the device: what the loop needs to draft, mask, accept and commit without asking the host."""

from dataclasses import dataclass

import torch
from torch import Tensor

from treeopt.tree import Tree


@dataclass(frozen=True, eq=False)
class Level:
    """How one depth is drafted; the root is node 0, node n of the tree is n + 1.

    Attributes:
        expanded: int64 (e,), nodes one depth above whose children are drafted.
        nodes: int64 (n,), the nodes of this depth.
        slot: int64 (n,), place of each node's parent in `expanded`.
        rank: int64 (n,), candidate rank of each node.
        width: candidates needed of each parent, 1 + the largest rank.
    """

    expanded: Tensor
    nodes: Tensor
    slot: Tensor
    rank: Tensor
    width: int


@dataclass(frozen=True, eq=False)
class Topology:
    """A static tree of `count` = nodes + 1 entries, the root first.

    Attributes:
        parent: int64 (count,), the root is its own parent.
        depth: int64 (count,), 0 for the root.
        ancestors: bool (count, count), row is below or equal to column.
        path: int64 (count, depth + 1), a node's ancestors by depth, then itself repeated.
        levels: how each depth is drafted.
    """

    parent: Tensor
    depth: Tensor
    ancestors: Tensor
    path: Tensor
    levels: tuple[Level, ...]

    @classmethod
    def of(cls, tree: Tree, device: torch.device) -> "Topology":
        """The tensors of a tree."""

        def tensor(values: object) -> Tensor:
            return torch.tensor(values, dtype=torch.long, device=device)

        parents = [0, *(parent + 1 for parent in tree.parents)]
        depths = [0, *tree.depths]
        ranks = [0, *tree.ranks]
        paths = [[0]]
        for node in range(1, len(parents)):
            paths.append([*paths[parents[node]], node])
        path = [p + [p[-1]] * (tree.depth + 1 - len(p)) for p in paths]
        levels = []
        for depth in range(1, tree.depth + 1):
            nodes = [node for node, d in enumerate(depths) if d == depth]
            expanded = sorted({parents[node] for node in nodes})
            levels.append(
                Level(
                    expanded=tensor(expanded),
                    nodes=tensor(nodes),
                    slot=tensor([expanded.index(parents[node]) for node in nodes]),
                    rank=tensor([ranks[node] for node in nodes]),
                    width=1 + max(ranks[node] for node in nodes),
                )
            )
        ancestors = torch.tensor(tree.ancestor_mask, device=device)
        return cls(tensor(parents), tensor(depths), ancestors, tensor(path), tuple(levels))
