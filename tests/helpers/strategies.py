"""Random trees and traces for Hypothesis, traces by hand or drawn from a model, equality of traces."""

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from treeopt.traces.candidates import Candidates
from treeopt.traces.trace import BY_ANCHOR, BY_REQUEST, REQUIRED, Trace
from treeopt.tree import Tree

ARRAYS = (*REQUIRED[:3], *BY_ANCHOR, *BY_REQUEST)

_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
# `schema`, `width` and `domain_names` share the file's header with `meta`; test_trace.py tries them by hand.
metas = st.dictionaries(
    st.text(max_size=8).filter(lambda key: key not in ("schema", "width", "domain_names")), _json, max_size=3
)


@st.composite
def rank_paths(draw: st.DrawFn, *, width: int = 4, depth: int = 4, paths: int = 6) -> list[tuple[int, ...]]:
    """A list of rank paths: any order, repeated or not, with or without their prefixes."""
    path = st.lists(st.integers(0, width - 1), min_size=1, max_size=depth).map(tuple)
    return draw(st.lists(path, max_size=paths))


def trees(*, width: int = 4, depth: int = 4, paths: int = 6, min_nodes: int = 0) -> st.SearchStrategy[Tree]:
    """Trees of ranks below `width`, at most `depth` levels and `paths` leaves; the empty tree too."""
    made = rank_paths(width=width, depth=depth, paths=paths).map(Tree.from_paths)
    return made.filter(lambda tree: tree.nodes >= min_nodes) if min_nodes else made


def past_end(lengths: Sequence[int], depth: int) -> NDArray[np.bool_]:
    """Entries of `rank` that lie past the end of their request: bool (P, depth)."""
    left = np.concatenate([np.arange(length, 0, -1) for length in lengths])
    return np.arange(depth) >= left[:, None]


def trace_of(
    requests: Sequence[Sequence[Sequence[int]]],
    *,
    width: int,
    numbers: Sequence[int] | None = None,
    **parts: Any,
) -> Trace:
    """A trace written out: per request, per position, the rank at each depth."""
    lengths = [len(rows) for rows in requests]
    return Trace(
        request=np.repeat(np.array(numbers or range(len(lengths)), dtype=np.int32), lengths),
        position=np.concatenate([np.arange(length, dtype=np.int32) for length in lengths]),
        rank=np.array([row for rows in requests for row in rows], dtype=np.int16),
        width=width,
        **parts,
    )


def with_lengths(rank: NDArray[Any], lengths: Sequence[int], *, width: int, **parts: Any) -> Trace:
    """A trace of requests of these lengths; entries of `rank` (P, D) past an end are overwritten with −2."""
    lengths = list(lengths)
    return Trace(
        request=np.repeat(np.arange(len(lengths), dtype=np.int32), lengths),
        position=np.concatenate([np.arange(length, dtype=np.int32) for length in lengths]),
        rank=np.where(past_end(lengths, rank.shape[1]), -2, rank).astype(np.int16),
        width=width,
        **parts,
    )


def drawn_trace(
    probabilities: Sequence[Sequence[float]], lengths: Sequence[int], *, depth: int, rng: np.random.Generator
) -> Trace:
    """A trace whose request r draws ranks from `probabilities[r % ...]`, each by itself; the rest misses."""
    width = len(probabilities[0])
    rows = []
    for number, length in enumerate(lengths):
        edges = np.cumsum(probabilities[number % len(probabilities)])
        drawn = np.searchsorted(edges, rng.random((length, depth)), side="right")
        rows.append(np.where(drawn < width, drawn, -1))
    return with_lengths(np.concatenate(rows), lengths, width=width)


@st.composite
def traces(
    draw: st.DrawFn,
    *,
    requests: tuple[int, int] = (1, 4),
    length: int = 10,
    depth: int = 4,
    width: int = 4,
    parts: bool = False,
) -> Trace:
    """Valid traces of several requests of different lengths, 1 included, with misses.

    Args:
        draw: given by Hypothesis.
        requests: fewest and most requests.
        length: longest request.
        depth: deepest trace.
        width: widest trace.
        parts: also draw meta, request numbers with gaps and every optional array, each present or not.
    """
    lengths = draw(st.lists(st.integers(1, length), min_size=requests[0], max_size=requests[1]))
    depth, width = draw(st.integers(1, depth)), draw(st.integers(1, width))
    anchors = sum(lengths)
    # Bytes that Hypothesis can shrink, or plain chance, which repeats itself less.
    seed, size = draw(st.none() | st.integers(0, 2**32 - 1)), anchors * depth
    content = draw(st.binary(min_size=size, max_size=size)) if seed is None else np.random.default_rng(seed).bytes(size)
    # Rank 0 is twice as likely: deep acceptance must not be rare.
    ranks = np.array([0, 0, *range(1, width), -1])
    drawn = ranks[np.frombuffer(content, dtype=np.uint8) % len(ranks)]
    plain = with_lengths(drawn.reshape(anchors, depth), lengths, width=width)
    if not parts:
        return plain
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    made: dict[str, Callable[[], Any]] = {
        **dict.fromkeys(("accept", "kept", "draft_prob"), lambda: _probabilities(rng, anchors, depth, width)),
        "draft_entropy": lambda: rng.exponential(size=(anchors, depth)).astype(np.float16),
        "target_entropy": lambda: rng.exponential(size=anchors).astype(np.float16),
        "drafted": lambda: _drafted(rng, plain.rank),
        "confidence": lambda: rng.random((anchors, depth)).astype(np.float16),
        "candidates": lambda: _candidates(rng, anchors),
        "domain": lambda: rng.integers(0, len(names), len(lengths)).astype(np.int16),
        "prompt_tokens": lambda: rng.integers(1, 2**31, len(lengths)).astype(np.int32),
    }
    chosen = draw(st.sets(st.sampled_from(sorted(made))))
    steps = draw(st.lists(st.integers(1, 3), min_size=len(lengths), max_size=len(lengths)))
    names = draw(st.lists(st.text(max_size=5), min_size=1, max_size=3))
    return Trace(
        request=np.repeat(np.cumsum(steps) - steps[0], lengths).astype(np.int32),
        position=plain.position,
        rank=plain.rank,
        width=width,
        meta=draw(metas),
        domain_names=tuple(names) if "domain" in chosen else (),
        **{name: made[name]() for name in sorted(chosen)},
    )


def _drafted(rng: np.random.Generator, rank: NDArray[np.int16]) -> NDArray[np.int16]:
    """At least as many tokens as have a rank."""
    least = ((rank >= 0) * np.arange(1, rank.shape[1] + 1)).max(axis=1)
    return rng.integers(least, rank.shape[1] + 1).astype(np.int16)


def _probabilities(rng: np.random.Generator, anchors: int, depth: int, width: int) -> NDArray[np.float16]:
    """Of each node, `width` probabilities with some mass left for the rest of the vocabulary."""
    return rng.dirichlet(np.ones(width + 1), (anchors, depth))[..., :-1].astype(np.float16)


def _candidates(rng: np.random.Generator, anchors: int) -> Candidates:
    """0 to 5 candidates an anchor, each below an earlier one or the root; hits follow one path."""
    sizes = rng.integers(0, 6, anchors)
    parent, hit = [], []
    for size in sizes.tolist():
        last, above = -1, [int(rng.integers(-1, child)) if child else -1 for child in range(size)]
        for child, up in enumerate(above):
            hit.append(up == last and rng.random() < 0.5)
            last = child if hit[-1] else last
        parent.extend(above)
    total = int(sizes.sum())
    return Candidates(
        offset=np.append(0, np.cumsum(sizes)).astype(np.int64),
        parent=np.array(parent, dtype=np.int16),
        rank=rng.integers(0, 256, total).astype(np.uint8),
        logprob=-rng.exponential(size=total).astype(np.float32),
        hit=np.array(hit, dtype=np.bool_),
    )


def grown_trace(
    lengths: Sequence[int],
    *,
    depth: int,
    width: int,
    rng: np.random.Generator,
    beam: int | None = None,
    grain: float = 0.25,
    skill: float = 0.8,
) -> Trace:
    """A trace whose anchors hold drafted candidate trees, in the order in which the executor records them.

    Args:
        lengths: of the requests.
        depth: levels.
        width: children of each expanded node.
        rng: of log-probabilities and hits.
        beam: nodes expanded on a level, the most probable ones; None all.
        grain: log-probabilities are multiples of it, so that there are ties.
        skill: how often a node's children hold the true token, most often the first.
    """
    ends = np.concatenate([np.arange(length, 0, -1) for length in lengths])
    found: list[tuple[int, int, float, bool]] = []  # parent, rank, log-probability, hit
    sizes, ranks = [], np.full((len(ends), depth), -1)
    for anchor, left in enumerate(ends.tolist()):
        own: list[tuple[int, int, float, bool]] = []
        value: list[np.float32] = []
        level, true = [-1], -1
        for d in range(depth):
            start = len(own)
            right = int(rng.geometric(0.5)) - 1 if rng.random() < skill and d < left else width
            for parent in level:
                for rank, steps in enumerate(np.sort(rng.integers(1, 12, width)).tolist()):
                    log = np.float32(-steps * grain)
                    hit = parent == true and rank == right and (d == 0 or true >= 0)
                    own.append((parent, rank, float(log), hit))
                    value.append(log if parent < 0 else value[parent] + log)
            hits = [start + place for place, node in enumerate(own[start:]) if node[3]]
            true = hits[0] if hits else -2
            if hits:
                ranks[anchor, d] = own[true][1]
            best = sorted(range(start, len(own)), key=lambda node: (-value[node], node))
            level = sorted(best[: len(best) if beam is None else beam])
        found += own
        sizes.append(len(own))
    parent, rank, logs, hit = zip(*found, strict=True)
    candidates = Candidates(
        offset=np.append(0, np.cumsum(sizes)).astype(np.int64),
        parent=np.array(parent, dtype=np.int16),
        rank=np.array(rank, dtype=np.uint8),
        logprob=np.array(logs, dtype=np.float32),
        hit=np.array(hit, dtype=np.bool_),
    )
    return with_lengths(ranks, lengths, width=width, candidates=candidates)


def assert_equal_traces(first: Trace, second: Trace) -> None:
    """Fail unless two traces agree in every array, its type, the labels and `meta`."""
    assert first.width == second.width
    assert dict(first.meta) == dict(second.meta)
    assert first.domain_names == second.domain_names
    for name in ARRAYS:
        assert_equal_arrays(getattr(first, name), getattr(second, name))
    assert (first.candidates is None) == (second.candidates is None)
    if first.candidates is not None:
        for part in fields(Candidates):
            assert_equal_arrays(getattr(first.candidates, part.name), getattr(second.candidates, part.name))


def assert_equal_arrays(first: NDArray[Any] | None, second: NDArray[Any] | None) -> None:
    """Fail unless two arrays are both absent, or agree in type, shape and every entry."""
    assert (first is None) == (second is None)
    if first is not None and second is not None:
        assert first.dtype == second.dtype
        np.testing.assert_array_equal(first, second)
