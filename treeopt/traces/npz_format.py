"""The arrays in a trace's .npz file: names, types, dimensions and sizes, checked before anything is allocated.

The values are checked in `trace_checks`.
"""

import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treeopt.errors import TraceError

MAX_ARRAY_BYTES = 16 * 2**30

Array = NDArray[Any]

# Every array of the format: (the type written, others that are read, dimensions).
FORMAT: dict[str, tuple[type[np.generic], tuple[type[np.generic], ...], int]] = {
    "request": (np.int32, (), 1),
    "position": (np.int32, (), 1),
    "rank": (np.int16, (), 2),
    "accept": (np.float16, (), 3),
    "kept": (np.float16, (), 3),
    "draft_prob": (np.float16, (), 3),
    "draft_entropy": (np.float16, (), 2),
    "target_entropy": (np.float16, (), 1),
    "tree_kept": (np.bool_, (), 2),
    "drafted": (np.int16, (), 1),
    "domain": (np.int16, (), 1),
    "prompt_tokens": (np.int32, (), 1),
    "candidates_offset": (np.int64, (), 1),
    "candidates_parent": (np.int16, (), 1),
    "candidates_rank": (np.uint8, (), 1),
    "candidates_logprob": (np.float32, (np.float16,), 1),
    "candidates_hit": (np.bool_, (), 1),
    "meta": (np.uint8, (), 1),
}
REQUIRED = ("request", "position", "rank", "meta")


def read_arrays(path: Path, wanted: Collection[str] = FORMAT) -> dict[str, Array]:
    """Return the wanted arrays of the file, each of the right type; the others are not even unpacked.

    Raises:
        TraceError: no such file, or its contents are not arrays of a trace.
    """
    if not path.is_file():
        raise TraceError("no such file" if not path.exists() else "is not a file")
    try:
        arrays = {}
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                name = member.filename.removesuffix(".npy")
                if name not in FORMAT:
                    raise TraceError(f"unknown array `{name}`")
                if name in wanted:
                    arrays[name] = _read_array(archive, member, name)
    except (zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, EOFError, OSError) as error:
        raise TraceError(f"not a complete .npz file: {error}") from error
    except TraceError:
        raise
    except Exception as error:  # numpy and zipfile raise many exceptions on a damaged header
        raise TraceError(f"not an array file: {error}") from error
    for name in REQUIRED:
        if name not in arrays:
            raise TraceError(f"array `{name}` is missing")
    return arrays


def _read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str) -> Array:
    written, also_read, dimensions = FORMAT[name]
    with archive.open(member) as stream:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(stream)
        header_bytes = stream.tell()
    if dtype.hasobject:
        raise TraceError(f"`{name}` holds pickled Python objects, which are not read")
    if dtype not in (written, *also_read):
        raise TraceError(f"`{name}` must be {np.dtype(written)}, found {dtype}")
    if len(shape) != dimensions:
        raise TraceError(f"`{name}` must have {dimensions} dimensions, found shape {shape}")
    size = int(np.prod(shape, dtype=object)) * dtype.itemsize
    if size > MAX_ARRAY_BYTES:
        raise TraceError(f"`{name}` of shape {shape} would take {size} bytes, more than {MAX_ARRAY_BYTES}")
    if member.file_size != header_bytes + size:
        raise TraceError(f"`{name}` of shape {shape} needs {header_bytes + size} bytes, found {member.file_size}")
    if size > 1040 * member.compress_size:
        raise TraceError(f"`{name}` of shape {shape} cannot be packed into {member.compress_size} bytes")
    with archive.open(member) as stream:
        array: Array = np.lib.format.read_array(stream, allow_pickle=False)
    return array.astype(written, copy=False)
