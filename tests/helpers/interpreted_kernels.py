"""Triton's interpreter on CPU: what tests of kernels share."""

import copy

import numpy as np
import pytest
import torch
import triton.language as tl
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
    SeedOssConfig,
)
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from executor.kernels import few_rows_linear
from executor.target.target_model import Target
from tests.helpers.models import SMALL


def relative_error(found: Tensor, expected: Tensor) -> float:
    """The norm of the difference over that of what is expected; NaN if anything found is NaN."""
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def allowed(dtype: torch.dtype) -> float:
    """Return the largest relative error: fp32 sums in another order, or two roundings to bfloat16."""
    return 1e-6 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps


def poison_new_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `torch.empty` and `torch.empty_like` return NaN: what a kernel leaves out shows."""
    for name in ("empty", "empty_like"):
        made = getattr(torch, name)
        monkeypatch.setattr(torch, name, lambda *args, made=made, **words: made(*args, **words).fill_(torch.nan))


def mend_products_of_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the interpreter multiply numbers: its `tl.dot` (Triton 3.9) multiplies the bit patterns of bfloat16."""
    product = InterpreterBuilder.create_dot

    def wide(handle: TensorHandle) -> TensorHandle:
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        return TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    monkeypatch.setattr(
        InterpreterBuilder, "create_dot", lambda self, a, b, *rest: product(self, wide(a), wide(b), *rest)
    )


def take_wide_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one program compute many outputs of a row: the interpreter takes as long for a small block as for a large."""
    monkeypatch.setattr(few_rows_linear, "ROW_COLUMNS", 64)
    monkeypatch.setattr(few_rows_linear, "ROW_TILE", few_rows_linear.ROW_TILE | {"BLOCK_INNER": 64})


CONFIGS: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**SMALL, num_key_value_heads=2, tie_word_embeddings=True),
    "llama-own-head-width": LlamaConfig(**SMALL, num_key_value_heads=1, head_dim=12),
    "llama3-positions": LlamaConfig(
        **SMALL,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 1e4,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ),
    "mistral": MistralConfig(**SMALL, num_key_value_heads=2, sliding_window=None),
    "phi3": Phi3Config(**SMALL | {"pad_token_id": 0}, num_key_value_heads=2),
    "qwen2": Qwen2Config(**SMALL, num_key_value_heads=2),
    "qwen3": Qwen3Config(**SMALL, num_key_value_heads=2, head_dim=16),
    "seed_oss": SeedOssConfig(**SMALL, num_key_value_heads=2, head_dim=8, attention_bias=True),
}


def fusable_target(kind: str = "llama", *, dtype: torch.dtype = torch.float32) -> Target:
    """A small target built as Llama is, of which also norms and biases are random."""
    torch.manual_seed(0)
    config = copy.deepcopy(CONFIGS[kind])
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return Target(model, name=kind)
