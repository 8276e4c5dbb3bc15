"""A folder of shards, the parts of a trace that an interrupted trace collection resumes from.

A shard is a trace of its own. The manifest records the settings of the collection and the checksum of each shard. It is
written after the shard, so the folder agrees with the manifest however the writer ended.
"""

import hashlib
import json
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from treeopt.errors import TraceError, UsageError, counted
from treeopt.storage.json_records import RecordError, parse
from treeopt.storage.provenance import look
from treeopt.storage.typed_records import Integer, Record, read_field, read_record
from treeopt.storage.user_files import checksum, read_text, why, write_text
from treeopt.storage.work_file import check_same_settings
from treeopt.traces.merge_split import concatenate_traces
from treeopt.traces.trace import BY_ANCHOR, FORMAT, OPTIONAL, RANKS, REQUIRED, Trace, first_of
from treeopt.traces.trace_files import load_trace, save_trace

SCHEMA = "treeopt.shards/1"
MANIFEST = "manifest.json"
SHARD = "shard-{:05}.npz"
SHARD_FILES = "shard-*.npz"
MANY = 20_000  # requests from which on a search reads a folder shard by shard
CODE = ("treeopt", "commit", "software")  # must not change, or the resumed part would differ from an uninterrupted one


class _Part(Record, frozen=True):
    """A shard in the manifest."""

    sha256: str


class _Manifest(Record, frozen=True):
    """The manifest."""

    meta: dict[str, Any]
    settings: dict[str, Any]
    requests: Integer
    shards: tuple[_Part, ...]


class _Note(Record, frozen=True):
    """The keys of `note` in a shard's `meta`."""

    texts: list[Any]
    grams: Integer
    repeats: Integer


class Head(NamedTuple):
    """Facts that all shards of a trace share: its `meta`, other settings, its requests, and those per shard."""

    meta: Mapping[str, Any]
    settings: Mapping[str, Any]
    requests: int
    size: int = 0

    @property
    def same(self) -> dict[str, Any]:
        """Everything that must be equal for two shards to belong together."""
        code = {key: look(self.meta, "provenance", key) for key in CODE}
        return {**self.meta, **code, **self.settings, "provenance": None, "requests": self.requests}


# Makes the shards that begin at these requests, in order, as the run with this `meta` did; None: any run.
Parts = Callable[[range, Mapping[str, Any] | None], Iterator[Trace]]


class Shards:
    """A folder of shards.

    Attributes:
        folder: the folder.
        meta: `meta` of the whole trace, without the keys that summarise its texts.
        settings: everything else that the shards depend on.
        requests: requests of the whole trace.
        checksums: of the files of the shards written so far, in order.
        done: requests in the shards that were read or written.
    """

    def __init__(self, folder: Path, meta: Mapping[str, Any], settings: Mapping[str, Any], requests: int) -> None:
        """Describe a folder without shards; nothing is read or written."""
        self.folder, self.meta, self.settings, self.requests = folder, dict(meta), dict(settings), requests
        self.checksums: list[str] = []
        self.done = 0

    @classmethod
    def listed(cls, folder: Path) -> "Shards":
        """Read the manifest of a folder, and no shard.

        Raises:
            TraceError: no such folder, or a manifest that breaks its format.
        """
        path = folder / MANIFEST
        try:
            manifest = read_record(parse(read_text(path), SCHEMA), _Manifest)
        except (OSError, UnicodeDecodeError) as error:
            raise TraceError(f"{path}: {why(error)}") from error
        except RecordError as error:
            raise TraceError(f"{path}: {error}") from error
        shards = cls(folder, manifest.meta, manifest.settings, manifest.requests)
        shards.checksums = [part.sha256 for part in manifest.shards]
        return shards

    def load(self, number: int, arrays: Collection[str] = FORMAT) -> Trace:
        """Read a shard; see `load_trace`.

        Raises:
            TraceError: no such file, one of another checksum, or one that breaks the format.
        """
        path, recorded = self.shard(number), self.checksums[number]
        if not path.is_file() or checksum(path) != recorded:
            raise TraceError(f"{path}: is not the file of checksum {recorded} that {MANIFEST} names")
        return load_trace(path, arrays=arrays)

    def read(self, arrays: Collection[str] = FORMAT) -> Iterator[Trace]:
        """Read the shards one by one.

        Raises:
            TraceError: see `load`; or they hold more requests than the manifest records.
        """
        self.done = 0
        for number in range(len(self.checksums)):
            trace = self.load(number, arrays)
            self.done += trace.requests
            yield trace
        if self.done > self.requests:
            raise TraceError(
                f"{self.folder / MANIFEST}: the manifest records {counted(self.requests, 'request')}, the shards hold "
                f"{self.done}"
            )

    @classmethod
    def begin(cls, folder: Path, meta: Mapping[str, Any], settings: Mapping[str, Any], requests: int) -> "Shards":
        """Begin a new folder, or resume an existing one, whose own `meta` then counts.

        Raises:
            UsageError: the folder holds other files, or was begun with other settings.
            TraceError: see `read`.
        """
        requested = cls(folder, json.loads(json.dumps(meta)), json.loads(json.dumps(settings)), requests)
        if not (folder / MANIFEST).exists():
            try:
                folder.mkdir(exist_ok=True)
                other_files = any(not path.name.startswith(f".{MANIFEST}") for path in folder.iterdir())
            except OSError as error:
                raise UsageError(f"{folder} cannot be a folder of shards: {why(error)}") from error
            if other_files:
                raise UsageError(f"{folder} holds files but no {MANIFEST}: name a new folder")
            requested._write()
            return requested
        resumed = cls.listed(folder)
        check_same_settings(folder, resumed._identity(), requested._identity())
        for _ in resumed.read(REQUIRED):
            pass
        return resumed

    def _identity(self) -> dict[str, Any]:
        return Head(self.meta, self.settings, self.requests).same

    def shard(self, number: int) -> Path:
        """Return the file of a shard."""
        return self.folder / SHARD.format(number)

    def add(self, trace: Trace) -> None:
        """Write the next shard, then the manifest that names it."""
        path = self.shard(len(self.checksums))
        save_trace(trace, path)
        self.checksums.append(checksum(path))
        self.done += trace.requests
        self._write()

    def _write(self) -> None:
        shards = [{"sha256": sha256} for sha256 in self.checksums]
        record = {"schema": SCHEMA, "requests": self.requests, "settings": self.settings, "meta": self.meta}
        write_text(self.folder / MANIFEST, json.dumps(record | {"shards": shards}, indent=1) + "\n")

    def whole(self, arrays: Collection[str] = FORMAT) -> Trace:
        """Return the trace that the shards make up; `arrays` as in `load_trace`.

        Ranks of 10 M anchors of 8 levels take 240 MB; a little more than twice that while they are put together.

        Raises:
            TraceError: see `read`; or shards are missing, or do not fit together.
        """
        traces = list(self.read(arrays))
        self.check_done()
        return self.joined(traces)

    def joined(self, traces: Sequence[Trace]) -> Trace:
        """Return the trace that all shards make up.

        Raises:
            TraceError: they do not fit together.
        """
        try:
            return concatenate_traces(traces, whole_meta(self.meta, [trace.meta for trace in traces]))
        except (TraceError, RecordError) as error:
            raise TraceError(f"{self.folder}: {error}") from error

    def check_done(self) -> None:
        """Raise TraceError if the shards that were read hold too few requests."""
        if self.done < self.requests:
            raise TraceError(
                f"{self.folder} holds {self.done} of {counted(self.requests, 'request')}: resume it with the command "
                "that began it"
            )


class ShardedTrace(Trace):
    """The trace of a folder of shards that is too large to be put together: `split` reads it shard by shard.

    Before that only `meta`, `width`, `depth` and `requests` are known, afterwards also what requests have.
    """

    def __init__(self, shards: Shards) -> None:
        """Read the first shard."""
        first = shards.load(0, RANKS)
        known = {"meta": shards.meta, "width": first.width, "_depth": first.depth, "_shards": shards}
        self.__dict__ |= dict.fromkeys(("prompt_tokens", "domain", "candidates", *BY_ANCHOR)) | known

    @property
    def depth(self) -> int:
        """See `Trace`."""
        return int(self.__dict__["_depth"])

    @property
    def requests(self) -> int:
        """See `Trace`."""
        return int(self.__dict__["_shards"].requests)

    @property
    def anchors(self) -> int:
        """See `Trace`."""
        return int(self.lengths.sum())

    def split(self, *, share: float, rng: np.random.Generator) -> tuple[Trace, Trace]:
        """See `Trace.split`; equal to it.

        Raises:
            TraceError: see `Shards.whole`.
        """
        shards: Shards = self.__dict__["_shards"]
        chosen = np.zeros(self.requests, dtype=bool)
        chosen[first_of(self.requests, share=share, rng=rng)] = True
        sides: tuple[list[Trace], list[Trace]] = ([], [])
        lengths, prompts, notes = [], [], []
        for shard in shards.read(RANKS):
            own = chosen[shards.done - shard.requests : shards.done]
            for taken, side in zip((own, ~own), sides, strict=True):
                if taken.any():
                    side.append(shard.select(np.flatnonzero(taken)))
            lengths.append(shard.lengths)
            prompts.append(shard.prompt_tokens)
            notes.append(shard.meta)
        shards.check_done()
        known = [tokens for tokens in prompts if tokens is not None]
        try:
            meta = whole_meta(shards.meta, notes)
            first, second = (_emptied(side, meta) for side in sides)
        except (TraceError, RecordError) as error:
            raise TraceError(f"{shards.folder}: {error}") from error
        self.__dict__ |= {"meta": meta, "lengths": np.concatenate(lengths)}
        self.__dict__ |= {"prompt_tokens": np.concatenate(known) if len(known) == len(prompts) else None}
        return first, second


def _emptied(parts: list[Trace], meta: Mapping[str, Any]) -> Trace:
    """Return parts of a trace put together; the list is empty then."""
    trace = concatenate_traces(parts, meta)
    parts.clear()
    return trace


def gather(
    head: Head,
    parts: Parts,
    *,
    folder: Path | None,
    progress: Callable[[int], None] = lambda requests: None,
    writes: bool = True,
    merged: bool = True,
) -> Trace:
    """Return the trace of all shards; those that `folder` holds are not made again, see `Shards.begin`.

    Args:
        head: of the trace.
        parts: makes shards.
        folder: where they are stored; None: nowhere.
        progress: called with twice the requests that the folder holds.
        writes: False where another process of this run writes the folder.
        merged: False returns a trace that reads the folder when it is split.
    """
    shards = Shards(Path(), *head[:3]) if folder is None else Shards.begin(folder, *head[:3])
    writes = writes and folder is not None
    kept = [] if writes else list(shards.read())
    progress(2 * shards.done)
    starts = range(shards.done, shards.requests, head.size)
    for trace in parts(starts, None if folder is None else shards.meta):
        (shards.add if writes else kept.append)(trace)
    if not writes:
        return shards.joined(kept)
    return shards.whole() if merged else ShardedTrace(shards)


@contextmanager
def parts_in(folder: Path | None) -> Iterator[None]:
    """Remove a folder of shards again if no shard was written in this context, which an error ended."""
    try:
        yield
    except BaseException:
        if folder is not None and not (folder / SHARD.format(0)).exists():
            (folder / MANIFEST).unlink(missing_ok=True)
            with suppress(OSError):  # it was not made, or holds other files
                folder.rmdir()
        raise


def remove_parts(folder: Path) -> None:
    """Remove a folder of shards: its manifest, its shards, and itself if nothing else is in it."""
    for path in (folder / MANIFEST, *folder.glob(SHARD_FILES)):
        path.unlink(missing_ok=True)
    with suppress(OSError):  # not there, or it holds other files
        folder.rmdir()


def ranks_of(folder: Path) -> Trace:
    """Return the trace of a folder of shards, without probabilities and candidates; see `Shards.whole`."""
    return Shards.listed(folder).whole(RANKS)


def optional_in(folder: Path) -> list[str]:
    """Return the names of the optional arrays that the first shard of a folder holds.

    Raises:
        TraceError: no shard, or a shard that is not an .npz file.
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
    """Return the keys of a shard's `meta` about its texts: the hash of each, their 4-grams, and the repeated ones."""
    return {"texts": list(texts), "grams": grams, "repeats": repeats}


def whole_meta(meta: Mapping[str, Any], shards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the `meta` of a whole trace, with the keys of `note` summed over the `meta` of its shards.

    Raises:
        RecordError: a shard's `meta` lacks a key of `note`.
    """
    notes = [read_record(dict(shard), _Note, f"`meta` of shard {i}") for i, shard in enumerate(shards)]
    texts = [text for part in notes for text in part.texts]
    grams, repeats = sum(part.grams for part in notes), sum(part.repeats for part in notes)
    written = {"written": round(repeats / grams, 4) if grams else 0.0}
    return {
        **meta,
        "text_sha256": hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16],
        "repeated_4grams": written | read_field(dict(meta), "repeated_4grams", dict[str, Any], "`meta`"),
    }


def load_file_or_shards(path: Path | str, *, ranks_only: bool = False, to_split: bool = False) -> Trace:
    """Return the trace of a .npz file, or the whole trace of a folder of shards.

    Args:
        path: file or folder.
        ranks_only: leave the probabilities and candidates of a folder unread.
        to_split: with `ranks_only`, return a `ShardedTrace` where the folder holds many requests.

    Raises:
        TraceError: see `load_trace` and `Shards.whole`.
    """
    path = Path(path)
    if not path.is_dir():
        return load_trace(path)
    if ranks_only and to_split:
        shards = Shards.listed(path)
        if shards.requests >= MANY and not {"kept", "tree_kept", "drafted", "confidence"} & {*optional_in(path)}:
            return ShardedTrace(shards)
    return Shards.listed(path).whole(RANKS if ranks_only else FORMAT)
