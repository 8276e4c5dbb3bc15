"""Read files of `torch.save` with torch's reader of plain values, which runs no code; tensors or numpy arrays."""

import re
import zipfile
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor

from treeopt.errors import ExecutorError
from treeopt.storage.user_files import check_pointer, open_regular

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
    """Check that `value` is a plain tensor with all its data, and return it.

    Raises:
        ExecutorError: names its class, or the shape that it claims.
    """
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
