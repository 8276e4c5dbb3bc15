"""The draft tree: its topology, rank paths, level widths and ancestor mask, and nothing else.

A node is a drafted token; the root (the last committed token) is not a node. A tree has a unique form: nodes in
breadth-first order, siblings by rank, so equal topologies are equal values.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product
from operator import index

import numpy as np
from numpy.typing import NDArray

from treeopt.display_methods import ValueMethods
from treeopt.errors import TreeError, brief

MAX_NODES = 4096
MAX_RANK = 2**15 - 1

Path = tuple[int, ...]


@dataclass(frozen=True)
class Tree(ValueMethods):
    """An immutable topology.

    Attributes:
        parents: parent of each drafted node, -1 for a child of the root.
        ranks: candidate rank (0 = best) that each node takes below its parent.

    >>> Tree(parents=(-1, -1, 0), ranks=(0, 1, 0)).paths
    ((0,), (1,), (0, 0))
    """

    parents: tuple[int, ...]
    ranks: tuple[int, ...]

    def __post_init__(self) -> None:
        """Check that the nodes have the unique form.

        Raises:
            TreeError: names the first field and index that breaks it.
        """
        for field in ("parents", "ranks"):
            if type(getattr(self, field)) is not tuple:
                raise TreeError(f"{field} must be a tuple, got {type(getattr(self, field)).__name__}")
        if len(self.parents) != len(self.ranks):
            raise TreeError(
                f"parents and ranks must have the same length, got {len(self.parents)} and {len(self.ranks)}"
            )
        if len(self.parents) > MAX_NODES:
            raise TreeError(f"a tree has at most {MAX_NODES} nodes, got {len(self.parents)}")
        for field in ("parents", "ranks"):
            for i, value in enumerate(getattr(self, field)):
                if type(value) is not int:
                    raise TreeError(f"{field}[{i}] must be an integer, got {brief(value)}")
        for i, (parent, rank) in enumerate(zip(self.parents, self.ranks, strict=True)):
            if not -1 <= parent < i:
                raise TreeError(f"parents[{i}] must be in [-1, {i - 1}], got {brief(parent)}")
            if not 0 <= rank <= MAX_RANK:
                raise TreeError(f"ranks[{i}] must be in [0, {MAX_RANK}], got {brief(rank)}")
        steps = pairwise(zip(self.parents, self.ranks, strict=True))
        for i, (before, node) in enumerate(steps, 1):
            if node <= before:
                raise TreeError(f"node {i} (parent, rank) must come after {before} in breadth-first order, got {node}")

    @classmethod
    def chain(cls, length: int) -> "Tree":
        """Return the chain of the best candidate at every depth.

        >>> Tree.chain(3).parents
        (-1, 0, 1)
        """
        if _whole(length, "the length of a chain") < 0:
            raise TreeError(f"a chain has 0 or more nodes, got {brief(length)}")
        if length > MAX_NODES:
            raise TreeError(f"a tree has at most {MAX_NODES} nodes, got {brief(length)}")
        return cls(tuple(range(-1, length - 1)), (0,) * length)

    @classmethod
    def from_paths(cls, paths: Iterable[Sequence[int]]) -> "Tree":
        """Return the smallest tree that holds all rank paths; their prefixes are implied, so leaves suffice.

        >>> Tree.from_paths([(0, 1), (2,)]).paths
        ((0,), (2,), (0, 1))
        """
        nodes: set[Path] = set()
        for number, path in enumerate(paths if isinstance(paths, Iterable) else (paths,)):
            if not hasattr(path, "__len__"):
                raise TreeError(f"path {number} must be a sequence of ranks, got {brief(path)}")
            if len(nodes) > MAX_NODES:
                raise TreeError(f"a tree has at most {MAX_NODES} nodes, the paths make more")
            if len(path) == 0:
                raise TreeError(f"path {number} is empty: the root is not a node")
            for rank in path:
                if isinstance(rank, bool) or not isinstance(rank, int | np.integer):
                    raise TreeError(f"path {number} must hold integers, got {brief(rank)}")
            if len(path) > MAX_NODES:
                raise TreeError(f"path {number} has {len(path)} steps, a tree has at most {MAX_NODES} nodes")
            whole = tuple(int(rank) for rank in path)
            while whole and whole not in nodes:
                nodes.add(whole)
                whole = whole[:-1]
        order = sorted(nodes, key=lambda path: (len(path), path))
        index = {path: i for i, path in enumerate(order)} | {(): -1}
        return cls(tuple(index[path[:-1]] for path in order), tuple(path[-1] for path in order))

    @classmethod
    def cartesian(cls, widths: Sequence[int]) -> "Tree":
        """Return the tree whose nodes at depth d have the best `widths[d]` candidates as children.

        Source: Cai et al. 2024, §2.1.2.

        >>> Tree.cartesian((2, 1)).paths
        ((0,), (1,), (0, 0), (1, 0))
        """
        if not hasattr(widths, "__len__"):
            raise TreeError(f"widths must be a sequence of integers, got {brief(widths)}")
        count, total = 1, 0
        for depth, width in enumerate(widths):
            if _whole(width, f"widths[{depth}]") < 1:
                raise TreeError(f"widths[{depth}] must be at least 1, got {brief(width)}")
            count *= width
            total += count
            if total > MAX_NODES:
                raise TreeError(f"a tree has at most {MAX_NODES} nodes, widths {brief(tuple(widths))} make more")
        return cls.from_paths(product(*(range(width) for width in widths)) if len(widths) else ())

    @classmethod
    def full(cls, width: int, depth: int) -> "Tree":
        """Return the tree whose nodes have `width` children each, down to `depth`.

        >>> Tree.full(width=2, depth=3).level_widths
        (2, 4, 8)
        """
        if _whole(depth, "depth") < 0:
            raise TreeError(f"a tree has 0 or more levels, got {brief(depth)}")
        return cls.cartesian((width,) * min(depth, MAX_NODES + 1))

    @property
    def nodes(self) -> int:
        """The number of drafted nodes, the root excluded."""
        return len(self.parents)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """The depth of each node; children of the root have depth 1."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent < 0 else depths[parent] + 1)
        return tuple(depths)

    @property
    def depth(self) -> int:
        """The number of drafted tokens on the longest path; 0 for the empty tree."""
        return self.depths[-1] if self.parents else 0

    @cached_property
    def level_widths(self) -> tuple[int, ...]:
        """The number of nodes at depth 1, 2, ..., depth."""
        return tuple(np.bincount(self.depths, minlength=1)[1:].tolist()) if self.parents else ()

    @cached_property
    def fed_widths(self) -> tuple[int, ...]:
        """The number of nodes fed to the drafter, level by level: 1 (the root), then the inner nodes of depth 1, 2, ...

        >>> Tree.from_paths([(0, 0), (1, 0), (2,)]).fed_widths
        (1, 2)
        """
        inner = {parent for parent in self.parents if parent >= 0}
        fed = np.bincount([0, *(self.depths[node] for node in inner)], minlength=self.depth)
        return tuple(fed.tolist()) if self.parents else ()

    @cached_property
    def paths(self) -> tuple[Path, ...]:
        """The rank path of each node."""
        paths: list[Path] = []
        for parent, rank in zip(self.parents, self.ranks, strict=True):
            paths.append((*(paths[parent] if parent >= 0 else ()), rank))
        return tuple(paths)

    @cached_property
    def ancestor_mask(self) -> NDArray[np.bool_]:
        """The ancestor mask of the verify forward: bool (nodes + 1, nodes + 1), the root first; read-only.

        Row i is True at node i and its ancestors, the positions that it attends to.

        >>> Tree.from_paths([(0,), (1,)]).ancestor_mask.astype(int).tolist()
        [[1, 0, 0], [1, 1, 0], [1, 0, 1]]
        """
        mask = np.eye(self.nodes + 1, dtype=bool)
        mask[:, 0] = True
        for node, parent in enumerate(self.parents):
            mask[node + 1] |= mask[parent + 1]
        mask.setflags(write=False)
        return mask

    @property
    def is_chain(self) -> bool:
        """True if no node has a sibling, whatever the ranks."""
        return self.depth == self.nodes

    @cached_property
    def id(self) -> str:
        """A content id: 12 hex digits that equal trees share.

        >>> Tree.chain(2).id == Tree.from_paths([(0, 0)]).id
        True
        """
        return hashlib.sha256(repr((self.parents, self.ranks)).encode()).hexdigest()[:12]

    def __repr__(self) -> str:
        """Return size, shape and id; `paths` has the rest."""
        return f"Tree(nodes={self.nodes}, depth={self.depth}, widths={self.level_widths}, id={self.id})"


def _whole(value: object, name: str) -> int:
    try:
        return index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TreeError(f"{name} must be an integer, got {brief(value)}") from None


EMPTY = Tree((), ())  # no drafting: a step commits the target's own token
