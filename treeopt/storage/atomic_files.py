"""Atomic file writing (whole or not at all), checksums, and the paths of data files shipped with treeopt."""

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from treeopt.errors import visible
from treeopt.storage.object_addresses import address_of, copy_object
from treeopt.storage.user_files import open_regular, real_path

LARGEST = 2**34  # most bytes of a file


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path` that becomes `path` when the block succeeds and vanishes when it fails.

    A link stays, and its target is written. A device or a pipe is not replaced: the written bytes are copied into it.
    An object takes them whole or not at all.
    """
    path = Path(path)
    temporary = None
    try:
        remote = address_of(path) is not None
        special = remote or is_special(path)
        goal = path if special else real_path(path)
        handle, name = tempfile.mkstemp(prefix=f".{goal.name}.", dir=None if special else goal.parent)
        os.close(handle)
        temporary = Path(name)
        yield temporary
        if remote:
            with temporary.open("rb") as file:
                copy_object(path, file, "wb")
            return
        if special:
            with temporary.open("rb") as file, goal.open("wb") as device:
                shutil.copyfileobj(file, device)
            return
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(goal)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), visible(str(path))) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def is_special(path: Path) -> bool:
    """Return True if the path is a device or a pipe, which takes written bytes and stores nothing."""
    return path.exists() and not path.is_file() and not path.is_dir()


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8, whole or not at all."""
    with whole(path) as temporary:
        temporary.write_text(text, "utf-8")


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hex.

    Raises:
        OSError: see `open_regular`; or the file is larger than the limit.
    """
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > LARGEST:
            raise OSError(errno.EFBIG, f"larger than {LARGEST} bytes, the most that is read here", str(path))
        return hashlib.file_digest(file, "sha256").hexdigest()


def why(error: OSError | UnicodeDecodeError) -> str:
    """Return the reason why a file cannot be read, without its path."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def shipped(name: str) -> Path:
    """Return the path of a data file shipped with treeopt: in the installed package, else in the checkout's `data/`."""
    package = Path(__file__).parent.parent
    installed = package / "data" / name
    return installed if installed.exists() else package.parent / "data" / name


@cache
def shipped_json(name: str) -> Any:
    """Return the content of a JSON file shipped with treeopt."""
    return json.loads(shipped(name).read_text("utf-8"))
