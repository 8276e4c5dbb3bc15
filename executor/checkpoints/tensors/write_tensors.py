"""Write a drafter's checkpoint: plain tensors and a config.json."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from executor.target.load_hf_model import DTYPES
from treeopt.errors import ExecutorError
from treeopt.storage.atomic_files import whole, write_text


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
    with whole(folder / content.file) as temporary:
        if content.file.endswith(".safetensors"):
            save_file(stored, temporary, {"format": "pt"})
        else:
            torch.save(stored, temporary)
    config = content.config | {"treeopt_drafter": content.facts | meta | content.facts}
    if "torch_dtype" in config:
        config["torch_dtype"] = dtype
    write_text(folder / "config.json", json.dumps(config, indent=2) + "\n")
    return remark
