"""Read trees of other programs: lists of rank paths (Medusa's choices) and growmaps, in any text that spells them.

The same literal is read in a file of any suffix and in a text: alone, assigned to a name, as an argument or an option,
or anywhere in an engine's nested configuration. Files of `torch.save` are read by
`executor.checkpoints.tensors.find_tensor_files`; `read_tree` takes their values. Published trees are named, and stored
in `data/published/trees.json`.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from treeopt.errors import TreeError, brief
from treeopt.storage.user_files import read_text, shipped, why
from treeopt.traces.importers.source_file import SAVED
from treeopt.tree import EMPTY, MAX_NODES, MAX_RANK, Tree
from treeopt.tree_files.tree_text import FORMS, Program, literal, named_values, value_in_text

LIMIT = 2**26  # most bytes; larger than any published growmap, smaller than one of 4096 nodes in indented JSON
SHOWN = 8  # most names listed in a message
KNOWN = ("choices", "speculative_token_tree", "tree", "paths", "growmap")  # how engines' names of trees end
OTHERS = ("num_speculative_tokens_per_batch_size", "schedule")  # lists of lists in engines' settings that are no trees


@dataclass(frozen=True)
class TreeInFile:
    """A tree read from a file, and how the file was understood.

    Attributes:
        tree: the topology.
        reading: `every node` (all are listed), `leaves only` (prefixes are implied) or `growmap`.
        name: name of the tree in the file; None if the file holds a single tree without a name.
    """

    tree: Tree
    reading: str
    name: str | None = None


def read_tree(path: Path, *, name: str | None = None, saved: Callable[[Path], Any] | None = None) -> TreeInFile:
    """Read the tree that a file holds.

    Args:
        path: `.pt`, or any text: `.py`, `.json`, `.yaml`, a literal, an assignment, an option.
        name: name of the variable or key, or the dotted path to it, if the file has several.
        saved: reads a `.pt` as plain values; without it such files raise an error.

    Raises:
        TreeError: the file cannot be read, holds no tree, or several; a broken growmap; a path that is
            repeated, lacks its prefix, or has invalid ranks. Names the file and the place.
    """
    try:
        if path.suffix in SAVED:
            if saved is None:
                raise TreeError(
                    "read a file of torch.save on the command line, or pass saved=find_tensor_files.read_saved"
                )
            value = saved(path)
        else:
            value = _parsed(path)
        return named_tree(value, name)
    except TreeError as error:
        raise TreeError(f"{path}: {error}") from error


def tree_of(value: Any) -> TreeInFile:
    """Return the tree that a value describes: a growmap, rank paths, or a string of rank paths.

    >>> tree_of("[(0,), (0, 0)]").tree.paths
    ((0,), (0, 0))
    >>> tree_of([[0, 1], [2]]).reading
    'leaves only'

    Raises:
        TreeError: the value describes no tree.
    """
    value = literal(value) if isinstance(value, str) else value
    return TreeInFile(tree_of_growmap(value), "growmap") if isinstance(value, Mapping) else _listed(value)


def _parsed(path: Path) -> Any:
    """Return the value of a tree, or of several by name."""
    try:
        text = read_text(path, limit=LIMIT)
    except (OSError, UnicodeDecodeError) as error:
        raise TreeError(f"cannot be read: {why(error)}") from error
    return value_in_text(text, path.suffix, fits=holds_a_tree)


def named_tree(value: Any, name: str | None = None) -> TreeInFile:
    """Return the tree that a value is or holds under a name, at whatever depth; `[]` alone is no speculation.

    >>> named_tree({"speculative_config": {"eagle_choices": [[0], [0, 0]]}}).name
    'speculative_config.eagle_choices'

    Raises:
        TreeError: it holds no tree, several, or none of this name; or the tree is broken.
    """
    if not (isinstance(value, Mapping) and "Successors" not in value) and not _records(value):
        if name is not None:
            raise TreeError(f"it holds a single tree without a name, got the name {name!r}")
        return TreeInFile(EMPTY, "every node") if value in ([], (), "[]", "()") else tree_of(value)
    trees = {key: item for key, item in named_values(value, like=_like_a_tree).items() if not key.endswith(OTHERS)}
    if not trees:
        raise TreeError(f"it has no list of rank paths with a name: {FORMS}")
    if name is None:
        chosen = [key for key in trees if re.fullmatch(r"[^.[]*", key) or key.endswith(KNOWN)] or list(trees)
        if len(chosen) > 1 and not _equal([trees[key] for key in chosen]):
            raise TreeError(f"it has several trees, {_listed_names(chosen)}: write FILE:NAME")
    else:
        chosen = [key for key in trees if key == name] or [key for key in trees if key.endswith(f".{name}")]
        if len(chosen) != 1:
            held = f"{'several trees' if chosen else 'no tree'} {name!r}"
            raise TreeError(f"it has {held}; it has {_listed_names(list(trees))}")
    changed = value.changed.intersection(re.split(r"[.[]", chosen[0])) if isinstance(value, Program) else ()
    if changed:
        raise TreeError(f"{min(changed)} is computed or changed by the program: write the whole list")
    try:
        unnamed = tree_of(trees[chosen[0]])
    except TreeError as error:
        raise TreeError(f"{chosen[0]}: {error}") from error
    return TreeInFile(unnamed.tree, unnamed.reading, chosen[0])


def _listed_names(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def holds_a_tree(value: Any) -> bool:
    """Return True if a value looks like a tree, or holds what does."""
    if isinstance(value, Mapping) or _records(value):
        return _like_a_tree(value) or bool(named_values(value, like=_like_a_tree))
    return not isinstance(value, str) and _like_a_tree(value)  # YAML takes any text for a string


def _equal(values: list[Any]) -> bool:
    """Return True if all values describe one tree."""
    try:
        return len({tree_of(value).tree for value in values}) == 1
    except TreeError:
        return False


def _records(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(item, Mapping) for item in value)


def _like_a_tree(value: Any) -> bool:
    if isinstance(value, str):
        text = value.strip()
        return text[:1] + text[-1:] in ("[]", "()") and text not in ("[]", "()")
    if isinstance(value, Mapping):
        return "Successors" in value
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(path, list | tuple) for path in value)


def _listed(value: Any) -> TreeInFile:
    """Return the tree of a list of rank paths in any order, all of them or the leaves only."""
    if not isinstance(value, list | tuple):
        raise TreeError(f"a tree must be a list of rank paths, found {type(value).__name__}")
    if not value:
        raise TreeError("the list is empty")
    seen: dict[tuple[int, ...], int] = {}
    for number, path in enumerate(value):
        if not isinstance(path, list | tuple):
            raise TreeError(f"path {number} must be a list of ranks, found {brief(path)}")
        if not path:
            raise TreeError(f"path {number} is empty: the root is not a node")
        wrong = [rank for rank in path if type(rank) is not int or not 0 <= rank <= MAX_RANK]
        if wrong:
            raise TreeError(f"path {number} must hold ranks in 0..{MAX_RANK}, found {brief(wrong[0])}")
        ranks = tuple(path)
        if ranks in seen:
            raise TreeError(f"path {number} {abridged(path)} repeats path {seen[ranks]}")
        seen[ranks] = number
    tree = Tree.from_paths(value)
    if tree.nodes == len(seen):
        return TreeInFile(tree, "every node")
    inner = [path for path in seen if any(path[:length] in seen for length in range(1, len(path)))]
    if not inner:
        return TreeInFile(tree, "leaves only")
    orphan = next(path for path in seen if path[:-1] and path[:-1] not in seen)
    raise TreeError(
        f"path {seen[orphan]} {abridged(orphan)} has no parent {abridged(orphan[:-1])} in the list, which is not a "
        f"list of leaves either, because path {seen[inner[0]]} {abridged(inner[0])} continues another"
    )


def tree_of_growmap(growmap: Mapping[str, Any]) -> Tree:
    """Return the topology of a growmap; the root is its node 0.

    Raises:
        TreeError: names the place that breaks the format.
    """
    if "Successors" not in growmap:
        raise TreeError("a growmap must have `Successors`")
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
    paths: list[tuple[int, ...]] = [()]
    for node in range(1, len(successors)):
        parent = parents[node]
        paths.append((*paths[parent], node - successors[parent][0]))
    return Tree.from_paths(paths[1:])


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


MEDUSA = "medusa/mc_sim_7b_63"
EAGLE = "eagle1/mc_sim_7b_63"


@cache
def published_trees() -> dict[str, Tree]:
    """Return all published trees by name; the file also holds their sources.

    >>> published_trees()[MEDUSA].level_widths
    (10, 28, 23, 2)
    """
    path = shipped("published/trees.json")
    try:
        return {record["name"]: Tree.from_paths(record["paths"]) for record in json.loads(path.read_text("utf-8"))}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TreeError(f"{path}: published trees cannot be read: {error!r}") from error
