"""`treeopt train`: train a drafter for a target by a published recipe, with changes by name."""

import os
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click

from executor.drafters.base.recipe import Recipe, recipes, replaced
from treeopt.api.messages import note, silent, warn
from treeopt.api.run_models import Models, check_weights, quiet_libraries, slow_type_warnings
from treeopt.cli.options import general, models_and_prompts, output_files, printing
from treeopt.cli.options.help_sections import Command, examples
from treeopt.cli.options.value_types import Real, Tokens, Whole
from treeopt.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transformers import PreTrainedTokenizerBase

    from executor.prompts.reading_report import Report
    from executor.target.target_model import Target
    from executor.train.text_files import Rows, Text
    from executor.train.training_run import Job, Trained

SCHEMA = "treeopt.train/1"
SECTIONS = {
    "Models": "target drafter recipe",
    "Texts": "data length",
    "Training": "steps epochs batch learning_rate",
    "Output": "output resume as_json",
}
EXAMPLES = examples(
    "treeopt train --target data/models/stdlib-llama --recipe medusa1 --data data/prompts/stdlib.jsonl "
    "--length 32 --batch 2 --steps 2 --held-out 0.001 --output medusa",
    "treeopt train --target data/models/stdlib-llama --recipe eagle --data data/prompts/stdlib.jsonl "
    "--set depths=1 --length 32 --batch 2 --steps 2 --held-out 0.001 --output eagle",
)


@dataclass(frozen=True)
class Lessons:
    """The texts that a drafter learns from, and how they become rows."""

    data: tuple[Path, ...]
    length: int
    padded: bool
    held_out: float
    self_distill: bool
    distill_temperature: float | None
    distill_tokens: int | None
    leave_out: frozenset[str]


lessons = general.bundle(
    "lessons",
    Lessons,
    click.option(
        "--data",
        type=general.FOLDER,
        multiple=True,
        required=True,
        help="Conversations (JSON lines, a JSON list, parquet, arrow, a data set saved to disk), texts, or folders of "
        "them; may be given several times.",
    ),
    click.option("--length", type=Tokens(min=3), default=512, show_default=True, help="Tokens per row."),
    click.option("--padded", is_flag=True, help="Put each text in its own row, instead of one text after the other."),
    click.option(
        "--held-out",
        type=Real(0, 1, max_open=True),
        default=0.05,
        show_default=True,
        help="Share of the rows that is held out for measurements.",
    ),
    click.option("--self-distill", is_flag=True, help="Learn from what the target writes in place of the data."),
    click.option(
        "--distill-temperature",
        type=Real(min=0),
        help="Sampling temperature of what the target writes; default 0.3.",
    ),
    click.option("--distill-tokens", type=Tokens(min=1), help="Maximum tokens per answer of the target; default 192."),
    models_and_prompts.leave_out,
)


@dataclass(frozen=True)
class Training:
    """The recipe, changes to it, and how long it runs."""

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
        """Return the recipe as changed.

        Raises:
            UsageError: a change without meaning.
        """
        rate = [] if self.learning_rate is None else [f"learning_rate={self.learning_rate}"]
        if self.steps is not None and self.epochs is not None:
            raise UsageError("give either --steps or --epochs")
        return replaced(recipes()[self.recipe], [*self.changes, *rate])


training = general.bundle(
    "training",
    Training,
    click.option("--recipe", type=click.Choice(list(recipes())), required=True, help="How the drafter is trained."),
    click.option(
        "--set", "changes", multiple=True, metavar="NAME=VALUE", help="Change the recipe, for example depths=4."
    ),
    click.option("--learning-rate", type=Real(min=0, min_open=True), help="Learning rate in place of the recipe's."),
    click.option("--steps", type=Whole(min=1), help="Number of optimiser steps."),
    click.option(
        "--epochs",
        type=Real(min=0, min_open=True),
        help="Passes over the rows in place of --steps; default 1.",
    ),
    click.option("--batch", type=Whole(min=1), default=8, show_default=True, help="Rows per batch and process."),
    click.option("--accumulate", type=Whole(min=1), default=1, show_default=True, help="Batches per optimiser step."),
    click.option("--bf16", is_flag=True, help="Compute in bfloat16 where it is safe; weights keep their number type."),
    click.option("--lora", is_flag=True, help="For recipes that train the target: train adapters, merged at the end."),
    click.option(
        "--features",
        type=general.FOLDER,
        help="Store the target's features of each row in this folder, or reuse those that it holds: for several epochs "
        "or drafters.",
    ),
    click.option("--save-every", type=Whole(min=1), default=500, show_default=True, help="Steps between checkpoints."),
    click.option("--eval-every", type=Whole(min=1), help="Steps between measurements; default only at the end."),
    click.option(
        "--save-dtype",
        type=click.Choice(["float32", "bfloat16", "float16"]),
        default="float32",
        show_default=True,
        help="Number type that the drafter is stored in.",
    ),
)


@click.command(cls=Command, sections=SECTIONS, epilog=EXAMPLES)
@models_and_prompts.models_without_drafter
@training
@lessons
@click.option("--output", type=general.FOLDER, required=True, help="Folder of the drafter, its log and checkpoints.")
@click.option("--resume", is_flag=True, help="Resume an interrupted --output.")
@general.seed
@general.as_json
@general.quiet
def train(
    models: Models,
    training: Training,
    lessons: Lessons,
    output: Path,
    resume: bool,
    seed: int,
    as_json: bool,
) -> None:
    """Train a drafter for a target; --drafter names one to start from instead of an untrained one.

    Several processes, started by torchrun or accelerate, share the rows.
    """
    recipe = training.chosen()
    if models.quantize and recipe.trainable == "backbone":
        raise UsageError(
            f"--quantize: recipe {recipe.name} trains the target, whose weights must not be quantised: omit it, "
            "or choose another recipe"
        )
    first = os.environ.get("RANK", "0") == "0"  # the process that prints and writes
    if first:
        _check_output(output, resume)
    models = _resolved(models)
    target, tokenizer = _load(models)
    target.check_length(lessons.length)
    from executor.prompts.reading_report import Report
    from executor.train.target_training import check_whole
    from executor.train.training_run import precision_of, run

    if recipe.trainable == "backbone" and not training.lora:
        check_whole(target)
    precision = "bfloat16" if training.bf16 else precision_of(target)
    if first:
        warn(slow_type_warnings(precision, target))
    report = Report(lessons.leave_out)
    texts = _texts(lessons, target, tokenizer, output, seed, report)
    rows, held_out = _rows(texts, lessons, tokenizer, seed, report)
    if first:
        warn(report.remarks)
    if first and lessons.held_out and not len(held_out):
        warn(["the texts fill only one row, so none is held out: the drafter's accuracy will not be measured"])
    settings: dict[str, Any] = {"seed": seed, "device": models.device, "precision": precision, "resume": resume}
    job = _job(recipe, training, lessons, output, rows=len(rows), texts=len(texts), **settings)
    drafter = _drafter(models, recipe, target, rows, seed)
    if first and models.drafter is None:
        warn(_short_warnings(recipe, drafter, job.steps))
    with (printing.progress if first else silent)("training", job.steps) as advance:
        trained = run(job, target, drafter, rows, held_out, report=_reporter(job.steps, advance, silent=not first))
    if first:
        note([report.summary, *report.unread_fields])
        _finish(job, trained, tokenizer, as_json=as_json)


def _check_output(output: Path, resume: bool) -> None:
    """Raise UsageError for a folder that cannot be written, that is taken, or that holds nothing to resume."""
    if output.exists() and not output.is_dir():
        raise UsageError(f"--output {output}: must be a folder")
    output_files.check_output(output / "x" if output.is_dir() else output)
    begun = output.is_dir() and any(output.iterdir())
    if begun and not resume:
        raise UsageError(f"--output {output} is not empty: give --resume to resume it, or another name")
    if resume and (output / "training.json").exists():
        raise UsageError(
            f"--resume: the training in {output} is finished: use the drafter there, or name another --output"
        )
    if resume and not begun:
        raise UsageError(f"--resume: {output} holds nothing to resume: omit --resume")


def _resolved(models: Models) -> Models:
    """Return the models with the device and number type of this machine."""
    quiet_libraries()
    return models.resolved()


def _load(models: Models) -> "tuple[Target, PreTrainedTokenizerBase]":
    """Load target and tokenizer, on the device of this process."""
    from executor.target.load_hf_model import load_target, prepare
    from executor.target.tensor_parallel import local_device
    from executor.target.tokenizer import load_tokenizer

    check_weights(models)
    if models.tensor_parallel:
        raise UsageError("--tensor-parallel: in training the processes share rows, not the target: omit it")
    if models.device not in ("cpu", "cuda"):
        raise UsageError(
            f"--device must be cpu or cuda, got {models.device}; CUDA_VISIBLE_DEVICES chooses among several"
        )
    device = local_device(models.device)
    prepare(device, threads=models.threads)
    target = load_target(
        models.target,
        dtype="auto" if models.dtype == "saved" else models.dtype,
        device=device,
        quantize=models.quantize,
    )
    warn(target.warnings)
    return target, load_tokenizer(models.target, vocabulary=target.vocabulary)


def _texts(
    lessons: Lessons,
    target: "Target",
    tokenizer: "PreTrainedTokenizerBase",
    output: Path,
    seed: int,
    report: "Report",
) -> "Sequence[Text]":
    """Return the texts that the drafter learns from, and record in `report` what was read.

    Raises:
        ExecutorError: one that holds nothing to learn, or that cannot be read.
    """
    from executor.prompts.conversation_forms import has_tools
    from executor.train.self_distill import Writing, rewritten, stretches
    from executor.train.text_files import answered, read_texts

    settings = {"temperature": lessons.distill_temperature, "new_tokens": lessons.distill_tokens}
    given: dict[str, Any] = {name: value for name, value in settings.items() if value is not None}
    if given and not lessons.self_distill:
        raise UsageError("--distill-temperature and --distill-tokens need --self-distill")
    texts = read_texts(lessons.data, report)
    if not lessons.self_distill:
        return answered(texts)
    if calling := sum(has_tools(text.turns) for text in texts):
        warn([f"{calling} conversations call tools: the target writes them only up to the first call"])
    writing = Writing(prompt_tokens=max(1, lessons.length // 4), seed=seed, **given)
    output.mkdir(parents=True, exist_ok=True)
    with printing.progress("writing", stretches(texts, tokenizer, writing)) as advance:
        return read_texts(rewritten(target, tokenizer, texts, output, writing, progress=advance))


def _rows(
    texts: "Sequence[Text]", lessons: Lessons, tokenizer: "PreTrainedTokenizerBase", seed: int, report: "Report"
) -> "tuple[Rows, Rows]":
    """Return rows to learn from, and rows held out: the last of all texts in shuffled order."""
    from executor.train.token_rows import encode, packed, padded, shuffled

    encoded = encode(tokenizer, shuffled(texts, seed), report)
    if not encoded:
        raise UsageError(f"{', '.join(map(str, lessons.data))}: no text is left: name other --data, or leave out less")
    rows = (padded if lessons.padded else packed)(encoded, length=lessons.length)
    return rows.split(lessons.held_out)


def _job(
    recipe: Recipe,
    training: Training,
    lessons: Lessons,
    output: Path,
    *,
    rows: int,
    texts: int,
    seed: int,
    device: str,
    precision: str,
    resume: bool,
) -> "Job":
    """Return the training that the options describe."""
    from executor.target.tensor_parallel import launched_processes
    from executor.train.target_training import Lora
    from executor.train.training_run import Job, checkpoint, step_count

    steps = training.steps or step_count(
        rows,
        epochs=training.epochs or 1.0,
        batch=training.batch,
        accumulate=training.accumulate,
        processes=launched_processes(),
    )
    return Job(
        recipe,
        output,
        steps,
        batch=training.batch,
        accumulate=training.accumulate,
        seed=seed,
        device=device,
        precision=precision,
        save_every=training.save_every,
        eval_every=training.eval_every,
        resume=resume and checkpoint(output) is not None,
        lora=Lora() if training.lora else None,
        features=training.features,
        dtype=training.save_dtype,
        meta={"data": [path.name for path in lessons.data], "texts": texts, "self_distilled": lessons.self_distill},
    )


def _drafter(models: Models, recipe: Recipe, target: "Target", rows: "Rows", seed: int) -> Any:
    from executor.checkpoints import load_drafter
    from executor.train.new_drafter import begun

    start = None if models.drafter is None else load_drafter(models.drafter, target)
    return begun(recipe, target, start, rows=rows, seed=seed)


def _short_warnings(recipe: "Recipe", drafter: Any, steps: int) -> list[str]:
    """Warn if the steps are too few to move an untrained drafter's weights far from where they begin."""
    weights = [float(weight.detach().float().std()) for weight in drafter.parameters() if weight.dim() > 1]
    spread, reach = median(weights), recipe.reach(steps)
    if reach >= spread:
        return []
    return [
        f"{steps} steps at a learning rate of up to {recipe.learning_rate:g} change a weight by about {reach:.2g} at "
        f"most, but the drafter's weights begin with a spread of {spread:.2g}: it will hardly learn; recipe "
        f"{recipe.name}'s rate is for long runs, give a short one a higher --learning-rate"
    ]


def _reporter(steps: int, advance: "Callable[[int], None]", *, silent: bool) -> "Callable[[int, dict[str, Any]], None]":
    """Return what prints losses on stderr during the training, and counts the steps."""
    done = 0

    def report(step: int, logs: dict[str, Any]) -> None:
        nonlocal done
        advance(step - done)
        done = step
        if silent:
            return
        if "loss" in logs:
            printing.say(f"step {step}/{steps}: loss {logs['loss']:.4f}, rate {logs['learning_rate']:.2e}")
        elif "eval_loss" in logs and any(logs[key] for key in logs if key.endswith("_anchors")):
            firsts = " ".join(f"{v:.3f}" for k, v in logs.items() if k.endswith("_top_1"))
            printing.say(f"step {step}/{steps}: held out: loss {logs['eval_loss']:.4f}, top-1 {firsts}")

    return report


def _finish(job: "Job", trained: "Trained", tokenizer: "PreTrainedTokenizerBase", *, as_json: bool) -> None:
    """Save the tokenizer beside a trained target, and print the drafter's accuracy."""
    from executor.train.training_run import LOG, TARGET

    if (job.output / TARGET).is_dir():
        tokenizer.save_pretrained(job.output / TARGET)
        printing.say(f"{job.output / TARGET}: the trained target")
    printing.say(f"{job.output}: the drafter, its training in {LOG}")
    _show(job, trained, as_json=as_json)


def _show(job: "Job", trained: "Trained", *, as_json: bool) -> None:
    """Print the accuracy by depth on the held-out rows."""
    from executor.train.loss_module import TOPS

    depths = [
        {
            "anchors": after.anchors,
            "loss": after.loss if after.anchors else None,
            "hits": after.hits,
            "hits_before": before.hits,
        }
        for before, after in zip(trained.before, trained.after, strict=True)
    ]
    record = {
        "schema": SCHEMA,
        "recipe": job.recipe.name,
        "output": str(job.output),
        "steps": job.steps,
        "train_s": trained.train_s,
        "tops": TOPS,
        "depths": depths,
    }
    if as_json:
        printing.print_json(record)
        return
    printing.show("training", record)
