"""`treeopt trace`: collect a trace, import one, describe one, join several, split one; one subcommand a file."""

import click
from click_didyoumean import DYMGroup

from treeopt.cli.commands.trace import collect, import_figures, info, merge, split


@click.group(cls=DYMGroup)
def trace() -> None:
    """Record, import, describe, merge and split traces of what a drafter gets right."""


for command in (
    import_figures.import_command,
    collect.collect,
    merge.merge,
    split.split,
    info.info,
):
    trace.add_command(command)
