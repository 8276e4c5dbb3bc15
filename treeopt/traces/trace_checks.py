"""What the values of a trace must be. Each check names the field and the index of the first value that is not so."""

from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from treeopt.errors import TraceError, TreeError
from treeopt.traces.npz_format import FORMAT
from treeopt.tree import Tree

if TYPE_CHECKING:
    from treeopt.traces.trace import Candidates, Trace

MANY_KEPT = ("typical",)  # rules of `meta["verification"]` that may keep several siblings: `tree_kept` is theirs
MISSED = -1
PAST_END = -2
MAX_DEPTH = 64
MAX_WIDTH = 1024
CHUNK = 1 << 20  # entries looked at together, so that checks of large arrays take little memory


def check(trace: "Trace") -> None:
    """Check every array against the format.

    Raises:
        TraceError: names the field and the index.
    """
    _check_types(trace)
    _check_anchors(trace)
    _check_ranks(trace)
    _check_probabilities(trace)
    _check_entropies(trace)
    _check_domains(trace)
    _check_prompts(trace)
    _check_tree(trace)
    if trace.candidates is not None:
        _check_candidates(trace.candidates, trace.anchors)


def _first(bad: NDArray[np.bool_], start: int = 0) -> str:
    """Index of the first true entry of a part whose rows begin at `start`, as `[i]` or `[i, j]`."""
    row, *rest = np.unravel_index(int(np.argmax(bad)), bad.shape)
    return "[" + ", ".join(str(int(i)) for i in (start + row, *rest)) + "]"


def _chunks(values: NDArray[Any]) -> Iterator[tuple[int, NDArray[Any]]]:
    """Parts of some rows each, with the number of the first row."""
    rows = max(CHUNK // max(int(np.prod(values.shape[1:])), 1), 1)
    for start in range(0, len(values), rows):
        yield start, values[start : start + rows]


def _check_types(trace: "Trace") -> None:
    values: dict[str, Any] = {f.name: getattr(trace, f.name) for f in fields(trace)}
    if trace.candidates is not None:
        values |= {f"candidates_{f.name}": getattr(trace.candidates, f.name) for f in fields(trace.candidates)}
    for name, (expected, _, _) in FORMAT.items():
        value = None if name == "meta" else values.get(name)
        if value is not None and (not isinstance(value, np.ndarray) or value.dtype != expected):
            found = getattr(value, "dtype", type(value))
            raise TraceError(f"`{name}` must be a {np.dtype(expected)} array, found {found}")


def _check_anchors(trace: "Trace") -> None:
    request, position = trace.request, trace.position
    if request.ndim != 1 or position.shape != request.shape:
        raise TraceError(f"`request` and `position` must be of one length, found {request.shape}, {position.shape}")
    if len(request) == 0:
        raise TraceError("`request` is empty: a trace has at least one anchor")
    if request[0] < 0:
        raise TraceError(f"request[0] must be 0 or more, found {request[0]}")
    for start, here in _chunks(request[1:]):
        backwards = here < request[start : start + len(here)]
        if backwards.any():
            i = start + int(np.argmax(backwards)) + 1
            raise TraceError(f"request[{i}] must not fall below {request[i - 1]}, found {request[i]}")
    if position[0] != 0:
        raise TraceError(f"position[0] must be 0 (consecutive from 0 in each request), found {position[0]}")
    for start, here in _chunks(position[1:]):
        part = slice(start, start + len(here))
        due = np.where(request[1:][part] > request[part], 0, position[part] + 1)  # right where what precedes is
        if (here != due).any():
            j = int(np.argmax(here != due))
            raise TraceError(
                f"position[{start + j + 1}] must be {due[j]} (consecutive from 0 in each request), found {here[j]}"
            )


def _check_ranks(trace: "Trace") -> None:
    rank, width = trace.rank, trace.width
    if rank.ndim != 2 or len(rank) != trace.anchors or not 1 <= rank.shape[1] <= MAX_DEPTH:
        raise TraceError(f"`rank` must be ({trace.anchors}, 1..{MAX_DEPTH}), found {rank.shape}")
    if not 1 <= width <= MAX_WIDTH:
        raise TraceError(f"`width` must be in 1..{MAX_WIDTH}, found {width}")
    for start, here in _chunks(rank):
        bad = (here < PAST_END) | (here >= width)
        if bad.any():
            raise TraceError(
                f"rank{_first(bad, start)} must be in [-2, {width - 1}] (width {width}), found {here[bad][0]}"
            )
    for start, here in _chunks(rank):
        anchors = np.arange(start, start + len(here))
        left = trace.stops[trace.request_index[start : start + len(here)]] - anchors
        past = np.arange(trace.depth) >= left[:, None]
        wrong = (here == PAST_END) != past
        if wrong.any():
            must = "-2 (past the end of its request)" if past[wrong][0] else "-1 or more (inside its request)"
            raise TraceError(f"rank{_first(wrong, start)} must be {must}, found {here[wrong][0]}")


def _check_probabilities(trace: "Trace") -> None:
    for name in ("accept", "kept", "draft_prob"):
        values = getattr(trace, name)
        if values is None:
            continue
        shape = (trace.anchors, trace.depth, trace.width)
        if values.shape != shape:
            raise TraceError(f"`{name}` must have shape {shape}, found {values.shape}")
        for start, here in _chunks(values):
            bad = ~((here >= 0) & (here <= 1))
            if bad.any():
                raise TraceError(f"{name}{_first(bad, start)} must be in [0, 1], found {here[bad][0]}")
            total = here.sum(axis=2, dtype=np.float32)
            over = total > 1.01  # float16 rounds each of W values by at most 2^-11 of itself
            if over.any():
                raise TraceError(f"{name}{_first(over, start)} must sum to at most 1, found {total[over][0]:.4f}")


def _check_entropies(trace: "Trace") -> None:
    shapes = {"draft_entropy": (trace.anchors, trace.depth), "target_entropy": (trace.anchors,)}
    for name, shape in shapes.items():
        values = getattr(trace, name)
        if values is None:
            continue
        if values.shape != shape:
            raise TraceError(f"`{name}` must have shape {shape}, found {values.shape}")
        for start, here in _chunks(values):
            bad = ~(np.isfinite(here) & (here >= 0))
            if bad.any():
                raise TraceError(f"{name}{_first(bad, start)} must be 0 or more and finite, found {here[bad][0]}")


def _check_domains(trace: "Trace") -> None:
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


def _check_prompts(trace: "Trace") -> None:
    values = trace.prompt_tokens
    if values is None:
        return
    if values.shape != (trace.requests,):
        raise TraceError(f"`prompt_tokens` must have one entry a request ({trace.requests}), found {values.shape}")
    if values.min() < 1:
        raise TraceError(f"prompt_tokens{_first(values < 1)} must be at least 1, found {values.min()}")


def _check_tree(trace: "Trace") -> None:
    values = trace.tree_kept
    if values is None:
        return
    paths, rule = trace.meta.get("tree"), trace.meta.get("verification")
    if rule not in MANY_KEPT:
        raise TraceError(f"`tree_kept` is of rules that may keep several siblings, found `verification` {rule!r}")
    if not isinstance(paths, list) or not paths:
        raise TraceError(f"`tree` of `meta` must be the rank paths of the nodes of `tree_kept`, found {paths!r:.80}")
    try:
        tree = Tree.from_paths(paths)
    except (TreeError, TypeError, ValueError) as error:
        raise TraceError(f"`tree` of `meta` must be the rank paths of the nodes of `tree_kept`: {error}") from error
    if [list(path) for path in tree.paths] != [list(path) for path in paths]:
        raise TraceError("`tree` of `meta` must name every node once, level by level, siblings by rank")
    if tree.depth > trace.depth or max(tree.ranks) >= trace.width:
        raise TraceError(
            f"`tree` of `meta` must have at most {trace.depth} levels and ranks below {trace.width}, as `rank` has, "
            f"found {tree.depth} and {max(tree.ranks)}"
        )
    if values.shape != (trace.anchors, tree.nodes):
        raise TraceError(f"`tree_kept` must have shape {(trace.anchors, tree.nodes)}, found {values.shape}")
    left = trace.stops[trace.request_index] - np.arange(trace.anchors)
    for node, (above, depth) in enumerate(zip(tree.parents, tree.depths, strict=True)):
        here = values[:, node]
        for bad, what in (
            (here & (left < depth), "past the end of its request"),
            (here & ~values[:, above] if above >= 0 else np.zeros(0, dtype=bool), "below a node that is not kept"),
        ):
            if bad.any():
                raise TraceError(f"tree_kept[{int(np.argmax(bad))}, {node}] is true {what}")


def _check_candidates(candidates: "Candidates", anchors: int) -> None:
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
