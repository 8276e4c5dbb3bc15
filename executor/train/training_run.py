"""A training run, from rows to a folder: start or resume, train with Hugging Face's Trainer, measure, write it all."""

import copy
import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from executor.checkpoints import save_drafter
from executor.checkpoints.tensors.write_tensors import full_disk
from executor.drafters.base.drafter import Drafter
from executor.drafters.base.recipe import Frequent, Recipe, check_fields
from executor.models import device_name, identity
from executor.target.load_hf_model import DTYPES, first_line
from executor.target.target_model import Target
from executor.target.tensor_parallel import is_main_rank, launched_processes
from executor.train.feature_store import FeatureStore
from executor.train.losses import TOPS, Backbone, DepthScore, Lesson, Lora
from executor.train.token_rows import Rows, frequent_tokens
from simulate.drafter_kinds import DRAFTERS, Training
from treeopt.errors import ExecutorError, TreeoptError, UsageError
from treeopt.registry import load
from treeopt.storage.provenance import this_run
from treeopt.storage.user_files import read_text, whole, write_text

Report = Callable[[int, dict[str, Any]], None]


@dataclass(frozen=True)
class Job:
    """The settings of a run.

    Attributes:
        recipe: how the drafter is trained.
        output: folder of the drafter; checkpoints, and a trained target, go below it.
        steps: of the optimiser; a warm-up given in steps is cut to a tenth of them.
        batch: rows at once in each process.
        accumulate: batches per step.
        seed: of every random choice: the order of rows, dropout and noise.
        device: cpu, or cuda for the device of the process.
        precision: bfloat16 or float16 to compute in that type where it is safe (autocast).
        save_every: steps between checkpoints, of which only the last is kept; None for none.
        eval_every: steps between evaluations; None for only the last.
        resume: resume from the last checkpoint below `output`.
        lora: adapters in place of the target's own weights, if the recipe trains the target.
        features: folder in which the target's features are stored; None: each step computes them.
        dtype: type in which the drafter, and a trained target, are stored.
        meta: goes into the log.
    """

    recipe: Recipe
    output: Path
    steps: int
    batch: int = 8
    accumulate: int = 1
    seed: int = 0
    device: str = "cpu"
    precision: str = "float32"
    save_every: int | None = None
    eval_every: int | None = None
    resume: bool = False
    lora: Lora | None = None
    features: Path | None = None
    dtype: str = "float32"
    meta: Mapping[str, Any] = field(default_factory=dict)


class DrafterTrainer(Trainer):
    """Trains a drafter by a recipe; checkpoints hold only the trained weights."""

    def __init__(
        self,
        lesson: Lesson,
        *,
        report: Report | None = None,
        **settings: Any,
    ) -> None:
        """Prepare the training; `settings` go to the Trainer (args, train_dataset, eval_dataset: `Rows`).

        The report is called with the step and its log.
        """
        self.lesson, self.recipe = lesson, lesson.recipe
        super().__init__(model=lesson, **settings)
        self.remove_callback(PrinterCallback)
        self.add_callback(_Steps(self, report))

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """Return AdamW, with decay only for weights; next to a backbone the drafter's rate has the recipe's factor."""
        if self.optimizer is None:
            decayed = set(self.get_decay_parameter_names(self.lesson))
            joint = self.recipe.trainable == "backbone"
            groups: dict[tuple[float, float], list[nn.Parameter]] = {}
            for name, value in self.lesson.learnt().items():
                factor = self.recipe.heads_factor if joint and name.startswith("drafter.") else 1.0
                decay = self.recipe.weight_decay if name in decayed else 0.0
                groups.setdefault((factor, decay), []).append(value)
            self.optimizer = torch.optim.AdamW(
                [
                    {"params": values, "lr": factor * self.recipe.learning_rate, "weight_decay": decay}
                    for (factor, decay), values in groups.items()
                ],
                lr=self.recipe.learning_rate,
                betas=(self.recipe.beta1, self.recipe.beta2),
            )
        return self.optimizer

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the trained weights, as safetensors, where the Trainer looks for them when it resumes."""
        if self.args.should_save:
            folder = Path(output_dir or self.args.output_dir or ".")
            folder.mkdir(parents=True, exist_ok=True)
            tensors = {name: value.detach().cpu().clone() for name, value in self.lesson.learnt().items()}
            with whole(folder / "model.safetensors") as temporary:
                save_file(tensors, temporary, metadata={"format": "pt"})

    def evaluate(self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval") -> Any:
        """Return the loss, and per depth the anchors and shares of true tokens among the best 1, 2, 4, 8 candidates."""
        rows: Any = self.eval_dataset if eval_dataset is None else eval_dataset
        scores = self.measure(rows)
        weights = [self.recipe.weight(k) for k in range(1, len(scores) + 1)]
        metrics: dict[str, float] = {
            f"{metric_key_prefix}_loss": sum(w * score.loss for w, score in zip(weights, scores, strict=True))
        }
        for k, score in enumerate(scores, 1):
            metrics[f"{metric_key_prefix}_depth_{k}_anchors"] = score.anchors
            for top, share in zip(TOPS, score.accuracy, strict=True):
                metrics[f"{metric_key_prefix}_depth_{k}_top_{top}"] = share
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def measure(self, rows: Rows) -> list[DepthScore]:
        """Measure every depth on `rows`, which the processes share."""
        was_training = self.lesson.training
        self.lesson.eval()
        sums = torch.zeros(self.lesson.depths, 2 + len(TOPS), dtype=torch.float64, device=self.args.device)
        share = range(self.args.process_index, len(rows), self.args.world_size)
        for start in range(0, len(share), self.args.per_device_eval_batch_size):
            numbers = list(share[start : start + self.args.per_device_eval_batch_size])
            batch = {name: values.to(self.args.device) for name, values in rows[numbers].items()}
            with self.accelerator.autocast():
                sums += self.lesson.measure(**batch)
        self.lesson.train(was_training)
        total: Tensor = self.accelerator.reduce(sums, "sum")
        return [
            DepthScore(int(anchors), loss / max(1.0, anchors), tuple(int(x) for x in hits))
            for anchors, loss, *hits in total.tolist()
        ]


class _Steps(TrainerCallback):
    """Additions to the Trainer's steps: the ramp, clipping by value, and the report."""

    def __init__(self, trainer: DrafterTrainer, report: Report | None) -> None:
        self.trainer, self.report = trainer, report

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.trainer.lesson.done = state.global_step / max(1, state.max_steps)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        recipe = self.trainer.recipe
        if recipe.clip and recipe.clip_by == "value":
            self.trainer.accelerator.clip_grad_value_(list(self.trainer.lesson.learnt().values()), recipe.clip)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if self.report is not None and logs:
            self.report(state.global_step, dict(logs))
        if logs and not math.isfinite(logs.get("loss", 0)):
            raise ExecutorError(f"step {state.global_step}: the loss is {logs['loss']}: lower the learning rate")


def arguments(job: Job) -> TrainingArguments:
    """Return the Trainer's settings for a run."""
    recipe, steps = job.recipe, job.steps
    schedule, options = {
        "constant": ("constant_with_warmup", {}),
        "linear": ("linear", {}),
        "cosine": ("cosine_with_min_lr", {"min_lr_rate": recipe.floor}),
    }[recipe.schedule]
    settings = TrainingArguments(
        output_dir=str(job.output),
        max_steps=steps,
        per_device_train_batch_size=job.batch,
        per_device_eval_batch_size=job.batch,
        gradient_accumulation_steps=job.accumulate,
        learning_rate=recipe.learning_rate,
        lr_scheduler_type=schedule,
        lr_scheduler_kwargs=options,
        warmup_steps=max(1, min(recipe.warmup, steps // 10)) if recipe.warmup >= 1 else recipe.warmup,
        weight_decay=recipe.weight_decay,
        max_grad_norm=recipe.clip if recipe.clip_by == "norm" else 0.0,
        bf16=job.precision == "bfloat16",
        fp16=job.precision == "float16",
        use_cpu=job.device == "cpu",
        logging_steps=max(1, steps // 40),
        logging_nan_inf_filter=False,  # the filter would log 0 instead
        disable_tqdm=True,
        save_strategy="no" if job.save_every is None else "steps",
        save_steps=job.save_every or steps,
        save_total_limit=1,
        eval_strategy="no" if job.eval_every is None else "steps",
        eval_steps=job.eval_every or steps,
        report_to=[],
        seed=job.seed,
        dataloader_pin_memory=False,
        remove_unused_columns=False,
    )
    settings._n_gpu = min(1, settings.n_gpu)  # one device per process: the target is not replicated
    return settings


def fresh_drafter(recipe: Recipe, target: Target, *, frequent: Frequent | None = None) -> Any:
    """Return an untrained drafter, in float32 (float64 for a float64 target) on the target's device.

    `frequent` see `Training.untrained`; None: the first tokens.

    Raises:
        ExecutorError: such a drafter cannot be made for this kind of target, or cannot read its features.
    """
    try:
        drafter: Any = _ready(load(_training(recipe).untrained)(recipe, target, frequent or range), target)
        tokens, half = torch.zeros(1, 8, dtype=torch.long, device=target.device), target.dtype.itemsize < 4
        with torch.no_grad(), torch.random.fork_rng(), torch.autocast(target.device.type, target.dtype, enabled=half):
            list(drafter.teacher_forced(target, tokens, target.features(tokens, drafter.taps).features, 1))
    except TreeoptError:
        raise
    except Exception as error:  # of a family whose layers, embeddings or features have other forms
        kind, why = target.model.config.get_text_config().model_type, first_line(error)
        raise ExecutorError(
            f"{target.name}: {recipe.kind} drafters do not fit {kind} models ({why}): take another --recipe"
        ) from error
    return drafter


def begun(recipe: Recipe, target: Target, start: Drafter | None, *, rows: Rows, seed: int) -> Any:
    """Return the drafter that training begins with: `start` if given, else an untrained one, drawn with `seed`.

    An EAGLE-3 drafter proposes the recipe's number of tokens, those most often learnt in `rows`.

    Raises:
        UsageError: a router with more groups than tokens; see also `continued`.
        ExecutorError: see `continued`.
    """
    if recipe.router_groups > target.vocabulary:
        raise UsageError(f"router_groups must be at most {target.vocabulary} (the vocabulary): {recipe.router_groups}")
    set_seed(seed)
    if start is not None:
        return continued(recipe, start, target)
    return fresh_drafter(recipe, target, frequent=lambda count: frequent_tokens(rows, count, target.vocabulary))


def continued(recipe: Recipe, drafter: Drafter, target: Target) -> Any:
    """Return a copy of an existing drafter, ready for the recipe; its shape stays. See `Training.resumed`.

    Raises:
        ExecutorError: the drafter is of another kind, or less deep than the recipe.
        UsageError: the recipe contradicts its parts.
    """
    training = _training(recipe)
    if drafter.kind not in (recipe.kind, *training.begins_from):
        raise ExecutorError(f"recipe {recipe.name} trains {recipe.kind}, this drafter is {drafter.kind}")
    if drafter.max_depth < recipe.depths:
        raise ExecutorError(f"recipe {recipe.name} has {recipe.depths} depths, the drafter drafts {drafter.max_depth}")
    resumed, ready = training.resumed, copy.deepcopy(drafter)
    ready = load(resumed)(recipe, ready) if resumed else ready
    assert isinstance(ready, nn.Module)
    return _ready(ready, target)


def _training(recipe: Recipe) -> Training:
    check_fields(recipe)
    training = DRAFTERS[recipe.kind].training
    if training is None:
        raise UsageError(f"recipe {recipe.name}: {recipe.kind} drafters are not trained")
    return training


def _ready(drafter: nn.Module, target: Target) -> nn.Module:
    """Return the drafter in the type that weights are trained in: at least float32."""
    return drafter.to(target.device, torch.promote_types(target.dtype, torch.float32))


LOG = "training.json"
SETTINGS = "settings.json"  # while the training is under way
TARGET = "target"  # folder of a trained target, below the drafter's


@dataclass(frozen=True)
class Trained:
    """The result of a run: each depth on the held-out rows before and after, and seconds of training."""

    before: list[DepthScore]
    after: list[DepthScore]
    train_s: float

    @property
    def acceptance(self) -> tuple[float, float]:
        """Share of true tokens that are the drafter's first choice, mean over depths, before and after."""
        means = [
            sum(score.accuracy[0] for score in scores) / max(1, len(scores)) for scores in (self.before, self.after)
        ]
        return means[0], means[1]


def run(
    job: Job, target: Target, drafter: nn.Module, rows: Rows, held_out: Rows, *, report: Report | None = None
) -> Trained:
    """Train `drafter` on `rows`, and write it; every process of a launch calls this.

    Raises:
        UsageError: no checkpoint to resume from, or settings that do not go together.
        ExecutorError: the recipe does not fit the drafter, the rows hold nothing to learn, or the loss is not finite.
    """
    recipe = job.recipe
    if job.lora is not None and recipe.trainable != "backbone":
        raise UsageError(f"--lora is for recipes that train the target, {recipe.name} does not")
    if recipe.lm_kl and job.lora is None:
        raise UsageError("lm_kl compares with the target as it was, which only LoRA keeps: give --lora")
    if job.features is not None and recipe.trainable == "backbone":
        raise UsageError(f"--features stores those of a target that does not learn, recipe {recipe.name} trains it")
    last = checkpoint(job.output) if job.resume else None
    if job.resume and last is None:
        raise UsageError(f"--resume: no checkpoint in {job.output}")
    settings = json.loads(json.dumps({**_settings(job, rows, held_out), **identity(target, None)}))
    _check_rows(recipe, rows, held_out, target.vocabulary)
    set_seed(job.seed)
    backbone = Backbone(target, job.lora) if recipe.trainable == "backbone" else None
    store = None if job.features is None else FeatureStore(job.features, target, job.precision)
    if store is not None:
        used = job.steps * job.batch * job.accumulate * launched_processes()
        store.check_room(rows, held_out, taps=getattr(drafter, "taps", ()), at_most=used)
    lesson = Lesson(drafter, target, recipe, backbone, store)
    trainer = DrafterTrainer(lesson, report=report, args=arguments(job), train_dataset=rows, eval_dataset=held_out)
    _store_settings(job, settings)
    before = trainer.measure(held_out)
    started = time.monotonic()
    with full_disk(job.output):
        trainer.train(resume_from_checkpoint=last)
    train_s = time.monotonic() - started
    trained = Trained(before, trainer.measure(held_out), train_s)
    drafter.eval().requires_grad_(False)
    if backbone is not None:
        backbone.finish()
    if is_main_rank():
        _write(job, target, drafter, trained, settings, trainer.state.log_history)
    trainer.accelerator.wait_for_everyone()
    return trained


def _check_rows(recipe: Recipe, rows: Rows, held_out: Rows, vocabulary: int) -> None:
    """Raise ExecutorError if a depth has nothing to learn, or a token is outside the vocabulary."""
    for depth in range(1, recipe.depths + 1):
        if not rows.anchors(depth):
            raise ExecutorError(
                f"nothing to learn at depth {depth}: no row of {rows.tokens.shape[1]} tokens holds a learnt one and "
                f"another {depth} after it"
            )
    for tokens in (rows.tokens, held_out.tokens):
        if tokens.numel() and int(tokens.max()) >= vocabulary:
            raise ExecutorError(f"the rows hold token {int(tokens.max())}, the target's vocabulary has {vocabulary}")


def _write(
    job: Job,
    target: Target,
    drafter: nn.Module,
    trained: Trained,
    settings: Mapping[str, Any],
    history: list[dict[str, float]],
) -> None:
    """Write the drafter, a trained target, and the log."""
    record = {
        **this_run(),
        **job.meta,
        **settings,
        "train_s": round(trained.train_s, 1),
        "device": device_name(target.device),
        "held_out_before": [_figures(score) for score in trained.before],
        "held_out": [_figures(score) for score in trained.after],
        "log": history,
    }
    if job.recipe.trainable == "backbone":
        with full_disk(job.output / TARGET):
            target.model.to(dtype=DTYPES[job.dtype]).save_pretrained(job.output / TARGET)  # type: ignore[call-arg]
    save_drafter(job.output, drafter, dtype=job.dtype, meta={"target": target.name, "recipe": job.recipe.name})
    write_text(job.output / LOG, json.dumps(record, indent=1) + "\n")
    (job.output / SETTINGS).unlink()


def checkpoint(output: Path) -> str | None:
    """Return the last complete checkpoint below a folder, if any.

    The Trainer, which may be killed, writes its state after everything else.
    """
    steps = {
        int(number): folder
        for folder in output.glob(f"{PREFIX_CHECKPOINT_DIR}-*")
        if (number := folder.name.removeprefix(f"{PREFIX_CHECKPOINT_DIR}-")).isdecimal() and _is_complete(folder)
    }
    return str(steps[max(steps)]) if steps else None


def _is_complete(checkpoint: Path) -> bool:
    try:
        for weights in checkpoint.glob("*.safetensors"):
            with safe_open(weights, framework="pt"):
                pass
        return isinstance(json.loads(read_text(checkpoint / TRAINER_STATE_NAME)), dict)
    except (OSError, ValueError, SafetensorError):
        return False


def _store_settings(job: Job, settings: dict[str, Any]) -> None:
    """Write the settings of a new training; check that a resumed one has the same."""
    path = job.output / SETTINGS
    if not job.resume:
        if is_main_rank():
            job.output.mkdir(parents=True, exist_ok=True)
            write_text(path, json.dumps(settings, indent=1) + "\n")
        return
    try:
        was = json.loads(read_text(path))
        changed = [key for key in settings if was.get(key) != settings[key]]
    except (OSError, ValueError, AttributeError) as error:
        raise UsageError(f"--resume: {path} cannot be read: {error}") from error
    if changed:
        key = changed[0]
        raise UsageError(f"--resume: {job.output} was begun with {key} {was.get(key)}, not {settings[key]}")


def _settings(job: Job, rows: Rows, held_out: Rows) -> dict[str, Any]:
    return {
        "recipe": asdict(job.recipe),
        "steps": job.steps,
        "batch": job.batch,
        "accumulate": job.accumulate,
        "seed": job.seed,
        "precision": job.precision,
        **({} if job.lora is None else {"lora": asdict(job.lora)}),
        "processes": launched_processes(),
        "rows": len(rows),
        "rows_held_out": len(held_out),
        "length": rows.tokens.shape[1],
        "tokens_learnt": int(rows.mask.sum()),
        "rows_sha256": hashlib.sha256(rows.tokens.numpy().tobytes()).hexdigest()[:16],
    }


def _figures(score: DepthScore) -> dict[str, Any]:
    loss = round(score.loss, 5) if score.anchors else None
    return {"anchors": score.anchors, "loss": loss, "top_1_2_4_8": list(score.hits)}


def step_count(rows: int, *, epochs: float, batch: int, accumulate: int, processes: int) -> int:
    """Return the number of steps that pass over all rows `epochs` times.

    >>> step_count(100, epochs=2, batch=8, accumulate=1, processes=1)
    26
    """
    return max(1, round(epochs * -(-rows // (batch * accumulate * processes))))


def precision_of(target: Target) -> str:
    """Return the precision to train a target's drafter in: half precision is computed with autocast."""
    return {torch.bfloat16: "bfloat16", torch.float16: "float16"}.get(target.dtype, "float32")
