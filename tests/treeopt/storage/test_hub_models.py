"""Models of the hub, from a small stand-in server that HF_ENDPOINT names; each command is a process of its own."""

import hashlib
import json
import os
import re
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.helpers.command_line import done, refused, run, small_trace
from treeopt.storage.hub_models import folder_name, hub_hint, model_folder
from treeopt.traces.trace_files import save_trace

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
