"""Traces in parts: several as one, and a folder of shards that a collection grows by and can go on from.

A shard is a trace of its own. The manifest says what was asked for and holds each shard's checksum; it is written
after the shard, so a folder holds what the manifest says, whatever ended the writer.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from treeopt.errors import TraceError, UsageError
from treeopt.files import why, write_text
from treeopt.provenance import look
from treeopt.records import RecordError, get, parse
from treeopt.trace import BY_ANCHOR, Candidates, Trace, load_trace, save_trace

SCHEMA = "treeopt.shards/1"
MANIFEST = "manifest.json"
# What must be the same for the rest of a collection to be what it would have been, and for traces to be one.
CODE = ("treeopt", "commit", "software")
SAME = ("target", "drafter", "verification", "temperature", "top_k", "top_p")


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
    def read(cls, folder: Path) -> "Shards":
        """What a folder holds.

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
            if not shard.is_file() or _checksum(shard) != due:
                raise TraceError(f"{shard}: is not the file of checksum {due} that {MANIFEST} names")
            found.traces.append(load_trace(shard))
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
        return self.folder / f"shard-{number:05}.npz"

    @property
    def done(self) -> int:
        """Requests that are there."""
        return sum(trace.requests for trace in self.traces)

    def add(self, trace: Trace) -> None:
        """Write the next shard, then the manifest that names it."""
        path = self.shard(len(self.traces))
        save_trace(trace, path)
        self._sums.append(_checksum(path))
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


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def joined(traces: Sequence[Trace], meta: Mapping[str, Any]) -> Trace:
    """All requests of several traces, numbered anew from 0.

    Raises:
        TraceError: one is of another depth or width, or holds other arrays than the first.
    """
    first = traces[0]
    for number, trace in enumerate(traces):
        for name in ("depth", "width"):
            if getattr(trace, name) != getattr(first, name):
                raise TraceError(f"trace {number} has {name} {getattr(trace, name)}, trace 0 {getattr(first, name)}")
        for name in (*BY_ANCHOR, "candidates", "domain"):
            if (getattr(trace, name) is None) != (getattr(first, name) is None):
                raise TraceError(f"trace {number} and trace 0 do not both hold `{name}`")
    before = np.cumsum([0, *(trace.requests for trace in traces)])
    names = sorted({name for trace in traces for name in trace.domain_names})
    parts: dict[str, Any] = {
        name: np.concatenate([getattr(trace, name) for trace in traces])
        for name in ("position", "rank", *BY_ANCHOR)
        if getattr(first, name) is not None
    }
    if first.candidates is not None:
        parts["candidates"] = _joined_candidates([t.candidates for t in traces if t.candidates is not None])
    if first.domain is not None:
        labels = [[names.index(t.domain_names[label]) for label in t.domain] for t in traces if t.domain is not None]
        parts["domain"] = np.concatenate(labels).astype(np.int16)
    return Trace(
        request=np.concatenate(
            [trace.request_index + start for trace, start in zip(traces, before, strict=False)]
        ).astype(np.int32),
        width=first.width,
        meta=meta,
        domain_names=tuple(names),
        **parts,
    )


def _joined_candidates(parts: Sequence[Candidates]) -> Candidates:
    sizes = np.concatenate([np.diff(part.offset) for part in parts])
    return Candidates(
        np.append(0, sizes.cumsum()),
        *(np.concatenate([getattr(part, name) for part in parts]) for name in ("parent", "rank", "logprob", "hit")),
    )


def merged(traces: Sequence[Trace]) -> Trace:
    """Traces of the same models and rule, as one; in `meta` what they differ in stands under `merged`, in order.

    Raises:
        TraceError: they are of other models or rules, of the same texts, or do not fit; see `joined`.
    """
    for number, trace in enumerate(traces):
        for key in SAME:
            if trace.meta.get(key) != traces[0].meta.get(key):
                found, due = (json.dumps(each.meta.get(key)) for each in (trace, traces[0]))
                raise TraceError(f"trace {number} has {key} {found}, trace 0 {due}")
        texts = trace.meta.get("text_sha256")
        if texts is not None and any(other.meta.get("text_sha256") == texts for other in traces[:number]):
            raise TraceError(f"trace {number} holds texts that stand in the list before it")
    metas = [dict(trace.meta) for trace in traces]
    same = {key: value for key, value in metas[0].items() if all(meta.get(key, ...) == value for meta in metas)}
    if len(traces) == 1:
        return joined(traces, same)
    rest = [{key: value for key, value in meta.items() if key not in same} for meta in metas]
    counts = [{"requests": trace.requests} for trace in traces]
    return joined(traces, same | {"merged": [each | own for each, own in zip(counts, rest, strict=True)]})
