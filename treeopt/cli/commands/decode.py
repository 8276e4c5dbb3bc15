"""`treeopt decode`: continue prompts with a target, a drafter and a tree."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from treeopt.api import decode_prompts
from treeopt.api.decode_prompts import DecodeSettings, Watcher, figures
from treeopt.cli.options import general, output_files, printing
from treeopt.cli.options.help_sections import Command, examples
from treeopt.cli.options.settings_options import MODELS, options_of
from treeopt.errors import UsageError, visible

if TYPE_CHECKING:
    from executor.decoding.request_queue import Gathered

SECTIONS = {
    "Models": "target drafter",
    "Prompts": "texts prompts skip requests new_tokens",
    "Drafting": "plan tree batch",
    "Output": "output as_json",
}
EXAMPLES = examples(
    "treeopt decode --target data/models/stdlib-llama --drafter data/models/stdlib-medusa --tree 2 "
    "--prompt 'def read(path):' --new-tokens 16",
    "treeopt decode --target data/models/stdlib-llama --drafter prompt-lookup --tree 3 "
    "--prompts data/prompts/stdlib.jsonl --requests 2 --new-tokens 16 --audit --output texts.jsonl",
)


class Printer(Watcher):
    """Prints texts as they come, or records as they end, and figures while requests are decoded."""

    def __init__(self, *, streams: bool, json_lines: bool, silent: bool) -> None:
        """Print pieces of texts, records, or whole texts; nothing if `silent`."""
        self.streams, self.json_lines, self.silent = streams, json_lines, silent
        self._several = False
        self._show: Callable[[Gathered], None] = lambda gathered: None

    @contextmanager
    def running(self, requests: int) -> Iterator[None]:
        """Show figures on stderr while requests are decoded, where that is a terminal."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._several, console = requests > 1, Console(stderr=True)
        if self.streams or not console.is_terminal or printing.is_set("quiet"):
            yield
            return
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
        # rich would send what is printed to stderr, which is only right where both are one terminal.
        with Progress(*columns, console=console, transient=True, redirect_stdout=sys.stdout.isatty()) as bar:
            task = bar.add_task("", total=requests)

            def show(gathered: "Gathered") -> None:
                bar.update(task, completed=gathered.ended, description=figures(gathered))

            self._show = show
            yield

    def step(self, gathered: "Gathered") -> None:
        """Show figures."""
        self._show(gathered)

    def piece(self, text: str) -> None:
        """Print a piece of a text."""
        print(visible(text, lines=True), end="", flush=True)

    def ended(self, record: dict[str, Any]) -> None:
        """Print a finished request, and its number where texts of others stand beside it."""
        if self.json_lines:
            print(json.dumps(record), flush=True)
        elif not self.silent:
            end = f"\n--- end of request {record['request']} ---" if self._several else ""
            print(("" if self.streams else visible(record["text"], lines=True)) + end, flush=True)


@click.command(cls=Command, sections=SECTIONS, epilog=EXAMPLES)
@options_of(DecodeSettings, types={**MODELS, "plan": general.FILE}, without=("random_weights", "prompt_tokens"))
@click.option("--stream", is_flag=True, help="Print text while it is decoded; needs batch 1.")
@click.option("--json-lines", is_flag=True, help="Print requests as JSON lines on stdout instead of text.")
@general.as_json
def decode(settings: DecodeSettings, stream: bool, json_lines: bool, as_json: bool) -> None:
    """Continue prompts with a target and, given a plan or a tree, a drafter.

    Texts go to stdout in the order in which requests end, several with a line after each that names the request;
    figures go to stderr. Control characters are shown as escapes: --json and --json-lines hold the texts as they are.
    """
    if stream + as_json + json_lines > 1:
        raise UsageError("--stream, --json and --json-lines each need stdout: give one of them")
    output_files.check_output(settings.output, force=True)  # what exists is resumed, or refused
    record = decode_prompts.decode(
        settings=settings, watcher=Printer(streams=stream, json_lines=json_lines, silent=as_json)
    )
    if as_json and printing.is_main_process():
        printing.print_json(record)
