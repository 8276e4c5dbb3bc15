"""Options that several commands share."""

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from treeopt.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from executor.drafters.medusa import MedusaHeads
    from executor.prompts import Prompt
    from executor.target import Target

FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path)


class Batches(click.ParamType[tuple[int, ...]]):
    """Batch sizes such as `4` or `1,2,4,8`."""

    name = "sizes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Integers between commas."""
        if isinstance(value, tuple):
            return value
        try:
            sizes = tuple(int(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is not a list of batch sizes such as 1,2,4", param, ctx)
        for size in sizes:
            if size < 1:
                self.fail(f"batch must be at least 1, got {size}", param, ctx)
        return sizes


as_json = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, alone, on stdout.")
seed = click.option(
    "--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="Of every random choice."
)


batches = click.option("--batch", type=Batches(), required=True, help="Batch sizes, such as 4 or 1,2,4,8.")


def models(command: Any) -> Any:
    """`--target --drafter --device --dtype --threads`."""
    for option in (
        click.option("--threads", type=click.IntRange(min=1), help="CPU threads; default what torch takes."),
        click.option("--dtype", default="float32", show_default=True, help="Type of weights and cache."),
        click.option("--device", default="cpu", show_default=True, help="Where to run: cpu, cuda, cuda:1, ..."),
        click.option("--drafter", type=FOLDER, required=True, help="Folder of the drafter."),
        click.option("--target", type=FOLDER, required=True, help="Folder of the target, a Hugging Face model."),
    ):
        command = option(command)
    return command


def prompts_options(command: Any) -> Any:
    """`--prompts --requests --skip --new-tokens`."""
    for option in (
        click.option(
            "--new-tokens",
            type=click.IntRange(min=1),
            default=64,
            show_default=True,
            help="After each prompt.",
        ),
        click.option(
            "--skip",
            type=click.IntRange(min=0),
            default=0,
            show_default=True,
            help="Prompts to leave out first.",
        ),
        click.option("--requests", type=click.IntRange(min=1), help="Prompts to take; default all."),
        click.option("--prompts", "prompts_file", type=FILE, required=True, help="JSON lines with `text`."),
    ):
        command = option(command)
    return command


def load_models(
    target: Path, drafter: Path, *, device: str, dtype: str, threads: int | None
) -> "tuple[Target, MedusaHeads]":
    """Target and drafter, on the device."""
    from executor.checkpoints import load_drafter
    from executor.loading import load_target, prepare

    prepare(device, threads=threads)
    model = load_target(target, dtype=dtype, device=device)
    return model, load_drafter(drafter, model)


def load_prompts(
    target: Path, model: "Target", prompts_file: Path, *, requests: int | None, skip: int, shortest: int = 1
) -> "tuple[list[Prompt], list[list[int]], Sequence[int]]":
    """Prompts, their token ids, and the tokens that end a text.

    Raises:
        UsageError: more prompts asked for than there are, or one of fewer than `shortest` tokens.
    """
    from executor.loading import load_tokenizer
    from executor.prompts import read_prompts

    drawn = read_prompts(prompts_file)[skip:]
    if not drawn or (requests is not None and len(drawn) < requests):
        raise UsageError(f"{prompts_file}: {requests or 1} prompts wanted after skipping {skip}, {len(drawn)} are left")
    drawn = drawn[:requests]
    tokenizer = load_tokenizer(target, vocabulary=model.vocabulary)
    tokens = tokenizer([p.text for p in drawn], add_special_tokens=True)["input_ids"]
    for number, prompt in enumerate(tokens, skip):
        if len(prompt) < shortest:
            raise UsageError(
                f"{prompts_file}: prompt {number} has {len(prompt)} tokens, at least {shortest} are needed"
            )
    return drawn, tokens, [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]


def check_output(path: Path | None) -> None:
    """Fail before any work when the output could not be written.

    Raises:
        UsageError: the folder is missing or not writable.
    """
    if path is None:
        return
    if not path.parent.is_dir():
        raise UsageError(f"--output {path}: there is no folder {path.parent}")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise UsageError(f"--output {path}: cannot write there: {error.strerror}") from error


def print_json(value: Any) -> None:
    """JSON alone on stdout."""
    click.echo(json.dumps(value, indent=2))


@contextmanager
def progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr; call what it yields with finished pieces."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(label, total=total)
        yield lambda pieces: bar.advance(task, pieces)
