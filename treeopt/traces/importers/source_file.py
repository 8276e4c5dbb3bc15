"""Source files to import: read their text or numbers, and record them in a trace's `meta`; none is run or unpickled."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treeopt.errors import TraceError
from treeopt.storage import user_files
from treeopt.storage.provenance import this_run
from treeopt.storage.user_files import checksum, why

LIMIT = 2**28  # most bytes of a text
_JSON = re.compile(r'\s*(\{(?!\s*\')|\[\s*[\[{"]|data:|event:)')
SAVED = (".pt", ".pth", ".bin")


def source_meta(path: Path, kind: str, assumed: Sequence[str], **more: Any) -> dict[str, Any]:
    """Return the `meta` of an imported trace: its source, and the assumptions that fill the source's gaps.

    The file's checksum also serves as the hash of the texts, so that no file is merged with itself.
    """
    sha256 = checksum(path)
    imported = {"format": kind, "file": path.name, "sha256": sha256}
    meta = {"imported": imported, "assumed": list(assumed), "text_sha256": sha256[:16], "provenance": this_run()}
    return meta | more


def read_text(path: Path) -> str:
    """Return the text of a file in UTF-8; logs print cut or foreign bytes, which numbers do not have.

    Raises:
        TraceError: the file cannot be read, or is too large.
    """
    try:
        text = user_files.read_text(path, limit=LIMIT, errors="replace")
    except OSError as error:
        raise TraceError(f"cannot be read: {why(error)}") from error
    if "\0" in text or 20 * text.count("\ufffd") > len(text):
        raise TraceError("cannot be read: it is no text in UTF-8, nor in UTF-16 with a byte order mark")
    return text


def drafts_of_steps(committed: Any, where: str, key: str) -> list[int]:
    """Return the drafts accepted in each step from the tokens that it committed.

    >>> drafts_of_steps([1, 3], "answer 0", "steps")
    [0, 2]

    Raises:
        TraceError: names the step that has no number of tokens.
    """
    if not isinstance(committed, list):
        raise TraceError(f"{where}: `{key}` must be a list, found {committed!r:.40}")
    for step, tokens in enumerate(committed):
        if type(tokens) is not int or tokens < 1:
            raise TraceError(
                f"{where}: {key}[{step}] must be the tokens that a step committed, at least 1 (bonus counted), "
                f"found {tokens!r:.40}"
            )
    return [tokens - 1 for tokens in committed]


def objects(text: str, *, inside: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield every object in JSON, lines of JSON or a stream of events (`data: {...}`), outer first, in order.

    Args:
        text: the text.
        inside: also read strings that hold this word, as records of raw responses do; the others are passed over.

    >>> list(objects('{"a": [{"b": 1}]}'))
    [{'a': [{'b': 1}]}, {'b': 1}]

    Raises:
        TraceError: the text is none of these.
    """
    stack = parsed(text)[::-1]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            yield value
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        stack.extend(list(inner)[::-1])
        if inside is not None and isinstance(value, str) and inside in value:
            with suppress(TraceError):
                yield from objects(value)


def parsed(text: str) -> list[Any]:
    """Return the values of JSON, one; of lines of JSON or a stream of events, one for each line; of joined files, all.

    Raises:
        TraceError: the text is none of these; names a line that was cut off among lines of JSON.
    """
    try:
        return [json.loads(text)]
    except (ValueError, RecursionError) as error:
        for several in (_lines_of_json, _joined):
            with suppress(ValueError, RecursionError):
                return several(text)
        if line := cut_line(text):
            raise TraceError(f"line {line} is not JSON: cut off? remove it") from error
        raise TraceError(f"neither JSON nor lines of JSON: {error}") from error


def _lines_of_json(text: str) -> list[Any]:
    return [json.loads(line) for line in map(_event_data, text.splitlines()) if line]


def cut_line(text: str) -> int:
    r"""Return the number of the first line that is the beginning of JSON where all others are lines of JSON, or 0.

    >>> cut_line('{"a": 1}\n{"a": 2}\n{"a"'), cut_line('{"a": 1}\nINFO {"a"')
    (3, 0)
    """
    cut, whole = 0, False
    for number, line in enumerate(map(_event_data, text.splitlines()), 1):
        try:
            whole = isinstance(json.loads(line), dict | list) or whole
        except (ValueError, RecursionError):
            if not line:
                continue
            if not is_json(line):
                return 0
            cut = cut or number
    return cut if whole else 0


def _joined(text: str) -> list[Any]:
    """Return the objects and lists of files of JSON that were joined."""
    decoder, values = json.JSONDecoder(), list[Any]()
    at = len(text) - len(text.lstrip())
    while at < len(text):
        if text[at] not in "{[":
            raise ValueError(f"neither an object nor a list begins at character {at}")
        value, at = decoder.raw_decode(text, at)
        values.append(value)
        while text[at : at + 1].isspace():
            at += 1
    return values


def is_json(text: str) -> bool:
    """Return True if a text begins as JSON does, damaged or not; a log may begin with [2026 or [pod.

    >>> is_json('[{"a": 1}]'), is_json("[pod/vllm-0] a 1")
    (True, False)
    """
    return _JSON.match(text) is not None


def _event_data(line: str) -> str:
    """Return the data of a line of a stream of events, empty if it has none; any other line unchanged."""
    line = line.strip()
    if line.startswith(("event:", "id:", "retry:", ":")):
        return ""
    data = line.removeprefix("data:").strip()
    return "" if data == "[DONE]" else data


def read_numbers(path: Path, saved: Callable[[Path], Any]) -> NDArray[np.float64]:
    """Read an array of one or two dimensions from `.npy`, nested lists in `.json`, `.csv`, or a `.pt` with `saved`.

    Raises:
        TraceError: another kind of file, or values that are not finite.
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
        user_files.check_file(path)
    except OSError as error:
        raise TraceError(f"cannot be read: {why(error)}") from error
    try:
        return np.array(np.lib.format.open_memmap(path, mode="r"))
    except Exception as error:  # numpy raises many exceptions on a damaged header
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
