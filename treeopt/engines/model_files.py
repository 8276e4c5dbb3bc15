"""The files of a model that an engine loads itself: their name and a hash, for provenance."""

import hashlib
from pathlib import Path
from typing import Any

ENDS = 2**20  # bytes that are hashed at either end of a file: whole weights take minutes to read


def model_record(model: Path | str) -> dict[str, Any]:
    """Return the name of a model and, if it is a file or folder here, the hash of its files.

    No path is recorded, since a record may be given to others.

    >>> model_record("meta-llama/Llama-3.1-8B")
    {'name': 'meta-llama/Llama-3.1-8B'}
    """
    path = Path(model)
    if not path.exists():
        return {"name": str(model)}
    return {"name": model_name(model), "files": files_hash(path)}


def model_name(model: Path | str) -> str:
    """Return what a model is called: the name of its folder, of the folder of its `model.gguf`, or as it is given."""
    path = Path(model)
    if not path.exists():
        return str(model)
    path = path.resolve()
    return f"{path.parent.name}/{path.name}" if path.is_file() else path.name


def files_hash(path: Path) -> str:
    """Return the SHA-256, in hex, of the names, sizes and ends of a model's files.

    Args:
        path: a file, or a folder; hidden files and folders in it are left out.

    Raises:
        OSError: a file cannot be read.
    """
    whole = path.is_dir()
    files = [file for file in sorted(path.iterdir()) if file.is_file() and file.name[0] != "."] if whole else [path]
    hashed = hashlib.sha256()
    for file in files:
        size = file.stat().st_size
        hashed.update(f"{file.name if whole else ''}\0{size}\0".encode())
        with file.open("rb") as opened:
            hashed.update(opened.read(ENDS))
            opened.seek(max(0, size - ENDS))
            hashed.update(opened.read(ENDS))
    return hashed.hexdigest()
