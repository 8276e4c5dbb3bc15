"""`treeopt explore`: a local page that calls the library while its controls are moved."""

from pathlib import Path
from tempfile import TemporaryDirectory

import click

from treeopt.api.compare_traces import names_of_figures
from treeopt.cli.options import general
from treeopt.cli.options.help_sections import Command, examples
from treeopt.cli.options.trace_or_figure import FIGURE, FIGURE_TYPE, LENGTH, LENGTH_TYPE
from treeopt.traces.trace import Trace
from treeopt.traces.trace_files import save_trace

EXAMPLES = examples(
    "treeopt explore",
    "treeopt explore --trace data/traces/medusa-t0.npz --profile data/profiles/medusa-cpu.json --no-browser",
)


@click.command(cls=Command, epilog=EXAMPLES)
@click.option(
    "--trace",
    "traces",
    type=general.FOLDER,
    multiple=True,
    help="A trace to choose from; may be given several times. Default: the shipped traces.",
)
@click.option("--acceptance", "figures", type=FIGURE_TYPE, multiple=True, help=f"{FIGURE} May be given several times.")
@click.option("--accepted-length", "lengths", type=LENGTH_TYPE, multiple=True, help=LENGTH)
@click.option(
    "--profile",
    "profiles",
    type=general.FILE,
    multiple=True,
    help="Measured step times to choose from; may be given several times. Default: the shipped profiles.",
)
@click.option(
    "--target",
    "targets",
    type=general.FOLDER,
    multiple=True,
    help="A target's folder or config.json, whose sizes predict step times on devices; may be given several times.",
)
@click.option(
    "--drafter", type=general.FOLDER, help="The drafter's folder or config.json; default sizes as the target's."
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, show_default=True, help="Port of 127.0.0.1; 0 takes a free one."
)
@click.option("--browser/--no-browser", default=True, show_default=True, help="Open the page in the browser.")
def explore(
    traces: tuple[Path, ...],
    figures: tuple[Trace, ...],
    lengths: tuple[Trace, ...],
    profiles: tuple[Path, ...],
    targets: tuple[Path, ...],
    drafter: Path | None,
    port: int,
    *,
    browser: bool,
) -> None:
    """Show a page on this computer to try batch sizes, engines, devices and limits.

    The page reads the given files, or the shipped ones, and no others. It answers requests of this computer only, makes
    none itself, and ends with Ctrl-C.
    """
    from treeopt.explore.answers import Offer
    from treeopt.explore.local_server import address, application, open_browser, open_port, serve

    with TemporaryDirectory(prefix="treeopt-") as folder:
        for name, trace in names_of_figures((*figures, *lengths)).items():
            traces = (*traces, Path(folder) / f"{name}.npz")
            save_trace(trace, traces[-1])
        Offer.of_files(traces, profiles, targets, drafter).check()
        page = application()
        listener = open_port(port)
        click.echo(f"treeopt explore: {address(listener)} (Ctrl-C ends it)")
        if browser:
            open_browser(address(listener))
        files = {"traces": traces, "profiles": profiles, "targets": targets}
        given = {name: [str(path.resolve()) for path in paths] for name, paths in files.items()}
        serve(page, listener, {**given, "drafter": None if drafter is None else str(drafter.resolve())})
