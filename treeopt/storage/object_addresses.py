"""Addresses of objects, such as s3://bucket/trace.npz: fsspec reads and writes them, each whole or not at all."""

import errno
import os
import re
import shutil
from pathlib import Path
from typing import IO

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
