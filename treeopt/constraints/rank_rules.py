"""Constraints on the candidate ranks that nodes take: below a limit, contiguous, expanded best first."""

from dataclasses import dataclass, replace

from treeopt.constraints.constraint import Limits, show
from treeopt.tree import Path, Tree


@dataclass(frozen=True)
class RanksBelow:
    """The rule that every rank is below `limit`, the number of candidates that the engine keeps per parent.

    >>> RanksBelow(10, source="engine.py").check(Tree.from_paths([(10,)]))
    'path [10] takes rank 10, ranks must be below 10'
    """

    limit: int
    source: str

    @property
    def name(self) -> str:
        """The name in tables."""
        return f"ranks below {self.limit}"

    def check(self, tree: Tree) -> str | None:
        """Name the first path that ends in a rank at or above the limit."""
        for path in tree.paths:
            if path[-1] >= self.limit:
                return f"path {show(path)} takes rank {path[-1]}, ranks must be below {self.limit}"
        return None

    def narrow(self, limits: Limits) -> Limits:
        """See `Constraint.narrow`."""
        return replace(limits, ranks=min(limits.ranks, self.limit))


@dataclass(frozen=True)
class ContiguousRanks:
    """The rule that siblings take the best candidates: a node of rank r has siblings of all ranks below r.

    >>> ContiguousRanks(source="engine.py").check(Tree.from_paths([(0,), (0, 0), (0, 2)]))
    'path [0, 2] skips rank 1, siblings must have the ranks 0, 1, 2, ...'
    """

    source: str

    @property
    def name(self) -> str:
        """The name in tables."""
        return "contiguous ranks"

    def check(self, tree: Tree) -> str | None:
        """Name the first path that skips a better sibling."""
        path = _skips(tree.paths)
        if path is None:
            return None
        return f"path {show(path)} skips rank {_missing(path, tree)}, siblings must have the ranks 0, 1, 2, ..."

    def narrow(self, limits: Limits) -> Limits:
        """See `Constraint.narrow`."""
        return replace(limits, contiguous=True)


@dataclass(frozen=True)
class RootRanksContiguous:
    """The rule that children of the root take the best candidates; children of other nodes may skip ranks.

    >>> RootRanksContiguous(source="engine.py").check(Tree.from_paths([(0, 3), (2,)]))
    'path [2] skips rank 1, children of the root must have the ranks 0, 1, 2, ...'
    """

    source: str

    @property
    def name(self) -> str:
        """The name in tables."""
        return "contiguous ranks at the root"

    def check(self, tree: Tree) -> str | None:
        """Name the first child of the root that skips a better one."""
        path = _skips(tuple(path for path in tree.paths if len(path) == 1))
        if path is None:
            return None
        missing = _missing(path, tree)
        return f"path {show(path)} skips rank {missing}, children of the root must have the ranks 0, 1, 2, ..."

    def narrow(self, limits: Limits) -> Limits:
        """See `Constraint.narrow`."""
        return replace(limits, contiguous_root=True)


@dataclass(frozen=True)
class ExpandPrefix:
    """The rule that the best siblings are continued: if a node of rank r has children, all lower ranks have some.

    >>> ExpandPrefix(source="engine.py").check(Tree.from_paths([(0,), (1, 0)]))
    'path [1, 0] continues rank 1 while rank 0 has no children'
    """

    source: str

    @property
    def name(self) -> str:
        """The name in tables."""
        return "best siblings continued first"

    def check(self, tree: Tree) -> str | None:
        """Name the first path that continues a node although a better sibling ends."""
        expanded = {path[:-1] for path in tree.paths if len(path) > 1}
        for path in tree.paths:
            above = path[:-1]
            for rank in range(above[-1] if above else 0):
                if (*above[:-1], rank) not in expanded:
                    return f"path {show(path)} continues rank {above[-1]} while rank {rank} has no children"
        return None

    def narrow(self, limits: Limits) -> Limits:
        """See `Constraint.narrow`."""
        return replace(limits, expand_prefix=True)


def _skips(paths: tuple[Path, ...]) -> Path | None:
    """Return the first path, in breadth-first order, whose rank is not the next one of its siblings, or None."""
    before: Path = ()
    for path in paths:
        siblings = len(before) == len(path) and before[:-1] == path[:-1]
        if path[-1] != (before[-1] + 1 if siblings else 0):
            return path
        before = path
    return None


def _missing(path: Path, tree: Tree) -> int:
    """Return the lowest rank that is missing among the siblings of a path."""
    paths = set(tree.paths)
    return next(rank for rank in range(path[-1]) if (*path[:-1], rank) not in paths)
