"""Files that users name: only regular files are read, and none that is larger than a limit.

A pipe without a writer would be waited for, and a device may never end. Every reader of a user's file opens it here.
"""

import errno
import os
import stat
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

LIMIT = 2**28  # most bytes of a document that is held in memory
CHUNK = 2**20  # bytes that are read at once where a file does not know its size
LINE_LIMIT = 2**26  # most bytes of a line


def open_regular(path: Path | str) -> BufferedReader:
    """Open a regular file to read its bytes.

    Raises:
        OSError: there is no such file, it is not regular, or it cannot be read; names the path.
    """
    path = str(path)
    if "\0" in path:
        raise OSError(errno.EINVAL, "a file's name has no zero byte", path)
    # Without O_NONBLOCK the opening of a pipe waits for its writer.
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    kind = os.fstat(handle).st_mode
    if stat.S_ISREG(kind):
        return os.fdopen(handle, "rb")
    os.close(handle)
    if stat.S_ISDIR(kind):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, "not a regular file but a pipe or a device: copy its content to a file first", path)


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
        if not parts or parts[-1]:
            raise OSError(errno.EFBIG, f"larger than {limit} bytes, the most that is read here", str(path))
        return b"".join(parts)


def read_text(path: Path | str, *, limit: int = LIMIT) -> str:
    """Return the text of a regular file in UTF-8, without a byte order mark; every line ends with a line feed.

    Raises:
        OSError: see `read_bytes`.
        UnicodeDecodeError: the text is not UTF-8.
    """
    return read_bytes(path, limit=limit).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")


def read_text_lines(path: Path | str, *, limit: int = LINE_LIMIT) -> Iterator[tuple[int, str]]:
    """Yield the number of each line that is not blank, from 1, and its text, without holding the whole file.

    Only a line feed ends a line, since other ends may stand inside a text.

    Raises:
        OSError: see `open_regular`; or a line is longer than the limit.
        UnicodeDecodeError: a line is not UTF-8.
    """
    with open_regular(path) as file:
        number = 0
        while line := file.readline(limit + 1):
            number += 1
            if len(line) > limit:
                raise OSError(errno.EFBIG, f"line {number} is longer than {limit} bytes", str(path))
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
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
