"""The arrays of a trace and their checks: names, types and sizes in the .npz file, then every value.

Sizes are checked before anything is allocated. An error names the field and the index of the first wrong value.
"""

import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from treeopt.acceptance_rule_entries import may_accept_several
from treeopt.errors import TraceError, TreeError
from treeopt.storage.object_addresses import address_of
from treeopt.storage.user_files import found, open_regular, why
from treeopt.traces.candidates import Candidates, check_candidates
from treeopt.tree import MAX_NODES, MAX_RANK, Tree

MAX_ARRAY_BYTES = 16 * 2**30
MAX_META_BYTES = 2**24
FEW = 2**20  # rows that are read whatever other arrays have: checks of values say more

Array = NDArray[Any]

# Every array of the format: (the type written, others that are read, dimensions).
FORMAT: dict[str, tuple[type[np.generic], tuple[type[np.generic], ...], int]] = {
    "request": (np.int32, (), 1),
    "position": (np.int32, (), 1),
    "rank": (np.int16, (), 2),
    "accept": (np.float16, (), 3),
    "kept": (np.float16, (), 3),
    "draft_prob": (np.float16, (), 3),
    "draft_entropy": (np.float16, (), 2),
    "target_entropy": (np.float16, (), 1),
    "tree_kept": (np.bool_, (), 2),
    "drafted": (np.int16, (), 1),
    "confidence": (np.float16, (), 2),
    "domain": (np.int16, (), 1),
    "prompt_tokens": (np.int32, (), 1),
    "candidates_offset": (np.int64, (), 1),
    "candidates_parent": (np.int16, (), 1),
    "candidates_rank": (np.uint8, (), 1),
    "candidates_logprob": (np.float32, (np.float16,), 1),
    "candidates_hit": (np.bool_, (), 1),
    "meta": (np.uint8, (), 1),
}
REQUIRED = ("request", "position", "rank", "meta")
MISSED = -1
PAST_END = -2
MAX_DEPTH = 64
MAX_WIDTH = 1024
CHUNK = 1 << 20  # entries checked together, so that checks of large arrays take little memory


def read_arrays(path: Path, wanted: Collection[str] = FORMAT) -> dict[str, Array]:
    """Return the wanted arrays of the file, each of the right type; the others are not even unpacked.

    Raises:
        TraceError: no such file, or its contents are not arrays of a trace.
    """
    path = found(path)
    if address_of(path) is None and not path.is_file():
        raise TraceError("no such file" if not path.exists() else "is not a file")
    try:
        shapes, arrays = dict[str, tuple[int, ...]](), {}
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
            for name, member in members.items():
                if name not in FORMAT:
                    raise TraceError(f"unknown array `{name}`")
                if name in wanted:
                    shapes[name] = _shape(archive, member, name)
            _check_lengths(shapes)
            for name in shapes:
                with archive.open(members[name]) as stream:
                    array: Array = np.lib.format.read_array(stream, allow_pickle=False)
                arrays[name] = array.astype(FORMAT[name][0], copy=False)
    except OSError as error:
        raise TraceError(why(error)) from error
    except (zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, EOFError) as error:
        raise TraceError(f"not a complete .npz file: {error}; `treeopt trace import` makes one") from error
    except TraceError:
        raise
    except Exception as error:  # numpy and zipfile raise many exceptions on a damaged header
        raise TraceError(f"not an array file: {error}") from error
    for name in REQUIRED:
        if name not in arrays:
            raise TraceError(f"array `{name}` is missing")
    return arrays


def _shape(archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str) -> tuple[int, ...]:
    """Return the shape of an array, from its header alone, if its type and size are right."""
    written, also_read, dimensions = FORMAT[name]
    with archive.open(member) as stream:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(stream)
        header_bytes = stream.tell()
    if dtype.hasobject:
        raise TraceError(f"`{name}` holds pickled Python objects, which are not read")
    if dtype not in (written, *also_read):
        raise TraceError(f"`{name}` must be {np.dtype(written)}, found {dtype}")
    if len(shape) != dimensions:
        raise TraceError(f"`{name}` must have {dimensions} dimensions, found shape {shape}")
    size = int(np.prod(shape, dtype=object)) * dtype.itemsize
    if size > MAX_ARRAY_BYTES:
        raise TraceError(f"`{name}` of shape {shape} would take {size} bytes, more than {MAX_ARRAY_BYTES}")
    if member.file_size != header_bytes + size:
        raise TraceError(f"`{name}` of shape {shape} needs {header_bytes + size} bytes, found {member.file_size}")
    if size > 1040 * member.compress_size:
        raise TraceError(f"`{name}` of shape {shape} cannot be packed into {member.compress_size} bytes")
    return tuple(shape)


def _check_lengths(shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check that no array has more rows or columns than the others allow, before any is unpacked."""
    anchors = min((shapes[name][0] for name in ("request", "position", "rank") if name in shapes), default=0)
    listed = [name for name in shapes if name.startswith("candidates_") and name != "candidates_offset"]
    candidates = min([anchors * MAX_RANK, *(shapes[name][0] for name in listed)])
    for name, (rows, *columns) in shapes.items():
        most = MAX_META_BYTES if name == "meta" else candidates if name in listed else anchors + 1
        if rows > max(most, FEW) or max(columns, default=0) > MAX_NODES:
            raise TraceError(f"`{name}` must have at most {most} rows and {MAX_NODES} columns, found {shapes[name]}")


class TraceArrays(Protocol):
    """The attributes of a Trace that the checks read; its other arrays are read by name."""

    @property
    def request(self) -> NDArray[np.int32]:
        """The request of each anchor (P,)."""

    @property
    def position(self) -> NDArray[np.int32]:
        """The token index of each anchor in its request (P,)."""

    @property
    def rank(self) -> NDArray[np.int16]:
        """The rank of the right candidate at each anchor and depth (P, D)."""

    @property
    def width(self) -> int:
        """The number W of candidates per node."""

    @property
    def meta(self) -> Mapping[str, Any]:
        """The provenance."""

    @property
    def tree_kept(self) -> NDArray[np.bool_] | None:
        """The acceptance of each node of `meta["tree"]` (P, N)."""

    @property
    def drafted(self) -> NDArray[np.int16] | None:
        """The number of tokens that the drafter proposes at each anchor (P,)."""

    @property
    def candidates(self) -> Candidates | None:
        """The candidate trees."""

    @property
    def domain(self) -> NDArray[np.int16] | None:
        """The label of each request (R,)."""

    @property
    def domain_names(self) -> tuple[str, ...]:
        """The labels."""

    @property
    def prompt_tokens(self) -> NDArray[np.int32] | None:
        """The prompt length of each request (R,)."""


def check(trace: TraceArrays) -> None:
    """Check every array against the format.

    Raises:
        TraceError: names the field and the index.
    """
    _check_types(trace)
    _check_anchors(trace.request, trace.position)
    starts = np.flatnonzero(trace.position == 0)
    lengths = np.diff(np.append(starts, len(trace.position))).astype(np.int32)
    left = np.repeat(lengths, lengths)
    left -= trace.position  # tokens from each anchor to the end of its request
    _check_ranks(trace.rank, trace.width, left)
    _check_probabilities(trace)
    _check_entropies(trace)
    _check_domains(trace.domain, trace.domain_names, len(starts))
    _check_prompts(trace.prompt_tokens, len(starts))
    _check_tree(trace, left)
    _check_drafted(trace)
    if trace.candidates is not None:
        check_candidates(trace.candidates, len(trace.rank))


def _first(bad: NDArray[np.bool_], start: int = 0) -> str:
    """Return the index of the first true entry of a part whose rows begin at `start`, as `[i]` or `[i, j]`."""
    row, *columns = np.unravel_index(int(np.argmax(bad)), bad.shape)
    return "[" + ", ".join(str(int(i)) for i in (start + row, *columns)) + "]"


def _chunks(values: NDArray[Any]) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield the array in parts of some rows each, with the number of the first row."""
    rows = max(CHUNK // max(int(np.prod(values.shape[1:])), 1), 1)
    for start in range(0, len(values), rows):
        yield start, values[start : start + rows]


def _check_types(trace: TraceArrays) -> None:
    for name, (expected, _, _) in FORMAT.items():
        if name.startswith("candidates_"):
            value = getattr(trace.candidates, name.removeprefix("candidates_"), None)
        else:
            value = None if name == "meta" else getattr(trace, name)
        if value is not None and (not isinstance(value, np.ndarray) or value.dtype != expected):
            found = getattr(value, "dtype", type(value))
            raise TraceError(f"`{name}` must be a {np.dtype(expected)} array, found {found}")


def _check_anchors(request: NDArray[np.int32], position: NDArray[np.int32]) -> None:
    if request.ndim != 1 or position.shape != request.shape:
        raise TraceError(f"`request` and `position` must have the same length, found {request.shape}, {position.shape}")
    if len(request) == 0:
        raise TraceError("`request` is empty: a trace has at least one anchor")
    if request[0] < 0:
        raise TraceError(f"request[0] must be 0 or more, found {request[0]}")
    for start, rows in _chunks(request[1:]):
        backwards = rows < request[start : start + len(rows)]
        if backwards.any():
            i = start + int(np.argmax(backwards)) + 1
            raise TraceError(f"request[{i}] must not fall below {request[i - 1]}, found {request[i]}")
    if position[0] != 0:
        raise TraceError(f"position[0] must be 0 (consecutive from 0 in each request), found {position[0]}")
    for start, rows in _chunks(position[1:]):
        part = slice(start, start + len(rows))
        # Right wherever the position before it is right.
        expected = np.where(request[1:][part] > request[part], 0, position[part] + 1)
        if (rows != expected).any():
            j = int(np.argmax(rows != expected))
            raise TraceError(
                f"position[{start + j + 1}] must be {expected[j]} (consecutive from 0 in each request), found {rows[j]}"
            )


def _check_ranks(rank: NDArray[np.int16], width: int, left: NDArray[np.int32]) -> None:
    anchors = len(left)
    if rank.ndim != 2 or len(rank) != anchors or not 1 <= rank.shape[1] <= MAX_DEPTH:
        raise TraceError(f"`rank` must be ({anchors}, 1..{MAX_DEPTH}), found {rank.shape}")
    if not 1 <= width <= MAX_WIDTH:
        raise TraceError(f"`width` must be in 1..{MAX_WIDTH}, found {width}")
    for start, rows in _chunks(rank):
        bad = (rows < PAST_END) | (rows >= width)
        if bad.any():
            raise TraceError(
                f"rank{_first(bad, start)} must be in [-2, {width - 1}] (width {width}), found {rows[bad][0]}"
            )
    for start, rows in _chunks(rank):
        past = np.arange(rank.shape[1]) >= left[start : start + len(rows), None]
        wrong = (rows == PAST_END) != past
        if wrong.any():
            must = "-2 (past the end of its request)" if past[wrong][0] else "-1 or more (inside its request)"
            raise TraceError(f"rank{_first(wrong, start)} must be {must}, found {rows[wrong][0]}")


def _check_probabilities(trace: TraceArrays) -> None:
    siblings = (*trace.rank.shape, trace.width)
    for name in ("accept", "kept", "draft_prob", "confidence"):
        values, shape = getattr(trace, name), trace.rank.shape if name == "confidence" else siblings
        if values is None:
            continue
        if values.shape != shape:
            raise TraceError(f"`{name}` must have shape {shape}, found {values.shape}")
        for start, rows in _chunks(values):
            bad = ~((rows >= 0) & (rows <= 1))
            if bad.any():
                raise TraceError(f"{name}{_first(bad, start)} must be in [0, 1], found {rows[bad][0]}")
            total = rows.sum(axis=-1, dtype=np.float32) if rows.ndim > 2 else np.zeros(1)
            over = total > 1.01  # float16 rounds each of W values by at most 2^-11 of itself
            if over.any():
                raise TraceError(f"{name}{_first(over, start)} must sum to at most 1, found {total[over][0]:.4f}")


def _check_entropies(trace: TraceArrays) -> None:
    shapes = {"draft_entropy": trace.rank.shape, "target_entropy": trace.rank.shape[:1]}
    for name, shape in shapes.items():
        values = getattr(trace, name)
        if values is None:
            continue
        if values.shape != shape:
            raise TraceError(f"`{name}` must have shape {shape}, found {values.shape}")
        for start, rows in _chunks(values):
            bad = ~(np.isfinite(rows) & (rows >= 0))
            if bad.any():
                raise TraceError(f"{name}{_first(bad, start)} must be 0 or more and finite, found {rows[bad][0]}")


def _check_domains(domain: NDArray[np.int16] | None, names: tuple[str, ...], requests: int) -> None:
    if domain is None:
        return
    if domain.shape != (requests,):
        raise TraceError(f"`domain` must have one label per request ({requests}), found {domain.shape}")
    bad = (domain < 0) | (domain >= len(names))
    if bad.any():
        raise TraceError(
            f"domain{_first(bad)} must be an index of the {len(names)} `domain_names`, found {domain[bad][0]}"
        )


def _check_prompts(prompt_tokens: NDArray[np.int32] | None, requests: int) -> None:
    if prompt_tokens is None:
        return
    if prompt_tokens.shape != (requests,):
        raise TraceError(f"`prompt_tokens` must have one entry per request ({requests}), found {prompt_tokens.shape}")
    if prompt_tokens.min() < 1:
        bad = prompt_tokens < 1
        raise TraceError(f"prompt_tokens{_first(bad)} must be at least 1, found {prompt_tokens.min()}")


def _check_tree(trace: TraceArrays, left: NDArray[np.int32]) -> None:
    accepted = trace.tree_kept
    if accepted is None:
        return
    paths, rule = trace.meta.get("tree"), trace.meta.get("verification")
    if not may_accept_several(rule):
        raise TraceError(
            f"`tree_kept` applies only to rules that may accept several siblings, found `verification` {rule!r}"
        )
    if not isinstance(paths, list) or not paths:
        raise TraceError(f"`tree` of `meta` must be the rank paths of the nodes of `tree_kept`, found {paths!r:.80}")
    try:
        tree = Tree.from_paths(paths)
    except (TreeError, TypeError, ValueError) as error:
        raise TraceError(f"`tree` of `meta` must be the rank paths of the nodes of `tree_kept`: {error}") from error
    if [list(path) for path in tree.paths] != [list(path) for path in paths]:
        raise TraceError("`tree` of `meta` must name every node once, level by level, siblings by rank")
    anchors, depth = trace.rank.shape
    if tree.depth > depth or max(tree.ranks) >= trace.width:
        raise TraceError(
            f"`tree` of `meta` must have at most {depth} levels and ranks below {trace.width}, as `rank` has, "
            f"found {tree.depth} and {max(tree.ranks)}"
        )
    if accepted.shape != (anchors, tree.nodes):
        raise TraceError(f"`tree_kept` must have shape {(anchors, tree.nodes)}, found {accepted.shape}")
    for node, (parent, level) in enumerate(zip(tree.parents, tree.depths, strict=True)):
        column = accepted[:, node]
        for bad, where in (
            (column & (left < level), "past the end of its request"),
            (column & ~accepted[:, parent] if parent >= 0 else np.zeros(0, dtype=bool), "below a rejected node"),
        ):
            if bad.any():
                raise TraceError(f"tree_kept[{int(np.argmax(bad))}, {node}] is true {where}")


def _check_drafted(trace: TraceArrays) -> None:
    drafted = trace.drafted
    if drafted is None:
        return
    anchors, depth = trace.rank.shape
    if drafted.shape != (anchors,):
        raise TraceError(f"`drafted` must have one entry per anchor ({anchors}), found {drafted.shape}")
    bad = (drafted < 0) | (drafted > depth)
    if bad.any():
        raise TraceError(f"drafted{_first(bad)} must be in 0..{depth} (the depth), found {drafted[bad][0]}")
    for start, rows in _chunks(trace.rank):
        beyond = (np.arange(depth) >= drafted[start : start + len(rows), None]) & (rows >= 0)
        if beyond.any():
            anchor = start + int(np.argmax(beyond.any(axis=1)))
            raise TraceError(
                f"rank{_first(beyond, start)} must be -1 or -2, because drafted[{anchor}] is {drafted[anchor]}, "
                f"found {rows[beyond][0]}"
            )
