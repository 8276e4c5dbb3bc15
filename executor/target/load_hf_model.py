"""Load a model from a local Hugging Face folder as the target, checked; prepare a device for models."""

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.utils import logging

from executor.device import fits_device
from executor.target import NUMBER_TYPES
from executor.target.architectures import check_drafts, layer_number, model_class, refusal, tensors_with_effect
from executor.target.fused_verification import fuse
from executor.target.packed_linears import pack_where_it_fits, plain_tensors, quantizer, stored_quantization
from executor.target.positions import refused_positions, rope_types, unused_window
from executor.target.target_model import Target
from executor.target.tensor_parallel import check_agreement, sharding, whole
from simulate.drafter_kinds import named_drafter
from simulate.model_sizes.hf_config import other_format, parsed
from treeopt.errors import ExecutorError, UsageError, shorten
from treeopt.storage.hub_models import folder_name, hub_hint
from treeopt.storage.user_files import check_regular

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in NUMBER_TYPES}

# Fields of generation_config.json by which `generate` also changes a greedy text.
_LOGIT_CHANGES = (
    *("repetition_penalty", "no_repeat_ngram_size", "suppress_tokens", "begin_suppress_tokens", "bad_words_ids"),
    *("sequence_bias", "min_length", "min_new_tokens", "num_beams"),
)
_BIASED = ("attention_bias", "mlp_bias", "qkv_bias", "use_bias", "bias")  # fields of configurations

THREADS_PER_CORE = 4  # more are of no use; with very many the process dies without a message


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name that files and command lines use.

    >>> dtype_name(torch.bfloat16)
    'bfloat16'
    """
    return str(dtype).removeprefix("torch.")


@fits_device("take --dtype bfloat16, --quantize, or a smaller model")
def load_target(
    path: Path | str,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    quantize: str | None = None,
    tensor_parallel: bool = False,
    packed: bool = False,
    drafter: bool = False,
) -> Target:
    """Load the model of a local Hugging Face checkpoint folder, ready to verify.

    Args:
        path: the folder. A checkpoint of quantised weights stays quantised.
        dtype: the type of computation and of the cache; `auto` is the checkpoint's.
        device: where to run; with `tensor_parallel` its kind (cpu, cuda): each process takes that of its local rank.
        quantize: `int8` or `int4`, to quantise the weights of the linear layers (see `quantization`).
        tensor_parallel: split the model over the processes that torchrun started; all must call.
        packed: prepare for steps of few tokens. On CPU, where memory allows, multiply with packed copies of the weights
            where this is quicker, which takes about 0.3 s to measure (see `packed_linears`); such a model must not be
            changed, copied or cast; `pack_linears` packs all layers, `repack` by a given choice. On CUDA, verify by
            fused kernels (see `fused_verification`).
        drafter: the model drafts, so that every tensor must be used; of a target, layers that its configuration leaves
            out, and tensors beside its own parts, are a warning (`Target.warnings`).

    Raises:
        ExecutorError: no such folder, transformers cannot read it, it holds tensors that the model lacks, or it cannot
            be quantised or split.
    """
    if dtype != "auto" and dtype not in DTYPES:
        raise ExecutorError(f"dtype must be one of auto, {', '.join(DTYPES)}, got {dtype}")
    if not Path(path).is_dir():
        raise ExecutorError(f"{path}: {other_format(Path(path)) or 'no model folder here'}{hub_hint(path)}")
    config = read_verifiable_config(path)
    if drafter:
        check_drafts(config)
    settings = _settings(path, config, dtype, device, quantize, tensor_parallel)
    with _explain_errors(path, config):
        loaded: Any = model_class(config).from_pretrained(
            path,
            config=config,
            dtype=DTYPES.get(dtype, "auto"),
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # refused by `_check_keys`, by name
            **settings,
        )
    model, report = loaded
    _check_keys(path, report)
    warnings = _unused_tensors(path, model, report["unexpected_keys"], drafter=drafter)
    warnings += unused_window(path, model) + (() if drafter else _unused_changes(path, model))
    check_finite(path, model)
    if not settings:
        model.to(torch.device(device))
    if packed and not settings:
        pack_where_it_fits(model)
    target = Target(model, name=folder_name(path))
    target.warnings = warnings
    _check_types(path, target)
    if packed:
        fuse(target)
    if tensor_parallel:
        check_agreement(target)
    return target


def _check_keys(path: Path | str, report: dict[str, Any]) -> None:
    """Refuse weights that are missing or have other shapes, by the report of `from_pretrained`."""
    missing, others = sorted(report["missing_keys"]), sorted(report["unexpected_keys"])
    if missing:
        there = f"; instead there are {shorten(others)}, which the model lacks" if others else ""
        raise ExecutorError(f"{path}: the weights of {shorten(missing)} are missing{there}")
    if report["mismatched_keys"]:
        name, stored_shape, expected = min(report["mismatched_keys"])
        raise ExecutorError(f"{path}: {name} must be {tuple(expected)}, found {tuple(stored_shape)}")


def _unused_tensors(path: Path | str, model: nn.Module, names: Collection[str], *, drafter: bool) -> tuple[str, ...]:
    """Return warnings of stored tensors that the model lacks; those without effect are left out.

    Raises:
        ExecutorError: a drafter's, or those of a part that the model has, such as a bias of a layer.
    """
    config: Any = model.config
    layers = int(getattr(config.get_text_config(), "num_hidden_layers", 0))
    unused = tensors_with_effect(names, layers, config, quantised=stored_quantization(config) is not None)
    inside = [name for name in unused if drafter or (layer_number(name) < layers and _inside_model(name, model))]
    if inside:
        raise ExecutorError(
            f"{path}: {type(model).__name__} has no place for {shorten(inside)}; config.json says "
            f"{_field_words(inside, layers, config)}"
        )
    beyond = sorted({layer_number(name) for name in unused if layer_number(name) >= layers})
    others = [name for name in unused if layer_number(name) < layers]
    warnings = []
    if beyond:
        numbers = ", ".join(map(str, beyond))
        warnings.append(f"{path}: num_hidden_layers is {layers} in config.json: stored layers {numbers} are not used")
    if others:
        warnings.append(f"{path}: {type(model).__name__} has no place for {shorten(others)}: not used")
    return tuple(warnings)


def _unused_changes(path: Path | str, model: Any) -> tuple[str, ...]:
    """Return a warning of settings of generation_config.json by which engines write another text than treeopt."""
    fields = {name: getattr(model.generation_config, name, None) for name in _LOGIT_CHANGES}
    changes = ", ".join(f"{name} is {value!r:.40}" for name, value in fields.items() if value not in (None, 0, 1, []))
    text = "not used, so engines that apply it write another text"
    return (f"{path}: {changes} in generation_config.json: {text}",) if changes else ()


def _inside_model(name: str, model: nn.Module) -> bool:
    """Return whether a tensor's name lies within a part of the model, such as a layer or the LM head."""
    path, whole_model = name.rpartition(".")[0], {"", getattr(model, "base_model_prefix", "")}
    modules = {part for part, _ in model.named_modules()} - whole_model
    while path and path not in modules:
        path = path.rpartition(".")[0]
    return bool(path)


def _field_words(names: list[str], layers: int, config: Any) -> str:
    """Return the fields of a configuration that leave out these tensors."""
    text, said = config.get_text_config(), [f"model_type {config.model_type}"]
    if any(layer_number(name) >= layers for name in names):
        said.append(f"num_hidden_layers {layers}")
    if any(name.endswith(".bias") for name in names):
        said += [f"{field} {getattr(text, field)}" for field in _BIASED if hasattr(text, field)]
    return ", ".join(said)


def read_config(path: Path | str) -> PretrainedConfig:
    """Read the configuration of a local Hugging Face folder.

    Raises:
        ExecutorError: there is no configuration that transformers accepts, or it is no such model's; says whose.
    """
    folder = Path(path)
    try:
        check_regular(path)
        reason = other_format(folder)
        if reason is None and (folder / "config.json").is_file() and (named := parsed(folder, named_drafter)):
            reason = f"{named[0]} in config.json names {named[1]}, not a language model: is it the --drafter?"
        if reason is None:
            config: PretrainedConfig = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
            return config
    except Exception as error:  # its validators raise classes of their own
        raise ExecutorError(f"{path}: transformers cannot take its config.json: {first_line(error)}") from error
    raise ExecutorError(f"{path}: {reason}")


def read_verifiable_config(path: Path | str) -> PretrainedConfig:
    """Read the configuration of a model that can verify trees.

    Raises:
        ExecutorError: there is none, or the model cannot verify trees; says why.
    """
    config = read_config(path)
    if (reason := refusal(config)) is not None:
        raise ExecutorError(f"{path}: {config.model_type} models cannot verify trees: {reason}")
    if (reason := refused_positions(config)) is not None:
        raise ExecutorError(f"{Path(path) / 'config.json'}: {reason}")
    try:
        model_class(config)
    except ExecutorError as error:
        raise ExecutorError(f"{path}: {error}") from error
    return config


def _settings(
    path: Path | str, config: Any, dtype: str, device: str, quantize: str | None, tensor_parallel: bool
) -> dict[str, Any]:
    """Return what `from_pretrained` needs to know beyond the plain case; it then places the weights itself."""
    present = stored_quantization(config)
    if tensor_parallel:
        if quantize is not None or present is not None:
            raise ExecutorError(
                f"{path}: quantised weights cannot be split over processes: scales per part would depend on the number "
                "of processes"
            )
        return {"distributed_config": sharding(path, config, device)}
    if present is not None:
        if quantize is not None:
            raise ExecutorError(f"{path}: its weights are quantised already ({present.get('quant_method')})")
        if present.get("load_in_4bit") and torch.device(device).type == "cpu":
            # Their hash differs after every forward, and a token's logits depend on the number of tokens fed with it.
            raise ExecutorError(
                f"{path}: bitsandbytes repacks 4-bit weights on the CPU as it computes, to other values each time; "
                "use another device, or the original model with --quantize int4"
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
def _explain_errors(path: Path | str, config: Any) -> Iterator[None]:
    """Turn errors that transformers raises while it loads into ExecutorError, naming the folder."""
    try:
        yield
    except ImportError as error:  # raised by a quantisation; it names the package and how to install it
        raise ExecutorError(f"{path}: {' '.join(str(error).split())}") from error
    except Exception as error:  # of a package for each quantisation, a reader for each format, a class for each family
        known = {"default", *ROPE_INIT_FUNCTIONS}
        unknown = sorted(rope_types(config) - known)
        if unknown and isinstance(error, (KeyError, TypeError)):  # the kind is looked up in a dictionary
            raise ExecutorError(
                f"{Path(path) / 'config.json'}: rope_type {unknown[0]} is not one that transformers knows: write one "
                f"of {', '.join(sorted(known - {'longrope'}))}"
            ) from error
        raise ExecutorError(f"{path}: transformers cannot load this model: {first_line(error)}") from error


def _check_types(path: Path | str, target: Target) -> None:
    """Refuse types without masks and caches, and quantised weights that compute in another type."""
    if target.dtype not in DTYPES.values():
        raise ExecutorError(f"{path}: its weights are {target.dtype}; dtype must be one of {', '.join(DTYPES)}")
    for name, value in target.model.named_parameters():
        if len(list(plain_tensors(name, value))) > 1 and value.dtype != target.dtype:
            dtype = dtype_name(value.dtype)
            raise ExecutorError(f"{path}: {name} was quantised to compute in {dtype}; load it with dtype {dtype}")


def check_finite(path: Path | str, module: nn.Module) -> None:
    """Raise ExecutorError, naming the tensor, for weights, of quantised ones scales, that are not finite."""
    for name, value in module.named_parameters():
        for part, tensor in plain_tensors(name, value):
            if not tensor.is_floating_point():
                continue
            wide = tensor.float() if tensor.itemsize == 1 else tensor
            if not bool(whole(torch.isfinite(wide).all())):
                raise ExecutorError(f"{path}: {part} holds values that are not finite")


def chosen_device(device: str) -> str:
    """Return the device; for `auto` cuda where there is one, else cpu."""
    if device != "auto":
        return device
    return "cuda" if torch.cuda.is_available() else "cpu"


def prepare(device: str, *, threads: int | None = None, tensor_parallel: bool = False) -> None:
    """Prepare this process for models on `device`: silence transformers, set CPU threads, select the process's device.

    Raises:
        UsageError: no such device, or more threads than are useful.
    """
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if threads is not None:
        cores = os.cpu_count() or 1
        if not 1 <= threads <= THREADS_PER_CORE * cores:
            raise UsageError(
                f"threads must be in 1..{THREADS_PER_CORE * cores}, {THREADS_PER_CORE} for each of this machine's "
                f"{cores} logical cores, got {threads}"
            )
        torch.set_num_threads(threads)
    try:
        place = torch.device(device)
        index = int(os.environ.get("LOCAL_RANK", "0")) if tensor_parallel else place.index
        if place.type != "cpu" and index is not None:
            torch.accelerator.set_device_index(index)
        torch.empty(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UsageError(f"device {device}: {first_line(error)}") from error


def first_line(error: Exception) -> str:
    r"""Return the first line of an error's message, or its class.

    Where the first line ends with a colon the next one is added. A lookup's message is only the name that is missing.

    >>> first_line(ValueError("Class validation error:\n    ValueError: hidden_size\nmore"))
    'Class validation error: ValueError: hidden_size'
    >>> first_line(KeyError("metadata"))
    "there is no entry 'metadata'"
    """
    if isinstance(error, KeyError) and len(error.args) == 1 and " " not in str(error.args[0]):
        return f"there is no entry {error}"
    first, *others = [line.strip() for line in str(error).strip().splitlines() if line.strip()] or [
        type(error).__name__
    ]
    return f"{first} {others[0]}" if others and first.endswith(":") else first
