"""`treeopt watch`: whether running servers still do what their plan says."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from treeopt.api import watch_server
from treeopt.api.watch_server import WatchSettings
from treeopt.cli.options import general, output_files, printing
from treeopt.cli.options.help_sections import Command, examples
from treeopt.cli.options.settings_options import options_of

SECTIONS = {"Server": "urls plan profile", "Test": "hours tolerance reference", "Output": "once textfile as_json"}
CHANGED = 3  # exit code of --once
EXAMPLES = examples(
    "treeopt search --trace data/traces/medusa-t0.npz --batch 1,4 --output plan.json",
    "treeopt watch --url http://127.0.0.1:8000/metrics --plan plan.json",
    "treeopt watch --url http://127.0.0.1:8000/metrics --plan plan.json --once --state watch.json || alert",
)


@click.command(cls=Command, sections=SECTIONS, epilog=EXAMPLES)
@options_of(WatchSettings, types={"profile": general.FILE, "state": general.FILE})
@click.option("--plan", type=general.FILE, required=True, help="The plan that the servers were set up by.")
@click.option("--textfile", type=general.FILE, help="Also write gauges for Prometheus' textfile collector (.prom).")
@general.as_json
def watch(settings: WatchSettings, plan: Path, textfile: Path | None, *, as_json: bool) -> None:
    """Compare acceptance by position and step time of running servers with their plan, at equal running requests.

    A sequential test raises false alarms at most every --false-alarms hours on average. Step times need vLLM's
    counters; servers that do not answer are reported and asked again. With --json each scrape prints a line.

    With --once the exit code is 3 if something changed, 0 if not, 1 if no server answers.
    """
    from treeopt.monitoring.prometheus_watch import write_gauges

    output_files.check_output(textfile, "--textfile", force=True)
    output_files.check_output(settings.state, "--state", force=True)
    shown: Any = None
    for record in watch_server.watch(plan, settings=settings):
        if textfile is not None:
            write_gauges(record, textfile)
        if as_json:
            click.echo(json.dumps(record))
        elif sys.stdout.isatty() or shown != (shown := [test["verdict"] for test in record["tests"]]):
            if not settings.once:
                click.clear()
            printing.show("watch", record)
        if settings.once and record["changed"]:
            sys.exit(CHANGED)
