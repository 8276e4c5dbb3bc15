"""The Hugging Face Trainer for drafters: optimiser, checkpoints, resumption and processes."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from executor.drafters.base.recipe import Recipe
from executor.train.loss_module import TOPS, DepthScore, Lesson, Lora
from executor.train.token_rows import Rows
from treeopt.errors import ExecutorError
from treeopt.storage.atomic_files import whole

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

        Args:
            lesson: drafter, target and recipe, on the device of the training.
            report: called with the step and its log.
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
