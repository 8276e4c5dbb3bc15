"""A folder of shards, the parts of a trace that an interrupted trace collection resumes from.

A shard is a trace of its own. The manifest records the settings of the collection and the checksum of each shard. It is
written after the shard, so the folder agrees with the manifest however the writer ended.
"""

import hashlib
import json
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from treeopt.errors import TraceError, UsageError, counted
from treeopt.storage.json_records import parse, reading
from treeopt.storage.provenance import look
from treeopt.storage.typed_records import Integer, Record, read_field, read_record
from treeopt.storage.user_files import checksum, read_text, why, write_text
from treeopt.storage.work_file import check_same_settings
from treeopt.traces.merge_split import concatenate_traces
from treeopt.traces.trace import FORMAT, MISSED, OPTIONAL, PART, PAST_END, RANKS, REQUIRED, Trace, first_of
from treeopt.traces.trace_files import load_trace, save_trace

SCHEMA = "treeopt.shards/1"
MANIFEST = "manifest.json"
SHARD = "shard-{:05}.npz"
SHARD_FILES = "shard-*.npz"
MANY = 20_000  # requests from which on a search reads a folder shard by shard
BLOCKS = 16  # least number of blocks that many shards make, so that workers on Ray have enough of them
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
        with reading(path, TraceError):
            manifest = read_record(parse(read_text(path), SCHEMA), _Manifest)
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
            TraceError: see `load`.
        """
        self.done = 0
        for number in range(len(self.checksums)):
            trace = self.load(number, arrays)
            self.done += trace.requests
            yield trace

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

    def joined(self, traces: Sequence[Trace], *, all_of_them: bool = True) -> Trace:
        """Return the trace that shards make up: all of them, or some, whose `meta` is then as a shard's.

        Raises:
            TraceError: they do not fit together.
        """
        with reading(self.folder, TraceError):
            notes = summed_notes([trace.meta for trace in traces])
            return concatenate_traces(traces, whole_meta(self.meta, notes) if all_of_them else notes)

    def check_done(self) -> None:
        """Raise TraceError if the shards that were read do not hold all requests."""
        of = counted(self.requests, "request")
        if self.done > self.requests:
            raise TraceError(f"{self.folder / MANIFEST}: the manifest records {of}, the shards hold {self.done}")
        if self.done < self.requests:
            raise TraceError(f"{self.folder} holds {self.done} of {of}: resume it with the command that began it")


class ShardedTrace(Trace):
    """The trace of a folder of shards that is never put together: blocks of shards are its parts.

    Before `split` only `meta`, `width`, `depth` and `requests` are known. Its sides also know what requests have;
    `map` and `select` alone read ranks.
    """

    def __init__(self, shards: Shards, parts: Callable[..., Iterable[Any]] | None = None) -> None:
        """Read the first shard; `parts` is a `map` of a `Blocks` of the folder that runs elsewhere."""
        first = shards.load(0, RANKS)
        count = len(shards.checksums)
        size = max(1, min(PART // first.anchors, count // BLOCKS))
        blocks = [(range(start, min(start + size, count)), None) for start in range(0, count, size)]
        known = {"meta": shards.meta, "width": first.width, "rank": first.rank[:0], "starts": range(shards.requests)}
        known |= {"_shards": shards, "_blocks": blocks, "_map": parts or partial(map, Blocks(shards))}
        self.__dict__ |= dict.fromkeys(OPTIONAL) | known

    @property
    def anchors(self) -> int:
        """See `Trace`."""
        return int(self.lengths.sum())

    @property
    def sizes(self) -> list[int]:
        """See `Trace`."""
        return [int(own.sum()) for _, own in self.__dict__["_blocks"]]

    def map(self, function: Callable[..., Any], *given: Iterable[Any]) -> list[Any]:
        """See `Trace`; the function must be one of a module."""
        return list(self.__dict__["_map"](*zip(*self.__dict__["_blocks"], strict=True), repeat(function), *given))

    def select(self, requests: NDArray[np.int64]) -> Trace:
        """See `Trace`; requests are numbered from 0."""
        chosen = np.zeros(self.requests, dtype=bool)
        chosen[requests] = True
        parts = self.map(_selected, self.cut(chosen))
        return concatenate_traces([part for part in parts if part is not None], self.meta)

    def split(self, *, share: float, rng: np.random.Generator) -> tuple[Trace, Trace]:
        """See `Trace.split`; equal to it.

        Raises:
            TraceError: see `Shards.whole`.
        """
        shards: Shards = self.__dict__["_shards"]
        chosen = np.zeros(self.requests, dtype=bool)
        chosen[first_of(self.requests, share=share, rng=rng)] = True
        parts, lengths = zip(*self.map(_by_request), strict=True)
        shards.done = sum(part.requests for part in parts)
        shards.check_done()
        whole = shards.joined(parts)
        self.__dict__ |= {"meta": whole.meta, "lengths": np.concatenate(lengths), "prompt_tokens": whole.prompt_tokens}
        ends = np.cumsum([part.requests for part in parts])[:-1]
        first, rest = object.__new__(ShardedTrace), object.__new__(ShardedTrace)
        for side, taken in ((first, chosen), (rest, ~chosen)):
            blocks = zip(self.__dict__["_blocks"], np.split(taken, ends), strict=True)
            known = {
                "lengths": self.lengths[taken],
                "_blocks": [(block, own) for (block, _), own in blocks if own.any()],
            }
            side.__dict__ |= self.__dict__ | vars(whole.select(np.flatnonzero(taken))) | known
            side.__dict__ |= {"rank": self.rank, "starts": np.arange(len(side.lengths))}
        return first, rest


class Blocks:
    """Blocks of consecutive shards; each is read once, whole, and then divided into two sides."""

    def __init__(self, shards: Shards) -> None:
        """Read nothing yet."""
        self._shards, self._kept = shards, dict[range, dict[bytes, Trace]]()

    def __call__(self, block: range, own: NDArray[np.bool_] | None, function: Callable[..., Any], *given: Any) -> Any:
        """Return what a function gives for the shards of these numbers, or for a side of them: its requests."""
        kept, name = self._kept.setdefault(block, {}), b"" if own is None else own.tobytes()
        if name not in kept:
            shards = () if b"" in kept else [self._shards.load(number, RANKS) for number in block]
            whole = kept.get(b"") or self._shards.joined(shards, all_of_them=False)
            kept.clear()
            for side in () if own is None else (own, ~own):
                kept |= {side.tobytes(): whole.select(np.flatnonzero(side))} if side.any() else {}
            kept.setdefault(name, whole)
        return function(kept[name], *given)


def _selected(trace: Trace, chosen: NDArray[np.bool_]) -> Trace | None:
    return trace.select(np.flatnonzero(chosen)) if chosen.any() else None


def _by_request(trace: Trace) -> tuple[Trace, NDArray[np.int64]]:
    """Return what requests have, as a trace of one anchor for each, and the length of each."""
    rank = np.full((trace.requests, trace.depth), PAST_END, dtype=np.int16)
    rank[:, 0] = MISSED
    number = np.arange(trace.requests, dtype=np.int32)
    return replace(trace, request=number, position=0 * number, rank=rank), trace.lengths


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
    """Remove a folder of shards: its manifest, its shards, what a killed run left, itself if then empty."""
    for pattern in (MANIFEST, SHARD_FILES, f".{MANIFEST}.*", f".{SHARD_FILES}.*"):
        for path in folder.glob(pattern):
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


def ranks_suffice(folder: Path) -> bool:
    """Return whether a search of static trees needs only the ranks of a folder, which it then reads block by block."""
    return not {"kept", "tree_kept", "drafted", "confidence"} & {*optional_in(folder)}


def note(texts: Sequence[str], grams: int, repeats: int) -> dict[str, Any]:
    """Return the keys of a shard's `meta` about its texts: the hash of each, their 4-grams, and the repeated ones."""
    return {"texts": list(texts), "grams": grams, "repeats": repeats}


def summed_notes(shards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the keys of `note`, summed over the `meta` of shards.

    Raises:
        RecordError: a shard's `meta` lacks a key.
    """
    notes = [read_record(dict(shard), _Note, f"`meta` of shard {i}") for i, shard in enumerate(shards)]
    texts = [text for part in notes for text in part.texts]
    return note(texts, sum(part.grams for part in notes), sum(part.repeats for part in notes))


def whole_meta(meta: Mapping[str, Any], notes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `meta` of a whole trace, from the summed notes of its shards."""
    written = {"written": round(notes["repeats"] / notes["grams"], 4) if notes["grams"] else 0.0}
    return {
        **meta,
        "text_sha256": hashlib.sha256(json.dumps(notes["texts"]).encode()).hexdigest()[:16],
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
    if not (path / MANIFEST).exists():
        raise TraceError(
            f"{path}: is a folder without {MANIFEST}, not one of `trace collect --parts`: give a .npz file"
        )
    shards = Shards.listed(path)
    if ranks_only and to_split and shards.requests >= MANY and ranks_suffice(path):
        return ShardedTrace(shards)
    return shards.whole(RANKS if ranks_only else FORMAT)
