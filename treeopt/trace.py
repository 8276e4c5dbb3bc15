"""A trace: which candidate of the drafter the target chose, at every position of the text it generated.

Knows the arrays, their checks and the one-file format (`data/README.md`). Knows nothing of trees or time.
"""

import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treeopt.errors import TraceError
from treeopt.files import whole

SCHEMA = "treeopt.trace/1"
MISSED = -1
PAST_END = -2
MAX_DEPTH = 64
MAX_WIDTH = 1024
MAX_ARRAY_BYTES = 16 * 2**30

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Candidates:
    """The whole drafted candidate tree of each anchor, for policies that choose at run time (CSR).

    Attributes:
        offset: int64 (P + 1,), candidates of anchor t are offset[t] .. offset[t + 1] − 1.
        parent: int16 (C,), index of the parent among the anchor's own candidates, −1 for the root; before the child.
        rank: uint8 (C,), candidate rank below the parent.
        logprob: float16 (C,), drafter's log-probability given the parent, at most 0.
        hit: bool (C,), the target's text continues through this candidate.
    """

    offset: NDArray[np.int64]
    parent: NDArray[np.int16]
    rank: NDArray[np.uint8]
    logprob: NDArray[np.float16]
    hit: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Trace:
    """Recorded ranks and probabilities; P anchors of R requests, D depths, W candidates a node.

    Attributes:
        request: int32 (P,), request of each anchor, non-decreasing.
        position: int32 (P,), token index in the request, consecutive from 0.
        rank: int16 (P, D), rank at depth d + 1 of the token emitted d + 1 further on; −1 beyond the first W,
            −2 past the end of the request.
        width: W, candidates that were looked at.
        meta: provenance; JSON values only.
        accept: float16 (P, D, W) or None, probability that sibling r is the accepted one, its ancestors accepted.
        draft_prob: float16 (P, D, W) or None, drafter's probabilities of its first W candidates.
        candidates: candidate trees or None.
        domain: int16 (R,) or None, label of each request, index into `domain_names`.
        domain_names: the labels.

    Arrays are made read-only. Everything is checked on construction.

    Raises:
        TraceError: names the field and the index of the first value that is wrong.
    """

    request: NDArray[np.int32]
    position: NDArray[np.int32]
    rank: NDArray[np.int16]
    width: int
    meta: Mapping[str, Any] = field(default_factory=dict)
    accept: NDArray[np.float16] | None = None
    draft_prob: NDArray[np.float16] | None = None
    candidates: Candidates | None = None
    domain: NDArray[np.int16] | None = None
    domain_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check every array against the format and make it read-only."""
        _check_types(self)
        _check_anchors(self)
        _check_ranks(self)
        _check_probabilities(self)
        _check_domains(self)
        if self.candidates is not None:
            _check_candidates(self.candidates, self.anchors)
        for holder in (self, self.candidates):
            for f in fields(holder) if holder is not None else ():
                value = getattr(holder, f.name)
                if isinstance(value, np.ndarray):
                    value.setflags(write=False)

    @property
    def anchors(self) -> int:
        """P, positions at which a step could start."""
        return len(self.request)

    @property
    def depth(self) -> int:
        """D, the deepest recorded level."""
        return int(self.rank.shape[1])

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """Anchor index at which each request starts, int64 (R,)."""
        return np.flatnonzero(self.position == 0)

    @cached_property
    def stops(self) -> NDArray[np.int64]:
        """Anchor index one past each request's last, int64 (R,)."""
        return np.append(self.starts[1:], self.anchors)

    @property
    def requests(self) -> int:
        """R."""
        return len(self.starts)

    @cached_property
    def request_index(self) -> NDArray[np.int64]:
        """Of each anchor, the index (0 .. R − 1) of its request, int64 (P,)."""
        return np.repeat(np.arange(self.requests), self.stops - self.starts)

    def select(self, requests: NDArray[np.int64]) -> "Trace":
        """The trace of some requests, given as increasing indices into 0 .. R − 1; request numbers are kept.

        >>> trace = Trace(np.int32([0, 0, 1]), np.int32([0, 1, 0]), np.int16([[0], [0], [3]]), 4)
        >>> trace.select(np.array([1])).rank.tolist()
        [[3]]
        """
        requests = np.asarray(requests)
        if len(requests) == 0:
            raise TraceError("a selection needs at least one request")
        whole_numbers = requests.dtype.kind in "iu"
        if not whole_numbers or (np.diff(requests) <= 0).any() or requests[0] < 0 or requests[-1] >= self.requests:
            raise TraceError(f"a selection must be increasing indices below {self.requests}, got {requests}")
        keep = np.isin(self.request_index, requests)
        chosen = None if self.candidates is None else _select_candidates(self.candidates, keep)
        return replace(
            self,
            request=self.request[keep],
            position=self.position[keep],
            rank=self.rank[keep],
            accept=None if self.accept is None else self.accept[keep],
            draft_prob=None if self.draft_prob is None else self.draft_prob[keep],
            candidates=chosen,
            domain=None if self.domain is None else self.domain[requests],
        )

    def split(self, *, share: float, rng: np.random.Generator) -> tuple["Trace", "Trace"]:
        """Two traces with no request in common; the first has `share` of the requests, at least one each.

        Raises:
            TraceError: fewer than two requests.
        """
        if self.requests < 2:
            raise TraceError(f"a split needs at least 2 requests, the trace has {self.requests}")
        first = min(max(round(share * self.requests), 1), self.requests - 1)
        order = rng.permutation(self.requests)
        return self.select(np.sort(order[:first])), self.select(np.sort(order[first:]))


def save_trace(trace: Trace, path: Path) -> None:
    """Write a trace as one compressed .npz, whole or not at all."""
    arrays: dict[str, Array] = {"request": trace.request, "position": trace.position, "rank": trace.rank}
    for name in ("accept", "draft_prob", "domain"):
        if getattr(trace, name) is not None:
            arrays[name] = getattr(trace, name)
    if trace.candidates is not None:
        arrays |= {f"candidates_{f.name}": getattr(trace.candidates, f.name) for f in fields(Candidates)}
    taken = {"schema", "width", "domain_names"} & set(trace.meta)
    if taken:
        raise TraceError(f"`meta` must not use the key `{min(taken)}`")
    header = {"schema": SCHEMA, "width": trace.width, "domain_names": trace.domain_names, **trace.meta}
    arrays["meta"] = np.frombuffer(json.dumps(header, sort_keys=True).encode(), dtype=np.uint8)
    with whole(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def load_trace(path: Path) -> Trace:
    """Read and check a trace.

    Raises:
        TraceError: the file is missing, truncated, pickled, of another schema, or breaks the format; the
            message names file, field and index.
    """
    path = Path(path)
    try:
        arrays = _read_arrays(path)
        header = _read_header(arrays)
        return _assemble(arrays, header)
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from error


# Every array of the format: (type, dimensions).
_FORMAT: dict[str, tuple[type[np.generic], int]] = {
    "request": (np.int32, 1),
    "position": (np.int32, 1),
    "rank": (np.int16, 2),
    "accept": (np.float16, 3),
    "draft_prob": (np.float16, 3),
    "domain": (np.int16, 1),
    "candidates_offset": (np.int64, 1),
    "candidates_parent": (np.int16, 1),
    "candidates_rank": (np.uint8, 1),
    "candidates_logprob": (np.float16, 1),
    "candidates_hit": (np.bool_, 1),
    "meta": (np.uint8, 1),
}
_REQUIRED = ("request", "position", "rank", "meta")


def _read_arrays(path: Path) -> dict[str, Array]:
    """The arrays of the file, each of the right type; sizes are checked before anything is allocated."""
    if not path.is_file():
        raise TraceError("no such file" if not path.exists() else "is not a file")
    try:
        arrays = {}
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                name = member.filename.removesuffix(".npy")
                if name not in _FORMAT:
                    raise TraceError(f"unknown array `{name}`")
                arrays[name] = _read_array(archive, member, name)
    except (zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, EOFError, OSError) as error:
        raise TraceError(f"not a complete .npz file: {error}") from error
    except TraceError:
        raise
    except Exception as error:  # a damaged head makes numpy and zipfile raise what they like
        raise TraceError(f"not an array file: {error}") from error
    for name in _REQUIRED:
        if name not in arrays:
            raise TraceError(f"array `{name}` is missing")
    return arrays


def _read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str) -> Array:
    expected, dimensions = _FORMAT[name]
    with archive.open(member) as stream:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(stream)
        head = stream.tell()
    if dtype.hasobject:
        raise TraceError(f"`{name}` holds pickled Python objects, which are not read")
    if dtype != np.dtype(expected):
        raise TraceError(f"`{name}` must be {np.dtype(expected)}, found {dtype}")
    if len(shape) != dimensions:
        raise TraceError(f"`{name}` must have {dimensions} dimensions, found shape {shape}")
    size = int(np.prod(shape, dtype=object)) * dtype.itemsize
    if size > MAX_ARRAY_BYTES:
        raise TraceError(f"`{name}` of shape {shape} would take {size} bytes, more than {MAX_ARRAY_BYTES}")
    if member.file_size != head + size:
        raise TraceError(f"`{name}` of shape {shape} needs {head + size} bytes, {member.file_size} are there")
    if size > 1040 * member.compress_size:
        raise TraceError(f"`{name}` of shape {shape} cannot be packed into {member.compress_size} bytes")
    with archive.open(member) as stream:
        array: Array = np.lib.format.read_array(stream, allow_pickle=False)
    return array


def _read_header(arrays: dict[str, Array]) -> dict[str, Any]:
    try:
        header = json.loads(arrays["meta"].tobytes().decode())
    except (ValueError, RecursionError) as error:
        raise TraceError(f"`meta` is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise TraceError("`meta` must be a JSON object")
    if header.get("schema") != SCHEMA:
        raise TraceError(f"schema must be {SCHEMA!r}, found {header.get('schema')!r}")
    if type(header.get("width")) is not int:
        raise TraceError(f"`width` of `meta` must be an integer, found {header.get('width')!r}")
    names = header.get("domain_names", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TraceError("`domain_names` of `meta` must be a list of strings")
    return header


def _assemble(arrays: dict[str, Array], header: dict[str, Any]) -> Trace:
    parts = {f.name: arrays.get(f"candidates_{f.name}") for f in fields(Candidates)}
    absent = [name for name, value in parts.items() if value is None]
    if absent and len(absent) < len(parts):
        raise TraceError(f"array `candidates_{absent[0]}` is missing")
    return Trace(
        request=arrays["request"],
        position=arrays["position"],
        rank=arrays["rank"],
        width=header.pop("width"),
        accept=arrays.get("accept"),
        draft_prob=arrays.get("draft_prob"),
        candidates=None if absent else Candidates(**parts),  # type: ignore[arg-type]
        domain=arrays.get("domain"),
        domain_names=tuple(header.pop("domain_names", ())),
        meta={key: value for key, value in header.items() if key != "schema"},
    )


def _first(bad: NDArray[np.bool_]) -> str:
    """Index of the first true entry, as `[i]` or `[i, j]`."""
    index = np.unravel_index(int(np.argmax(bad)), bad.shape)
    return "[" + ", ".join(str(int(i)) for i in index) + "]"


def _check_types(trace: Trace) -> None:
    for name in ("request", "position", "rank", "accept", "draft_prob", "domain"):
        value = getattr(trace, name)
        expected = np.dtype(_FORMAT[name][0])
        if value is not None and (not isinstance(value, np.ndarray) or value.dtype != expected):
            raise TraceError(f"`{name}` must be a {expected} array, found {getattr(value, 'dtype', type(value))}")


def _check_anchors(trace: Trace) -> None:
    request, position = trace.request, trace.position
    if request.ndim != 1 or position.shape != request.shape:
        raise TraceError(f"`request` and `position` must be of one length, found {request.shape}, {position.shape}")
    if len(request) == 0:
        raise TraceError("`request` is empty: a trace has at least one anchor")
    if request[0] < 0:
        raise TraceError(f"request[0] must be 0 or more, found {request[0]}")
    backwards = request[1:] < request[:-1]
    if backwards.any():
        i = int(np.argmax(backwards)) + 1
        raise TraceError(f"request[{i}] must not fall below {request[i - 1]}, found {request[i]}")
    fresh = np.append(True, request[1:] > request[:-1])
    due = np.arange(len(request)) - np.maximum.accumulate(np.where(fresh, np.arange(len(request)), 0))
    if (position != due).any():
        i = int(np.argmax(position != due))
        raise TraceError(f"position[{i}] must be {due[i]} (consecutive from 0 in each request), found {position[i]}")


def _check_ranks(trace: Trace) -> None:
    rank, width = trace.rank, trace.width
    if rank.ndim != 2 or len(rank) != trace.anchors or not 1 <= rank.shape[1] <= MAX_DEPTH:
        raise TraceError(f"`rank` must be ({trace.anchors}, 1..{MAX_DEPTH}), found {rank.shape}")
    if not 1 <= width <= MAX_WIDTH:
        raise TraceError(f"`width` must be in 1..{MAX_WIDTH}, found {width}")
    bad = (rank < PAST_END) | (rank >= width)
    if bad.any():
        raise TraceError(f"rank{_first(bad)} must be in [-2, {width - 1}] (width {width}), found {rank[bad][0]}")
    left = (trace.stops[trace.request_index] - np.arange(trace.anchors))[:, None]
    past = np.arange(trace.depth) >= left
    wrong = (rank == PAST_END) != past
    if wrong.any():
        due = "-2 (past the end of its request)" if past[wrong][0] else "-1 or more (inside its request)"
        raise TraceError(f"rank{_first(wrong)} must be {due}, found {rank[wrong][0]}")


def _check_probabilities(trace: Trace) -> None:
    for name in ("accept", "draft_prob"):
        values = getattr(trace, name)
        if values is None:
            continue
        shape = (trace.anchors, trace.depth, trace.width)
        if values.shape != shape:
            raise TraceError(f"`{name}` must have shape {shape}, found {values.shape}")
        bad = ~((values >= 0) & (values <= 1))
        if bad.any():
            raise TraceError(f"{name}{_first(bad)} must be in [0, 1], found {values[bad][0]}")
        total = values.sum(axis=2, dtype=np.float32)
        over = total > 1.01  # float16 rounds each of W values by at most 2^-11 of itself
        if over.any():
            raise TraceError(f"{name}{_first(over)} must sum to at most 1, found {total[over][0]:.4f}")


def _check_domains(trace: Trace) -> None:
    if trace.domain is None:
        return
    if trace.domain.shape != (trace.requests,):
        raise TraceError(f"`domain` must have one label a request ({trace.requests}), found {trace.domain.shape}")
    bad = (trace.domain < 0) | (trace.domain >= len(trace.domain_names))
    if bad.any():
        raise TraceError(
            f"domain{_first(bad)} must be an index of the {len(trace.domain_names)} `domain_names`, "
            f"found {trace.domain[bad][0]}"
        )


def _check_candidates(candidates: Candidates, anchors: int) -> None:
    offset, count = candidates.offset, len(candidates.parent)
    if offset.shape != (anchors + 1,) or offset[0] != 0 or offset[-1] != count or (np.diff(offset) < 0).any():
        raise TraceError(f"`candidates_offset` must rise from 0 to {count} in {anchors + 1} entries")
    for name in ("rank", "logprob", "hit"):
        if getattr(candidates, name).shape != (count,):
            raise TraceError(f"`candidates_{name}` must have {count} entries")
    own = np.arange(count) - np.repeat(offset[:-1], np.diff(offset))
    bad = (candidates.parent < -1) | (candidates.parent >= own)
    if bad.any():
        raise TraceError(
            f"candidates_parent{_first(bad)} must stand before its child, found {candidates.parent[bad][0]}"
        )
    bad = ~(candidates.logprob <= 0)
    if bad.any():
        raise TraceError(f"candidates_logprob{_first(bad)} must be at most 0, found {candidates.logprob[bad][0]}")
    inner = candidates.parent >= 0
    parent = np.where(inner, np.repeat(offset[:-1], np.diff(offset)) + candidates.parent, 0)
    bad = candidates.hit & inner & ~candidates.hit[parent] if count else np.zeros(0, dtype=bool)
    if bad.any():
        raise TraceError(f"candidates_hit{_first(bad)} is true below a parent that is not hit")


def _select_candidates(candidates: Candidates, keep: NDArray[np.bool_]) -> Candidates:
    sizes = np.diff(candidates.offset)
    chosen = np.repeat(keep, sizes)
    return Candidates(
        offset=np.append(0, np.cumsum(sizes[keep])),
        parent=candidates.parent[chosen],
        rank=candidates.rank[chosen],
        logprob=candidates.logprob[chosen],
        hit=candidates.hit[chosen],
    )
