"""Read trees of other programs: lists of rank paths (Medusa's choices) in Python, JSON or text, and growmaps.

Nothing is run: Python files are parsed, and only their literals are read. Files of `torch.save` are read by
`executor.checkpoints.tensors.torch_save`; `read_tree` takes their values.
"""

import ast
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treeopt.errors import TreeError
from treeopt.storage.atomic_files import why
from treeopt.traces.importers.source_file import SAVED
from treeopt.tree import MAX_RANK, Tree
from treeopt.tree_files.growmaps import abridged, tree_of_growmap

LIMIT = 2**26  # most bytes; larger than any published growmap, smaller than one of 4096 nodes in indented JSON
SHOWN = 8  # most names listed in a message


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
        path: `.py`, `.json`, `.pt`, or any text that is a single literal.
        name: name of the variable or key, if the file has several.
        saved: reads a `.pt` as plain values; without it such files raise an error.

    Raises:
        TreeError: the file cannot be read, holds no tree, or several; a growmap whose keys disagree; a path that is
            repeated, lacks its prefix, or has invalid ranks. Names the file and the place.
    """
    try:
        if path.suffix in SAVED:
            if saved is None:
                raise TreeError("read a file of torch.save on the command line, or pass saved=torch_save.read_saved")
            value = saved(path)
        else:
            value = _parsed(path)
        return _named_tree(value, name)
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
    if isinstance(value, str):
        value = _literal(value)
    return TreeInFile(tree_of_growmap(value), "growmap") if isinstance(value, Mapping) else _listed(value)


def _parsed(path: Path) -> Any:
    """Return the value of a tree, or of several by name."""
    try:
        if path.stat().st_size > LIMIT:
            raise TreeError(f"larger than {LIMIT} bytes")
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise TreeError(f"cannot be read: {why(error)}") from error
    if path.suffix == ".json":
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise TreeError(f"not JSON: {error}") from error
    return _assigned(text) if path.suffix == ".py" else _literal(text)


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
        raise TreeError(f"not a literal such as [[0], [0, 0]]: {_first_line(error)}") from error


def _assigned(text: str) -> Any:
    """Return the literals that a Python file assigns to names, or the single literal that it consists of."""
    try:
        module = ast.parse(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise TreeError(f"not Python: {_first_line(error)}") from error
    values: dict[str, Any] = {}
    for statement in module.body:
        if isinstance(statement, ast.Expr) and len(module.body) == 1:
            return _literal(text)
        if isinstance(statement, ast.Assign):
            names = [target.id for target in statement.targets if isinstance(target, ast.Name)]
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            names = [statement.target.id]
        else:
            continue
        try:
            value = ast.literal_eval(statement.value) if statement.value is not None else None
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            continue
        values |= dict.fromkeys(names, value)
    return values


def _named_tree(value: Any, name: str | None) -> TreeInFile:
    if not isinstance(value, Mapping) or "Successors" in value:
        if name is not None:
            raise TreeError(f"it holds a single tree without a name, got the name {name!r}")
        return tree_of(value)
    trees = [key for key, item in value.items() if isinstance(key, str) and _like_a_tree(item)]
    listed = ", ".join(trees[:SHOWN]) + (f" and {len(trees) - SHOWN} more" if len(trees) > SHOWN else "")
    if not trees:
        raise TreeError("it has no list of rank paths with a name")
    if name is None and len(trees) > 1:
        raise TreeError(f"it has several trees, {listed}: write FILE:NAME")
    if name is not None and name not in trees:
        raise TreeError(f"it has no tree {name!r}; it has {listed}")
    chosen = trees[0] if name is None else name
    try:
        unnamed = tree_of(value[chosen])
    except TreeError as error:
        raise TreeError(f"{chosen}: {error}") from error
    return TreeInFile(unnamed.tree, unnamed.reading, chosen)


def _like_a_tree(value: Any) -> bool:
    if isinstance(value, str):
        return value.lstrip()[:1] in ("[", "(") and value.strip() not in ("[]", "()")
    if isinstance(value, Mapping):
        return "Successors" in value
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(path, list | tuple) for path in value)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]


def _listed(value: Any) -> TreeInFile:
    """Return the tree of a list of rank paths in any order, all of them or the leaves only."""
    if not isinstance(value, list | tuple):
        raise TreeError(f"a tree must be a list of rank paths, found {type(value).__name__}")
    if not value:
        raise TreeError("the list is empty")
    seen: dict[tuple[int, ...], int] = {}
    for number, path in enumerate(value):
        if not isinstance(path, list | tuple):
            raise TreeError(f"path {number} must be a list of ranks, found {path!r:.40}")
        if not path:
            raise TreeError(f"path {number} is empty: the root is not a node")
        wrong = [rank for rank in path if type(rank) is not int or not 0 <= rank <= MAX_RANK]
        if wrong:
            raise TreeError(f"path {number} must hold ranks in 0..{MAX_RANK}, found {wrong[0]!r:.40}")
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
