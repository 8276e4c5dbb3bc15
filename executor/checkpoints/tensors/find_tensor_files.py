"""Find the tensor files of a checkpoint folder and read their headers; no values are read here.

Supported: safetensors, the shards that an index names, with all of their tensors, as vLLM and transformers load them,
and torch's `.pt` and `.bin` files, which must be zip archives; these are mapped into memory and unpickled by torch's
reader of plain tensors.
"""

import json
import re
import struct
import zipfile
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from executor.checkpoints.tensors.lazy_tensors import Entry, Stored
from simulate.drafter_kinds import by_priority
from treeopt.errors import ExecutorError, shorten
from treeopt.storage.user_files import check_pointer, check_text, open_regular, read_text, why

OTHERS_LIMIT = 2**24  # bytes that are no tensors
NESTED = 8  # levels of nested lists; the formats read here have three
_GLOBAL = re.compile(r"(?:GLOBAL|class) ([\w.]+)")


def load_saved(file: Path) -> Any:
    """Return the file's content, with tensors mapped into memory on the CPU.

    Raises:
        ExecutorError: no file of `torch.save`; compressed records, because a small file could then fill the memory;
            code, or objects of other classes than tensors.
    """
    try:
        with open_regular(file) as opened:
            check_pointer(opened.read(64), file)
        with zipfile.ZipFile(file) as archive:
            records = archive.infolist()
        if any(r.compress_type != zipfile.ZIP_STORED for r in records):
            raise ExecutorError(f"{file}: not a file that torch.save writes: it is compressed")
        if sum(r.file_size for r in records if not re.search(r"/data/\d+$", r.filename)) > OTHERS_LIMIT:
            raise ExecutorError(f"{file}: more than {OTHERS_LIMIT} bytes that are no tensors")
        return torch.load(file, map_location="cpu", mmap=True, weights_only=True)  # noqa: TID251 - no code is run
    except UnpicklingError as error:
        named = _GLOBAL.search(str(error))
        raise ExecutorError(
            f"{file}: refused: it holds {named[1] if named else 'code or objects'}, where plain tensors must be"
        ) from error
    except (zipfile.BadZipFile, OSError, RuntimeError, ValueError, EOFError) as error:
        first = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
        first = first.splitlines()[0]
        raise ExecutorError(f"{file}: not a readable file of torch.save (a zip archive): {first}") from error


def check_tensor(value: Any, name: str, file: Path) -> Tensor:
    """Return `value`, a plain tensor with all its data; else raise ExecutorError with its class or claimed shape."""
    if type(value) not in (Tensor, torch.nn.Parameter):
        raise ExecutorError(f"{file}: {name} must be a plain tensor, found {type(value).__name__}")
    if value.layout != torch.strided:
        kind = str(value.layout).removeprefix("torch.")
        raise ExecutorError(f"{file}: {name} must be a plain tensor, found one of layout {kind}")
    if value.numel() * value.element_size() > value.untyped_storage().nbytes():
        raise ExecutorError(f"{file}: {name} claims {tuple(value.shape)}, which is more than its data")
    return value  # type: ignore[no-any-return]


def read_saved(file: Path) -> Any:
    """Return the file's content as plain values: arrays for tensors, in the file's lists and dictionaries.

    Raises:
        ExecutorError: see `load_saved`; or values other than tensors, numbers and texts.
    """
    return _plain(load_saved(file), "it", file, NESTED)


def _plain(value: Any, name: str, file: Path, nested: int) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if nested == 0:
        raise ExecutorError(f"{file}: {name} is nested more than {NESTED} levels deep")
    if isinstance(value, list | tuple):
        return [_plain(part, f"{name}[{i}]", file, nested - 1) for i, part in enumerate(value)]
    if isinstance(value, dict):
        return {key: _plain(part, f"{name}[{key!r}]", file, nested - 1) for key, part in value.items()}
    tensor = check_tensor(value, name, file).detach()
    try:
        return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy().copy()
    except (TypeError, RuntimeError) as error:
        raise ExecutorError(f"{file}: {name} cannot be read as numbers: {error}") from error


HEADER_LIMIT = 2**24  # bytes; the index of the largest public model has less than a megabyte
# In the order of search: files of one kind of drafter, safetensors first, which may lie beside a whole model; then a
# model; then any other file, if it is the only one.
SAFETENSORS = ("model.safetensors",)
TORCH = ("pytorch_model.bin", "model.pt")
# Files that trainers leave beside the weights.
OTHERS = re.compile(r"(optimizer|scheduler|scaler|training_args|random_states|rng_state|trainer_state).*")
_SHARD = re.compile(r"(?P<model>.+)-\d+-of-(?P<parts>\d+)(?P<suffix>\.\w+)")
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


def open_checkpoint(path: Path) -> Stored | None:
    """Return the tensors of a checkpoint folder, or of one file; None if there are none.

    Raises:
        ExecutorError: the files cannot be read, or it is not clear which one is the drafter.
    """
    if path.is_file():
        return Stored(path, _entries(path), config_beside(path.parent))
    named = (name for kind in by_priority() if kind.files is not None for name in kind.files.names)
    of_kinds = sorted(named, key=lambda name: not name.endswith(".safetensors"))
    heads = next((path / name for name in of_kinds if (path / name).is_file()), None)
    if heads is not None:
        return open_checkpoint(heads)
    for names, suffixes in ((SAFETENSORS, (".safetensors",)), (TORCH, (".pt", ".bin"))):
        present = [p for s in suffixes for p in sorted(path.glob(f"*{s}")) if not OTHERS.match(p.name)]
        file = next((path / name for name in names if (path / name).is_file()), None)
        index = next((p for s in suffixes for p in sorted(path.glob(f"*{s}.index.json"))), None)
        if file is None and index is not None:
            return Stored(index, _sharded(index), config_beside(path))
        if file is None and present:
            _check_no_shards(path, present)
        if file is None and len(present) > 1:
            raise ExecutorError(f"{path}: which of {shorten([p.name for p in present])} is the drafter? name the file")
        if file is not None or present:
            return open_checkpoint(file or present[0])
    return None


def _check_no_shards(folder: Path, files: list[Path]) -> None:
    """Refuse parts of one model without the index that names them."""
    parts = [match for file in files if (match := _SHARD.fullmatch(file.name)) and int(match["parts"]) > 1]
    indices = {f"{match['model']}{match['suffix']}.index.json" for match in parts}
    if len(parts) == len(files) and len(indices) == 1:
        raise ExecutorError(
            f"{folder}: {indices.pop()} is missing, the index of {shorten([file.name for file in files])}: fetch it too"
        )


def config_beside(folder: Path) -> dict[str, Any]:
    """Return the config.json of a folder, {} without one; raise ExecutorError if it is no JSON object."""
    return _json(folder / "config.json") if (folder / "config.json").is_file() else {}


def _json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_text(file, limit=HEADER_LIMIT))
    except (OSError, UnicodeDecodeError) as error:
        raise ExecutorError(f"{file}: cannot be read: {why(error)}") from error
    except (ValueError, RecursionError) as error:
        raise ExecutorError(f"{file}: not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ExecutorError(f"{file}: must hold a JSON object")
    return content


def _sharded(index: Path) -> dict[str, Entry]:
    """Return all tensors of the files that an index names, also those that it does not list, as engines load them."""
    file_of = _json(index).get("weight_map")
    if not isinstance(file_of, dict) or not all(isinstance(name, str) for name in file_of.values()):
        raise ExecutorError(f"{index}: weight_map must name the file of each tensor")
    entries: dict[str, Entry] = {}
    for name in sorted(set(file_of.values())):
        if name != Path(name).name:
            raise ExecutorError(f"{index}: weight_map must name files beside it, found {name!r}")
        for key, entry in _entries(index.parent / name).items():
            if key in entries and key not in file_of:
                raise ExecutorError(f"{index}: {key} is in two files, and weight_map does not say which one holds")
            if key not in entries or file_of[key] == name:
                entries[key] = entry
    missing = [key for key in file_of if key not in entries]
    if missing:
        raise ExecutorError(f"{index}: {shorten(missing)} not in the files that weight_map names")
    return entries


def _entries(file: Path) -> dict[str, Entry]:
    return _safetensors(file) if file.suffix == ".safetensors" else _torch(file)


def _safetensors(file: Path) -> dict[str, Entry]:
    try:
        with open_regular(file) as raw:
            begin = raw.read(64)
        check_text(begin, file)
        if begin.lstrip().startswith((b"<", b"{")):
            raise ExecutorError(f"{file}: not a safetensors file but a text, such as a server's answer: fetch it again")
        (length,) = struct.unpack("<Q", begin[:8].ljust(8, b"\0"))
        if length > HEADER_LIMIT:
            raise ExecutorError(f"{file}: not a readable safetensors file: its header claims {length} bytes")
        opened_file: Any = safe_open(file, "pt")
        slices = {key: opened_file.get_slice(key) for key in opened_file.keys()}  # noqa: SIM118 - it is no dict
    except OSError as error:
        raise ExecutorError(f"{file}: not a readable safetensors file: {why(error)}") from error
    except SafetensorError as error:
        raise ExecutorError(f"{file}: not a readable safetensors file: {error}") from error
    return {
        key: Entry(key, tuple(part.get_shape()), _TYPES.get(part.get_dtype()), partial(opened_file.get_tensor, key))
        for key, part in slices.items()
    }


def _torch(file: Path) -> dict[str, Entry]:
    """Read a file of `torch.save`, whose pickle may hold only tensors."""
    content = load_saved(file)
    for wrapper in ("state_dict", "model", "module"):
        if isinstance(content, dict) and isinstance(content.get(wrapper), dict):
            content = content[wrapper]
    if not isinstance(content, dict):
        raise ExecutorError(f"{file}: must hold a dictionary of tensors, found {type(content).__name__}")
    for key, value in content.items():
        if not isinstance(key, str):
            raise ExecutorError(f"{file}: {key!r} must be the name of a tensor")
        check_tensor(value, repr(key), file)
    return {key: Entry(key, tuple(t.shape), t.dtype, t.detach) for key, t in content.items()}
