"""Training the target too (Medusa-2): all of its weights, or LoRA adapters that are merged at the end."""

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from executor.target.target_model import Target
from treeopt.errors import UsageError


@dataclass(frozen=True)
class Lora:
    """LoRA adapters on every linear layer, the LM head included unless it is tied. Defaults: Medusa's own script."""

    rank: int = 32
    alpha: int = 16
    dropout: float = 0.05


def check_whole(target: Target) -> None:
    """Check that all weights of a target can be trained.

    Raises:
        UsageError: they are in float16, whose gradients cannot be scaled.
    """
    if target.dtype == torch.float16:
        raise UsageError("weights in float16 cannot learn: give --dtype float32 or bfloat16, or --lora")


class WholeBackbone:
    """All of the target's weights learn."""

    def __init__(self, target: Target) -> None:
        """Make the weights trainable; see `check_whole`."""
        check_whole(target)
        target.model.requires_grad_(True)
        self.target = target

    def as_it_was(self) -> AbstractContextManager[None]:
        """Raise an error: the original weights are not kept.

        Raises:
            UsageError: always.
        """
        raise UsageError("lm_kl compares with the target as it was, which only LoRA keeps: give --lora")

    def finish(self) -> None:
        """End the training of the weights."""
        self.target.model.eval().requires_grad_(False)


class LoraBackbone:
    """Adapters learn; the target's own weights stay fixed."""

    def __init__(self, target: Target, lora: Lora) -> None:
        """Put adapters into the target's model.

        Raises:
            UsageError: a model without linear layers.
        """
        from peft import LoraConfig, get_peft_model

        model: Any = target.model
        tied = bool(getattr(model.config.get_text_config(), "tie_word_embeddings", False))
        names = [
            name
            for name, module in model.named_modules()
            if isinstance(module, nn.Linear) and not (tied and module is model.get_output_embeddings())
        ]
        if not names:
            raise UsageError(f"{target.name}: has no linear layers that adapters could be put on")
        settings = LoraConfig(
            r=lora.rank, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=names, task_type="CAUSAL_LM"
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # peft 0.21 asks transformers in an old way
            self.target, self._adapted = target, get_peft_model(model, settings)

    @contextmanager
    def as_it_was(self) -> Iterator[None]:
        """Let the target answer without its adapters inside the `with`."""
        with self._adapted.disable_adapter():
            yield

    @torch.no_grad()
    def finish(self) -> None:
        """Merge the adapters into the weights, and remove them from the target's model."""
        merged = self._adapted.merge_and_unload()
        assert merged is self.target.model
        merged.eval().requires_grad_(False)
