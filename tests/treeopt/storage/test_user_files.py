"""Files that users name: pipes, devices and endless files are refused unread; addresses; models of a stand-in hub."""

import gzip
import hashlib
import json
import os
import re
import socket
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import fsspec
import pytest

from executor.drafters.prompt_lookup.engine_rules import lookup_drafter
from executor.models import random_drafter
from simulate.model_sizes.model_shape import Shape
from simulate.profiles.engine_times_csv import read_times
from simulate.profiles.profile import load_profile
from simulate.runs.batch_record import _first_steps
from simulate.runs.server_load import read_requests
from simulate.validation.predictions import load_predictions
from tests.helpers.command_line import done, refused, run, small_trace
from tests.helpers.command_line import trace_file as trace_file
from tests.helpers.models import small_target
from treeopt.api.run_models import Prompts, load_tokens
from treeopt.comparison.trees_of_size import parse_sizes
from treeopt.errors import TraceError, TreeoptError, visible
from treeopt.plans import load_plan
from treeopt.storage.hub_models import folder_name, hub_hint, model_folder
from treeopt.storage.json_records import RecordError
from treeopt.storage.user_files import (
    address_of,
    check_regular,
    checksum,
    open_regular,
    read_bytes,
    read_text,
    read_text_lines,
    whole,
)
from treeopt.storage.work_file import read_lines
from treeopt.traces.importers import source_file
from treeopt.traces.resumable_shards import load_file_or_shards
from treeopt.traces.trace_files import load_trace, save_trace
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


PIPES = [("pipe", name) for name in READERS]


@pytest.mark.parametrize(("kind", "name"), [*PIPES, *(("zero", name) for name in READERS if name != "numbers")])
def test_no_reader_waits_for_a_pipe_or_reads_a_device(strange, kind, name):
    with pytest.raises(TreeoptError):
        READERS[name](strange[kind])


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


ROOT = Path(__file__).parents[3]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
COMMAND = ("-c", "from treeopt.cli import main; main()")
TRACE = ("--trace", "small.npz", "--hardware", "h100", "--batch", "1", "--max-nodes", "3")
WRITES = ("--prompt", "def f(", "--new-tokens", "4", "--json")


class Hub(BaseHTTPRequestHandler):
    """Answers what huggingface_hub asks about `org/FOLDER` for the folders in `server.models`."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        asked = re.match(r"/(api/models/)?org/([\w-]+)(/[^?]*)?", self.path)
        folder = self.server.models / asked[2] if asked else Path("none")
        files = {path.name: path for path in folder.glob("*")} if folder.is_dir() else {}
        headers, data = {}, None
        if files and asked[1] and "/tree/" in (asked[3] or ""):
            data = json.dumps([self._file(path) for path in files.values()]).encode()
        elif files and asked[1]:
            data = json.dumps(
                {"id": asked[2], "sha": COMMIT, "siblings": [{"rfilename": each} for each in files]}
            ).encode()
        elif files and (path := files.get(Path(asked[3] or "").name)):
            data = path.read_bytes()
            headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{self._file(path)["oid"]}"'}
            self.server.sent.add((asked[2], path.name))
        self.send_response(404 if data is None else 200)
        for name, value in (headers if data else {"X-Error-Code": "RepoNotFound"}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data or b"")))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data or b"")

    do_HEAD = do_GET

    def _file(self, path):
        content = path.read_bytes()
        return {"type": "file", "path": path.name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}

    def log_message(self, *_):
        """Print nothing."""


@pytest.fixture
def hub(tmp_path):
    """A server, whose `run` starts a command that uses it and an empty cache; `sent` are the files that it sent."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.models, server.sent = ROOT / "data/models", set()
    save_trace(small_trace(), tmp_path / "small.npz")
    variables = {"HF_HOME": str(tmp_path / "cache"), "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}"}

    def run(*words, **more):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", **variables, **more}
        command = [sys.executable, *COMMAND, *map(str, words)]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    server.run = run
    Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_whatif_fetches_configurations_alone_and_needs_no_network_again(hub, tmp_path):
    asked = ("whatif", *TRACE, "--context", "64", "--json", "--target")
    first = hub.run(*asked, "hf:org/stdlib-llama")
    assert first.returncode == 0, first.stderr
    assert hub.sent == {("stdlib-llama", f"{name}config.json") for name in ("", "generation_", "tokenizer_")}
    local = done(*asked[:2], tmp_path / asked[2], *asked[3:], ROOT / "data/models/stdlib-llama")
    assert json.loads(first.stdout)["cells"] == json.loads(local.stdout)["cells"]
    cached = next(tmp_path.glob("cache/hub/models--org--*"))
    assert folder_name(model_folder(cached)) == "stdlib-llama"
    offline = hub.run(*asked, "hf:org/stdlib-llama", HF_HUB_OFFLINE="1")
    unreachable = hub.run(*asked, "hf:org/stdlib-llama", HF_ENDPOINT="http://127.0.0.1:9")
    assert json.loads(offline.stdout)["cells"] == json.loads(unreachable.stdout)["cells"]


@pytest.mark.slow
def test_target_and_drafter_are_fetched_and_decode_as_their_folders_do(hub):
    fetched = hub.run("decode", "--target", "hf:org/stdlib-llama", "--drafter", "hf:org/stdlib-medusa", *WRITES)
    assert fetched.returncode == 0, fetched.stderr
    assert {name for _, name in hub.sent} >= {"model.safetensors", "tokenizer.json", "config.json"}
    folders = [ROOT / "data/models" / name for name in ("stdlib-llama", "stdlib-medusa")]
    local = hub.run("decode", "--target", folders[0], "--drafter", folders[1], *WRITES)
    one, other = json.loads(fetched.stdout), json.loads(local.stdout)
    assert [request["text"] for request in one["requests"]] == [request["text"] for request in other["requests"]]
    assert one["meta"]["target"] == other["meta"]["target"]


@pytest.mark.parametrize(
    ("target", "more", "said"),
    [
        ("hf:org/none", {}, "hf:org/none: the hub has no such model"),
        ("hf:org/stdlib-llama", {"HF_HUB_OFFLINE": "1"}, "not in the cache, and the hub cannot be reached; connect"),
        ("hf:org/stdlib-llama", {"HF_ENDPOINT": "http://127.0.0.1:9"}, "not in the cache, and the hub cannot be"),
    ],
)
def test_what_cannot_be_fetched_is_said_in_one_line(hub, target, more, said):
    run = hub.run("whatif", *TRACE, "--target", target, **more)
    assert run.returncode == 1
    assert said in run.stderr
    assert run.stderr.count("\n") == 1
    assert not hub.sent


def test_only_two_words_without_a_file_may_be_a_model_of_the_hub(tmp_path):
    asked = run("whatif", TRACE[0], tmp_path / "none.npz", *TRACE[2:], "--target", "org/llama")
    refused(asked, "; a model of the Hugging Face hub is named hf:org/llama", code=None)
    assert hub_hint("org/Name-1.5B") == "; a model of the Hugging Face hub is named hf:org/Name-1.5B"
    assert not any(map(hub_hint, ("data/models", "./llama", "/org/llama", "llama", "a/b/c", "../x/y")))
