"""Read trees of other programs: lists of rank paths (Medusa's choices) and growmaps, in any text that spells them.

The same literal is read in a file of any suffix and in a text: alone, assigned to a name, as an argument or an option,
or anywhere in an engine's nested configuration. Files of `torch.save` are read by
`executor.checkpoints.tensors.torch_save`; `read_tree` takes their values.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treeopt.errors import TreeError
from treeopt.storage.atomic_files import why
from treeopt.storage.json_records import brief
from treeopt.storage.user_files import read_text
from treeopt.traces.importers.source_file import SAVED
from treeopt.tree import EMPTY, MAX_RANK, Tree
from treeopt.tree_files.growmaps import abridged, tree_of_growmap
from treeopt.tree_files.literals import named_values, value_in_text
from treeopt.tree_files.python_values import literal
from treeopt.tree_files.value_names import changed_line

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
    value = _spelled(value)
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
        return TreeInFile(EMPTY, "every node") if _spelled(value) in ([], ()) else tree_of(value)
    trees = _candidates(value, name)
    listed = ", ".join(list(trees)[:SHOWN]) + (f" and {len(trees) - SHOWN} more" if len(trees) > SHOWN else "")
    if not trees:
        raise TreeError("it has no list of rank paths with a name")
    if name is None and len(trees) > 1:
        raise TreeError(f"it has several trees, {listed}: write FILE:NAME")
    fitting = list(trees) if name is None else [key for key in trees if key == name] or _ending(trees, name)
    if len(fitting) != 1:
        raise TreeError(f"it has {'no tree' if not fitting else 'several trees'} {name!r}; it has {listed}")
    chosen = fitting[0]
    if (line := changed_line(value, chosen)) is not None:
        raise TreeError(f"{chosen} is changed after line {line}: write the whole list")
    try:
        unnamed = tree_of(trees[chosen])
    except TreeError as error:
        raise TreeError(f"{chosen}: {error}") from error
    return TreeInFile(unnamed.tree, unnamed.reading, chosen)


def holds_a_tree(value: Any) -> bool:
    """Return True if a value looks like a tree, or holds what does."""
    if isinstance(value, Mapping) or _records(value):
        return _like_a_tree(value) or bool(named_values(value, like=_like_a_tree))
    return not isinstance(value, str) and _like_a_tree(value)  # YAML takes any text for a string


def _candidates(value: Any, name: str | None) -> Mapping[str, Any]:
    """Return what may be the tree that is meant, by name: what is at the top, and trees of engines below it."""
    items = value.items() if isinstance(value, Mapping) else ()
    top = {key: item for key, item in items if isinstance(key, str) and _like_a_tree(item, key)}
    if name is not None and name in top:
        return _of_engines(top)
    every = named_values(value, like=_like_a_tree)
    below = {key: item for key, item in every.items() if key not in top and key.endswith(KNOWN)}
    if not top or name is not None or not below:
        return _of_engines((every if name is not None else {}) or top or every)
    trees = {key: item for key, item in (top | below).items() if not key.endswith(OTHERS)}
    return dict([next(iter(trees.items()))]) if len(top) == 1 and _all_equal(list(trees.values())) else trees


def _all_equal(values: list[Any]) -> bool:
    """Return True if all values are equal, or describe one tree."""
    if all(value == values[0] for value in values):
        return True
    try:
        return len({tree_of(value).tree for value in values}) == 1
    except TreeError:
        return False


def _ending(trees: Mapping[str, Any], name: str) -> list[str]:
    return [key for key in trees if key.endswith(f".{name}")]


def _of_engines(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return values deep in a configuration whose names are those of trees, if there are any; else all that look so."""
    found = {name: value for name, value in found.items() if not name.endswith(OTHERS)}
    alike = {name: value for name, value in found.items() if name.endswith(KNOWN)}
    if len(alike) == 1 and all(value == next(iter(alike.values())) for value in found.values()):
        return alike  # one value that a configuration names twice
    nested = any("." in name or "[" in name for name in found)
    return {name: value for name, value in found.items() if nested and name.endswith(KNOWN)} or found


def _records(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(item, Mapping) for item in value)


def _spelled(value: Any) -> Any:
    """Return the value of a string, or of tuples that YAML took for words."""
    if isinstance(value, str):
        return literal(value)
    if not (value and _words(value)):
        return value
    if any(isinstance(word, int) and not 0 <= word <= MAX_RANK for word in value):
        raise TreeError(f"ranks must be in 0..{MAX_RANK}, found one that is not")
    return literal(f"[{', '.join(map(str, value))}]")


def _like_a_tree(value: Any, name: str = "") -> bool:
    if name.endswith(OTHERS):
        return False
    if isinstance(value, str):
        text = value.strip()
        closed = text[:1] + text[-1:] in ("[]", "()")
        return text not in ("[]", "()") and (closed or (text[:1] in ("[", "(") and name.endswith(KNOWN)))
    if isinstance(value, Mapping):
        return "Successors" in value
    if not isinstance(value, list | tuple) or not value:
        return False
    return all(isinstance(path, list | tuple) for path in value) or _words(value)


def _words(value: Any) -> bool:
    """Return True for tuples that YAML took for words: `[(0,), (1,)]` has the words "(0", ")", "(1" and ")"."""
    words = isinstance(value, list) and all(isinstance(word, str | int) for word in value)
    return words and isinstance(value[0], str) and value[0].startswith("(")


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
