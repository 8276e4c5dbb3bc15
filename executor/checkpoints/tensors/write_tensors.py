"""Write a drafter's checkpoint, plain tensors and a config.json; copies of the target's embeddings and LM head."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from executor.target import tensor_parallel
from executor.target.load_hf_model import DTYPES
from executor.target.target_model import Target
from treeopt.errors import ExecutorError
from treeopt.storage.user_files import whole, write_text


@dataclass(frozen=True)
class Written:
    """The contents of one checkpoint: its file, its tensors under the layout's names, and the layout's config.json.

    Attributes:
        facts: fields of config.json under `treeopt_drafter`, beside those that the caller adds.
        check: called with the tensors in the number type of the file; returns a remark, or raises ExecutorError.
    """

    file: str
    tensors: dict[str, Tensor]
    config: dict[str, Any]
    facts: dict[str, Any] = field(default_factory=dict)
    check: Callable[[Mapping[str, Tensor]], str] | None = None


def write(folder: Path, content: Written, *, dtype: str, meta: dict[str, Any]) -> str:
    """Write both files into `folder`; floating-point tensors as `dtype`, no two sharing memory.

    `meta` is written beside the facts; where both have a field, the fact is written. Returns the remark of the
    content's check, "" without one.

    Raises:
        ExecutorError: unknown type, or values that are not finite in it; then nothing is written.
    """
    if dtype not in DTYPES:
        raise ExecutorError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype}")
    stored = {}
    for name, tensor in content.tensors.items():
        number = DTYPES[dtype] if tensor.is_floating_point() else tensor.dtype
        stored[name] = tensor.detach().to("cpu", number).clone(memory_format=torch.contiguous_format)
        if tensor.is_floating_point() and not bool(torch.isfinite(stored[name]).all()):
            raise ExecutorError(f"{folder / content.file}: {name} holds values that are not finite in {dtype}")
    remark = content.check(stored) if content.check else ""
    folder.mkdir(parents=True, exist_ok=True)
    with whole(folder / content.file) as temporary, full_disk(folder / content.file):
        if content.file.endswith(".safetensors"):
            save_file(stored, temporary, {"format": "pt"})
        else:
            torch.save(stored, temporary)
    config = content.config | {"treeopt_drafter": content.facts | meta | content.facts}
    if "torch_dtype" in config:
        config["torch_dtype"] = dtype
    write_text(folder / "config.json", json.dumps(config, indent=2) + "\n")
    return remark


@contextmanager
def full_disk(path: Path) -> Iterator[None]:
    """Turn what safetensors and torch raise where no more can be written into ExecutorError, naming the path."""
    try:
        yield
    except (SafetensorError, RuntimeError) as error:
        _, of_safetensors, reason = str(error).partition("I/O error: ")
        if not of_safetensors and "inline_container" not in str(error):  # torch's writer of archives
            raise
        raise ExecutorError(f"{path}: cannot be written: {reason or 'is the disk full?'}") from error


def refuse_lost(layout: str, lost: Mapping[str, bool], advice: str = "") -> None:
    """Raise ExecutorError if a layout cannot express something; `lost` is what, in words -> the drafter has it."""
    if any(lost.values()):
        raise ExecutorError(f"{layout} cannot express {', '.join(n for n, present in lost.items() if present)}{advice}")


ROWS = 4096  # compared at once
# Half precision rounds by up to 2**-8 (bfloat16) either way; below 2**-14 float16 has fewer digits.
RELATIVE, ABSOLUTE = 2**-7, 2**-14


def is_head(values: Tensor, target: Target) -> bool:
    """Return whether this is the weight of the target's LM head, (vocabulary, hidden), up to rounding to 16 bits."""
    return _equal(values, target.head.weight)


def is_embedding(values: Tensor, target: Target) -> bool:
    """Return whether these are the target's input embeddings, (vocabulary, hidden), up to rounding."""
    return _equal(values, _embedding(target))


def head_of(target: Target | None, layout: str) -> Tensor:
    """Return the target's LM head, which a layout holds a copy of; raise ExecutorError if no target was given."""
    if target is None:
        raise ExecutorError(f"{layout} holds the target's LM head: the target must be given")
    weight = target.head.weight
    assert isinstance(weight, Tensor)
    return tensor_parallel.whole(weight)


def embedding_of(target: Target | None, layout: str) -> Tensor:
    """Return the target's embeddings, which a layout holds a copy of; raise ExecutorError without a target."""
    if target is None:
        raise ExecutorError(f"{layout} holds the target's embeddings: the target must be given")
    return _embedding(target)


@torch.no_grad()
def _embedding(target: Target) -> Tensor:
    """Return the embedding of every token; Gemma's is its table times the square root of the width."""
    weight = target.model.get_input_embeddings().weight
    assert isinstance(weight, Tensor)
    table = tensor_parallel.whole(weight)
    some = torch.arange(min(16, len(table)), device=target.device)
    embedded, plain = target.embed(some).double(), table[: len(some)].double().to(target.device)
    factor = float((embedded * plain).sum() / plain.square().sum().clamp(min=1e-30))
    return table if not factor or abs(factor - 1) < 2**-6 else table * factor


def _equal(values: Tensor, weight: Tensor | torch.nn.Module) -> bool:
    assert isinstance(weight, Tensor)
    full = tensor_parallel.whole(weight)
    return full.shape == values.shape and all(
        torch.allclose(a.float(), b.cpu().float(), rtol=RELATIVE, atol=ABSOLUTE)
        for a, b in zip(values.split(ROWS), full.split(ROWS), strict=True)
    )
