"""Training a drafter beside a frozen target, on the Hugging Face Trainer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

from executor.drafters.base import Drafter
from executor.record import rank_of
from executor.target import Target
from executor.train.losses import cross_entropy
from executor.train.recipes import Recipe


class Rows(Dataset[dict[str, Tensor]]):
    """Token rows, int64 (rows, length), as the Trainer's data set."""

    def __init__(self, rows: NDArray[np.int64]) -> None:
        """Wrap `rows`."""
        self.rows = torch.from_numpy(rows)

    def __len__(self) -> int:
        """Rows."""
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """One row as input and labels."""
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


class DrafterTrainer(Trainer):
    """The Trainer whose loss is Σ_k weight(k) · cross-entropy of depth k along the true text."""

    def __init__(self, drafter: nn.Module, *, target: Target, recipe: Recipe, **kwargs: Any) -> None:
        """Train `drafter` (a `Drafter` that is a module) on features of `target`."""
        super().__init__(model=drafter, **kwargs)
        self.target, self.recipe = target, recipe

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Tensor | tuple[Tensor, dict[str, Tensor]]:
        """The weighted loss; outputs hold the loss of each depth."""
        tokens = inputs["input_ids"]
        terms = depth_losses(self.accelerator.unwrap_model(model), self.target, tokens, self.recipe.depths)
        loss = sum((self.recipe.weight(k) * term for k, term in enumerate(terms, 1)), start=torch.zeros(()))
        return (loss, {"depths": torch.stack(terms).detach()}) if return_outputs else loss


def depth_losses(drafter: Drafter, target: Target, tokens: Tensor, depths: int) -> list[Tensor]:
    """Cross-entropy of x_{t+1+k} at depth k = 1..depths, over all t of tokens, int64 (batch, length)."""
    features = target.features(tokens, drafter.taps).features
    losses = []
    for k, forced in enumerate(drafter.teacher_forced(target, tokens, features, depths), 1):
        losses.append(cross_entropy(forced.scores[:, : -1 - k].flatten(0, 1), tokens[:, 1 + k :].flatten()))
    return losses


def arguments(
    output: Path,
    *,
    steps: int,
    batch: int,
    learning_rate: float,
    warmup: float,
    weight_decay: float,
    seed: int,
) -> TrainingArguments:
    """Trainer settings shared by the target and its drafters: AdamW, cosine, bf16 autocast, no checkpoints."""
    return TrainingArguments(
        output_dir=str(output),
        max_steps=steps,
        per_device_train_batch_size=batch,
        per_device_eval_batch_size=batch,
        learning_rate=learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=max(1, round(steps * warmup)),
        weight_decay=weight_decay,
        adam_beta2=0.95,
        bf16=True,
        use_cpu=not torch.cuda.is_available(),
        logging_steps=max(1, steps // 40),
        save_strategy="no",
        report_to=[],
        seed=seed,
        dataloader_pin_memory=False,
        remove_unused_columns=False,
    )


@torch.no_grad()
def top_accuracy(
    drafter: Drafter,
    target: Target,
    rows: NDArray[np.int64],
    *,
    depths: int,
    tops: Sequence[int] = (1, 2, 4, 8),
) -> list[list[float]]:
    """Share of positions whose true token is among the best 1, 2, 4, 8 candidates; one list a depth."""
    hits = torch.zeros(depths, len(tops), dtype=torch.float64)
    counts = torch.zeros(depths, 1, dtype=torch.float64)
    for row in torch.from_numpy(rows).split(4):
        row = row.to(target.device)
        features = target.features(row, drafter.taps).features
        for k, forced in enumerate(drafter.teacher_forced(target, row, features, depths), 1):
            rank = rank_of(forced.scores[:, : -1 - k], row[:, 1 + k :])
            hits[k - 1] += torch.stack([(rank < top).sum() for top in tops]).cpu()
            counts[k - 1] += rank.numel()
    return [[round(float(x), 4) for x in row] for row in hits / counts]
