"""A folder of shards: the parts of a trace that a collection grows by and can go on from.

A shard is a trace of its own. The manifest says what was asked for and holds each shard's checksum; it is written
after the shard, so a folder holds what the manifest says, whatever ended the writer.
"""

import hashlib
import json
import zipfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from treeopt.errors import TraceError, UsageError
from treeopt.storage.atomic_files import checksum, why, write_text
from treeopt.storage.json_records import RecordError, get, parse
from treeopt.storage.provenance import look
from treeopt.traces.merge_split import joined
from treeopt.traces.npz_format import FORMAT
from treeopt.traces.trace import OPTIONAL, RANKS, Trace, load_trace, save_trace

SCHEMA = "treeopt.shards/1"
MANIFEST = "manifest.json"
SHARD = "shard-{:05}.npz"
CODE = ("treeopt", "commit", "software")  # must be the same for the rest of a collection to be what it would have been


class Shards:
    """A folder of shards.

    Attributes:
        folder: where they are.
        meta: of the whole trace, but for what its texts add.
        settings: whatever else the shards depend on.
        requests: of the whole trace.
        traces: those that are there, in order.
    """

    def __init__(self, folder: Path, meta: Mapping[str, Any], settings: Mapping[str, Any], requests: int) -> None:
        """Without shards."""
        self.folder, self.meta, self.settings, self.requests = folder, dict(meta), dict(settings), requests
        self.traces: list[Trace] = []
        self._sums: list[str] = []

    @classmethod
    def read(cls, folder: Path, *, arrays: Collection[str] = FORMAT) -> "Shards":
        """What a folder holds, one shard after the other.

        Args:
            folder: where the shards are.
            arrays: names of the arrays to read (see `load_trace`).

        Raises:
            TraceError: no such folder, a manifest or shard that is not what it must be, or of another checksum.
        """
        path = folder / MANIFEST
        try:
            record = parse(path.read_text("utf-8"), SCHEMA)
            meta, settings = (get(record, key, dict, "manifest") for key in ("meta", "settings"))
            found = cls(folder, meta, settings, get(record, "requests", int, "manifest"))
            entries = get(record, "shards", list, "manifest")
            sums = [get(entry, "sha256", str, f"shards[{i}]") for i, entry in enumerate(entries)]
        except (OSError, UnicodeDecodeError) as error:
            raise TraceError(f"{path}: {why(error)}") from error
        except RecordError as error:
            raise TraceError(f"{path}: {error}") from error
        for number, due in enumerate(sums):
            shard = found.shard(number)
            if not shard.is_file() or checksum(shard) != due:
                raise TraceError(f"{shard}: is not the file of checksum {due} that {MANIFEST} names")
            found.traces.append(load_trace(shard, arrays=arrays))
            found._sums.append(due)
        if found.done > found.requests:
            raise TraceError(f"{path}: {found.requests} requests are told of, the shards hold {found.done}")
        return found

    @classmethod
    def begin(cls, folder: Path, meta: Mapping[str, Any], settings: Mapping[str, Any], requests: int) -> "Shards":
        """A new folder, or one to go on with, whose own `meta` then counts.

        Raises:
            UsageError: the folder holds other files, or was begun with other settings.
            TraceError: see `read`.
        """
        mine = cls(folder, json.loads(json.dumps(meta)), json.loads(json.dumps(settings)), requests)
        if not (folder / MANIFEST).exists():
            try:
                folder.mkdir(exist_ok=True)
                strangers = any(not path.name.startswith(f".{MANIFEST}") for path in folder.iterdir())
            except OSError as error:
                raise UsageError(f"{folder} cannot be a folder of shards: {why(error)}") from error
            if strangers:
                raise UsageError(f"{folder} holds files but no {MANIFEST}: name a new folder")
            mine._write()
            return mine
        found = cls.read(folder)
        was, now = found._identity(), mine._identity()
        for key in sorted(was.keys() | now.keys()):
            if was.get(key) != now.get(key):
                values = [json.dumps(each.get(key)) for each in (was, now)]
                raise UsageError(f"{folder} was begun with {key} {values[0]}, not {values[1]}")
        return found

    def _identity(self) -> dict[str, Any]:
        code = {key: look(self.meta, "provenance", key) for key in CODE}
        own = {key: value for key, value in self.meta.items() if key != "provenance"}
        return own | code | self.settings | {"requests": self.requests}

    def shard(self, number: int) -> Path:
        """The file of a shard."""
        return self.folder / SHARD.format(number)

    @property
    def done(self) -> int:
        """Requests that are there."""
        return sum(trace.requests for trace in self.traces)

    def add(self, trace: Trace) -> None:
        """Write the next shard, then the manifest that names it."""
        path = self.shard(len(self.traces))
        save_trace(trace, path)
        self._sums.append(checksum(path))
        self.traces.append(trace)
        self._write()

    def _write(self) -> None:
        shards = [{"sha256": each} for each in self._sums]
        record = {"schema": SCHEMA, "requests": self.requests, "settings": self.settings, "meta": self.meta}
        write_text(self.folder / MANIFEST, json.dumps(record | {"shards": shards}, indent=1) + "\n")

    def whole(self) -> Trace:
        """The trace that the shards make up.

        Raises:
            TraceError: shards are missing, or do not fit.
        """
        if self.done < self.requests:
            raise TraceError(
                f"{self.folder} holds {self.done} of {self.requests} requests: go on with the command that began it"
            )
        try:
            return joined(self.traces, told(self.meta, self.traces))
        except (TraceError, RecordError) as error:
            raise TraceError(f"{self.folder}: {error}") from error


def ranks_of(folder: Path) -> Trace:
    """The trace that the shards of a folder make up, without probabilities and candidates, which are not read.

    Of 10 M anchors and 8 levels these are 240 MB; while they are put together, twice that and a little more.

    Raises:
        TraceError: see `Shards.read` and `Shards.whole`.
    """
    return Shards.read(folder, arrays=RANKS).whole()


def optional_in(folder: Path) -> list[str]:
    """Names of the optional arrays that the first shard of a folder holds.

    Raises:
        TraceError: no shard, or one that is no .npz file.
    """
    path = folder / SHARD.format(0)
    try:
        with zipfile.ZipFile(path) as archive:
            names = {name.removesuffix(".npy") for name in archive.namelist()}
    except (OSError, zipfile.BadZipFile) as error:
        raise TraceError(f"{path}: not a complete .npz file: {error}") from error
    names |= {"candidates"} if "candidates_offset" in names else set()
    return [name for name in OPTIONAL if name in names]


def note(texts: Sequence[str], grams: int, repeats: int) -> dict[str, Any]:
    """What a shard's `meta` says of its texts: the hash of each, their 4-grams, and how many were repeated."""
    return {"texts": list(texts), "grams": grams, "repeats": repeats}


def told(meta: Mapping[str, Any], shards: Sequence[Trace]) -> dict[str, Any]:
    """The `meta` of a whole trace, with what its shards note of their texts.

    Raises:
        RecordError: a shard's `meta` is not as `note` makes it.
    """
    texts, grams, repeats = [], 0, 0
    for number, shard in enumerate(shards):
        where = f"`meta` of shard {number}"
        texts += get(dict(shard.meta), "texts", list, where)
        grams += get(dict(shard.meta), "grams", int, where)
        repeats += get(dict(shard.meta), "repeats", int, where)
    own = {"written": round(repeats / grams, 4) if grams else 0.0}
    return {
        **meta,
        "text_sha256": hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16],
        "repeated_4grams": own | get(dict(meta), "repeated_4grams", dict, "`meta`"),
    }


def load_file_or_shards(path: Path | str, *, ranks_only: bool = False) -> Trace:
    """Return the trace of a .npz file, or the whole trace of a folder of shards.

    Args:
        path: file or folder.
        ranks_only: leave the probabilities and candidates of a folder unread.

    Raises:
        TraceError: see `load_trace`, `Shards.read` and `Shards.whole`.
    """
    path = Path(path)
    if not path.is_dir():
        return load_trace(path)
    return ranks_of(path) if ranks_only else Shards.read(path).whole()
