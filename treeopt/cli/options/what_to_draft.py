"""What to draft, as a command line says it: a plan's choice, a tree, or the settings of dynamic ones."""

import json
import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import click

from treeopt.cli.options import general
from treeopt.errors import PlanError, TreeError, TreeoptError, UsageError
from treeopt.plans.plan import Choice, Plan
from treeopt.plans.plan_json import load_plan
from treeopt.policies import DynamicTree, OptTree, Policy
from treeopt.tree import EMPTY, Tree
from treeopt.tree_files.choice_lists import read_tree
from treeopt.tree_files.paper_trees import published_trees

SETTINGS = {kind: tuple(field.name for field in fields(kind) if field.repr) for kind in (DynamicTree, OptTree)}


def load_tree(path: Path, *, name: str | None = None) -> Tree:
    """The tree of a growmap or choice list, files of `torch.save` too; says on stderr if prefixes were implied.

    Raises:
        TreeError: see `treeopt.tree_files.choice_lists.read_tree`.
        ExecutorError: a `.pt` that holds other than plain values.
    """

    def saved(file: Path) -> Any:
        from executor.checkpoints.tensors.torch_save import read_saved

        return read_saved(file)

    found = read_tree(path, name=name, saved=saved)
    if found.reading == "leaves only":
        click.echo(f"{path}: read as a list of leaves, which implies {found.tree.nodes} nodes", err=True)
    return found.tree


class TreeFile(click.ParamType):  # type: ignore[type-arg]
    """A tree in a file, FILE or FILE:NAME."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Tree:
        """`choices.py:mc_sim_7b_63`, or the only tree of a file."""
        if isinstance(value, Tree):
            return value
        path, _, name = value.rpartition(":")
        whole = os.path.exists(value) or not path
        try:
            return load_tree(Path(value)) if whole else load_tree(Path(path), name=name)
        except TreeoptError as error:
            self.fail(str(error), param, ctx)


class NamedTree(click.ParamType):  # type: ignore[type-arg]
    """A tree in a file and what to call it: as it was given."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Tree]:
        """FILE or FILE:NAME."""
        return value if isinstance(value, tuple) else (value, TreeFile().convert(value, param, ctx))


class Static(click.ParamType):  # type: ignore[type-arg]
    """A static tree: the length of a chain, rank paths as JSON, a file of them, or the name of a published tree."""

    name = "tree"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Tree:
        """`5`, `[[0,0],[1]]`, `FILE`, `FILE:NAME` or `medusa/mc_sim_7b_63`."""
        if isinstance(value, Tree):
            return value
        try:
            found = json.loads(value)
            return Tree.chain(found) if type(found) is int else Tree.from_paths(found)
        except TreeError as error:
            self.fail(f"{value!r}: {error}", param, ctx)
        except (ValueError, TypeError, RecursionError):
            if any(os.path.isfile(word) for word in (value, value.rpartition(":")[0])):
                return TreeFile().convert(value, param, ctx)
            if value in published_trees():
                return published_trees()[value]
            forms = "the length of a chain, rank paths such as [[0,0],[1]], a file of them, nor a published tree"
            self.fail(f"{value[:80]!r} is neither {forms} ({', '.join(published_trees())})", param, ctx)


class Dynamic(click.ParamType):  # type: ignore[type-arg]
    """Settings of dynamic trees, but for those that are fixed; with a threshold they are `OptTree`'s."""

    name = "settings"

    def __init__(self, **fixed: Any) -> None:
        """The rest is for the user to give, nodes and depth always."""
        self.fixed = fixed
        self.due = [name for name in ("nodes", "depth") if name not in fixed]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> DynamicTree | OptTree:
        """`nodes=60,depth=6,beam=10`."""
        if isinstance(value, DynamicTree | OptTree):
            return value
        words = [part.partition("=") for part in value.split(",")]
        names = [name for name, _, _ in words]
        kind: type[DynamicTree | OptTree] = OptTree if "threshold" in names and not self.fixed else DynamicTree
        more = [name for name in SETTINGS[kind] if name not in (*self.fixed, *self.due)]
        if not set(self.due) <= set(names) <= {*self.due, *more} or len(set(names)) < len(names):
            due = ",".join(f"{name}=N" for name in self.due)
            self.fail(f"{value!r} must be {due} and may add {', '.join(more)}, each once", param, ctx)
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


@dataclass(frozen=True)
class Trees:
    """What a command was told to draft, and for how many requests at a time."""

    plan_file: Path | None
    tree: Tree | None
    dynamic: DynamicTree | OptTree | None
    batch: int | None

    def chosen(self) -> tuple[Tree | Policy, int, Plan | None]:
        """Tree, batch size and the plan they come from, if any; the empty tree decodes plainly.

        Raises:
            UsageError: more than one was given, or the plan does not say for which batch.
            PlanError: it is not for this batch, or its choice is a bound, which nothing can run.
        """
        given = [shape for shape in (self.tree, self.dynamic) if shape is not None]
        if len(given) + (self.plan_file is not None) > 1:
            raise UsageError("give one of --plan, --tree and --dynamic")
        if self.plan_file is None:
            return (given[0] if given else EMPTY), self.batch or 1, None
        plan = load_plan(self.plan_file)
        entry = plan.entry(self.batch)
        return _shape(entry.choice), entry.batch, plan


def _shape(choice: Choice) -> Tree | Policy:
    if choice.grown is None:
        return choice.tree or EMPTY
    if choice.grown.policy is None:
        raise PlanError(f"the plan's choice {choice.grown.kind} is no policy that could be run")
    return choice.grown.policy


trees = general.bundle(
    "trees",
    Trees,
    click.option("--plan", "plan_file", type=general.FILE, help="Decode as this plan says for the batch size."),
    click.option(
        "--tree",
        type=Static(),
        help="A static tree: the length of a chain, rank paths as JSON, FILE[:NAME], a choice list or growmap, or the "
        "name of a published tree such as medusa/mc_sim_7b_63.",
    ),
    click.option(
        "--dynamic",
        type=Dynamic(),
        help=f"Trees that grow where the drafter is sure: nodes=60,depth=6 [,{'=,'.join(SETTINGS[DynamicTree][2:])}=]; "
        f"or while another level adds enough: nodes=60,depth=6,threshold=0.1 [,{'=,'.join(SETTINGS[OptTree][3:])}=].",
    ),
    click.option(
        "--batch", type=click.IntRange(min=1), help="Requests decoded together; default 1, or the plan's only one."
    ),
)
