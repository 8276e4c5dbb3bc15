"""Files that somebody else made: their texts control no terminal, and their sizes are checked before they are read."""

import os
import time

import numpy as np
import pytest

from tests.helpers.command_line import run
from treeopt.cli.options.help_sections import Command
from treeopt.errors import TraceError, TreeoptError, visible
from treeopt.notebook import html_of, text_of
from treeopt.planning.search_warnings import interval_warnings, reporting_warnings
from treeopt.replay.dynamic_tree import Batches
from treeopt.storage.user_files import read_bytes
from treeopt.traces.trace import Trace
from treeopt.traces.trace_files import load_trace, save_trace

CONTROL = "\x1b]0;PWNED\x07\x9b2J\u202e\r"


def controls(text):
    return [letter for letter in text if visible(letter, lines=True) != letter]


@pytest.fixture
def hostile(tmp_path):
    """A trace whose name and metadata hold control sequences."""
    path = tmp_path / f"a{CONTROL}.npz"
    names = {"verification": CONTROL, "target": {"name": CONTROL}, "drafter": {"kind": CONTROL, "name": CONTROL}}
    meta = names | {"assumed": [CONTROL], "device": CONTROL}
    anchors = 40
    request, position = np.repeat(np.arange(4, dtype=np.int32), 10), np.tile(np.arange(10, dtype=np.int32), 4)
    rank = np.where(np.arange(anchors)[:, None] % 3 == 0, -1, 0) * np.ones((1, 2), dtype=np.int64)
    rank[position == 9, 1] = -2
    save_trace(Trace(request, position, rank.astype(np.int16), 2, meta), path)
    return path


def test_texts_of_files_and_their_names_are_shown_escaped(hostile, tmp_path):
    trace, page = load_trace(hostile), tmp_path / "page.html"
    for words in (
        ["trace", "info", hostile],
        ["trace", "info", f"{hostile}x"],
        ["search", "--trace", hostile, "--batch", "1"],
    ):
        result = run(*words)
        assert "PWNED" in result.output, words
        assert not controls(result.output), words
    result = run("report", hostile, "--output", page)
    assert result.exit_code == 0, result.output
    assert "PWNED" in page.read_text("utf-8")
    assert not controls(page.read_text("utf-8"))
    assert not controls(html_of(trace) + text_of(trace) + str(TreeoptError(CONTROL)))


def test_sizes_of_arrays_are_checked_before_they_are_read(tmp_path, monkeypatch):
    good = {"request": np.int32([0]), "position": np.int32([0]), "rank": np.int16([[0]]), "meta": np.zeros(9, np.uint8)}
    monkeypatch.setattr(np.lib.format, "read_array", lambda *args, **settings: pytest.fail("was read"))
    for name, array in good.items():
        size = 2**25 if name == "meta" else 2**21
        np.savez_compressed(tmp_path / "t.npz", **good | {name: np.zeros((size, *array.shape[1:]), array.dtype)})
        with pytest.raises(TraceError, match=rf"`{name}` must have at most .*{size}"):
            load_trace(tmp_path / "t.npz")


def test_report_reads_no_file_that_is_too_large(tmp_path):
    with (tmp_path / "sparse.json").open("wb") as file:
        file.truncate(2**42)
    start = time.process_time()
    result = run("report", tmp_path / "sparse.json", "--output", tmp_path / "r.html")
    assert "larger than" in result.output
    assert time.process_time() - start < 5  # hashing 4 TB takes hours


def test_a_link_to_itself_and_a_file_that_waits_end_in_one_line(tmp_path, monkeypatch):
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    shipped = "data/traces/medusa-t0.npz"
    for words in (
        ["search", "--trace", shipped, "--batch", "1", "--max-nodes", "2", "--output", loop],
        ["compare", shipped, loop],
        ["report", loop, "--output", tmp_path / "r.html"],
        ["trace", "merge", shipped, "--output", loop],
    ):
        result = run(*words)
        assert "Too many levels of symbolic links" in result.stderr, words
        assert loop.is_symlink()
    reading, writing = os.pipe()
    monkeypatch.setattr("os.open", lambda *args: os.dup(reading))
    monkeypatch.setattr("stat.S_ISREG", lambda mode: True)
    os.set_blocking(reading, False)
    with pytest.raises(OSError, match="no file that ends"):
        read_bytes("waits")
    os.close(writing)


def test_every_command_can_be_quiet(hostile, tmp_path):
    def commands(group):
        for name in group.list_commands(None):
            command = group.get_command(None, name)
            yield from commands(command) if hasattr(command, "list_commands") else [command]

    from treeopt.cli import main

    for command in commands(main):
        assert isinstance(command, Command)
        assert [param for param in command.params if param.name == "quiet"], command.name
    result = run("trace", "split", hostile, "--output", tmp_path / "a.npz", "--rest", tmp_path / "b.npz", "-q")
    assert (result.exit_code, result.output) == (0, "")


def test_dealing_requests_to_queues_takes_linear_time():
    def seconds(requests):
        one = np.zeros(requests, dtype=np.int32)
        trace = Trace(np.arange(requests, dtype=np.int32), one, np.zeros((requests, 1), dtype=np.int16), 1)
        start = time.process_time()
        Batches(trace, batch=1)
        return time.process_time() - start

    assert seconds(160_000) < 8 * seconds(40_000)  # 4 times as many; 16 times as long where each queue looks at all


def test_rare_easy_requests_are_seen_in_the_other_part_too():
    def part(easy):
        requests, length = 50, 64
        hits = np.random.default_rng(0).random((requests * length, 5)) < 0.35
        hits[: easy * length] = True
        rank = np.where(hits, 0, -1).astype(np.int16)
        position = np.tile(np.arange(length, dtype=np.int32), requests)
        rank[np.arange(5) >= (length - position)[:, None]] = -2
        return Trace(np.repeat(np.arange(requests, dtype=np.int32), length), position, rank, 1)

    assert not interval_warnings(part(0))
    (warning,) = reporting_warnings(part(0), part(1))
    assert warning.startswith("in the requests used to choose trees, the spread")
    assert not reporting_warnings(part(0), part(0))
