"""Options that several commands share."""

from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import Any

import click

from treeopt.cli.options.value_types import Numbers, TableFile, Tokens, Whole
from treeopt.defaults import NODES
from treeopt.tree import MAX_NODES

FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path)

table = click.option(
    "--table",
    "table_file",
    type=TableFile(),
    help="Also write the table of results to this file (.csv or .parquet), with a row per configuration.",
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, alone, on stdout.")
seed = click.option(
    "--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="Seed of every random choice."
)
batches = click.option("--batch", type=Numbers(), required=True, help="Batch sizes, such as 4 or 1,2,4,8.")
max_nodes = click.option(
    "--max-nodes",
    type=click.IntRange(1, MAX_NODES),
    help=f"Largest tree tried, in nodes; default {NODES}, or the largest that the step times cover.",
)
max_depth = click.option(
    "--max-depth",
    type=Whole(min=1),
    help="Deepest tree tried; default the trace's depth, or the deepest that the step times cover.",
)
context = click.option(
    "--context",
    type=Tokens(min=0),
    help="Tokens in the cache per sequence, such as 512 or 8k; default as profiled, the shortest of several contexts.",
)
force = click.option("--force", is_flag=True, help="Overwrite existing files without asking.")
graphs = click.option("--graphs", is_flag=True, help="On CUDA, replay steps from CUDA graphs.")


def _remember(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Keep a flag for this command's whole run, without an argument of the function."""
    ctx.meta[f"treeopt.{param.name}"] = value


verbose = click.option(
    "--verbose",
    "-v",
    is_flag=True,
    expose_value=False,
    callback=_remember,
    help="Also print how the result was found, and all conditions.",
)
quiet = click.option(
    "--quiet",
    "-q",
    is_flag=True,
    expose_value=False,
    callback=_remember,
    help="Print neither progress nor notes on stderr; warnings and errors stay.",
)


def bundle(name: str, kind: type, *given: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a decorator that adds options to a command, which gets them as one argument `name` of dataclass `kind`."""

    def decorate(command: Any) -> Any:
        @wraps(command)
        def bundled(**values: Any) -> Any:
            own = {field.name: values.pop(field.name) for field in fields(kind) if field.name in values}
            return command(**{name: kind(**own)}, **values)

        for option in reversed(given):
            bundled = option(bundled)
        return bundled

    return decorate
