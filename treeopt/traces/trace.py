"""The Trace: which candidate of the drafter the target chose, at every position of the text it generated.

Holds the arrays and reads and writes the one-file format (`data/README.md`). Knows nothing of walks or time.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from treeopt.errors import TraceError
from treeopt.storage.json_records import RecordError
from treeopt.storage.typed_records import Record
from treeopt.storage.user_files import whole
from treeopt.traces.candidates import Candidates
from treeopt.traces.trace_checks import FORMAT, MAX_WIDTH, REQUIRED, Array, check, read_arrays
from treeopt.traces.trace_checks import MAX_DEPTH as MAX_DEPTH
from treeopt.traces.trace_checks import MISSED as MISSED
from treeopt.traces.trace_checks import PAST_END as PAST_END
from treeopt.tree import Tree
from treeopt.value_methods import ValueMethods

if TYPE_CHECKING:
    import pandas as pd


# Provenance is JSON of any shape: `treeopt.storage.provenance.look` reads it, and what has another shape is unknown.
Provenance = Any


class TraceMeta(Record, frozen=True, kw_only=True):
    """Header and provenance of a trace. Keys that are not named here are provenance, too, and are kept."""

    schema: Literal["treeopt.trace/2", "treeopt.trace/1"]  # the earlier one has no `confidence`
    width: Annotated[int, Meta(ge=1, le=MAX_WIDTH, description="candidates per node that ranks number")]
    domain_names: Annotated[tuple[str, ...], Meta(description="labels that the array `domain` is an index into")] = ()
    verification: Annotated[Provenance, Meta(description="name of the acceptance rule, such as greedy")] = None
    temperature: Annotated[Provenance, Meta(description="number; 0 for greedy")] = None
    top_k: Annotated[Provenance, Meta(description="integer; missing: all tokens")] = None
    top_p: Annotated[Provenance, Meta(description="number; missing: all tokens")] = None
    new_tokens: Annotated[Provenance, Meta(description="largest number of tokens per request")] = None
    seed: Annotated[Provenance, Meta(description="integer")] = None
    device: Annotated[Provenance, Meta(description="name of the device and, for a CPU, its threads")] = None
    target: Annotated[
        Provenance, Meta(description="object: `name`, `dtype`, `quantization`, hashes of `weights` and `settings`")
    ] = None
    drafter: Annotated[
        Provenance, Meta(description="object: `kind`, `heads`, `positions`, hashes of `weights` and `settings`")
    ] = None
    prompts_sha256: Annotated[Provenance, Meta(description="hash of the prompts' tokens")] = None
    text_sha256: Annotated[Provenance, Meta(description="hash of the generated texts")] = None
    repeated_4grams: Annotated[
        Provenance, Meta(description="object: shares of repeated 4-grams in `prompts` and in what was `written`")
    ] = None
    repeated_prompts: Annotated[Provenance, Meta(description="number of requests whose prompt came before")] = None
    assumed: Annotated[
        Provenance, Meta(description="list of sentences: what the trace holds and its source does not say")
    ] = None
    tree: Annotated[
        Provenance, Meta(description="rank paths of the nodes of the array `tree_kept`, level by level; needed with it")
    ] = None
    accept: Annotated[Provenance, Meta(description="how the array `accept` was found")] = None
    kept: Annotated[Provenance, Meta(description="how the array `kept` was found")] = None
    draft_prob: Annotated[Provenance, Meta(description="warped: the array `draft_prob` is not at temperature 1")] = None
    confidence: Annotated[
        Literal["probability", "head"] | None,
        Meta(description="what the array `confidence` holds: `probability`, or `head` for a confidence head's output"),
    ] = None
    candidates: Annotated[
        Provenance, Meta(description="object: `depth`, `beam`, `width`, `stride` of the recorded candidates")
    ] = None
    imported: Annotated[Provenance, Meta(description="object: `format`, `file`, `sha256` of the source")] = None
    merged: Annotated[Provenance, Meta(description="by part: `requests`, and what the parts differ in")] = None
    split: Annotated[
        Provenance, Meta(description="object: `share`, `seed`, `part`, `requests` of the whole, the split `before`")
    ] = None
    provenance: Annotated[
        Provenance, Meta(description="object: software, commit, processor, date and command of the recording")
    ] = None


SCHEMAS = ("treeopt.trace/2", "treeopt.trace/1")  # the one that is written, and others that are read
SCHEMA = SCHEMAS[0]
PART = 2**22  # anchors that are replayed at once
# Optional arrays, one row per anchor.
BY_ANCHOR = ("accept", "kept", "draft_prob", "draft_entropy", "target_entropy", "tree_kept", "drafted", "confidence")
BY_REQUEST = ("domain", "prompt_tokens")  # optional arrays, one entry per request
OPTIONAL = (*BY_ANCHOR, "candidates", *BY_REQUEST)
RANKS = (*REQUIRED, *BY_REQUEST, "tree_kept", "drafted", "confidence")  # arrays that the search of static trees needs


@dataclass(frozen=True, eq=False)
class Trace(ValueMethods):
    """The recorded ranks and probabilities; P anchors of R requests, D depths, W candidates per node.

    Attributes:
        request: int32 (P,), request of each anchor, non-decreasing.
        position: int32 (P,), token index in the request, consecutive from 0.
        rank: int16 (P, D), rank at depth d + 1 of the token emitted d + 1 further on; −1 beyond the first W,
            −2 past the end of the request.
        width: W, candidates recorded per node.
        meta: provenance; JSON values only.
        accept: float16 (P, D, W) or None, probability that sibling r is the accepted one, its ancestors accepted.
        kept: float16 (P, D, W) or None, probability that the text's own token was accepted as sibling r, given the
            text and that its ancestors were accepted; only for rules that draw their candidates.
        draft_prob: float16 (P, D, W) or None, drafter's probabilities of its first W candidates.
        draft_entropy: float16 (P, D) or None, entropy of the drafter's law there, in nats.
        target_entropy: float16 (P,) or None, entropy of the target's law of the token at this anchor, in nats.
        tree_kept: bool (P, N) or None, True where the rule would accept each node of `tree`, its ancestors accepted;
            only for rules that may accept several siblings, because `rank` records only one.
        drafted: int16 (P,) or None, tokens that the drafter proposes at this anchor, at most D; None: always D.
        confidence: float16 (P, D) or None, the drafter's probability of each token of the chain that it drafts from
            this anchor, given the tokens that it drafted before; 0 where it proposes nothing.
        candidates: candidate trees or None.
        domain: int16 (R,) or None, label of each request, index into `domain_names`.
        domain_names: the labels.
        prompt_tokens: int32 (R,) or None, tokens of each request's prompt.

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
    kept: NDArray[np.float16] | None = None
    draft_prob: NDArray[np.float16] | None = None
    draft_entropy: NDArray[np.float16] | None = None
    target_entropy: NDArray[np.float16] | None = None
    tree_kept: NDArray[np.bool_] | None = None
    drafted: NDArray[np.int16] | None = None
    confidence: NDArray[np.float16] | None = None
    candidates: Candidates | None = None
    domain: NDArray[np.int16] | None = None
    domain_names: tuple[str, ...] = ()
    prompt_tokens: NDArray[np.int32] | None = None

    def __post_init__(self) -> None:
        """Check every array against the format and make it read-only."""
        check(self)
        for holder in (self, self.candidates):
            for f in fields(holder) if holder is not None else ():
                value = getattr(holder, f.name)
                if isinstance(value, np.ndarray):
                    value.setflags(write=False)

    @property
    def anchors(self) -> int:
        """The number P of positions at which a step could start."""
        return len(self.request)

    @property
    def depth(self) -> int:
        """The deepest recorded level, D."""
        return int(self.rank.shape[1])

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """The anchor index at which each request starts, int64 (R,)."""
        return np.flatnonzero(self.position == 0)

    @cached_property
    def stops(self) -> NDArray[np.int64]:
        """The anchor index one past each request's last, int64 (R,)."""
        return np.append(self.starts[1:], self.anchors)

    @property
    def requests(self) -> int:
        """The number R of requests."""
        return len(self.starts)

    @cached_property
    def request_index(self) -> NDArray[np.int32]:
        """The index (0 .. R − 1) of each anchor's request, int32 (P,)."""
        if self.request[0] == 0 and self.request[-1] == self.requests - 1:  # numbered without a gap
            return self.request
        index = np.cumsum(self.position == 0, dtype=np.int32)
        index -= 1
        return index

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """The tokens of each request, int64 (R,)."""
        return self.stops - self.starts

    @cached_property
    def left(self) -> NDArray[np.int64]:
        """The tokens from each anchor to the end of its request, int64 (P,)."""
        return np.asarray(self.stops[self.request_index] - np.arange(self.anchors))

    @cached_property
    def tree(self) -> Tree | None:
        """The tree of `meta` whose nodes are the columns of `tree_kept`; None without that array."""
        return None if self.tree_kept is None else Tree.from_paths(self.meta["tree"])

    def select(self, requests: NDArray[np.int64]) -> "Trace":
        """Return the trace of some requests, given as increasing indices into 0 .. R − 1; request numbers stay.

        Raises:
            TraceError: no request, or indices that do not increase or lie outside 0 .. R − 1.

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
        chosen_requests = np.zeros(self.requests, dtype=bool)
        chosen_requests[requests] = True
        in_selection = chosen_requests[self.request_index]
        chosen = None if self.candidates is None else self.candidates.select(in_selection)
        parts: dict[str, Any] = {}
        for name in (*BY_ANCHOR, *BY_REQUEST):
            part = getattr(self, name)
            parts[name] = None if part is None else part[in_selection if name in BY_ANCHOR else requests]
        return replace(
            self,
            request=self.request[in_selection],
            position=self.position[in_selection],
            rank=self.rank[in_selection],
            **parts,
            candidates=chosen,
        )

    @cached_property
    def parts(self) -> tuple["Trace", ...]:
        """The trace in parts of whole requests, views of about `PART` anchors; itself if it is not larger.

        Replays of the parts add up to that of the trace, and take memory for one part at a time.
        """
        if self.anchors <= PART:
            return (self,)
        places = np.searchsorted(self.starts, np.arange(0, self.anchors, PART))
        cuts = np.unique([*places.tolist(), self.requests]).tolist()
        return tuple(self._view(first, last) for first, last in pairwise(cuts))

    def _view(self, first: int, last: int) -> "Trace":
        """Return the requests from `first` to before `last` as views without candidates, which need no check."""
        view = object.__new__(Trace)
        anchors = slice(int(self.starts[first]), int(self.stops[last - 1]))
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, np.ndarray):
                value = value[slice(first, last) if each.name in BY_REQUEST else anchors]
            object.__setattr__(view, each.name, None if each.name == "candidates" else value)
        return view

    def split(self, *, share: float, rng: np.random.Generator) -> tuple["Trace", "Trace"]:
        """Split into two traces with no request in common; the first gets `share` of the requests, each at least one.

        Raises:
            TraceError: fewer than two requests.
        """
        first = first_of(self.requests, share=share, rng=rng)
        return self.select(first), self.select(np.setdiff1d(np.arange(self.requests), first))

    def frame(self) -> "pd.DataFrame":
        """Return a table with one row per anchor and depth; positions past the end of a request have no row.

        Columns: `request`, `domain` where it is recorded, `position` (tokens), `depth` (from 1), and `rank` (0 = the
        drafter's best candidate; −1: not among its first `width`).

        >>> Trace(np.int32([0, 0]), np.int32([0, 1]), np.int16([[0, 3], [-1, -2]]), 4).frame()["rank"].tolist()
        [0, 3, -1]
        """
        import pandas as pd

        columns: dict[str, Any] = {"request": np.repeat(self.request, self.depth)}
        if self.domain is not None:
            labels = np.array(self.domain_names)[self.domain[self.request_index]]
            columns["domain"] = np.repeat(labels, self.depth).astype(object)
        columns["position"] = np.repeat(self.position, self.depth)
        columns["depth"] = np.tile(np.arange(1, self.depth + 1), self.anchors)
        columns["rank"] = self.rank.ravel()
        known = columns["rank"] != PAST_END
        return pd.DataFrame({name: values[known] for name, values in columns.items()})


def first_of(requests: int, *, share: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the requests of the first part of a split, in rising order; see `Trace.split`."""
    if requests < 2:
        raise TraceError(f"a split needs at least 2 requests, the trace has {requests}")
    return np.sort(rng.permutation(requests)[: min(max(round(share * requests), 1), requests - 1)])


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
        arrays: names of the arrays to read (treeopt.traces.trace_checks.FORMAT); `RANKS` names those that the search of
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
    from treeopt.storage.typed_records import read_record  # loads msgspec, which only reading needs
    from treeopt.traces.trace import TraceMeta

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
