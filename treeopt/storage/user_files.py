"""Files: those that users name, read with a limit; writing whole or not at all; checksums; files shipped with treeopt.

Only regular files are read, and none that is larger than a limit. A pipe without a writer would be waited for, and a
device may never end. Every reader of a user's file opens it here. fsspec reads and writes objects at addresses such as
s3://bucket/trace.npz, each whole or not at all.
"""

import errno
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from io import BufferedReader
from pathlib import Path
from typing import IO, Any

from treeopt.errors import visible

ADDRESS = re.compile(r"([a-z][a-z0-9+.-]+):/+(.+)")


def address_of(path: Path | str) -> str | None:
    """Return the address that a path is, None for one of this machine; pathlib makes one slash of two.

    >>> address_of(Path("s3://bucket/trace.npz")), address_of("traces/trace.npz")
    ('s3://bucket/trace.npz', None)
    """
    found = ADDRESS.fullmatch(str(path))
    if found is None or Path(f"{found[1]}:").exists():
        return None
    return f"{found[1]}://{'/' if found[1] == 'file' else ''}{found[2]}"


def copy_object(path: Path | str, file: IO[bytes] | None, mode: str = "rb") -> bool:
    """Copy an object into a file, or with `wb` a file into an object; without a file, return whether it is there.

    Raises:
        OSError: no such object, no fsspec or none for this kind of address, or what the service answers.
    """
    try:
        import fsspec

        system, name = fsspec.core.url_to_fs(address_of(path))
        if file is None:
            return bool(system.exists(name))
        if mode == "rb":
            with system.open(name) as remote:
                shutil.copyfileobj(remote, file)
        else:
            with system.transaction, system.open(name, mode) as remote:
                shutil.copyfileobj(file, remote)
    except ImportError as error:
        reason = f"{str(error).rstrip('.')}: this needs fsspec (pip install 'treeopt[urls]') and its package for it"
        raise OSError(errno.ENOPKG, reason, visible(str(path))) from error
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), visible(str(path))) from error
    except Exception as error:  # each service has errors of its own
        words = re.sub(r"\?\S+", "", " ".join(str(error).split()))  # a signed address ends in its signature
        raise OSError(errno.EIO, f"{type(error).__name__}: {words:.200}", visible(str(path))) from error
    return True


LIMIT = 2**28  # most bytes of a document that is held in memory
CHUNK = 2**20  # bytes that are read at once where a file does not know its size
LINE_LIMIT = 2**26  # most bytes of a line
UTF16 = (b"\xff\xfe", b"\xfe\xff")  # byte order marks; PowerShell's `>` writes the first
# How a file begins that holds another one, or no text.
PACKED = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PK\x03\x04": "zip",
    b"PAR1": "parquet",
    b"%PDF": "PDF",
}
LFS = b"version https://git-lfs.github.com/spec/"


def found(path: Path | str) -> Path:
    """Return a path; where nothing is there, what treeopt ships by that name, such as data/traces/medusa-t0.npz."""
    path = Path(path)
    if path.parts[:1] not in (("data",), ("docs",)) or path.exists():
        return path
    package = Path(__file__).parent.parent
    places = (package.joinpath("data", *path.parts[1:]), package.parent / path)
    return next((place for place in places if place.exists()), path)


def open_regular(path: Path | str) -> BufferedReader:
    """Open a regular file to read its bytes, or a copy of an object; what treeopt ships by its name alone, see `found`.

    Raises:
        OSError: there is no such file, it is not regular, or it cannot be read; names the path.
    """
    path = str(path)
    if "\0" in path:
        raise OSError(errno.EINVAL, "a file's name has no zero byte", path)
    if address_of(path) is not None:
        with tempfile.TemporaryFile() as copy:
            copy_object(path, copy)
            copy.seek(0)
            return os.fdopen(os.dup(copy.fileno()), "rb")
    # Without O_NONBLOCK the opening of a pipe waits for its writer.
    handle = os.open(found(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    kind = os.fstat(handle).st_mode
    if stat.S_ISREG(kind):
        return os.fdopen(handle, "rb")
    os.close(handle)
    if stat.S_ISDIR(kind):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, "not a regular file but a pipe or a device: copy its content to a file first", path)


def real_path(path: Path | str) -> Path:
    """Return the absolute path to which links lead.

    Raises:
        OSError: a link leads to itself.
    """
    real = Path(os.path.realpath(path))
    if real.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    return real


def read_bytes(path: Path | str, *, limit: int = LIMIT) -> bytes:
    """Return the bytes of a regular file.

    Raises:
        OSError: see `open_regular`; or the file is larger than the limit.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        parts = [file.read(size + 1)] if size <= limit else []
        while parts and parts[-1] and sum(map(len, parts)) <= limit:  # files of /proc have size 0
            parts.append(file.read(CHUNK))
        if None in parts:
            raise OSError(errno.EAGAIN, "waits for what is written later, and is no file that ends", str(path))
        if not parts or parts[-1]:
            raise OSError(errno.EFBIG, f"larger than {limit} bytes, the most that is read here", str(path))
        return b"".join(parts)


def read_text(path: Path | str, *, limit: int = LIMIT, errors: str = "strict") -> str:
    """Return the text of a regular file, without a byte order mark; every line ends with a line feed.

    The text is in UTF-8, or in UTF-16 with a byte order mark. `errors` is as of `bytes.decode`.

    Raises:
        OSError: see `read_bytes`; or the file is packed, no text, or a pointer of Git LFS.
        UnicodeDecodeError: the text is not UTF-8.
    """
    data = read_bytes(path, limit=limit)
    check_text(data, path)
    text = data.decode("utf-16" if data.startswith(UTF16) else "utf-8-sig", errors)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def check_text(data: bytes, path: Path | str) -> None:
    """Check that a file does not begin as one that is packed, or as a pointer of Git LFS.

    Raises:
        OSError: it does; says what to do.
    """
    kind = next((kind for mark, kind in PACKED.items() if data.startswith(mark)), None)
    if kind == "zip" and str(path).endswith(".npz"):
        raise OSError(errno.EINVAL, "arrays of NumPy (.npz), such as a trace, and no text", str(path))
    if kind is not None:
        raise OSError(errno.EINVAL, f"a {kind} file, no text: unpack or convert it first", str(path))
    check_pointer(data, path)


def check_pointer(data: bytes, path: Path | str) -> None:
    """Check that a file does not begin as a pointer of Git LFS does, which stands where the file was not fetched.

    Raises:
        OSError: it does; says what to do.
    """
    if data.startswith(LFS):
        raise OSError(errno.EINVAL, "a pointer of Git LFS, not the file: fetch it with `git lfs pull`", str(path))


def read_text_lines(path: Path | str, *, limit: int = LINE_LIMIT, errors: str = "strict") -> Iterator[tuple[int, str]]:
    """Yield the number of each line that is not blank, from 1, and its text, without holding the whole file.

    Only a line feed ends a line, since other ends may stand inside a text. `errors` is as of `bytes.decode`.

    Raises:
        OSError: see `open_regular` and `check_text`; or a line is longer than the limit.
        UnicodeDecodeError: a line is not UTF-8; names its number.
    """
    with open_regular(path) as file:
        number = 0
        while line := file.readline(limit + 1):
            number += 1
            if number == 1:
                check_text(line, path)
                if line.startswith(UTF16):
                    raise OSError(errno.EINVAL, "a text in UTF-16: write it in UTF-8", str(path))
            if len(line) > limit:
                raise OSError(errno.EFBIG, f"line {number} is longer than {limit} bytes", str(path))
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8", errors)
            except UnicodeDecodeError as error:
                error.reason += f" (line {number})"
                raise
            if text.strip():
                yield number, text


def check_file(path: Path | str) -> None:
    """Check that a path is a regular file that can be read, before a library opens it.

    Raises:
        OSError: see `open_regular`.
    """
    open_regular(path).close()


def check_regular(folder: Path | str) -> None:
    """Check that all files right inside a folder are regular, before a library opens them.

    Raises:
        OSError: names the first that is a pipe or a device.
    """
    for path in sorted(Path(folder).iterdir()):
        if path.exists() and not path.is_file() and not path.is_dir():
            check_file(path)


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
