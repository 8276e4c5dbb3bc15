"""Options that several commands share."""

from pathlib import Path

import click

from treeopt.cli.options.value_types import TableFile

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
force = click.option("--force", is_flag=True, help="Overwrite existing files without asking.")
device = click.option(
    "--device",
    default="auto",
    show_default=True,
    help="Where to run: cpu, cuda, cuda:1, ...; auto: cuda where there is one, else cpu.",
)


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


def quiet() -> click.Option:
    """Return the option that every command has."""
    return click.Option(
        ["--quiet", "-q"],
        is_flag=True,
        expose_value=False,
        callback=_remember,
        help="Print neither progress nor notes on stderr; warnings and errors stay.",
    )
