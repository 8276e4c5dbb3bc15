"""Traces: what is saved comes back, and whatever breaks the format is refused with file, field and index."""

import io
import json
import re
import struct
import tracemalloc
import zipfile
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.helpers.slow_params import examples
from tests.helpers.strategies import ARRAYS, assert_equal_arrays, assert_equal_traces, trace_of, traces, with_lengths
from treeopt.errors import TraceError
from treeopt.traces import trace as trace_module
from treeopt.traces.candidates import Candidates
from treeopt.traces.trace import BY_ANCHOR, RANKS, Trace
from treeopt.traces.trace_files import SCHEMA, load_trace, save_trace

# A directory made once serves all examples: each overwrites the file.
shared_directory = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def full_trace() -> Trace:
    """Two requests (3 and 1 anchors), depth 2, width 2, every optional array."""
    probability = np.full((4, 2, 2), 0.25, dtype=np.float16)
    return trace_of(
        [[[0, 1], [1, -1], [0, -2]], [[1, -2]]],
        width=2,
        numbers=[3, 7],
        meta={
            "target": {"name": "byte model", "hash": "abc"},
            "temperature": 0.5,
            "verification": "typical",
            "seed": 1,
            "tree": [[0], [1], [1, 0]],
        },
        accept=probability,
        kept=probability.copy(),
        draft_prob=probability.copy(),
        draft_entropy=np.full((4, 2), 1.5, dtype=np.float16),
        target_entropy=np.array([0, 0.5, 2, 1], dtype=np.float16),
        tree_kept=np.array([[1, 1, 0], [0, 1, 1], [0, 1, 0], [0, 0, 0]], dtype=np.bool_),
        drafted=np.array([2, 1, 1, 1], dtype=np.int16),
        confidence=np.array([[0.5, 0.25], [1, 0], [0.75, 0], [0.125, 0]], dtype=np.float16),
        candidates=Candidates(
            offset=np.array([0, 3, 3, 4, 6], dtype=np.int64),
            parent=np.array([-1, 0, -1, -1, -1, 0], dtype=np.int16),
            rank=np.array([0, 0, 1, 0, 0, 1], dtype=np.uint8),
            logprob=np.array([-0.5, -1, -2, 0, -0.25, -0.5], dtype=np.float32),
            hit=np.array([True, True, False, False, True, False]),
        ),
        domain=np.array([1, 0], dtype=np.int16),
        domain_names=("chat", "code"),
        prompt_tokens=np.array([70, 9], dtype=np.int32),
    )


def arrays_of(trace: Trace) -> dict[str, np.ndarray]:
    """What a file of this trace holds, written down here once more."""
    arrays = {name: getattr(trace, name) for name in ARRAYS if getattr(trace, name) is not None}
    if trace.candidates is not None:
        arrays |= {f"candidates_{part.name}": getattr(trace.candidates, part.name) for part in fields(Candidates)}
    header = {"schema": SCHEMA, "width": trace.width, "domain_names": list(trace.domain_names), **trace.meta}
    return arrays | {"meta": encoded(header)}


def encoded(header: Any) -> np.ndarray:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return np.frombuffer(text, dtype=np.uint8)


def header_with(**changes: Any) -> np.ndarray:
    """The full trace's header with some keys changed; a key given as ... is left out."""
    header = {"schema": SCHEMA, "width": 2, "domain_names": ["chat", "code"]} | changes
    return encoded({key: value for key, value in header.items() if value is not ...})


def changed(name: str, index: Any, value: Any) -> np.ndarray:
    """One array of the full trace with one entry changed."""
    array = np.array(arrays_of(full_trace())[name])
    array[index] = value
    return array


def load_bytes(path: Path, content: bytes) -> Trace:
    path.write_bytes(content)
    return load_trace(path)


def assert_refused_or_harmless(path: Path, content: bytes, trace: Trace) -> None:
    """Fail unless a damaged file is refused by name or still holds the trace."""
    try:
        loaded = load_bytes(path, content)
    except TraceError as error:
        if not str(error).startswith(f"{path}: "):
            raise
    else:
        assert_equal_traces(loaded, trace)


# --- round trip


@given(traces(parts=True))
@shared_directory
def test_what_is_saved_comes_back(tmp_path, trace):
    path = tmp_path / "trace.npz"
    save_trace(trace, path)
    assert_equal_traces(load_trace(path), trace)


def test_the_format_is_the_documented_one(tmp_path):
    path = tmp_path / "trace.npz"
    save_trace(full_trace(), path)
    with np.load(path, allow_pickle=False) as file:
        held = {name: file[name] for name in file.files}
    expected = arrays_of(full_trace())
    assert held.keys() == expected.keys()
    for name in held:
        if name != "meta":
            assert_equal_arrays(held[name], expected[name])
    assert json.loads(held["meta"].tobytes()) == json.loads(expected["meta"].tobytes())
    logprob = expected["candidates_logprob"].astype(np.float16)
    fortran = {name: np.asfortranarray(expected[name]) for name in ("rank", "accept")}
    for by_others in ({}, fortran, {"candidates_logprob": logprob}):
        np.savez(path, **expected | by_others)  # uncompressed
        assert_equal_traces(load_trace(path), full_trace())


@pytest.mark.parametrize("value", [{1, 2}, np.float32(1), object()])
def test_meta_that_is_no_json_is_refused_before_anything_is_written(tmp_path, value):
    with pytest.raises((TraceError, TypeError)):
        save_trace(trace_of([[[0]]], width=2, meta={"seed": value}), tmp_path / "trace.npz")
    assert list(tmp_path.iterdir()) == []


# --- derived


@given(traces(parts=True))
def test_requests_start_and_stop_where_their_number_changes(trace):
    numbers = trace.request.tolist()
    starts = [i for i, number in enumerate(numbers) if i == 0 or number != numbers[i - 1]]
    assert trace.starts.tolist() == starts
    assert trace.stops.tolist() == [*starts[1:], len(numbers)]
    assert trace.requests == len(set(numbers))
    assert trace.request_index.tolist() == [sorted(set(numbers)).index(number) for number in numbers]
    assert trace.lengths.tolist() == [numbers.count(number) for number in sorted(set(numbers))]
    assert trace.left.tolist() == [numbers[i:].count(number) for i, number in enumerate(numbers)]
    assert (trace.anchors, trace.depth) == trace.rank.shape


def test_a_trace_cannot_be_changed():
    trace = full_trace()
    with pytest.raises(FrozenInstanceError):
        trace.width = 3
    arrays = [getattr(trace, name) for name in ARRAYS]
    arrays += [getattr(trace.candidates, part.name) for part in fields(Candidates)]
    for array in arrays:
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


# --- files that are none


def test_files_that_are_no_trace(tmp_path):
    with pytest.raises(TraceError, match=r"nowhere\.npz: no such file"):
        load_trace(tmp_path / "nowhere.npz")
    with pytest.raises(TraceError, match=rf"{tmp_path}: is not a file"):
        load_trace(tmp_path)
    for content in (b"", b"PK", b"\x93NUMPY\x01\x00", b"PK\x05\x06" + bytes(18)):
        with pytest.raises(TraceError, match=r"trace\.npz: "):
            load_bytes(tmp_path / "trace.npz", content)
    np.save(tmp_path / "rank.npy", full_trace().rank)
    with pytest.raises(TraceError, match=r"rank\.npy: not a complete \.npz file"):
        load_trace(tmp_path / "rank.npy")


@pytest.mark.parametrize(("write", "step"), [(np.savez_compressed, 3), (np.savez, 17)])
def test_every_truncation_is_refused(tmp_path, write, step):
    path = tmp_path / "trace.npz"
    write(path, **arrays_of(full_trace()))
    content = path.read_bytes()
    for size in range(0, len(content), step):
        with pytest.raises(TraceError, match=r"trace\.npz: "):
            load_bytes(path, content[:size])


# Members of more than 4096 bytes: zipfile hands out their beginning before it has checked the sum.
LONG = with_lengths(np.zeros((6000, 2)), [6000], width=2)


def long_file() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays_of(LONG))
    return buffer.getvalue()


@given(st.sampled_from(["request", "position", "rank"]), st.integers(0, 127), st.integers(1, 255))
@example("rank", 67, ord("1") ^ ord("2"))  # shape (6000, 2) -> (6000, 1): fits the other arrays
@example("rank", 10, ord("{") ^ ord("\n"))
@example("request", 21, ord("<") ^ ord(","))
@example("request", 22, ord("i") ^ ord("a"))
@example("request", 26, ord(",") ^ ord("b"))
@example("request", 64, ord("0") ^ ord("L"))
@example("request", 8, 64)
@settings(shared_directory, max_examples=examples(150))
def test_a_changed_byte_in_the_head_of_an_array_is_refused_or_harmless(tmp_path, name, place, mask):
    content = bytearray(long_file())
    head = content.index(b"\x93NUMPY", content.index(f"{name}.npy".encode()))
    content[head + place] ^= mask
    assert_refused_or_harmless(tmp_path / "trace.npz", bytes(content), LONG)


@given(traces(parts=True), st.data())
@settings(shared_directory, max_examples=examples(150))
def test_a_changed_byte_anywhere_is_refused_or_harmless(tmp_path, trace, data):
    path = tmp_path / "trace.npz"
    save_trace(trace, path)
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    assert_refused_or_harmless(path, bytes(content), trace)


# --- arrays that are not what they must be


def refused(path: Path, arrays: dict[str, Any]) -> str:
    """The message with which a file of these arrays is refused; it starts with the file's path."""
    np.savez(path, **arrays)
    with pytest.raises(TraceError) as caught:
        load_trace(path)
    assert str(caught.value).startswith(f"{path}: ")
    return str(caught.value).removeprefix(f"{path}: ")


def test_missing_and_unknown_arrays_are_named(tmp_path):
    arrays = arrays_of(full_trace())
    for missing in ("rank", "meta", "candidates_hit"):
        rest = {name: array for name, array in arrays.items() if name != missing}
        assert refused(tmp_path / "t.npz", rest) == f"array `{missing}` is missing"
    assert refused(tmp_path / "t.npz", arrays | {"ranks": np.zeros(3)}) == "unknown array `ranks`"


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("request", np.int64),
        ("rank", np.float16),
        ("candidates_hit", np.uint8),
        ("rank", [("a", "<i2")]),
    ],
)
def test_wrong_types_are_named(tmp_path, name, dtype):
    arrays = arrays_of(full_trace())
    message = refused(tmp_path / "t.npz", arrays | {name: arrays[name].astype(dtype)})
    assert message.startswith(f"`{name}` must be ")
    assert message.endswith(str(np.dtype(dtype)))


@pytest.mark.parametrize("name", ["rank", "meta"])
def test_pickled_objects_are_not_read(tmp_path, name):
    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("a pickle was read",))

    array = np.empty(2, dtype=object)
    array[:] = [Bomb(), Bomb()]
    message = refused(tmp_path / "t.npz", arrays_of(full_trace()) | {name: array})
    assert message == f"`{name}` holds pickled Python objects, which are not read"


BAD = [
    ("position", np.int32([0, 1, 2]), r"`request` and `position` must have the same length"),
    ("accept", np.zeros((4, 2, 3), np.float16), r"`accept` must have shape \(4, 2, 2\)"),
    ("drafted", np.int16([2, 1]), r"`drafted` must have one entry per anchor \(4\), found \(2,\)"),
    ("drafted", np.int16([2, 1, 1, -1]), r"drafted\[3\] must be in 0\.\.2 \(the depth\), found -1"),
    ("drafted", np.int16([2, 0, 1, 1]), r"rank\[1, 0\] must be -1 or -2, because drafted\[1\] is 0, found 1"),
    ("prompt_tokens", np.int32([70, 0]), r"prompt_tokens\[1\] must be at least 1, found 0"),
    ("request", np.int32([3, 3, 3, 2]), r"request\[3\] must not fall below 3, found 2"),
    ("position", changed("position", 0, 1), r"position\[0\] must be 0 .*, found 1"),
    ("rank", changed("rank", (1, 0), 2), r"rank\[1, 0\] must be in \[-2, 1\] \(width 2\), found 2"),
    ("rank", changed("rank", (1, 1), -2), r"rank\[1, 1\] must be -1 or more .*, found -2"),
    ("rank", changed("rank", (3, 1), 0), r"rank\[3, 1\] must be -2 .*, found 0"),
    ("accept", changed("accept", (2, 1, 0), np.nan), r"accept\[2, 1, 0\] must be in \[0, 1\], found nan"),
    ("confidence", changed("confidence", (1, 0), 1.5), r"confidence\[1, 0\] must be in \[0, 1\], found 1\.5"),
    ("accept", changed("accept", (2, 1), [0.3, 0.8]), r"accept\[2, 1\] must sum to at most 1"),
    ("draft_entropy", changed("draft_entropy", (1, 1), -1), r"draft_entropy\[1, 1\] must be 0 or more and finite"),
    ("domain", np.int16([0, 2]), r"domain\[1\] must be an index of the 2 `domain_names`, found 2"),
    ("candidates_offset", np.int64([0, 3, 2, 4, 6]), r"`candidates_offset` must rise from 0 to 6"),
    ("candidates_parent", changed("candidates_parent", 5, 1), r"candidates_parent\[5\] must stand"),
    ("candidates_hit", changed("candidates_hit", 0, False), r"candidates_hit\[1\] is true below"),
    ("meta", encoded(b"{"), r"`meta` is not JSON"),
    ("meta", encoded(b"[" * 100_000), r"`meta`"),
    ("meta", header_with(schema=...), r"schema must be 'treeopt\.trace/2', found None"),
    ("meta", header_with(width=10**30), r"`meta`: width: Expected `int` <= 1024"),
    ("meta", header_with(domain_names="chat"), r"`meta`: domain_names: Expected `array`, found 'chat'"),
]


@pytest.mark.parametrize(("name", "array", "message"), BAD, ids=[f"{name}: {words}" for name, _, words in BAD])
def test_bad_content_is_refused_with_field_and_index(tmp_path, monkeypatch, name, array, message):
    monkeypatch.setattr(trace_module, "CHUNK", 2)  # large arrays are checked in parts
    found = refused(tmp_path / "t.npz", arrays_of(full_trace()) | {name: array})
    assert re.match(message, found), found


def test_the_schema_before_is_read_unchanged(tmp_path):
    whole = replace(full_trace(), confidence=None)
    np.savez(tmp_path / "t.npz", **arrays_of(whole) | {"meta": header_with(schema="treeopt.trace/1", **whole.meta)})
    assert_equal_traces(load_trace(tmp_path / "t.npz"), whole)


def test_arrays_that_are_not_wanted_are_not_read(tmp_path):
    np.savez(tmp_path / "t.npz", **arrays_of(full_trace()) | {"accept": np.zeros(3, dtype="U1")})
    found = load_trace(tmp_path / "t.npz", arrays=RANKS)
    plain = dict.fromkeys(("accept", "kept", "draft_prob", "draft_entropy", "target_entropy", "candidates"))
    assert_equal_traces(found, replace(full_trace(), **plain))
    np.savez(tmp_path / "t.npz", **arrays_of(full_trace()) | {"other": np.zeros(3)})
    with pytest.raises(TraceError, match="unknown array `other`"):
        load_trace(tmp_path / "t.npz", arrays=RANKS)


@given(traces(length=30), st.integers(1, 20), st.data())
def test_positions_are_checked_alike_in_parts_of_any_size(trace, chunk, data):
    position = trace.position.copy()
    at = data.draw(st.integers(0, trace.anchors - 1))
    position[at] = data.draw(st.integers(-3, 40) | st.just(2**31 - 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace_module, "CHUNK", chunk)
        if position[at] == trace.position[at]:
            replace(trace, position=position)
        else:
            due = rf"position\[{at}\] must be {trace.position[at]} .*, found {position[at]}"
            with pytest.raises(TraceError, match=due):
                replace(trace, position=position)


# --- the constructor checks as much as the loader


@pytest.mark.parametrize(("name", "value"), [("request", np.array([0.0])), ("rank", np.array([[np.nan]]))])
def test_a_trace_of_other_types_is_refused_or_converted(tmp_path, name, value):
    # What is constructed can be saved, and what is saved can be loaded.
    parts = {"request": np.int32([0]), "position": np.int32([0]), "rank": np.int16([[0]]), "domain": np.int16([0])}
    try:
        trace = Trace(**(parts | {name: value}), width=2, domain_names=("chat",))
    except TraceError as error:
        if name not in str(error):
            raise
        return
    save_trace(trace, tmp_path / "t.npz")
    assert_equal_traces(load_trace(tmp_path / "t.npz"), trace)


# --- sizes are checked before anything is allocated


def member(shape: str, data: bytes, descr: str = "<i4") -> bytes:
    """An .npy file whose head says `shape`."""
    head = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + data


def file_with(name: str, content: bytes, *, compression: int = zipfile.ZIP_STORED) -> bytes:
    """The full trace's file with one member replaced by these bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for other, array in arrays_of(full_trace()).items():
            npy = io.BytesIO()
            np.save(npy, array)
            archive.writestr(f"{other}.npy", content if other == name else npy.getvalue())
    return buffer.getvalue()


def test_a_member_written_by_hand_is_read(tmp_path):
    # Otherwise the refusals below prove nothing.
    data = full_trace().request.tobytes()
    assert_equal_traces(load_bytes(tmp_path / "t.npz", file_with("request", member("(4,)", data))), full_trace())


@pytest.mark.parametrize("shape", ["(4000000000,)", "(5,)", "[4]"])
def test_a_shape_that_the_data_do_not_fill_is_refused_without_allocating(tmp_path, shape):
    content = file_with("request", member(shape, full_trace().request.tobytes()))
    tracemalloc.start()
    try:
        with pytest.raises(TraceError, match=r"t\.npz: "):
            load_bytes(tmp_path / "t.npz", content)
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_zip_entry_that_lies_about_its_size_is_refused_without_allocating(tmp_path, compression):
    content = bytearray(file_with("request", member(f"({2**28},)", bytes(1000)), compression=compression))
    entry = content.index(b"PK\x01\x02")
    content[entry + 24 : entry + 28] = struct.pack("<I", 2**30 + 128)  # uncompressed size, as the directory says
    tracemalloc.start()
    try:
        with pytest.raises(TraceError, match=r"t\.npz: "):
            load_bytes(tmp_path / "t.npz", bytes(content))
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


def test_arrays_beyond_the_limit_are_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr("treeopt.traces.trace_files.MAX_ARRAY_BYTES", 15)
    with pytest.raises(TraceError, match=r"t\.npz: `request` of shape \(4,\) would take 16 bytes, more than 15"):
        load_bytes(tmp_path / "t.npz", file_with("request", member("(4,)", full_trace().request.tobytes())))


def test_members_written_otherwise_are_refused(tmp_path):
    good = member("(4,)", full_trace().request.tobytes())
    other_version = good[:6] + bytes([9, 9]) + good[8:]
    for content in (good + bytes(8), other_version):  # left over behind the array; a head of another version
        with pytest.raises(TraceError, match=r"t\.npz: "):
            load_bytes(tmp_path / "t.npz", file_with("request", content))


# --- written whole or not at all


def test_saving_replaces_a_file_and_obeys_the_umask(tmp_path):
    path = tmp_path / "trace.npz"
    path.write_bytes(b"old")
    (tmp_path / "plain").write_bytes(b"")
    save_trace(full_trace(), path)
    assert_equal_traces(load_trace(path), full_trace())
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode
    assert len(list(tmp_path.iterdir())) == 2


# --- parts of a trace


def rows(trace: Trace) -> list[tuple]:
    """Everything a trace says, anchor by anchor, request numbers and labels included."""
    found = []
    for i in range(trace.anchors):
        label = None if trace.domain is None else trace.domain_names[trace.domain[trace.request_index[i]]]
        prompt = None if trace.prompt_tokens is None else int(trace.prompt_tokens[trace.request_index[i]])
        row = [int(trace.request[i]), int(trace.position[i]), trace.rank[i].tolist(), label, prompt]
        row += [None if part is None else part[i].tolist() for part in (getattr(trace, name) for name in BY_ANCHOR)]
        if trace.candidates is not None:
            own = slice(*trace.candidates.offset[i : i + 2].tolist())
            row += [getattr(trace.candidates, f.name)[own].tolist() for f in fields(Candidates) if f.name != "offset"]
        found.append(tuple(row))
    return found


@given(traces(parts=True), st.data())
def test_a_selection_keeps_all_that_its_requests_say(trace, data):
    chosen = sorted(data.draw(st.sets(st.integers(0, trace.requests - 1), min_size=1)))
    part = trace.select(np.array(chosen))
    keep = np.isin(trace.request_index, chosen)
    assert rows(part) == [row for row, kept in zip(rows(trace), keep.tolist(), strict=True) if kept]
    assert part.requests == len(chosen)
    assert (part.width, dict(part.meta), part.domain_names) == (
        trace.width,
        dict(trace.meta),
        trace.domain_names,
    )
    assert (part.candidates is None) == (trace.candidates is None)
    assert_equal_traces(trace.select(np.arange(trace.requests)), trace)


@pytest.mark.parametrize("requests", [[], [2], [-1], [1, 0], [0, 0], [True, False]], ids=str)
def test_a_selection_that_is_no_increasing_choice_of_requests_is_refused(requests):
    with pytest.raises(TraceError):
        full_trace().select(np.array(requests))


@given(traces(requests=(2, 6), length=4, parts=True), st.floats(-0.5, 1.5), st.integers(0, 2**32 - 1))
def test_a_split_is_disjoint_complete_and_leaves_neither_part_empty(trace, share, seed):
    first, second = trace.split(share=share, rng=np.random.default_rng(seed))
    assert sorted(rows(first) + rows(second)) == sorted(rows(trace))
    assert not {row[0] for row in rows(first)} & {row[0] for row in rows(second)}
    assert first.requests >= 1
    assert second.requests >= 1
    if 1 <= share * trace.requests <= trace.requests - 1:
        assert abs(first.requests - share * trace.requests) <= 0.5
    again, _ = trace.split(share=share, rng=np.random.default_rng(seed))
    assert_equal_traces(again, first)


def test_splits_differ_between_seeds_and_are_fair():
    trace = with_lengths(np.zeros((100, 1)), [1] * 100, width=1)
    with pytest.raises(TraceError, match="at least 2 requests, the trace has 1"):
        trace.select(np.array([0])).split(share=0.5, rng=np.random.default_rng(0))
    halves = [trace.split(share=0.5, rng=np.random.default_rng(seed))[0].request for seed in range(400)]
    assert len({half.tobytes() for half in halves}) == 400
    # Each request falls into the first half with probability 1/2: 100 binomial counts of 400 lie in 200 ± 50,
    # five standard deviations, with a false-alarm probability of 100 * 6e-7 (and the seeds are fixed).
    times = np.bincount(np.concatenate(halves), minlength=100)
    assert times.sum() == 50 * 400
    assert abs(times - 200).max() <= 50


@given(traces())
def test_a_trace_as_a_frame_has_a_row_per_anchor_and_depth_inside_its_request(trace):
    frame = trace.frame()
    inside = trace.rank != trace_module.PAST_END
    anchors, depths = np.nonzero(inside)
    assert frame["rank"].tolist() == trace.rank[inside].tolist()
    assert frame["request"].tolist() == trace.request[anchors].tolist()
    assert frame["position"].tolist() == trace.position[anchors].tolist()
    assert frame["depth"].tolist() == (depths + 1).tolist()
    assert ("domain" in frame) == (trace.domain is not None)
    if trace.domain is not None:
        labels = [trace.domain_names[trace.domain[trace.request_index[anchor]]] for anchor in anchors]
        assert frame["domain"].tolist() == labels
