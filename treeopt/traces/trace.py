"""The Trace: which candidate of the drafter the target chose, at every position of the text it generated.

Holds the arrays and checks every value. Knows nothing of files, walks or time. An error names the field and the index
of the first wrong value.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from treeopt.acceptance_rule_entries import may_accept_several
from treeopt.display_methods import ValueMethods
from treeopt.errors import TraceError, TreeError, brief
from treeopt.traces.candidates import Candidates, check_candidates
from treeopt.tree import Tree

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[Any]
Result = TypeVar("Result")

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
        _check(self)
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
        requests = np.atleast_1d(requests)
        if len(requests) == 0:
            raise TraceError("a selection needs at least one request")
        whole_numbers = requests.dtype.kind in "iu"
        if not whole_numbers or (np.diff(requests) <= 0).any() or requests[0] < 0 or requests[-1] >= self.requests:
            raise TraceError(f"a selection must be increasing indices below {self.requests}, got {brief(requests)}")
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

    @property
    def sizes(self) -> list[int]:
        """The requests of each part."""
        return [part.requests for part in self.parts]

    def map(self, function: Callable[..., Result], *given: Iterable[Any]) -> list[Result]:
        """Return what a function gives for each part, in order; `given` are its further arguments, part by part."""
        return list(map(function, self.parts, *given))

    def cut(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        """Return what each part has of an array by request or by anchor."""
        ends = np.cumsum(self.sizes)[:-1]
        return np.split(values, ends if len(values) == self.requests else np.cumsum(self.lengths)[ends - 1])

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


def _check(trace: Trace) -> None:
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
    _check_values(trace)
    _check_requests(trace, len(starts))
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


def _check_types(trace: Trace) -> None:
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


def _check_values(trace: Trace) -> None:
    """Check shapes and ranges of probabilities, and of entropies, which have no upper limit."""
    ranks = trace.rank.shape
    shapes = dict.fromkeys(("accept", "kept", "draft_prob"), (*ranks, trace.width))
    shapes |= {"confidence": ranks, "draft_entropy": ranks, "target_entropy": ranks[:1]}
    for name, shape in shapes.items():
        values, entropy = getattr(trace, name), name.endswith("entropy")
        if values is None:
            continue
        if values.shape != shape:
            raise TraceError(f"`{name}` must have shape {shape}, found {values.shape}")
        for start, rows in _chunks(values):
            bad = ~((rows >= 0) & (np.isfinite(rows) if entropy else rows <= 1))
            if bad.any():
                must = "0 or more and finite" if entropy else "in [0, 1]"
                raise TraceError(f"{name}{_first(bad, start)} must be {must}, found {rows[bad][0]}")
            total = rows.sum(axis=-1, dtype=np.float32) if rows.ndim > 2 else np.zeros(1)
            over = total > 1.01  # float16 rounds each of W values by at most 2^-11 of itself
            if over.any():
                raise TraceError(f"{name}{_first(over, start)} must sum to at most 1, found {total[over][0]:.4f}")


def _check_requests(trace: Trace, requests: int) -> None:
    """Check the arrays that have one entry per request."""
    domain, prompts, names = trace.domain, trace.prompt_tokens, trace.domain_names
    if domain is not None:
        if domain.shape != (requests,):
            raise TraceError(f"`domain` must have one label per request ({requests}), found {domain.shape}")
        if (bad := (domain < 0) | (domain >= len(names))).any():
            index = f"an index of the {len(names)} `domain_names`"
            raise TraceError(f"domain{_first(bad)} must be {index}, found {domain[bad][0]}")
    if prompts is not None:
        if prompts.shape != (requests,):
            raise TraceError(f"`prompt_tokens` must have one entry per request ({requests}), found {prompts.shape}")
        if (bad := prompts < 1).any():
            raise TraceError(f"prompt_tokens{_first(bad)} must be at least 1, found {prompts.min()}")


def _check_tree(trace: Trace, left: NDArray[np.int32]) -> None:
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


def _check_drafted(trace: Trace) -> None:
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
