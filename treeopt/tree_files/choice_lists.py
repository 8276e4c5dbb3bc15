"""Trees as other programs write them: Sequoia's growmaps, lists of rank paths in Python, JSON or a string.

Nothing is run: Python files are parsed, and only literals of them are read. A file of `torch.save` is for
`executor.checkpoints.tensors.torch_save` to read; `read_tree` takes its values.
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
from treeopt.tree_files.growmaps import in_words, tree_of_growmap

LIMIT = 2**26  # bytes; the mask of a growmap of 4096 nodes, as indented JSON, is larger than any published one
SHOWN = 8


@dataclass(frozen=True)
class Found:
    """A tree and how the file was read.

    Attributes:
        tree: the topology.
        reading: `every node` is listed; `leaves only`, prefixes are implied; or `growmap`.
        name: of the list in the file; None where the file holds nothing else.
    """

    tree: Tree
    reading: str
    name: str | None = None


def read_tree(path: Path, *, name: str | None = None, saved: Callable[[Path], Any] | None = None) -> Found:
    """The tree that a file holds.

    Args:
        path: `.py`, `.json`, `.pt`, or any text that is one literal.
        name: of the variable or key, where there are several.
        saved: reads a `.pt` as plain values; without it such files are refused.

    Raises:
        TreeError: the file cannot be read, holds no tree, or several; a growmap whose keys disagree; a path twice,
            without its prefix, or with ranks that are none. Names the file and the place.
    """
    try:
        if path.suffix in SAVED:
            if saved is None:
                raise TreeError("a file of torch.save is read by the command line, or with `torch_save.read_saved`")
            held = saved(path)
        else:
            held = _parsed(path)
        return _chosen(held, name)
    except TreeError as error:
        raise TreeError(f"{path}: {error}") from error


def tree_of(value: Any) -> Found:
    """The tree that a value spells: a growmap, rank paths, or a string of them.

    >>> tree_of("[(0,), (0, 0)]").tree.paths
    ((0,), (0, 0))
    >>> tree_of([[0, 1], [2]]).reading
    'leaves only'

    Raises:
        TreeError: it spells none.
    """
    if isinstance(value, str):
        value = _literal(value)
    return Found(tree_of_growmap(value), "growmap") if isinstance(value, Mapping) else _listed(value)


def _parsed(path: Path) -> Any:
    """A tree's value, or several by name."""
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
    """The literals that a Python file assigns to names, or the one that it consists of."""
    try:
        module = ast.parse(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise TreeError(f"not Python: {_first_line(error)}") from error
    found: dict[str, Any] = {}
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
        found |= dict.fromkeys(names, value)
    return found


def _chosen(held: Any, name: str | None) -> Found:
    if not isinstance(held, Mapping) or "Successors" in held:
        if name is not None:
            raise TreeError(f"it holds one tree and no names, asked for {name!r}")
        return tree_of(held)
    trees = [key for key, value in held.items() if isinstance(key, str) and _like_a_tree(value)]
    listed = ", ".join(trees[:SHOWN]) + (f" and {len(trees) - SHOWN} more" if len(trees) > SHOWN else "")
    if not trees:
        raise TreeError("it names no list of rank paths")
    if name is None and len(trees) > 1:
        raise TreeError(f"which of {listed}? write FILE:NAME")
    if name is not None and name not in trees:
        raise TreeError(f"it names no tree {name!r}; it has {listed}")
    chosen = trees[0] if name is None else name
    try:
        found = tree_of(held[chosen])
    except TreeError as error:
        raise TreeError(f"{chosen}: {error}") from error
    return Found(found.tree, found.reading, chosen)


def _like_a_tree(value: Any) -> bool:
    if isinstance(value, str):
        return value.lstrip()[:1] in ("[", "(") and value.strip() not in ("[]", "()")
    if isinstance(value, Mapping):
        return "Successors" in value
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(path, list | tuple) for path in value)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]


def _listed(value: Any) -> Found:
    """Rank paths in any order, all of them or the leaves only."""
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
        here = tuple(path)
        if here in seen:
            raise TreeError(f"path {number} {in_words(path)} is path {seen[here]} again")
        seen[here] = number
    tree = Tree.from_paths(value)
    if tree.nodes == len(seen):
        return Found(tree, "every node")
    inner = [path for path in seen if any(path[:length] in seen for length in range(1, len(path)))]
    if not inner:
        return Found(tree, "leaves only")
    orphan = next(path for path in seen if path[:-1] and path[:-1] not in seen)
    raise TreeError(
        f"path {seen[orphan]} {in_words(orphan)} has no parent {in_words(orphan[:-1])} in the list, which is no list "
        f"of leaves either, since path {seen[inner[0]]} {in_words(inner[0])} continues another"
    )
