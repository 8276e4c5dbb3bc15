"""Files to import from: their text or numbers, and what a trace's `meta` says of them. No file is run or unpickled."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treeopt.errors import TraceError
from treeopt.storage.atomic_files import checksum, why
from treeopt.storage.provenance import this_run

LIMIT = 2**28  # bytes of a text
SAVED = (".pt", ".pth", ".bin")


def source_meta(path: Path, kind: str, assumed: Sequence[str], **more: Any) -> dict[str, Any]:
    """The `meta` of an imported trace: where it comes from, and what was assumed because the file does not say.

    The file's checksum stands for the texts too, so that no file is merged with itself.
    """
    sha256 = checksum(path)
    imported = {"format": kind, "file": path.name, "sha256": sha256}
    own = {"imported": imported, "assumed": list(assumed), "text_sha256": sha256[:16], "provenance": this_run()}
    return own | more


def read_text(path: Path) -> str:
    """The file as UTF-8.

    Raises:
        TraceError: it cannot be read, or is too large.
    """
    try:
        if path.stat().st_size > LIMIT:
            raise TraceError(f"larger than {LIMIT} bytes")
        return path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"cannot be read: {why(error)}") from error


def objects(text: str) -> Iterator[dict[str, Any]]:
    """Every object in a JSON text, in lines of JSON or in a stream of events (`data: {...}`), outer first, in order.

    Raises:
        TraceError: it is neither.
    """
    try:
        values = [json.loads(text)]
    except (ValueError, RecursionError) as error:
        try:
            values = [json.loads(line) for line in map(_sent, text.splitlines()) if line]
        except (ValueError, RecursionError):
            raise TraceError(f"neither JSON nor lines of JSON: {error}") from error
    stack = values[::-1]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            yield value
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        stack.extend(list(inner)[::-1])


def _sent(line: str) -> str:
    """What a line of a stream of events sends, empty for what is no data; any other line itself."""
    line = line.strip()
    if line.startswith(("event:", "id:", "retry:", ":")):
        return ""
    sent = line.removeprefix("data:").strip()
    return "" if sent == "[DONE]" else sent


def read_numbers(path: Path, saved: Callable[[Path], Any]) -> NDArray[np.float64]:
    """An array of one or two dimensions: `.npy`, nested lists in `.json`, `.csv`, or what `saved` reads of a `.pt`.

    Raises:
        TraceError: the file is no such thing, or holds values that are not finite.
    """
    reader = {".npy": _npy, ".json": _json, ".csv": _csv} | dict.fromkeys(SAVED, saved)
    if path.suffix not in reader:
        raise TraceError(f"must be one of {', '.join(reader)}")
    try:
        values = np.asarray(reader[path.suffix](path))
    except ValueError as error:
        raise TraceError(f"rows of different lengths: {error}") from error
    if values.dtype.kind not in "iuf" or values.ndim not in (1, 2) or values.size == 0:
        raise TraceError(f"must hold numbers in one or two dimensions, found {values.dtype} of {values.shape}")
    if not np.isfinite(values).all():
        raise TraceError(f"value {np.argwhere(~np.isfinite(values))[0].tolist()} is not finite")
    return values.astype(np.float64)


def _npy(path: Path) -> Any:
    try:
        return np.array(np.lib.format.open_memmap(path, mode="r"))
    except Exception as error:  # a damaged head makes numpy raise what it likes
        raise TraceError(f"not an array of numpy.save without objects: {error}") from error


def _json(path: Path) -> Any:
    try:
        return json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise TraceError(f"not JSON: {error}") from error


def _csv(path: Path) -> list[list[float]]:
    rows = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            rows.append([float(cell) for cell in line.split(",")])
        except ValueError as error:
            raise TraceError(f"line {number} must be numbers between commas, found {line[:40]!r}") from error
    return rows
