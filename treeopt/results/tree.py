"""Static trees: size, levels and rank paths."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from treeopt.errors import TreeError, counted
from treeopt.results.kinds import ResultKind
from treeopt.results.tables_and_numbers import Block, Column, Line
from treeopt.storage.user_files import write_text
from treeopt.tree import Tree

PATHS = 12  # most rank paths that are shown
NODE = ("parent", "rank", "depth")  # of a node; the parent -1 is the root


def _notes(tree: Tree, **_: Any) -> Iterator[Block]:
    if tree.nodes:
        paths = ", ".join(str(list(path)) for path in tree.paths[:PATHS])
        more = "" if tree.nodes <= PATHS else f" and {tree.nodes - PATHS} more"
        yield Line("note", f"levels: {'/'.join(map(str, tree.level_widths))}")
        yield Line("note", f"rank paths: {paths}{more}")


def save_tree(tree: Tree, path: Path) -> None:
    """Write the rank paths of a tree, whole or not at all.

    Raises:
        TreeError: a tree without nodes.
    """
    if not tree.nodes:
        raise TreeError("a tree without nodes has no file: it means that nothing is drafted")
    write_text(path, json.dumps(tree.paths) + "\n")


ENTRY = ResultKind(
    name="tree",
    title="Tree",
    value="treeopt.tree:Tree",
    write="treeopt.results.tree:save_tree",
    rows=lambda tree: [
        dict(zip(NODE, node, strict=True)) for node in zip(tree.parents, tree.ranks, tree.depths, strict=True)
    ],
    columns=tuple(Column(name, field=name) for name in NODE),
    answers=lambda tree: [f"Tree {tree.id}: {counted(tree.nodes, 'node')}, depth {tree.depth}"],
    tables=_notes,
    charts={"tree": "treeopt.charts.trace_charts:tree_picture"},
)
