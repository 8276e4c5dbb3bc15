"""Why the page cannot show a file: what the file is instead of a result, in words. Reads no result."""

import json
import re
from pathlib import Path
from typing import Any

from treeopt.results.kinds import RESULTS
from treeopt.traces.resumable_shards import MANIFEST

TABLE = "a table of results ({}): give the .json that the same command wrote with --output"
# First bytes of a file -> what it is.
BEGINNINGS = {
    b"PAR1": TABLE.format("Parquet"),
    b"PK\x03\x04": "an archive that is not complete, such as a trace that was cut: copy or record it again",
    b"\x89PNG": "a picture, not a result",
    b"%PDF": "a PDF, not a result",
    b"GGUF": "a model's weights, not a result",
    b"<!doctype html": "an HTML page: give the files that it was made from",
    b"<html": "an HTML page: give the files that it was made from",
}
COLUMNS = re.compile(r"[\w ./%-]+(,[\w ./%-]+)+")  # first line of a CSV


def not_json(data: bytes, error: Exception) -> str:
    r"""Return what a file is that is neither a trace nor JSON.

    Args:
        data: its bytes.
        error: what `json.loads` said.

    >>> not_json(b"", ValueError()), not_json(b"\xef\xbb\xbf", ValueError())
    ('empty', 'empty')
    >>> not_json(b"batch,name,speedup\n1,chain,1.3\n", ValueError())
    'a table of results (CSV): give the .json that the same command wrote with --output'
    """
    for beginning, kind in BEGINNINGS.items():
        if data[:20].lower().startswith(beginning.lower()):
            return kind
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return "binary data, neither a trace (.npz) nor JSON"
    if not text.strip():  # nothing, spaces, or a byte order mark alone
        return "empty"
    first = text.lstrip().splitlines()[0]
    if COLUMNS.fullmatch(first):
        return TABLE.format("CSV")
    if first[0] not in "{[":
        return "text, neither a trace (.npz) nor JSON"
    if _is_json(first):
        return "JSON lines, such as prompts, not a result"
    if isinstance(error, json.JSONDecodeError):
        return f"damaged JSON, at line {error.lineno}, column {error.colno}: write the file again"
    return "JSON that is nested too deeply for a result"


def not_a_result(record: Any) -> str:
    """Return what JSON is that is no result.

    Args:
        record: what `json.loads` returned.

    >>> not_a_result({"schema": "treeopt.validation/1"})
    'written by another version of treeopt (treeopt.validation/1): run `treeopt validate` again'
    """
    schema = record.get("schema") if isinstance(record, dict) else None
    if not isinstance(schema, str):
        return "JSON, but no result of treeopt: it names no schema"
    for kind in RESULTS.values():
        if schema.rpartition("/")[0] in {known.rpartition("/")[0] for known in kind.schemas}:
            return f"written by another version of treeopt ({schema:.40}): run `treeopt {kind.command}` again"
    return f"a file of another kind ({schema:.60}), which a page does not show"


def no_trace(folder: Path) -> str:
    """Return what a folder is that holds no parts of a trace."""
    if (folder / "config.json").is_file():
        return "a model's folder, not a trace's"
    if any(path.suffix in (".json", ".npz") for path in folder.iterdir()):
        return "a folder of several files, not of a trace's parts: name the files"
    return f"a folder without parts of a trace: it has no {MANIFEST}"


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True
