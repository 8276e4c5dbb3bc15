"""`treeopt trace`: collect a trace, import one, describe one, join several, split one; one subcommand a file.

* `collect`: let the target write, and record how the drafter ranks what it writes.
* `import_figures`: acceptance figures that other programs measured, as a trace.
* `info`: describe a trace.
* `merge`: join traces.
* `split`: divide the requests of a trace in two.
"""

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
