"""`treeopt explore`: what it refuses, and the life of its server."""

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from simulate.profiles.profile import save_profile
from tests.helpers.command_line import refused, run, small_profile, small_trace
from treeopt.explore.local_server import address, open_browser, open_port
from treeopt.traces.trace_files import save_trace


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    save_trace(small_trace(), folder / "trace.npz")
    save_profile(small_profile(), folder / "profile.json")
    return ("--trace", folder / "trace.npz", "--profile", folder / "profile.json")


def test_a_port_in_use_is_refused(files):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused(run("explore", *files, "--no-browser", "--port", port), f"--port {port}: ", "in use", code=2)


def test_files_are_read_before_the_page_is_shown(files, tmp_path):
    (tmp_path / "bad.npz").write_text("no trace")
    refused(run("explore", "--trace", tmp_path / "bad.npz", "--no-browser"), "bad.npz", code=None)
    refused(run("explore", *files, "--profile", tmp_path / "missing.json", "--no-browser"), "missing.json", code=None)
    refused(run("explore", *files, "--target", tmp_path, "--no-browser"), str(tmp_path), code=None)


def test_the_page_is_on_this_computer_alone():
    listener = open_port(0)
    try:
        assert listener.getsockname()[0] == "127.0.0.1"
        assert address(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}/"
    finally:
        listener.close()


def status_of(port: int, path: str, method: str = "GET", **headers: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, headers={"Host": f"127.0.0.1:{port}", **headers})
    try:
        return connection.getresponse().status
    finally:
        connection.close()


def test_the_server_answers_its_own_page_and_ends_when_it_is_terminated(files):
    words = [sys.executable, "-m", "treeopt", "explore", *map(str, files), "--no-browser"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as server:
        try:
            line = server.stdout.readline()
            assert line.startswith("treeopt explore: http://127.0.0.1:"), server.stderr.read()
            port = int(line.split(":")[3].split("/")[0])
            assert status_of(port, "/") == 200
            foreign = {"Origin": "http://example.org"}
            assert status_of(port, "/", **foreign) == 403
            assert status_of(port, "/", Host="example.org") == 403
            assert status_of(port, "/api/files/list_files", "POST") in (401, 403)
        finally:
            server.send_signal(signal.SIGTERM)
            _, errors = server.communicate(timeout=60)
    assert (errors, server.returncode) == ("", -signal.SIGTERM)
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_the_browser_is_opened_without_a_word(tmp_path, monkeypatch, capfd):
    program = tmp_path / "xdg-open"
    program.write_text(f'#!/bin/sh\necho opened; echo no display >&2; echo "$1" > {tmp_path}/opened\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert open_browser("http://127.0.0.1:5/")
    deadline = time.monotonic() + 60
    while not (tmp_path / "opened").exists() or not (tmp_path / "opened").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert (tmp_path / "opened").read_text() == "http://127.0.0.1:5/\n"
    assert capfd.readouterr() == ("", "")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert not open_browser("http://127.0.0.1:5/")
