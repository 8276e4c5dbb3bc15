"""Checkpoint files: which of a folder is meant, and what its header says; no values are read here.

Files of safetensors, the shards that an index names, and torch's `.pt` and `.bin`, which are zip archives here, mapped
into memory and unpickled by torch's reader of plain tensors only.
"""

import json
import re
import struct
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from executor.checkpoints.tensors.lazy_tensors import Entry, Stored, some
from executor.checkpoints.tensors.torch_save import check_tensor, load_saved
from treeopt.errors import ExecutorError
from treeopt.storage.atomic_files import why

HEADER_LIMIT = 2**24  # bytes; the index of the largest public model has less than a megabyte
# In the order in which they are looked for; then any other, if it is the only one.
SAFETENSORS = ("ngram.safetensors", "medusa_lm_head.safetensors", "hydra_lm_head.safetensors", "model.safetensors")
TORCH = ("medusa_lm_head.pt", "hydra_lm_head.pt", "pytorch_model.bin", "model.pt")
# What trainers leave beside the weights.
OTHERS = re.compile(r"(optimizer|scheduler|scaler|training_args|random_states|rng_state|trainer_state).*")
_TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}


def opened(path: Path) -> Stored | None:
    """The tensors of a checkpoint folder, or of one file; None where there are none.

    Raises:
        ExecutorError: they cannot be read, or several files could be meant.
    """
    if path.is_file():
        return Stored(path, _entries(path), config_beside(path.parent))
    for names, suffixes in ((SAFETENSORS, (".safetensors",)), (TORCH, (".pt", ".bin"))):
        there = [p for s in suffixes for p in sorted(path.glob(f"*{s}")) if not OTHERS.match(p.name)]
        file = next((path / name for name in names if (path / name).is_file()), None)
        index = next((p for s in suffixes for p in sorted(path.glob(f"*{s}.index.json"))), None)
        if file is None and index is not None:
            return Stored(index, _sharded(index), config_beside(path))
        if file is None and len(there) > 1:
            raise ExecutorError(f"{path}: which of {some([p.name for p in there])} is the drafter? name the file")
        if file is not None or there:
            return opened(file or there[0])
    return None


def config_beside(folder: Path) -> dict[str, Any]:
    """The configuration in a folder, {} if there is none.

    Raises:
        ExecutorError: it is not a JSON object.
    """
    return _json(folder / "config.json") if (folder / "config.json").is_file() else {}


def _json(file: Path) -> dict[str, Any]:
    try:
        if file.stat().st_size > HEADER_LIMIT:
            raise ExecutorError(f"{file}: larger than {HEADER_LIMIT} bytes")
        found = json.loads(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ExecutorError(f"{file}: cannot be read: {why(error)}") from error
    except (ValueError, RecursionError) as error:
        raise ExecutorError(f"{file}: not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ExecutorError(f"{file}: must hold a JSON object")
    return found


def _sharded(index: Path) -> dict[str, Entry]:
    places = _json(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise ExecutorError(f"{index}: weight_map must say in which file each tensor is")
    found: dict[str, Entry] = {}
    for name in sorted(set(places.values())):
        if name != Path(name).name:
            raise ExecutorError(f"{index}: weight_map must name files beside it, found {name!r}")
        held = _entries(index.parent / name)
        found |= {key: entry for key, entry in held.items() if places.get(key) == name}
    lost = [key for key in places if key not in found]
    if lost:
        raise ExecutorError(f"{index}: {some(lost)} not in the files that weight_map names")
    return found


def _entries(file: Path) -> dict[str, Entry]:
    return _safetensors(file) if file.suffix == ".safetensors" else _torch(file)


def _safetensors(file: Path) -> dict[str, Entry]:
    try:
        with file.open("rb") as raw:
            (length,) = struct.unpack("<Q", raw.read(8).ljust(8, b"\0"))
        if length > HEADER_LIMIT:
            raise ExecutorError(f"{file}: not a readable safetensors file: its header claims {length} bytes")
        held: Any = safe_open(file, "pt")
        slices = {key: held.get_slice(key) for key in held.keys()}  # noqa: SIM118 - it is no dict
    except (SafetensorError, OSError) as error:
        raise ExecutorError(f"{file}: not a readable safetensors file: {error}") from error
    return {
        key: Entry(key, tuple(part.get_shape()), _TYPES.get(part.get_dtype()), partial(held.get_tensor, key))
        for key, part in slices.items()
    }


def _torch(file: Path) -> dict[str, Entry]:
    """Files of `torch.save`, whose pickles may hold tensors only."""
    found = load_saved(file)
    for wrapper in ("state_dict", "model", "module"):
        if isinstance(found, dict) and isinstance(found.get(wrapper), dict):
            found = found[wrapper]
    if not isinstance(found, dict):
        raise ExecutorError(f"{file}: must hold a dictionary of tensors, found {type(found).__name__}")
    for key, value in found.items():
        if not isinstance(key, str):
            raise ExecutorError(f"{file}: {key!r} must be the name of a tensor")
        check_tensor(value, repr(key), file)
    return {key: Entry(key, tuple(t.shape), t.dtype, t.detach) for key, t in found.items()}
