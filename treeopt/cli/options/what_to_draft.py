"""Options that say what to draft: a plan's choice, a static tree, or the settings of a dynamic policy."""

import json
import os
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from treeopt.api.file_loading import load_tree
from treeopt.errors import TreeError, TreeoptError
from treeopt.policies import DynamicTree, OptTree
from treeopt.policies.policy import setting_names
from treeopt.tree import Tree
from treeopt.tree_files.choice_lists import holds_a_tree, named_tree
from treeopt.tree_files.paper_trees import published_trees
from treeopt.tree_files.tree_text import value_in_text

SETTINGS = {kind: setting_names(kind) for kind in (DynamicTree, OptTree)}
SPELLED = frozenset("[({\n")  # characters of a tree that is given itself: of lists, and of YAML over several lines


class TreeFile(click.ParamType):  # type: ignore[type-arg]
    """A tree in a file, FILE or FILE:NAME."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Tree:
        """Return the tree of such as `choices.py:mc_sim_7b_63`, or the only tree of a file."""
        if isinstance(value, Tree):
            return value
        path, _, name = value.rpartition(":")
        whole = os.path.exists(value) or not path
        try:
            return load_tree(Path(value)) if whole else load_tree(Path(path), name=name)
        except TreeoptError as error:
            self.fail(str(error), param, ctx)


class Static(click.ParamType):  # type: ignore[type-arg]
    """A static tree: the length of a chain, rank paths, a file of them, or the name of a published tree."""

    name = "tree"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the published trees that begin as typed, and files."""
        names = [CompletionItem(name) for name in published_trees() if name.startswith(incomplete)]
        return [*names, CompletionItem(incomplete, type="file")]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Tree:
        """Return the tree of `5`, `[[0,0],[1]]`, `[(0,), (1,)]`, `FILE`, `FILE:NAME` or `medusa/mc_sim_7b_63`.

        Whatever a file may hold may also be given itself: an assignment, an option, an engine's configuration.
        """
        if isinstance(value, Tree):
            return value
        try:
            content = json.loads(value)
        except (ValueError, RecursionError):
            if any(os.path.isfile(word) for word in (value, value.rpartition(":")[0])):
                return TreeFile().convert(value, param, ctx)
            if value in published_trees():
                return published_trees()[value]
            if not set(value) & SPELLED:
                forms = "the length of a chain, rank paths such as [[0,0],[1]], a file of them, nor a published tree"
                self.fail(f"{value[:80]!r} is neither {forms} ({', '.join(published_trees())})", param, ctx)
            content = ""
        try:
            if type(content) is int:
                return Tree.chain(content)
            text, suffix = (content or value, "") if isinstance(content, str) else (value, ".json")
            content = value_in_text(text, suffix, fits=holds_a_tree)
            return named_tree(content).tree
        except (TreeError, TypeError) as error:
            self.fail(f"{value[:80]!r}: {error}", param, ctx)


class NamedTree(click.ParamType):  # type: ignore[type-arg]
    """A static tree, with the name that it was given by."""

    name = "tree"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Tree]:
        """Return FILE, FILE:NAME, rank paths or the name of a published tree as it was given, and the tree."""
        if isinstance(value, tuple):
            return value
        given = value in published_trees() or set(value) & SPELLED
        return value, (Static() if given else TreeFile()).convert(value, param, ctx)


class Dynamic(click.ParamType):  # type: ignore[type-arg]
    """Settings of a dynamic policy, except for those that are fixed; with a threshold they are `OptTree`'s."""

    name = "settings"

    def __init__(self, **fixed: Any) -> None:
        """Fix some settings; the user gives the others, nodes and depth always."""
        self.fixed = fixed
        self.required = [name for name in ("nodes", "depth") if name not in fixed]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> DynamicTree | OptTree:
        """Return the policy of `nodes=60,depth=6,beam=10`."""
        if isinstance(value, DynamicTree | OptTree):
            return value
        words = [part.partition("=") for part in value.split(",")]
        names = [name for name, _, _ in words]
        kind: type[DynamicTree | OptTree] = OptTree if "threshold" in names and not self.fixed else DynamicTree
        optional = [name for name in SETTINGS[kind] if name not in (*self.fixed, *self.required)]
        if not set(self.required) <= set(names) <= {*self.required, *optional} or len(set(names)) < len(names):
            required = ",".join(f"{name}=N" for name in self.required)
            self.fail(f"{value!r} must be {required} and may add {', '.join(optional)}, each once", param, ctx)
        given: dict[str, Any] = dict(self.fixed)
        for name, _, number in words:
            try:
                given[name] = float(number) if name in ("min_probability", "threshold") else int(number)
            except ValueError:
                self.fail(f"{name} must be a number, got {number!r}", param, ctx)
        try:
            return kind(**given)
        except TreeError as error:
            self.fail(f"{value!r}: {error}", param, ctx)
