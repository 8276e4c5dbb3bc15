"""Trace files, one compressed .npz (`data/README.md`): arrays and header, written whole, read and checked.

Names, types and sizes of arrays are checked before anything is allocated.
"""

import json
import zipfile
import zlib
from collections.abc import Collection, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta

from treeopt.errors import TraceError
from treeopt.storage.json_records import RecordError
from treeopt.storage.typed_records import Record, read_record
from treeopt.storage.user_files import address_of, found, open_regular, whole, why
from treeopt.traces.candidates import Candidates
from treeopt.traces.trace import BY_ANCHOR, BY_REQUEST, FORMAT, MAX_WIDTH, REQUIRED, Array, Trace
from treeopt.tree import MAX_NODES, MAX_RANK

SCHEMAS = ("treeopt.trace/2", "treeopt.trace/1")  # the one that is written, and others that are read
SCHEMA = SCHEMAS[0]
MAX_ARRAY_BYTES = 16 * 2**30
MAX_META_BYTES = 2**24
FEW = 2**20  # rows that are read whatever other arrays have: checks of values say more

HEADER = "Header and provenance of a trace. Keys that are not named here are provenance, too, and are kept."
DOMAIN_NAMES = "labels that the array `domain` is an index into"
# Keys of `meta` that are JSON of any shape; `treeopt.storage.provenance.look` reads it, another shape is unknown.
PROVENANCE = {
    "verification": "name of the acceptance rule, such as greedy",
    "temperature": "number; 0 for greedy",
    "top_k": "integer; missing: all tokens",
    "top_p": "number; missing: all tokens",
    "new_tokens": "largest number of tokens per request",
    "seed": "integer",
    "device": "name of the device and, for a CPU, its threads",
    "target": "object: `name`, `dtype`, `quantization`, hashes of `weights` and `settings`",
    "drafter": "object: `kind`, `heads`, `positions`, hashes of `weights` and `settings`",
    "prompts_sha256": "hash of the prompts' tokens",
    "text_sha256": "hash of the generated texts",
    "repeated_4grams": "object: shares of repeated 4-grams in `prompts` and in what was `written`",
    "repeated_prompts": "number of requests whose prompt came before",
    "assumed": "list of sentences: what the trace holds and its source does not say",
    "tree": "rank paths of the nodes of the array `tree_kept`, level by level; needed with it",
    "accept": "how the array `accept` was found",
    "kept": "how the array `kept` was found",
    "draft_prob": "warped: the array `draft_prob` is not at temperature 1",
    "confidence": "what the array `confidence` holds: `probability`, or `head` for a confidence head's output",
    "candidates": "object: `depth`, `beam`, `width`, `stride` of the recorded candidates",
    "imported": "object: `format`, `file`, `sha256` of the source",
    "merged": "by part: `requests`, and what the parts differ in",
    "split": "object: `share`, `seed`, `part`, `requests` of the whole, the split `before`",
    "provenance": "object: software, commit, processor, date and command of the recording",
}
KINDS: dict[str, Any] = {"confidence": Literal["probability", "head"] | None}  # of keys that are not of any shape
TraceMeta = msgspec.defstruct(
    "TraceMeta",
    [
        ("schema", Literal["treeopt.trace/2", "treeopt.trace/1"]),  # the earlier one has no `confidence`
        ("width", Annotated[int, Meta(ge=1, le=MAX_WIDTH, description="candidates per node that ranks number")]),
        ("domain_names", Annotated[tuple[str, ...], Meta(description=DOMAIN_NAMES)], ()),
        *((name, Annotated[KINDS.get(name, Any), Meta(description=text)], None) for name, text in PROVENANCE.items()),
    ],
    bases=(Record,),
    module=__name__,
    namespace={"__doc__": HEADER},
    frozen=True,
    kw_only=True,
)


def save_trace(trace: Trace, path: Path) -> None:
    """Write a trace as one compressed .npz, whole or not at all.

    Raises:
        TraceError: `meta` uses a key of the file's own header.
    """
    arrays: dict[str, Array] = {"request": trace.request, "position": trace.position, "rank": trace.rank}
    for name in (*BY_ANCHOR, *BY_REQUEST):
        if getattr(trace, name) is not None:
            arrays[name] = getattr(trace, name)
    if trace.candidates is not None:
        arrays |= {f"candidates_{f.name}": getattr(trace.candidates, f.name) for f in fields(Candidates)}
    reserved = {"schema", "width", "domain_names"} & set(trace.meta)
    if reserved:
        raise TraceError(f"`meta` must not use the key `{min(reserved)}`")
    header = {"schema": SCHEMA, "width": trace.width, "domain_names": trace.domain_names, **trace.meta}
    arrays["meta"] = np.frombuffer(json.dumps(header, sort_keys=True).encode(), dtype=np.uint8)
    with whole(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def load_trace(path: Path, *, arrays: Collection[str] = FORMAT) -> Trace:
    """Read and check a trace.

    Args:
        path: the file.
        arrays: names of the arrays to read (treeopt.traces.trace.FORMAT); `RANKS` names those that the search of
            static trees needs, without probabilities and candidates.

    Raises:
        TraceError: the file is missing, truncated, pickled, of another schema, or breaks the format; the
            message names file, field and index.
    """
    path = Path(path)
    try:
        contents = read_arrays(path, arrays)
        return _assemble(contents, _read_header(contents))
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from error


def _read_header(arrays: dict[str, Array]) -> dict[str, Any]:
    try:
        header = json.loads(arrays["meta"].tobytes().decode())
    except (ValueError, RecursionError) as error:
        raise TraceError(f"`meta` is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise TraceError("`meta` must be a JSON object")
    if header.get("schema") not in SCHEMAS:
        raise TraceError(f"schema must be {SCHEMA!r}, found {header.get('schema')!r:.80}")
    try:
        read_record(header, TraceMeta)
    except RecordError as error:
        raise TraceError(f"`meta`: {error}") from error
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
        **{name: arrays.get(name) for name in (*BY_ANCHOR, *BY_REQUEST)},
        candidates=None if absent else Candidates(**parts),  # type: ignore[arg-type]
        domain_names=tuple(header.pop("domain_names", ())),
        meta={key: value for key, value in header.items() if key != "schema"},
    )


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
