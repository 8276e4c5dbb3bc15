"""Options that several commands share."""

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from treeopt.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from executor.drafters.base import Drafter
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


# As executor.loading has them, which would load torch.
DTYPES = ("auto", "float32", "bfloat16", "float16", "float64")
QUANTIZED = ("int8", "int4")


@dataclass(frozen=True)
class Models:
    """The target and drafter that a command was given, and how to load them."""

    target: Path
    drafter: Path | None
    device: str
    dtype: str
    quantize: str | None
    tensor_parallel: bool
    threads: int | None


def models(command: Any, *, drafter: bool = True) -> Any:
    """`--target --drafter --device --dtype --quantize --tensor-parallel --threads`, as one argument `models`.

    `drafter` tells whether there must be one.
    """

    @wraps(command)
    def bundled(**given: Any) -> Any:
        own = {field.name: given.pop(field.name) for field in fields(Models)}
        return command(models=Models(**own), **given)

    for option in (
        click.option("--threads", type=click.IntRange(min=1), help="CPU threads; default what torch takes."),
        click.option("--tensor-parallel", is_flag=True, help="Share the target out over the processes of torchrun."),
        click.option(
            "--quantize", type=click.Choice(QUANTIZED), help="Store the target's linear layers in so few bits."
        ),
        click.option(
            "--dtype",
            type=click.Choice(DTYPES),
            default="float32",
            show_default=True,
            help="Type computed in, and of the cache; auto: as the target was saved.",
        ),
        click.option("--device", default="cpu", show_default=True, help="Where to run: cpu, cuda, cuda:1, ..."),
        click.option(
            "--drafter",
            type=FOLDER,
            required=drafter,
            help="Folder of the drafter (heads, n-grams or a model), or prompt-lookup[:LONGEST].",
        ),
        click.option("--target", type=FOLDER, required=True, help="Folder of the target, a Hugging Face model."),
    ):
        bundled = option(bundled)
    return bundled


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


models_without_drafter = partial(models, drafter=False)


def load_models(models: Models) -> "tuple[Target, Drafter]":
    """Target and drafter, on the device; see `load_target_and_drafter`."""
    target, drafter = load_target_and_drafter(models)
    assert drafter is not None, "a command that must have a drafter asks for it"
    return target, drafter


def load_target_and_drafter(models: Models) -> "tuple[Target, Drafter | None]":
    """Target and, where one was given, drafter, on the device.

    Raises:
        UsageError: several processes were started and each would do the whole work.
    """
    from executor.checkpoints import load_drafter
    from executor.loading import load_target, prepare
    from executor.parallel import launched

    if launched() > 1 and not models.tensor_parallel:
        raise UsageError(f"{launched()} processes were started for one target: give --tensor-parallel, or start one")
    prepare(models.device, threads=models.threads, tensor_parallel=models.tensor_parallel)
    target = load_target(
        models.target,
        dtype=models.dtype,
        device=models.device,
        quantize=models.quantize,
        tensor_parallel=models.tensor_parallel,
    )
    return target, None if models.drafter is None else load_drafter(models.drafter, target)


def is_main_rank() -> bool:
    """Whether this process is the one that prints and writes; ask when models are loaded."""
    from executor.parallel import is_main_rank

    return is_main_rank()


def load_prompts(
    models: Models, model: "Target", prompts_file: Path, *, requests: int | None, skip: int, shortest: int = 1
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
    tokenizer = load_tokenizer(models.target, vocabulary=model.vocabulary)
    tokens = tokenizer([p.text for p in drawn], add_special_tokens=True)["input_ids"]
    for number, prompt in enumerate(tokens, skip):
        if len(prompt) < shortest:
            raise UsageError(
                f"{prompts_file}: prompt {number} has {len(prompt)} tokens, at least {shortest} are needed"
            )
    ends = model.model.generation_config.eos_token_id if model.model.generation_config else None
    stop = {tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])} - {None}
    return drawn, tokens, sorted(stop)


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
