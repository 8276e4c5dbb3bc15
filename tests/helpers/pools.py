"""Pools of nodes to choose from, and every tree that can be made of them."""

from collections.abc import Iterator
from itertools import product

import numpy as np
from hypothesis import strategies as st

from treeopt.searchers.best_first import Frontier
from treeopt.tree import Path, Tree


def pool_of(values: dict[Path, float], *, limit: int | None = None) -> Frontier:
    """The nodes with these values, parents first, else by value; nothing is missing unless `limit` says so."""
    order: list[Path] = []
    left = sorted(values, key=lambda path: (-values[path], len(path), path))
    while left:
        following = next(path for path in left if len(path) == 1 or path[:-1] in order)
        order.append(following)
        left.remove(following)
    index = {path: place for place, path in enumerate(order)} | {(): -1}
    return Frontier(
        np.array([values[path] for path in order], dtype=np.float64),
        np.array([len(path) for path in order], dtype=np.int64),
        np.array([index[path[:-1]] for path in order], dtype=np.int64),
        np.array([path[-1] for path in order], dtype=np.int64),
        len(order) + 1 if limit is None else limit,
    )


@st.composite
def pools(
    draw: st.DrawFn, *, width: int = 3, depth: int = 3, nodes: int = 9, min_nodes: int = 0, falling: bool = False
) -> dict[Path, float]:
    """Values of the nodes of a random tree; `falling` from parent to child, else as they come, with ties and zeros."""
    paths = draw(st.lists(st.sampled_from(list(_paths(width, depth))), min_size=1, max_size=nodes, unique=True))
    closed = Tree.from_paths(paths).paths[:nodes] if paths else ()
    values: dict[Path, float] = {}
    for path in closed:
        values[path] = draw(st.integers(0, 16)) / 16
        if falling and len(path) > 1:
            values[path] *= values[path[:-1]]
    return values


def _paths(width: int, depth: int) -> Iterator[Path]:
    for length in range(1, depth + 1):
        yield from product(range(width), repeat=length)


def all_trees(paths: list[Path], nodes: int) -> Iterator[tuple[Path, ...]]:
    """Every prefix-closed set of at most `nodes` of the paths, each once."""
    paths = sorted(paths, key=lambda path: (len(path), path))

    def extend(held: tuple[Path, ...], start: int) -> Iterator[tuple[Path, ...]]:
        yield held
        if len(held) < nodes:
            for i in range(start, len(paths)):
                if len(paths[i]) == 1 or paths[i][:-1] in held:
                    yield from extend((*held, paths[i]), i + 1)

    return extend((), 0)
