"""Sources of `trace import`: a file, standard input, and what a server answers."""

import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from tests.helpers.command_line import done, refused, run
from tests.helpers.source_texts import LOG
from treeopt.cli.commands import trace as trace_command
from treeopt.storage.user_files import shipped
from treeopt.traces.trace_files import load_trace

COUNTERS = shipped("traces").parent.parent / "docs" / "examples" / "vllm_metrics.txt"


@contextmanager
def server(content=b"", *, status=200):
    """A web server of one page, /metrics, and the address of its folder."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            found = status if self.path.split("?")[0] == "/metrics" else 404
            self.send_response(found)
            self.end_headers()
            self.wfile.write(content if found == 200 else b"")

        def log_message(self, *words):
            pass

    web = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=web.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{web.server_port}"
    finally:
        web.shutdown()
        thread.join()
        web.server_close()


def imported(source, output, *more, **settings):
    return run("trace", "import", source, "--requests", "20", "--output", output, "--force", *more, **settings)


@pytest.fixture
def due(tmp_path):
    assert imported(COUNTERS, tmp_path / "file.npz").exit_code == 0
    return load_trace(tmp_path / "file.npz")


def test_standard_input_and_addresses_give_the_trace_of_the_file(due, tmp_path):
    text = COUNTERS.read_text("utf-8")
    output = tmp_path / "t.npz"
    assert imported("-", output, stdin=text).exit_code == 0
    piped = load_trace(output)
    with server(COUNTERS.read_bytes()) as address:
        assert imported(f"{address}/metrics?key=secret", output).exit_code == 0
    fetched = load_trace(output)
    for trace, name in ((piped, "standard input"), (fetched, f"{address}/metrics")):
        assert (trace.rank == due.rank).all()
        assert trace.meta["imported"]["file"] == name
        assert trace.meta["imported"]["sha256"] == due.meta["imported"]["sha256"]


def test_an_earlier_scrape_may_be_an_address(tmp_path):
    zero = "".join(
        line if line.startswith("#") else f"{line.rpartition(' ')[0]} 0\n"
        for line in COUNTERS.read_text("utf-8").splitlines(keepends=True)
        if line.strip()
    )
    with server(zero.encode()) as address:
        result = imported(COUNTERS, tmp_path / "t.npz", "--before", f"{address}/metrics")
    assert result.exit_code == 0, result.stderr
    assert load_trace(tmp_path / "t.npz").meta["imported"]["before"]["file"] == f"{address}/metrics"


def test_what_cannot_be_fetched_is_refused_in_one_line(tmp_path, monkeypatch):
    output = tmp_path / "t.npz"
    with server(b"not counters") as address:
        refused(imported(f"{address}/metrics", output), f"{address}/metrics: ")
        refused(imported(f"{address}/none", output), f"{address}/none: answers 404", "/metrics", code=2)
    refused(imported(f"{address}/metrics", output), "cannot be read", "check that the server runs", code=2)
    refused(imported("http://", output), "http://", code=2)
    for address in ("ftp://me:secret@example.org/metrics", "s3://bucket/metrics"):
        message = refused(imported(address, output), "an address begins with http:// or https://, not", code=2)
        assert "secret" not in message
    with server(b"x" * 100) as address:
        monkeypatch.setattr(trace_command, "LIMIT", 10)
        refused(imported(f"{address}/metrics", output), "more than 10 bytes", code=2)
        refused(imported("-", output, stdin="x" * 20), "standard input: larger than 10 bytes", code=2)
    with server(status=503) as address:
        refused(imported(f"http://me:secret@{address[7:]}/metrics", output), f"{address}/metrics: answers 503", code=2)
    refused(imported("-", output, stdin=""), "standard input is empty", code=2)
    refused(imported("-", output, stdin="abc"), "standard input: ")
    assert not output.exists()


def test_a_whole_answer_has_a_time_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(trace_command, "TOTAL_S", -1.0)
    with server(COUNTERS.read_bytes()) as address:
        refused(imported(f"{address}/metrics", tmp_path / "t.npz"), "still answers after", code=2)


def test_counts_of_tokens_take_k_and_m(tmp_path, trace_file, profile_file):
    (tmp_path / "ranks.csv").write_text("0.62,0.12\n")
    words = ("--format", "table", "--column", "rank", "--requests", "4", "--length", "1k")
    done("trace", "import", tmp_path / "ranks.csv", *words, "--output", tmp_path / "r.npz")
    assert load_trace(tmp_path / "r.npz").lengths[0] == 1024
    words = ("search", "--trace", trace_file, "--profile", profile_file, "--batch", "1", "--context")
    refused(run(*words, "8k"), "context 8192 lies outside", "profile at that context")
    refused(run(*words, "8x"), "'8x' is not a number of tokens such as 512, 8k or 1M", code=2)
    (tmp_path / "t.csv").write_text("batch,drafted,step_ms\n1,0,10\n1,1,12\n")
    for text, due in (("8k", [8192, 8192]), ("1K-1M", [1024, 1048576]), ("8192", [8192, 8192])):
        done(
            "times", tmp_path / "t.csv", "--device", "x", "--context", text, "--output", tmp_path / "p.json", "--force"
        )
        assert json.loads((tmp_path / "p.json").read_text())["context"] == due
    nameless = run("times", tmp_path / "t.csv", "--device", " ", "--context", "8k", "--output", tmp_path / "q.json")
    refused(nameless, "--device must name the device that was measured", code=2)


def test_a_log_with_foreign_bytes_is_read_and_what_is_no_text_is_refused(tmp_path):
    log, output = tmp_path / "server.log", tmp_path / "t.npz"
    log.write_bytes(LOG.encode() + b"caf\xe9 \xff\n")
    done("trace", "import", log, "--output", output)
    assert load_trace(output).meta["imported"]["survival"] == [0.8, 0.6, 0.4]
    for data in (LOG.encode("utf-16-le"), bytes(range(128, 256)) * 4):
        log.write_bytes(data)
        refused(run("trace", "import", log, "--output", tmp_path / "no.npz"), "cannot be read: it is no text in UTF-8")
