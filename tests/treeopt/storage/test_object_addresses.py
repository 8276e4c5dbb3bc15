"""Addresses of objects: read and written whole or not at all; what fails takes one line without a password."""

import json
import sys

import fsspec
import pytest

from tests.helpers.command_line import done, refused, run
from tests.helpers.command_line import trace_file as trace_file
from treeopt.errors import TraceError, visible
from treeopt.plans import load_plan
from treeopt.storage.user_files import address_of, read_bytes, whole
from treeopt.traces.trace_files import load_trace, save_trace


@pytest.fixture
def memory():
    system = fsspec.filesystem("memory")
    yield system
    system.store.clear()


def test_commands_read_and_write_objects(memory, trace_file, tmp_path):
    trace = load_trace(trace_file)
    save_trace(trace, "memory://bucket/t.npz")
    assert (load_trace("memory://bucket/t.npz").rank == trace.rank).all()
    words = ("search", "--trace", "memory://bucket/t.npz", "--batch", "1", "--max-nodes", "2")
    done(*words, "--profile", "data/profiles/medusa-cpu.json", "--output", "memory://bucket/plan.json")
    assert load_plan("memory://bucket/plan.json").entries[0].batch == 1
    (tmp_path / "plan.json").write_bytes(read_bytes("memory://bucket/plan.json"))
    assert json.loads(read_bytes(f"file://{tmp_path}/plan.json"))["schema"].startswith("treeopt.plan/")
    result = done("trace", "merge", trace_file, "--output", f"file://{tmp_path}/copy.npz")
    assert f"file://{tmp_path}/copy.npz" in result.stderr.replace("file:/", "file:///").replace("////", "//")
    assert load_trace(tmp_path / "copy.npz").requests == trace.requests
    refused(run("trace", "merge", trace_file, "--output", "memory://bucket/t.npz"), "exists: give --force", code=2)
    done("trace", "merge", trace_file, "--output", "memory://bucket/t.npz", "--force")


def test_an_object_is_written_whole_or_not_at_all(memory, tmp_path):
    for address in ("memory://bucket/x", f"file://{tmp_path}/x"):
        writer = whole(address)
        writer.__enter__().write_bytes(b"half")
        assert not writer.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert memory.find("/") == []
    assert list(tmp_path.iterdir()) == []


def test_a_service_that_breaks_off_leaves_no_object(memory, tmp_path, monkeypatch):
    def broken(source, goal):
        goal.write(b"half")
        raise RuntimeError("reset: https://host/x?X-Amz-Signature=secret")

    monkeypatch.setattr("treeopt.storage.user_files.shutil.copyfileobj", broken)
    for address in ("memory://bucket/x", f"file://{tmp_path}/x"):
        with (
            pytest.raises(OSError, match=r"RuntimeError: reset: https://host/x: '") as caught,
            whole(address) as temporary,
        ):
            temporary.write_bytes(b"all")
        assert "secret" not in str(caught.value)
    assert memory.find("/") == []
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_read_takes_one_line_without_a_password(trace_file, monkeypatch):
    for address, words in (
        ("none://key:secret@bucket/t.npz", "Protocol not known: none"),
        ("s3://key:secret@bucket/t.npz", "Install s3fs"),
    ):
        for result in (run("trace", "info", address), run("trace", "merge", trace_file, "--output", address)):
            assert "secret" not in refused(result, words)
    with pytest.raises(TraceError, match=r"memory://bucket/none\.npz: No such file"):
        load_trace("memory://bucket/none.npz")
    words = ("train", "--recipe", "medusa1", "--target", "t", "--data", "d", "--output", "s3://bucket/out")
    refused(run(*words), "--output", "must be on this machine", code=2)
    monkeypatch.setitem(sys.modules, "fsspec", None)
    refused(run("trace", "info", "s3://bucket/t.npz"), "s3://bucket/t.npz", "pip install 'treeopt[urls]'")


def test_paths_of_this_machine_are_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s3:").mkdir()
    assert [address_of(path) for path in ("s3://b/x", "t.npz", "/t.npz", "C:/t.npz", "hf:org/name")] == [None] * 5
    assert address_of("gs:/b/x") == "gs://b/x"
    assert visible("at gs:/key:secret@b/x and http://a:8000/v1") == "at gs://b/x and http://a:8000/v1"
