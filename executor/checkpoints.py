"""Drafters on disk, in the layouts people have. Tensors decide; configuration files are not believed."""

import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from executor.drafters.language_model import LanguageModel
from executor.drafters.medusa import MedusaHeads
from executor.drafters.ngram import NGram
from executor.drafters.prompt_lookup import PromptLookup
from executor.loading import DTYPES, check_finite, load_target
from executor.target import Target
from treeopt.errors import ExecutorError, UsageError
from treeopt.files import whole, write_text

MEDUSA_FILE = "medusa_lm_head.safetensors"
NGRAM_FILE = "ngram.safetensors"
_LOOKUP = re.compile(rf"{PromptLookup.kind}(?::(.*))?")
_COUNTS = re.compile(r"(counts|grams)\.\d+")
_BLOCK = re.compile(r"(\d+)\.(\d+)\.linear\.(weight|bias)")
_OUTPUT = re.compile(r"\d+\.\d+\.weight")


def load_drafter(
    path: Path | str, target: Target, *, packed: bool = False
) -> MedusaHeads | LanguageModel | NGram | PromptLookup:
    """Read a drafter folder for `target`, in the target's type and place.

    Args:
        path: a folder of Medusa heads, of n-gram counts or of a whole language model; or `prompt-lookup`, or
            `prompt-lookup:5` to match up to 5 tokens, which needs no folder.
        target: what it drafts for.
        packed: of a language model, see `load_target`.

    Raises:
        ExecutorError: no drafter here, an unknown layout, or tensors that do not fit the target; names the keys.
        UsageError: prompt lookup that matches no such number of tokens.
    """
    lookup = _LOOKUP.fullmatch(str(path))
    if lookup:
        return _prompt_lookup(str(path), lookup[1]).to(target.device)
    counts = _ngram_file(Path(path))
    if counts is not None:
        return _ngram(counts, target)
    file = Path(path) / MEDUSA_FILE
    if not file.is_file():
        if not any(Path(path).glob("*.safetensors")):
            raise ExecutorError(
                f"{path}: holds neither {MEDUSA_FILE} nor {NGRAM_FILE} nor the safetensors of a language model"
            )
        dtype = next(name for name, number in DTYPES.items() if number == target.dtype)
        return LanguageModel(load_target(path, dtype=dtype, device=str(target.device), packed=packed))
    tensors = _read(file)
    for key, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise ExecutorError(f"{file}: {key} must hold floating-point numbers, found {tensor.dtype}")
    drafter = _medusa(file, tensors, target)
    check_finite(file, drafter)
    return drafter.to(target.device, target.dtype).eval().requires_grad_(False)


def _prompt_lookup(name: str, longest: str | None) -> PromptLookup:
    if longest is None:
        return PromptLookup()
    if not longest.isdecimal():
        raise UsageError(f"{name}: must be {PromptLookup.kind} or, say, {PromptLookup.kind}:5")
    return PromptLookup(int(longest))


def _ngram_file(folder: Path) -> Path | None:
    """The file of n-gram counts in a folder: by its name, else by the names of its tensors."""
    for file in [folder / NGRAM_FILE, *sorted(folder.glob("*.safetensors"))]:
        try:
            if file.is_file() and (file.name == NGRAM_FILE or any(map(_COUNTS.fullmatch, _keys(file)))):
                return file
        except (SafetensorError, OSError):
            continue  # whoever reads it says why it cannot be read
    return None


def _keys(file: Path) -> list[str]:
    with safe_open(file, "pt") as opened:
        return list(opened.keys())


def _read(file: Path) -> dict[str, Tensor]:
    try:
        return load_file(file)
    except (SafetensorError, OSError) as error:
        raise ExecutorError(f"{file}: not a readable safetensors file: {error}") from error


def _ngram(file: Path, target: Target) -> NGram:
    try:
        drafter = NGram(_read(file))
    except ExecutorError as error:
        raise error if str(file) in str(error) else ExecutorError(f"{file}: {error}") from error
    if drafter.vocabulary != target.vocabulary:
        raise ExecutorError(f"{file}: counts.1 must be ({target.vocabulary},), found ({drafter.vocabulary},)")
    return drafter.to(target.device).eval()


def save_ngram(path: Path, drafter: NGram, *, meta: dict[str, Any]) -> None:
    """Write counts with `meta` beside; each file whole or not at all."""
    path.mkdir(parents=True, exist_ok=True)
    with whole(path / NGRAM_FILE) as temporary:
        save_file({key: table.contiguous() for key, table in drafter.tables().items()}, temporary)
    own = {"kind": drafter.kind, "order": drafter.order, "vocabulary": drafter.vocabulary}
    write_text(path / "config.json", json.dumps({"treeopt_drafter": own | meta}, indent=2) + "\n")


def _medusa(file: Path, tensors: dict[str, Tensor], target: Target) -> MedusaHeads:
    blocks = {(int(m[1]), int(m[2]), m[3]): key for key in tensors if (m := _BLOCK.fullmatch(key))}
    outputs = {key for key in tensors if _OUTPUT.fullmatch(key)}
    unknown = sorted(set(tensors) - set(blocks.values()) - outputs)
    if not blocks or unknown:
        raise ExecutorError(f"{file}: not Medusa heads: unknown keys {unknown[:4] or 'only, no `0.0.linear.weight`'}")
    heads, layers = max(k for k, _, _ in blocks) + 1, max(n for _, n, _ in blocks) + 1
    if heads * layers > len(tensors):
        raise ExecutorError(f"{file}: {heads} heads of {layers} layers are named, {len(tensors)} tensors are there")
    own = bool(outputs)
    shapes = {
        f"{k}.{n}.linear.{part}": (target.hidden,) * (2 if part == "weight" else 1)
        for k in range(heads)
        for n in range(layers)
        for part in ("weight", "bias")
    }
    shapes |= {f"{k}.{layers}.weight": (target.vocabulary, target.hidden) for k in range(heads) if own}
    for key in sorted(shapes.keys() | tensors.keys()):
        found = tuple(tensors[key].shape) if key in tensors else "nothing"
        if found != shapes.get(key):
            raise ExecutorError(f"{file}: {key} must be {shapes.get(key, 'absent')}, found {found}")
    drafter = MedusaHeads(heads, target.hidden, layers=layers, vocabulary=target.vocabulary if own else None)
    with torch.no_grad():
        for k in range(heads):
            for n in range(layers):
                drafter.weight[k, n] = tensors[f"{k}.{n}.linear.weight"]
                drafter.bias[k, n] = tensors[f"{k}.{n}.linear.bias"]
            if drafter.output is not None:
                drafter.output[k] = tensors[f"{k}.{layers}.weight"]
    return drafter


def save_drafter(path: Path, drafter: MedusaHeads, *, dtype: str, meta: dict[str, Any]) -> None:
    """Write Medusa heads in the reference layout (version 1 with own output layers, else 2) with `meta` beside."""
    heads, layers = drafter.weight.shape[:2]
    tensors: dict[str, Tensor] = {}
    for k in range(heads):
        for n in range(layers):
            tensors[f"{k}.{n}.linear.weight"] = drafter.weight[k, n]
            tensors[f"{k}.{n}.linear.bias"] = drafter.bias[k, n]
        if drafter.output is not None:
            tensors[f"{k}.{layers}.weight"] = drafter.output[k]
    path.mkdir(parents=True, exist_ok=True)
    stored = {key: t.detach().to("cpu", DTYPES[dtype]).clone().contiguous() for key, t in tensors.items()}
    with whole(path / MEDUSA_FILE) as temporary:
        save_file(stored, temporary)
    config = {
        "medusa_num_heads": heads,
        "medusa_num_layers": layers,
        "version": "2" if drafter.output is None else "1",
        "base_model_name_or_path": meta.get("target", ""),
        "treeopt_drafter": {"kind": drafter.kind, **meta},
    }
    write_text(path / "config.json", json.dumps(config, indent=2) + "\n")
