"""`treeopt.train`: train a drafter for a target by a published recipe, with changes by name."""

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from executor.drafters.base.recipe import Recipe, recipes, replaced
from treeopt import defaults
from treeopt.api.messages import Progress, note, silent, warn
from treeopt.api.ray_workers import RaySetup, on_ray
from treeopt.api.run_models import Models, check_weights, leave_out, quiet_libraries, slow_type_warnings
from treeopt.errors import UsageError
from treeopt.results.kinds import Record
from treeopt.settings import Settings, group, setting, takes

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from executor.prompts.message_parts import Report
    from executor.target.target_model import Target
    from executor.train.self_distill import Writing
    from executor.train.token_rows import Rows, Text
    from executor.train.training_run import Job, Trained

SCHEMA = "treeopt.train/1"


@dataclass(frozen=True, kw_only=True)
class TrainSettings(Settings):
    """The settings of `train`: models, recipe and changes to it, texts, how long it runs, what is kept."""

    models: Models = group(Models)
    recipe: str = setting(choices=recipes, help="How the drafter is trained.")
    changes: tuple[str, ...] = setting((), option="--set", help="Change the recipe, NAME=VALUE, for example depths=4.")
    data: tuple[Path, ...] = setting(
        form="folder",
        help="Conversations (JSON lines, a JSON list, parquet, arrow, a data set saved to disk), texts, or folders of "
        "them; may be given several times.",
    )
    output: Path = setting(form="folder", help="Folder of the drafter, its log and checkpoints.")
    resume: bool = setting(False, help="Resume an interrupted --output.")
    length: int = setting(512, least=3, form="tokens", help="Tokens per row.")
    padded: bool = setting(False, help="Put each text in its own row, instead of one text after the other.")
    held_out: float = setting(0.05, least=0, below=1, help="Share of the rows that is held out for measurements.")
    self_distill: bool = setting(False, help="Learn from what the target writes in place of the data.")
    distill_temperature: float | None = setting(
        None, least=0, help="Sampling temperature of what the target writes; default 0.3."
    )
    distill_tokens: int | None = setting(
        None, least=1, form="tokens", help="Maximum tokens per answer of the target; default 192."
    )
    leave_out: frozenset[str] = leave_out()
    learning_rate: float | None = setting(None, above=0, help="Learning rate in place of the recipe's.")
    steps: int | None = setting(None, least=1, help="Number of optimiser steps.")
    epochs: float | None = setting(None, above=0, help="Passes over the rows in place of --steps; default 1.")
    batch: int = setting(8, least=1, help="Rows per batch and process.")
    accumulate: int = setting(1, least=1, help="Batches per optimiser step.")
    bf16: bool = setting(False, help="Compute in bfloat16 where it is safe; weights keep their number type.")
    lora: bool = setting(False, help="For recipes that train the target: train adapters, merged at the end.")
    features: Path | None = setting(
        None,
        form="folder",
        help="Store the target's features of each row in this folder, or reuse those that it holds: for several epochs "
        "or drafters.",
    )
    save_every: int = setting(500, least=1, help="Steps between checkpoints.")
    eval_every: int | None = setting(None, least=1, help="Steps between measurements; default only at the end.")
    save_dtype: str = setting(
        "float32", choices=("float32", "bfloat16", "float16"), help="Number type that the drafter is stored in."
    )
    seed: int = defaults.seed()
    cluster: RaySetup = group(RaySetup)

    def check(self) -> None:
        """Raise UsageError where settings do not go together."""
        if self.cluster.ray is not None and (not self.self_distill or "RANK" in os.environ):
            raise UsageError("--ray spreads what --self-distill writes, and takes no torchrun: training stays here")
        if self.steps is not None and self.epochs is not None:
            raise UsageError("give either --steps or --epochs")
        if (self.distill_temperature, self.distill_tokens) != (None, None) and not self.self_distill:
            raise UsageError("--distill-temperature and --distill-tokens need --self-distill")
        if self.models.quantize and recipes()[self.recipe].trainable == "backbone":
            raise UsageError(
                f"--quantize: recipe {self.recipe} trains the target, whose weights must not be quantised: omit it, "
                "or choose another recipe"
            )

    def chosen(self) -> Recipe:
        """Return the recipe as changed.

        Raises:
            UsageError: a change without meaning.
        """
        rate = [] if self.learning_rate is None else [f"learning_rate={self.learning_rate}"]
        return replaced(recipes()[self.recipe], [*self.changes, *rate])


def is_first() -> bool:
    """Return whether this process prints and writes; the others share the rows."""
    return os.environ.get("RANK", "0") == "0"


@takes(TrainSettings, "target", "recipe", "data", "output")
def train(*, settings: TrainSettings, progress: Progress = silent) -> Record:
    """Train a drafter for a target; `drafter` names one to start from instead of an untrained one.

    Several processes, started by torchrun or accelerate, share the rows. Losses are logged as notes.

    Args:
        progress: shows how many steps are done.

    Returns:
        The record that `treeopt train --json` prints: accuracy by depth on rows held out, before and after.

    Raises:
        UsageError: settings that do not go together, or an output that is taken.
        ExecutorError: models or texts that cannot be read.

    Examples:
        >>> import tempfile, treeopt
        >>> settings = {"recipe": "medusa1", "length": 16, "batch": 1, "steps": 1, "held_out": 0.001}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     record = treeopt.train(
        ...         "data/models/stdlib-llama", data="data/prompts/stdlib.jsonl", output=f"{folder}/medusa", **settings
        ...     )
        >>> record["recipe"], record["steps"], len(record["depths"])
        ('medusa1', 1, 5)
    """
    recipe, first = settings.chosen(), is_first()
    if first:
        _check_output(settings.output, settings.resume)
    quiet_libraries()
    models = settings.models.resolved()
    target, tokenizer = _load(models)
    target.check_length(settings.length)
    from executor.checkpoints import load_drafter
    from executor.prompts.message_parts import Report
    from executor.train.losses import check_whole
    from executor.train.training_run import begun, precision_of, run

    if recipe.trainable == "backbone" and not settings.lora:
        check_whole(target)
    precision = "bfloat16" if settings.bf16 else precision_of(target)
    if first:
        warn(slow_type_warnings(precision, target))
    report = Report(settings.leave_out)
    texts = _texts(settings, target, tokenizer, report, progress)
    rows, held_out = _rows(texts, settings, tokenizer, report)
    if first:
        warn(report.remarks)
        if settings.held_out and not len(held_out):
            warn(["the texts fill only one row, so none is held out: the drafter's accuracy will not be measured"])
    job = _job(recipe, settings, rows=len(rows), texts=len(texts), device=models.device, precision=precision)
    start = None if models.drafter is None else load_drafter(models.drafter, target)
    drafter = begun(recipe, target, start, rows=rows, seed=settings.seed)
    if first and models.drafter is None:
        warn(_short_warnings(recipe, drafter, job.steps))
    with (progress if first else silent)("training", job.steps) as advance:
        trained = run(job, target, drafter, rows, held_out, report=_reporter(job.steps, advance, quiet=not first))
    if first:
        note([report.summary, *report.unread_fields, *_saved(job, tokenizer)])
    return _record(job, trained)


def _check_output(output: Path, resume: bool) -> None:
    """Raise UsageError for a folder that is taken, or that holds nothing to resume."""
    if output.exists() and not output.is_dir():
        raise UsageError(f"--output {output}: must be a folder")
    begun = output.is_dir() and any(output.iterdir())
    if begun and not resume:
        raise UsageError(f"--output {output} is not empty: give --resume to resume it, or another name")
    if resume and (output / "training.json").exists():
        raise UsageError(
            f"--resume: the training in {output} is finished: use the drafter there, or name another --output"
        )
    if resume and not begun:
        raise UsageError(f"--resume: {output} holds nothing to resume: omit --resume")


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
    settings: TrainSettings,
    target: "Target",
    tokenizer: "PreTrainedTokenizerBase",
    report: "Report",
    progress: Progress,
) -> "Sequence[Text]":
    """Return the texts that the drafter learns from, and record in `report` what was read.

    Raises:
        ExecutorError: one that holds nothing to learn, or that cannot be read.
    """
    from executor.prompts.conversation_forms import has_tools
    from executor.train.self_distill import rewritten, stretches
    from executor.train.token_rows import answered, read_texts

    texts = read_texts(settings.data, report)
    if not settings.self_distill:
        return answered(texts)
    if calling := sum(has_tools(text.turns) for text in texts):
        warn([f"{calling} conversations call tools: the target writes them only up to the first call"])
    writing = _writing(settings)
    settings.output.mkdir(parents=True, exist_ok=True)
    with progress("writing", stretches(texts, tokenizer, writing)) as advance, ExitStack() as stack:
        write = None
        if settings.cluster.ray is not None:
            write = stack.enter_context(on_ray(settings.cluster, _chunk_writer, settings))
        return read_texts(rewritten(target, tokenizer, texts, settings.output, writing, write, progress=advance))


def _writing(settings: TrainSettings) -> "Writing":
    """Return how the target writes."""
    from executor.train.self_distill import Writing

    how = {"temperature": settings.distill_temperature, "new_tokens": settings.distill_tokens}
    given: dict[str, Any] = {name: value for name, value in how.items() if value is not None}
    return Writing(prompt_tokens=max(1, settings.length // 4), seed=settings.seed, **given)


def _chunk_writer(settings: TrainSettings) -> tuple[Any, Any, Any]:
    """Return what writes in a worker; see `on_ray`."""
    quiet_libraries()
    target, tokenizer = _load(settings.models.resolved())
    from executor.prompts.message_parts import Report
    from executor.train.self_distill import chunk_writer
    from executor.train.token_rows import read_texts

    texts = read_texts(settings.data, Report(settings.leave_out))
    head, write = chunk_writer(target, tokenizer, texts, _writing(settings))
    return head, head[0], write


def _rows(
    texts: "Sequence[Text]", settings: TrainSettings, tokenizer: "PreTrainedTokenizerBase", report: "Report"
) -> "tuple[Rows, Rows]":
    """Return rows to learn from, and rows held out: the last of all texts in shuffled order."""
    from executor.train.token_rows import encode, packed, padded, shuffled

    encoded = encode(tokenizer, shuffled(texts, settings.seed), report)
    if not encoded:
        raise UsageError(f"{', '.join(map(str, settings.data))}: no text is left: name other --data, or leave out less")
    rows = (padded if settings.padded else packed)(encoded, length=settings.length)
    return rows.split(settings.held_out)


def _job(recipe: Recipe, settings: TrainSettings, *, rows: int, texts: int, device: str, precision: str) -> "Job":
    """Return the training that the settings describe."""
    from executor.target.tensor_parallel import launched_processes
    from executor.train.losses import Lora
    from executor.train.training_run import Job, checkpoint, step_count

    steps = settings.steps or step_count(
        rows,
        epochs=settings.epochs or 1.0,
        batch=settings.batch,
        accumulate=settings.accumulate,
        processes=launched_processes(),
    )
    data = [path.name for path in settings.data]
    same = ("batch", "accumulate", "seed", "save_every", "eval_every", "features")
    return Job(
        recipe,
        settings.output,
        steps,
        device=device,
        precision=precision,
        resume=settings.resume and checkpoint(settings.output) is not None,
        lora=Lora() if settings.lora else None,
        dtype=settings.save_dtype,
        meta={"data": data, "texts": texts, "self_distilled": settings.self_distill},
        **{name: getattr(settings, name) for name in same},
    )


def _short_warnings(recipe: Recipe, drafter: Any, steps: int) -> list[str]:
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


def _reporter(steps: int, advance: Callable[[int], None], *, quiet: bool) -> Callable[[int, dict[str, Any]], None]:
    """Return what notes losses during the training, and counts the steps."""
    done = 0

    def report(step: int, logs: dict[str, Any]) -> None:
        nonlocal done
        advance(step - done)
        done = step
        if quiet:
            return
        if "loss" in logs:
            note([f"step {step}/{steps}: loss {logs['loss']:.4f}, rate {logs['learning_rate']:.2e}"])
        elif "eval_loss" in logs and any(logs[key] for key in logs if key.endswith("_anchors")):
            firsts = " ".join(f"{v:.3f}" for k, v in logs.items() if k.endswith("_top_1"))
            note([f"step {step}/{steps}: held out: loss {logs['eval_loss']:.4f}, top-1 {firsts}"])

    return report


def _saved(job: "Job", tokenizer: "PreTrainedTokenizerBase") -> list[str]:
    """Save the tokenizer beside a trained target, and return where everything is."""
    from executor.train.training_run import LOG, TARGET

    folders = []
    if (job.output / TARGET).is_dir():
        tokenizer.save_pretrained(job.output / TARGET)
        folders = [f"{job.output / TARGET}: the trained target"]
    return [*folders, f"{job.output}: the drafter, its training in {LOG}"]


def _record(job: "Job", trained: "Trained") -> Record:
    """Return the accuracy by depth on the held-out rows."""
    from executor.train.losses import TOPS

    depths = [
        {
            "anchors": after.anchors,
            "loss": after.loss if after.anchors else None,
            "hits": after.hits,
            "hits_before": before.hits,
        }
        for before, after in zip(trained.before, trained.after, strict=True)
    ]
    return Record(
        schema=SCHEMA,
        recipe=job.recipe.name,
        output=str(job.output),
        steps=job.steps,
        train_s=trained.train_s,
        tops=TOPS,
        depths=depths,
    )
