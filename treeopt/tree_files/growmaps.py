"""Read growmaps, the trees of Sequoia and UMbreLLa: a dictionary that holds the same topology in six forms.

Node 0 is the root; nodes are numbered breadth-first, children are consecutive and the first of them has rank 0.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from treeopt.errors import TreeError, brief
from treeopt.tree import MAX_NODES, Path, Tree

KEYS = ("roots", "branches", "Successors", "mask", "depth", "size")
SHOWN = 8  # most numbers listed in a message


def tree_of_growmap(growmap: Mapping[str, Any]) -> Tree:
    """Return the topology of a growmap; the root is its node 0.

    Raises:
        TreeError: names the key and the place that break the format, or that contradict `Successors`.
    """
    for key in KEYS:
        if key not in growmap:
            raise TreeError(f"a growmap must have `{key}`")
    successors = _lists(growmap["Successors"], "Successors")
    parents = [-1] * len(successors)
    following = 1
    for node, children in enumerate(successors):
        for child in children:
            if child != following or child >= len(successors) or node >= child:
                raise TreeError(
                    f"Successors[{node}] must continue with {following} (breadth-first, every node once, "
                    f"{len(successors)} in all), found {brief(child)}"
                )
            parents[child] = node
            following += 1
    if following != len(successors):
        raise TreeError(f"Successors has {len(successors)} entries, but names {following - 1} nodes besides the root")
    paths: list[Path] = [()]
    for node in range(1, len(successors)):
        parent = parents[node]
        paths.append((*paths[parent], node - successors[parent][0]))
    _check_other_keys(growmap, successors, parents, [len(path) for path in paths])
    return Tree.from_paths(paths[1:])


def _check_other_keys(
    growmap: Mapping[str, Any], successors: list[list[int]], parents: list[int], depths: list[int]
) -> None:
    """Check that the other keys of a growmap agree with `Successors`."""
    size = growmap["size"]
    if type(size) is not int or size != len(successors):
        raise TreeError(f"size must be {len(successors)}, the entries of Successors, found {brief(size)}")
    levels = [[node for node, depth in enumerate(depths) if depth == level] for level in range(depths[-1] + 1)]
    expected = {"roots": levels, "branches": [[len(successors[node]) for node in level] for level in levels]}
    for key, value in expected.items():
        found = _lists(growmap[key], key)
        if found != value:
            level = next((i for i, (a, b) in enumerate(zip(found, value, strict=False)) if a != b), None)
            difference = f"{key} must have {len(value)} levels, found {len(found)}"
            if level is not None:
                difference = f"{key}[{level}] must be {abridged(value[level])}, found {abridged(found[level])}"
            raise TreeError(f"{difference} (contradicts Successors)")
    _check_array(growmap["depth"], np.array(depths), "depth")
    mask = np.eye(len(successors), dtype=np.int64)
    for node, parent in enumerate(parents[1:], 1):
        mask[node] |= mask[parent]
    _check_array(growmap["mask"], mask, "mask")


def _check_array(value: Any, expected: np.ndarray[Any, Any], key: str) -> None:
    try:
        _check_size(value, 2 * expected.size + 64)
        array = np.asarray(value)
    except (ValueError, OverflowError) as error:
        raise TreeError(f"{key} must be numbers of shape {expected.shape}") from error
    if array.shape != expected.shape or array.dtype.kind not in "iufb":
        raise TreeError(f"{key} must be numbers of shape {expected.shape}, found {array.dtype} of {array.shape}")
    if (array != expected).any():
        at = tuple(int(i) for i in np.argwhere(array != expected)[0])
        raise TreeError(f"{key}{list(at)} must be {expected[at]}, found {array[at]} (contradicts Successors)")


def _check_size(value: Any, most: int) -> None:
    """Raise ValueError if nested lists hold more than `most` values; YAML may name one list many times."""
    stack = [value]
    while stack:
        inner = stack.pop()
        most -= 1
        if most < 0:
            raise ValueError("too many values")
        if isinstance(inner, list | tuple):
            stack.extend(inner[: most + 1])


def _lists(value: Any, key: str) -> list[list[int]]:
    """Return a checked list of lists of node numbers; each may be an array."""
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= MAX_NODES + 1:
        raise TreeError(f"{key} must be a list of 1 to {MAX_NODES + 1} lists")
    lists = []
    for number, part in enumerate(value):
        numbers = part.tolist() if isinstance(part, np.ndarray) else part
        if not isinstance(numbers, list | tuple) or not all(type(n) is int and n >= 0 for n in numbers):
            raise TreeError(f"{key}[{number}] must be a list of node numbers")
        lists.append(list(numbers))
    return lists


def abridged(path: Sequence[Any]) -> str:
    """Return the first numbers of a list as text for messages.

    >>> abridged([0] * 9)
    '[0, 0, 0, 0, 0, 0, 0, 0, ...]'
    """
    return f"[{', '.join(map(brief, path[:SHOWN]))}{', ...' if len(path) > SHOWN else ''}]"
