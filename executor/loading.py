"""Models and tokenizers from local folders and devices made ready: what can go wrong before any decoding does."""

from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils import logging

from executor.architectures import refusal
from executor.target import Target
from treeopt.errors import ExecutorError, UsageError

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def load_target(path: Path | str, *, dtype: str = "float32", device: str = "cpu") -> Target:
    """The model of a local Hugging Face checkpoint folder, ready to verify.

    Raises:
        ExecutorError: no such folder, or transformers cannot read it.
    """
    if dtype not in DTYPES:
        raise ExecutorError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype}")
    if not Path(path).is_dir():
        raise ExecutorError(f"{path}: no model folder here")
    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        reason = refusal(config)
        if reason is not None:
            raise ExecutorError(f"{path}: {config.model_type} models cannot verify trees: {reason}")
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            path,
            config=config,
            dtype=DTYPES[dtype],
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # refused below, by name
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError, UnpicklingError) as error:
        raise ExecutorError(f"{path}: transformers cannot load this model: {_first_line(error)}") from error
    model, found = loaded
    if found["missing_keys"]:
        raise ExecutorError(f"{path}: the weights of {min(found['missing_keys'])} are missing")
    if found["mismatched_keys"]:
        name, stored, due = min(found["mismatched_keys"])
        raise ExecutorError(f"{path}: {name} must be {tuple(due)}, found {tuple(stored)}")
    check_finite(path, model)
    model.to(torch.device(device))
    return Target(model, name=Path(path).resolve().name)


def check_finite(path: Path | str, module: nn.Module) -> None:
    """Refuse weights that are no numbers.

    Raises:
        ExecutorError: names the first such tensor.
    """
    for name, value in module.named_parameters():
        if not bool(torch.isfinite(value).all()):
            raise ExecutorError(f"{path}: {name} holds values that are not finite")


def prepare(device: str, *, threads: int | None = None) -> None:
    """Make ready for models on `device`: transformers silent, CPU threads set.

    Raises:
        UsageError: no such device.
    """
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        torch.empty(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UsageError(f"device {device}: {_first_line(error)}") from error


def load_tokenizer(path: Path | str, *, vocabulary: int) -> PreTrainedTokenizerBase:
    """The tokenizer of a local Hugging Face checkpoint folder, for a model of so many tokens.

    Raises:
        ExecutorError: there is none, or it has more tokens than the model.
    """
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            path, local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ExecutorError(f"{path}: transformers cannot load a tokenizer: {_first_line(error)}") from error
    if len(tokenizer) > vocabulary:
        raise ExecutorError(
            f"{path}: the tokenizer has {len(tokenizer)} tokens, the model a vocabulary of {vocabulary}"
        )
    return tokenizer


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
