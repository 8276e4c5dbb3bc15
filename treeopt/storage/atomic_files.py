"""Files written whole or not at all, and where the data shipped with treeopt lie."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` that becomes `path` when the block succeeds and vanishes when it fails.

    A link stays, and what it leads to is written. A device or a pipe is no file to be replaced: what the block wrote
    is then put into it.
    """
    path = Path(path)
    temporary = None
    try:
        special = is_special(path)
        goal = path if special else path.resolve()
        handle, name = tempfile.mkstemp(prefix=f".{goal.name}.", dir=None if special else goal.parent)
        os.close(handle)
        temporary = Path(name)
        yield temporary
        if special:
            with temporary.open("rb") as file, goal.open("wb") as taker:
                shutil.copyfileobj(file, taker)
            return
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(goal)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def is_special(path: Path) -> bool:
    """Whether a device or a pipe is there, which takes what is written and keeps nothing."""
    return path.exists() and not path.is_file() and not path.is_dir()


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8, whole or not at all."""
    with whole(path) as temporary:
        temporary.write_text(text, "utf-8")


def checksum(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def why(error: OSError | UnicodeDecodeError) -> str:
    """Why a file cannot be read, without its path."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def shipped(name: str) -> Path:
    """The path of a data file shipped with treeopt: inside an installed package, else the checkout's `data/`."""
    package = Path(__file__).parent.parent
    installed = package / "data" / name
    return installed if installed.exists() else package.parent / "data" / name
