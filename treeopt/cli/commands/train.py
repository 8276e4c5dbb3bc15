"""`treeopt train`: train a drafter for a target by a published recipe, changed by name where wanted."""

import os
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click

from executor.train.recipes import RECIPES, Recipe, replaced
from treeopt.cli.options import general, models_and_prompts
from treeopt.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transformers import PreTrainedTokenizerBase

    from executor.target.target_model import Target
    from executor.train.text_files import Rows, Text
    from executor.train.training_run import Job, Trained

SCHEMA = "treeopt.train/1"


@dataclass(frozen=True)
class Lessons:
    """What is learnt from, and how it is put into rows."""

    data: tuple[Path, ...]
    length: int
    padded: bool
    held_out: float
    self_distill: bool
    distill_temperature: float | None
    distill_tokens: int | None


lessons = general.bundle(
    "lessons",
    Lessons,
    click.option(
        "--data",
        type=general.FOLDER,
        multiple=True,
        required=True,
        help="Conversations (.jsonl, .json), texts, or folders of them; may be given again.",
    ),
    click.option("--length", type=click.IntRange(min=3), default=512, show_default=True, help="Tokens in a row."),
    click.option("--padded", is_flag=True, help="A row for each text, instead of texts one after the other."),
    click.option(
        "--held-out",
        type=general.Real(0, 1, max_open=True),
        default=0.05,
        show_default=True,
        help="Share of the rows that is kept to measure with.",
    ),
    click.option("--self-distill", is_flag=True, help="Learn from what the target writes in place of the data."),
    click.option(
        "--distill-temperature",
        type=general.Real(min=0),
        help="Of what the target writes; default 0.3.",
    ),
    click.option("--distill-tokens", type=click.IntRange(min=1), help="Longest answer; default 192."),
)


@dataclass(frozen=True)
class Training:
    """The recipe, what is changed of it, and how long it goes on."""

    recipe: str
    changes: tuple[str, ...]
    learning_rate: float | None
    steps: int | None
    epochs: float | None
    batch: int
    accumulate: int
    bf16: bool
    lora: bool
    features: Path | None
    save_every: int
    eval_every: int | None
    save_dtype: str

    def chosen(self) -> Recipe:
        """The recipe as changed.

        Raises:
            UsageError: a change without meaning.
        """
        rate = [] if self.learning_rate is None else [f"learning_rate={self.learning_rate}"]
        if self.steps is not None and self.epochs is not None:
            raise UsageError("give either --steps or --epochs")
        return replaced(RECIPES[self.recipe], [*self.changes, *rate])


training = general.bundle(
    "training",
    Training,
    click.option("--recipe", type=click.Choice(list(RECIPES)), required=True, help="How the drafter is trained."),
    click.option("--set", "changes", multiple=True, metavar="NAME=VALUE", help="Change the recipe, say depths=4."),
    click.option("--learning-rate", type=general.Real(min=0, min_open=True), help="Instead of the recipe's."),
    click.option("--steps", type=click.IntRange(min=1), help="Of the optimiser."),
    click.option("--epochs", type=general.Real(min=0, min_open=True), help="In place of --steps; default 1."),
    click.option(
        "--batch", type=click.IntRange(min=1), default=8, show_default=True, help="Rows at once in a process."
    ),
    click.option("--accumulate", type=click.IntRange(min=1), default=1, show_default=True, help="Batches in a step."),
    click.option("--bf16", is_flag=True, help="Compute in bfloat16 where it is safe; weights stay as they are."),
    click.option("--lora", is_flag=True, help="Of recipes that train the target: adapters, merged at the end."),
    click.option(
        "--features",
        type=general.FOLDER,
        help="Keep what the target gives for each row here, or take it from here: for several epochs or drafters.",
    ),
    click.option(
        "--save-every", type=click.IntRange(min=1), default=500, show_default=True, help="Steps between checkpoints."
    ),
    click.option("--eval-every", type=click.IntRange(min=1), help="Steps between measurements; default at the end."),
    click.option(
        "--save-dtype",
        type=click.Choice(["float32", "bfloat16", "float16"]),
        default="float32",
        show_default=True,
        help="Type that the drafter is stored in.",
    ),
)


@click.command()
@models_and_prompts.models_without_drafter
@training
@lessons
@click.option("--output", type=general.FOLDER, required=True, help="Folder of the drafter, its log and checkpoints.")
@click.option("--resume", is_flag=True, help="Go on with an --output that was interrupted.")
@general.seed
@general.as_json
def train(
    models: models_and_prompts.Models,
    training: Training,
    lessons: Lessons,
    output: Path,
    resume: bool,
    seed: int,
    as_json: bool,
) -> None:
    """Train a drafter for a target; --drafter is one to begin with instead of an untrained one.

    Several processes, started by torchrun or accelerate, share out the rows.
    """
    recipe = training.chosen()
    if models.quantize and recipe.trainable == "backbone":
        raise UsageError(
            f"--quantize: recipe {recipe.name} trains the target, whose weights cannot be rounded meanwhile"
        )
    first = os.environ.get("RANK", "0") == "0"  # of the processes that were started, the one that prints and writes
    if first:
        _check_output(output, resume)
    target, tokenizer = _load(models)
    target.check_length(lessons.length)
    from executor.target.tensor_parallel import launched
    from executor.train.target_training import Lora, check_whole
    from executor.train.training_run import LOG, TARGET, Job, checkpoint, precision_of, run, step_count

    if recipe.trainable == "backbone" and not training.lora:
        check_whole(target)
    precision = "bfloat16" if training.bf16 else precision_of(target)
    if first:
        models_and_prompts.warn_of_slow(precision, target)
    texts = _texts(lessons, target, tokenizer, output, seed)
    rows, held_out = _rows(texts, lessons, tokenizer, seed)
    if first and lessons.held_out and not len(held_out):
        click.echo("Warning: all text makes one row, none is held out: nothing will tell how well it drafts", err=True)
    steps = training.steps or step_count(
        len(rows),
        epochs=training.epochs or 1.0,
        batch=training.batch,
        accumulate=training.accumulate,
        processes=launched(),
    )
    job = Job(
        recipe,
        output,
        steps,
        batch=training.batch,
        accumulate=training.accumulate,
        seed=seed,
        device=models.device,
        precision=precision,
        save_every=training.save_every,
        eval_every=training.eval_every,
        resume=resume and checkpoint(output) is not None,
        lora=Lora() if training.lora else None,
        features=training.features,
        dtype=training.save_dtype,
        meta={
            "data": [path.name for path in lessons.data],
            "texts": len(texts),
            "self_distilled": lessons.self_distill,
        },
    )
    drafter = _drafter(models, recipe, target, rows, seed)
    if first and models.drafter is None:
        _warn_of_short(recipe, drafter, steps)
    trained = run(job, target, drafter, rows, held_out, report=_reporter(steps, silent=not first))
    if not first:
        return
    if (output / TARGET).is_dir():
        tokenizer.save_pretrained(output / TARGET)
        click.echo(f"{output / TARGET}: the trained target", err=True)
    click.echo(f"{output}: the drafter, its training in {LOG}", err=True)
    _show(job, trained, as_json=as_json)


def _check_output(output: Path, resume: bool) -> None:
    """Refuse a folder that cannot be written, that is taken, or that holds nothing to go on with."""
    if output.exists() and not output.is_dir():
        raise UsageError(f"--output {output}: must be a folder")
    general.check_output(output / "x" if output.is_dir() else output)
    begun = output.is_dir() and any(output.iterdir())
    if begun and not resume:
        raise UsageError(f"--output {output} is not empty: give --resume to go on with it, or another name")
    if resume and (output / "training.json").exists():
        raise UsageError(f"--resume: the training in {output} is finished")
    if resume and not begun:
        raise UsageError(f"--resume: nothing in {output} to go on with")


def _load(models: models_and_prompts.Models) -> "tuple[Target, PreTrainedTokenizerBase]":
    """Target and tokenizer, on the device of this process."""
    models_and_prompts.hush()
    from executor.target.load_hf_model import load_target, prepare
    from executor.target.tensor_parallel import local_device
    from executor.target.tokenizer import load_tokenizer

    if models.tensor_parallel:
        raise UsageError("--tensor-parallel: training shares out rows, not the target, over processes")
    if models.device not in ("cpu", "cuda"):
        raise UsageError(
            f"--device must be cpu or cuda, got {models.device}; CUDA_VISIBLE_DEVICES chooses among several"
        )
    device = local_device(models.device)
    prepare(device, threads=models.threads)
    target = load_target(models.target, dtype=models.dtype, device=device, quantize=models.quantize)
    return target, load_tokenizer(models.target, vocabulary=target.vocabulary)


def _texts(
    lessons: Lessons, target: "Target", tokenizer: "PreTrainedTokenizerBase", output: Path, seed: int
) -> "Sequence[Text]":
    """The texts that are learnt from.

    Raises:
        ExecutorError: one that holds nothing to learn, or that cannot be read.
    """
    from executor.train.self_distill import Writing, rewritten, stretches
    from executor.train.text_files import answered, read_texts

    asked = {"temperature": lessons.distill_temperature, "new_tokens": lessons.distill_tokens}
    given: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    if given and not lessons.self_distill:
        raise UsageError("--distill-temperature and --distill-tokens are of --self-distill")
    texts = read_texts(lessons.data)
    if not lessons.self_distill:
        return answered(texts)
    writing = Writing(prompt_tokens=max(1, lessons.length // 4), seed=seed, **given)
    output.mkdir(parents=True, exist_ok=True)
    with general.progress("writing", stretches(texts, tokenizer, writing)) as advance:
        return read_texts(rewritten(target, tokenizer, texts, output, writing, progress=advance))


def _rows(
    texts: "Sequence[Text]", lessons: Lessons, tokenizer: "PreTrainedTokenizerBase", seed: int
) -> "tuple[Rows, Rows]":
    """Rows to learn from, and rows held out: the last of all texts in shuffled order."""
    from executor.train.token_rows import encode, packed, padded, shuffled

    encoded = encode(tokenizer, shuffled(texts, seed))
    rows = (padded if lessons.padded else packed)(encoded, length=lessons.length)
    return rows.split(lessons.held_out)


def _drafter(models: models_and_prompts.Models, recipe: Recipe, target: "Target", rows: "Rows", seed: int) -> Any:
    from executor.checkpoints import load_drafter
    from executor.train.new_drafter import begun

    start = None if models.drafter is None else load_drafter(models.drafter, target)
    return begun(recipe, target, start, rows=rows, seed=seed)


def _warn_of_short(recipe: "Recipe", drafter: Any, steps: int) -> None:
    """Warn on stderr if so many steps cannot take an untrained drafter's weights far from where they begin."""
    weights = [float(weight.detach().float().std()) for weight in drafter.parameters() if weight.dim() > 1]
    usual, reach = median(weights), recipe.reach(steps)
    if reach < usual:
        click.echo(
            f"Warning: {steps} steps at a learning rate of up to {recipe.learning_rate:g} change a weight by about "
            f"{reach:.2g} at most, the drafter's begin with a spread of {usual:.2g}: it will hardly learn; recipe "
            f"{recipe.name}'s rate is that of long runs, a short one needs a higher --learning-rate",
            err=True,
        )


def _reporter(steps: int, *, silent: bool) -> "Callable[[int, dict[str, Any]], None]":
    """What is said on stderr while it goes on."""

    def report(step: int, logs: dict[str, Any]) -> None:
        if silent:
            return
        if "loss" in logs:
            click.echo(f"step {step}/{steps}: loss {logs['loss']:.4f}, rate {logs['learning_rate']:.2e}", err=True)
        elif "eval_loss" in logs and any(logs[key] for key in logs if key.endswith("_anchors")):
            firsts = " ".join(f"{v:.3f}" for k, v in logs.items() if k.endswith("_top_1"))
            click.echo(f"step {step}/{steps}: held out: loss {logs['eval_loss']:.4f}, top-1 {firsts}", err=True)

    return report


def _show(job: "Job", trained: "Trained", *, as_json: bool) -> None:
    """Accuracy by depth on the held-out rows."""
    from executor.train.loss_module import TOPS

    if as_json:
        depths = [
            {
                "anchors": after.anchors,
                "loss": after.loss if after.anchors else None,
                "hits": after.hits,
                "hits_before": before.hits,
            }
            for before, after in zip(trained.before, trained.after, strict=True)
        ]
        record = {"schema": SCHEMA, "recipe": job.recipe.name, "output": str(job.output), "steps": job.steps}
        general.print_json({**record, "train_s": trained.train_s, "tops": TOPS, "depths": depths})
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title=f"{job.recipe.name}: true tokens among the best candidates, on held-out rows", title_justify="left"
    )
    for name in ("depth", "anchors", "top-1 before", *(f"top-{top}" for top in TOPS)):
        table.add_column(name, justify="right")
    for depth, (before, after) in enumerate(zip(trained.before, trained.after, strict=True), 1):
        shares = (f"{share:.3f}" if after.anchors else "-" for share in (before.accuracy[0], *after.accuracy))
        table.add_row(str(depth), str(after.anchors), *shares)
    Console().print(table)
