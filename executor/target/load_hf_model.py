"""Models and tokenizers from local folders and devices made ready: what can go wrong before any decoding does."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PretrainedConfig, PreTrainedTokenizerBase
from transformers.utils import logging

from executor.target.architectures import refusal
from executor.target.packed_linears import pack_where_it_fits
from executor.target.quantization import plain_tensors, quantizer, stored
from executor.target.target_model import Target
from executor.target.tensor_parallel import check_agreement, sharding, whole
from treeopt.errors import ExecutorError, UsageError

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}

THREADS_A_CORE = 4  # no more are any use; of very many the process dies without a word


def dtype_name(dtype: torch.dtype) -> str:
    """As files and command lines call it.

    >>> dtype_name(torch.bfloat16)
    'bfloat16'
    """
    return str(dtype).removeprefix("torch.")


def load_target(
    path: Path | str,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    quantize: str | None = None,
    tensor_parallel: bool = False,
    packed: bool = False,
) -> Target:
    """The model of a local Hugging Face checkpoint folder, ready to verify.

    Args:
        path: the folder. A checkpoint of quantised weights stays quantised.
        dtype: the type computed in, and of the cache; `auto` is what the checkpoint says.
        device: where to run; with `tensor_parallel` its kind (cpu, cuda), each process taking that of its local rank.
        quantize: `int8` or `int4`, to store the weights of the linear layers so (executor/quantization.py).
        tensor_parallel: share the model out over the processes that torchrun started; all must call.
        packed: on CPU, where memory allows, multiply with packed copies of the weights (executor/packing.py), which
            are for models that nobody will change, copy or cast.

    Raises:
        ExecutorError: no such folder, transformers cannot read it, or it cannot be quantised or shared out.
    """
    if dtype != "auto" and dtype not in DTYPES:
        raise ExecutorError(f"dtype must be one of auto, {', '.join(DTYPES)}, got {dtype}")
    if not Path(path).is_dir():
        raise ExecutorError(f"{path}: no model folder here")
    config = verifiable(path)
    settings = _settings(path, config, dtype, device, quantize, tensor_parallel)
    with _explained(path):
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            path,
            config=config,
            dtype=DTYPES.get(dtype, "auto"),
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # refused below, by name
            **settings,
        )
    model, found = loaded
    if found["missing_keys"]:
        raise ExecutorError(f"{path}: the weights of {min(found['missing_keys'])} are missing")
    if found["mismatched_keys"]:
        name, stored_shape, due = min(found["mismatched_keys"])
        raise ExecutorError(f"{path}: {name} must be {tuple(due)}, found {tuple(stored_shape)}")
    check_finite(path, model)
    if not settings:
        model.to(torch.device(device))
    if packed and not settings:
        pack_where_it_fits(model)
    target = Target(model, name=Path(path).resolve().name)
    _check_types(path, target)
    if tensor_parallel:
        check_agreement(target)
    return target


def read_config(path: Path | str) -> PretrainedConfig:
    """The configuration of a local Hugging Face folder.

    Raises:
        ExecutorError: there is none that transformers takes.
    """
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # its validators raise classes of their own
        raise ExecutorError(f"{path}: transformers cannot take its config.json: {_first_line(error)}") from error
    return config


def verifiable(path: Path | str) -> PretrainedConfig:
    """The same of a model that can verify trees.

    Raises:
        ExecutorError: there is none, or it cannot; says why.
    """
    config = read_config(path)
    if (reason := refusal(config)) is not None:
        raise ExecutorError(f"{path}: {config.model_type} models cannot verify trees: {reason}")
    return config


def _settings(
    path: Path | str, config: Any, dtype: str, device: str, quantize: str | None, tensor_parallel: bool
) -> dict[str, Any]:
    """What `from_pretrained` needs to know beyond the plain case; it then places the weights itself."""
    was = stored(config)
    if tensor_parallel:
        if quantize is not None or was is not None:
            raise ExecutorError(
                f"{path}: quantised weights cannot be shared out over processes: scales found per part would make "
                "another model of each number of processes"
            )
        return {"distributed_config": sharding(path, config, device)}
    if was is not None:
        if quantize is not None:
            raise ExecutorError(f"{path}: its weights are quantised already ({was.get('quant_method')})")
        if was.get("load_in_4bit") and torch.device(device).type == "cpu":
            # Their hash differs after every forward, and a token's logits depend on how many are fed with it.
            raise ExecutorError(
                f"{path}: bitsandbytes repacks 4-bit weights on the CPU as it computes, to other values each time; "
                "use another device, or --quantize int4 of the original"
            )
        return {"device_map": {"": device}}
    if quantize is None:
        return {}
    number = DTYPES.get(dtype) or getattr(config, "dtype", None) or torch.float32
    return {
        "device_map": {"": device},
        "quantization_config": quantizer(quantize, config, dtype=number, device=device),
    }


@contextmanager
def _explained(path: Path | str) -> Iterator[None]:
    """Turn what transformers raises while it loads into our own, naming the folder."""
    try:
        yield
    except ImportError as error:  # of a quantisation; it names the package and how to install it
        raise ExecutorError(f"{path}: {' '.join(str(error).split())}") from error
    except (OSError, ValueError, TypeError, KeyError, RuntimeError, SafetensorError, UnpicklingError) as error:
        raise ExecutorError(f"{path}: transformers cannot load this model: {_first_line(error)}") from error


def _check_types(path: Path | str, target: Target) -> None:
    """Refuse what no mask or cache can be made of, and quantised weights that answer in another type."""
    if target.dtype not in DTYPES.values():
        raise ExecutorError(f"{path}: its weights are {target.dtype}; dtype must be one of {', '.join(DTYPES)}")
    for name, value in target.model.named_parameters():
        if len(list(plain_tensors(name, value))) > 1 and value.dtype != target.dtype:
            found = dtype_name(value.dtype)
            raise ExecutorError(f"{path}: {name} was quantised to compute in {found}; load it with dtype {found}")


def check_finite(path: Path | str, module: nn.Module) -> None:
    """Refuse weights that are no numbers; of quantised ones the scales are looked at.

    Raises:
        ExecutorError: names the first such tensor.
    """
    for name, value in module.named_parameters():
        for part, tensor in plain_tensors(name, value):
            if not tensor.is_floating_point():
                continue
            wide = tensor.float() if tensor.itemsize == 1 else tensor
            if not bool(whole(torch.isfinite(wide).all())):
                raise ExecutorError(f"{path}: {part} holds values that are not finite")


def prepare(device: str, *, threads: int | None = None, tensor_parallel: bool = False) -> None:
    """Make ready for models on `device`: transformers silent, CPU threads set, each process at a device of its own.

    Raises:
        UsageError: no such device, or more threads than can be of use.
    """
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if threads is not None:
        cores = os.cpu_count() or 1
        if not 1 <= threads <= THREADS_A_CORE * cores:
            raise UsageError(
                f"threads must be in 1..{THREADS_A_CORE * cores}, {THREADS_A_CORE} for each of this machine's {cores} "
                f"logical cores, got {threads}"
            )
        torch.set_num_threads(threads)
    try:
        here = torch.device(device)
        index = int(os.environ.get("LOCAL_RANK", "0")) if tensor_parallel else here.index
        if here.type != "cpu" and index is not None:
            torch.accelerator.set_device_index(index)
        torch.empty(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UsageError(f"device {device}: {_first_line(error)}") from error


def load_tokenizer(path: Path | str, *, vocabulary: int) -> PreTrainedTokenizerBase:
    """The tokenizer of a local Hugging Face checkpoint folder, for a model of so many tokens.

    Raises:
        ExecutorError: there is none, or it has more tokens than the model, those left out that were added to it:
            Gemma 3's smaller models have one for pictures that they do not know.
    """
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            path, local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError, TypeError, AttributeError, KeyError, RuntimeError) as error:
        raise ExecutorError(f"{path}: transformers cannot load a tokenizer: {_first_line(error)}") from error
    if tokenizer.vocab_size > vocabulary:
        raise ExecutorError(
            f"{path}: the tokenizer has {tokenizer.vocab_size} tokens, the model a vocabulary of {vocabulary}"
        )
    return tokenizer


def stop_tokens(target: Target, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Tokens that end a text, rising: the tokenizer's, and those of the model's generation_config.json.

    Raises:
        ExecutorError: these are no token ids.
    """
    ends = target.model.generation_config.eos_token_id if target.model.generation_config else None
    found = [tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])]
    if not all(token is None or type(token) is int for token in found):
        raise ExecutorError(f"{target.name}: eos_token_id of generation_config.json must be ids, found {ends!r:.80}")
    return sorted({token for token in found if token is not None})


class TextStream:
    """The text of one request in pieces, as its tokens come; characters of several tokens are held back until whole."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Nothing yet."""
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        # Tokens before `read` are out; those from `start` on are decoded again, since a token's text may depend on
        # the one before it.
        self._start = self._read = 0

    def put(self, tokens: Sequence[int], *, last: bool = False) -> str:
        """What these tokens add; with the `last` ones everything that was held back."""
        self._tokens.extend(tokens)
        out = len(self._text(self._read))
        text = self._text(len(self._tokens))
        if not last and (len(text) <= out or text.endswith("\ufffd")):
            return ""
        self._start, self._read = self._read, len(self._tokens)
        return text[out:]

    def _text(self, end: int) -> str:
        return str(self._tokenizer.decode(self._tokens[self._start : end], skip_special_tokens=True))


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
