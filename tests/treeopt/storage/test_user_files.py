"""Files that users name: pipes, devices and endless files are refused before anything waits for them."""

import gzip
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from executor.drafters.prompt_lookup.engine_rules import lookup_drafter
from executor.models import random_drafter
from simulate.model_sizes.model_shape import Shape
from simulate.profiles.engine_times_csv import read_times
from simulate.profiles.profile import load_profile
from simulate.runs.batch_record import _first_steps
from simulate.runs.server_load import read_requests
from simulate.validation.predictions import load_predictions
from tests.helpers.command_line import refused, run
from tests.helpers.models import small_target
from treeopt.api.run_models import Prompts, load_tokens
from treeopt.comparison.trees_of_size import parse_sizes
from treeopt.errors import TreeoptError
from treeopt.plans import load_plan
from treeopt.storage.json_records import RecordError
from treeopt.storage.user_files import check_regular, checksum, open_regular, read_bytes, read_text, read_text_lines
from treeopt.storage.work_file import read_lines
from treeopt.traces.importers import source_file
from treeopt.traces.resumable_shards import load_file_or_shards
from treeopt.tree_files.choice_lists import read_tree

READERS = {
    "trace": load_file_or_shards,
    "plan": load_plan,
    "profile": load_profile,
    "predictions": load_predictions,
    "requests": read_requests,
    "times": lambda path: read_times(path, device="d"),
    "configuration": Shape.from_config,
    "tree": read_tree,
    "source": source_file.read_text,
    "numbers": lambda path: source_file.read_numbers(path.with_suffix(".npy"), lambda file: None),
}


@pytest.fixture
def strange(tmp_path):
    """What is no regular file, by name."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "pipe.npy").symlink_to(tmp_path / "pipe")
    bound = socket.socket(socket.AF_UNIX)
    bound.bind(os.path.relpath(tmp_path / "socket"))
    yield {"pipe": tmp_path / "pipe", "zero": Path("/dev/zero"), "null": Path("/dev/null"), "folder": tmp_path}
    bound.close()


@pytest.mark.parametrize("kind", ["pipe", "zero", "null", "folder"])
def test_only_regular_files_are_opened(strange, kind):
    with pytest.raises(OSError, match="irectory" if kind == "folder" else "not a regular file"):
        open_regular(strange[kind])
    for read in (read_bytes, read_text, checksum, lambda path: list(read_text_lines(path))):
        with pytest.raises(OSError):  # noqa: PT011 - the message is that of `open_regular`
            read(strange[kind])


@pytest.mark.parametrize("name", READERS)
def test_no_reader_waits_for_a_pipe(strange, name):
    with pytest.raises(TreeoptError):
        READERS[name](strange["pipe"])


@pytest.mark.parametrize("name", [name for name in READERS if name != "numbers"])
def test_no_reader_reads_a_device(strange, name):
    with pytest.raises(TreeoptError):
        READERS[name](strange["zero"])


def test_lines_that_a_command_resumes_are_of_a_regular_file(strange):
    with pytest.raises(RecordError, match="not a regular file"):
        read_lines(strange["pipe"], "any")


def test_a_model_s_folder_holds_regular_files(strange, tmp_path):
    with pytest.raises(OSError, match=r"not a regular file|No such device"):
        check_regular(tmp_path)


def test_sizes_are_bounded_before_a_file_is_read(tmp_path):
    path = tmp_path / "large"
    path.write_bytes(b"12345")
    assert read_text(path, limit=5) == "12345"
    with pytest.raises(OSError, match="larger than 4 bytes"):
        read_text(path, limit=4)
    with path.open("wb") as file:
        file.truncate(2**40)  # a hole, which takes no space
    with pytest.raises(OSError, match="larger than"):
        read_text(path)
    with pytest.raises(OSError, match="line 1 is longer than 100 bytes"):
        list(read_text_lines(path, limit=100))
    for reader in (load_plan, load_profile, read_tree, source_file.read_text):
        with pytest.raises(TreeoptError, match="larger than"):
            reader(path)


def test_lines_end_with_a_line_feed_alone(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes("\ufeffa\r\n\n \nb\u2028c\x0bd\n\ufeffe".encode())
    assert list(read_text_lines(path)) == [(1, "a\r\n"), (4, "b\u2028c\x0bd\n"), (5, "\ufeffe")]
    path.write_bytes(b"\xff")
    with pytest.raises(UnicodeDecodeError):
        list(read_text_lines(path))


def test_a_name_with_a_zero_byte_is_refused():
    with pytest.raises(OSError, match="zero byte"):
        open_regular("a\0b")


NUMBERS = [
    ("simulate", "--tree", "2", "--batch", "9223372036854775808"),
    ("simulate", "--tree", "1", "--batch", "4", "--prompt-tokens", "99999999999"),
    ("search", "--batch", "4", "--max-tpot-ms", "1e308"),
]


@pytest.mark.parametrize("words", NUMBERS, ids=" ".join)
def test_numbers_are_bounded_before_any_work(words):
    refused(run(words[0], "--trace", "data/traces/medusa-t0.npz", *words[1:]), "", code=2)


@pytest.mark.parametrize("size", ["best:4097", "chain:" + "9" * 5000, "best:٣" * 3])
def test_sizes_of_trees_are_bounded(size):
    with pytest.raises(TreeoptError, match=r"N in 1\.\.4096"):
        parse_sizes(size)


def test_a_batch_of_more_rows_than_requests_takes_the_memory_of_the_requests():
    assert _first_steps([2, 3, 1], 10**9, [3, 3, 3], 0).tolist() == [0, 0, 0]
    assert _first_steps([2, 3, 1], 2, [3, 3, 3], 0).tolist() == [0, 0, 2]


def test_no_command_waits_for_a_pipe(strange):
    """The whole process, since what hangs is a system call."""
    words = ("search", "--trace", "data/traces/medusa-t0.npz", "--batch", "4", "--profile", str(strange["pipe"]))
    command = [sys.executable, "-m", "treeopt", *words]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 1
    assert "not a regular file" in ended.stderr


def test_the_days_of_a_server_are_bounded():
    words = ("simulate", "--trace", "data/traces/medusa-t0.npz", "--tree", "1", "--batch", "4", "--arrivals", "10")
    refused(run(*words, "--requests", "100000", "--replications", "101"), "more than 10000000 arrivals", code=2)


@pytest.mark.parametrize("name", ["medusa:0", "medusa:65", "layers:" + "9" * 5000])
def test_random_drafters_are_bounded(name):
    with pytest.raises(TreeoptError, match=r"a drafter of random weights must be .*medusa:K"):
        random_drafter(name, small_target())


@pytest.mark.parametrize("name", [f"prompt-lookup:{engine}" + "9" * 5000 for engine in ("", "vllm:", "llama.cpp:1-")])
def test_sizes_of_prompt_lookup_are_bounded(name):
    with pytest.raises(TreeoptError):
        lookup_drafter(name, small_target())


def test_random_prompts_are_bounded():
    prompts = Prompts(prompt_tokens=8, requests=2**31)
    with pytest.raises(TreeoptError, match="more than 67108864 random tokens"):
        load_tokens(None, small_target(), prompts)


PACKED = {
    "gzip": gzip.compress(b"{}"),
    "zip": b"PK\x03\x04" + bytes(30),
    "parquet": b"PAR1" + bytes(30),
}


@pytest.mark.parametrize("kind", PACKED)
def test_packed_files_are_named(tmp_path, kind):
    (tmp_path / "f").write_bytes(PACKED[kind])
    with pytest.raises(OSError, match=f"a {kind} file, no text: unpack or convert it first"):
        read_text(tmp_path / "f")


def test_a_trace_in_the_place_of_another_file_is_named(tmp_path):
    (tmp_path / "t.npz").write_bytes(PACKED["zip"])
    for name in ("plan", "profile", "tree"):
        with pytest.raises(
            (TreeoptError, RecordError), match=r"arrays of NumPy \(\.npz\), such as a trace, and no text"
        ):
            READERS[name](tmp_path / "t.npz")


@pytest.mark.parametrize("name", ["plan", "profile", "predictions", "configuration", "tree", "source", "requests"])
def test_every_reader_names_pointers_of_git_lfs(tmp_path, name):
    file = tmp_path / "f.json"
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
    with pytest.raises((TreeoptError, RecordError), match="a pointer of Git LFS, not the file: fetch it with `git lfs"):
        READERS[name](file)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig", "utf-8"])
def test_texts_with_a_byte_order_mark_are_read(tmp_path, encoding):
    (tmp_path / "f").write_bytes("a\r\nß\r\n".encode(encoding))
    assert read_text(tmp_path / "f") == "a\nß\n"
