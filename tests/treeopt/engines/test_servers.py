"""Engines' servers: they start or say why not, they stop with all that they started, and nothing is left."""

import os
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from tests.helpers import fake_engine
from treeopt.engines.connections.servers import Launch, ServerPool, ServerProcess, free_port
from treeopt.errors import EngineError

ROOT = Path(__file__).resolve().parents[3]


def pool_of(manner: str, **settings):
    """A pool of servers that behave in this manner, closed at the end."""
    launch = Launch([sys.executable, fake_engine.__file__, manner])
    return closing(ServerPool("fake engine", lambda length: launch, **{"timeout_s": 30} | settings))


def marked() -> set[int]:
    """Processes that run the fake engine, its children or its supervisor."""
    found = set()
    for process in psutil.process_iter(["cmdline"]):
        words = " ".join(process.info["cmdline"] or ())
        if "fake_engine.py" in words or "time.sleep(600)" in words:
            found.add(process.pid)
    return found


@pytest.fixture(autouse=True)
def nothing_left(tmp_path, monkeypatch):
    """No process, and no file in the folder for temporary ones."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = marked()
    yield
    until = time.monotonic() + 15
    while (marked() - before or list(tmp_path.glob("treeopt-engine-*"))) and time.monotonic() < until:
        time.sleep(0.05)
    assert marked() <= before
    assert not list(tmp_path.glob("treeopt-engine-*"))


@pytest.mark.parametrize("manner", ["well", "leaves children"])
def test_a_server_starts_and_stops(manner):
    with pool_of(manner) as pool:
        server = pool.server(3)
        assert server.client.model() == fake_engine.MODEL
        assert server.process.runs
        assert pool.server(3) is server
    assert not server.process.runs


def test_a_server_that_ignores_signals_is_killed(monkeypatch):
    monkeypatch.setenv("TREEOPT_ENGINE_GRACE_S", "0.3")
    with pool_of("ignores signals") as pool:
        pool.server(0)


def test_the_server_that_was_unused_for_longest_gives_way():
    with pool_of("well", alive=2) as pool:
        first, second = pool.server(1), pool.server(2)
        pool.server(1)
        pool.server(3)
        assert first.process.runs
        assert not second.process.runs
        first.process.stop()
        assert pool.server(1) is not first  # one that ended is started again


@pytest.mark.parametrize(
    ("manner", "timeout_s", "message"),
    [
        ("exits", 30, "fake engine ended while it started: ValueError: No such file: model.gguf"),
        ("never answers", 1, r"fake engine did not answer within 1 s \(--engine-timeout\): it printed nothing"),
    ],
)
def test_a_failed_start_says_why(manner, timeout_s, message):
    with pool_of(manner, timeout_s=timeout_s) as pool, pytest.raises(EngineError, match=message):
        pool.server(0)


def test_a_program_that_is_not_there():
    process = ServerProcess("fake engine", ["/none/such", "--port", "1"])
    with pytest.raises(EngineError, match=r"ended while it started: /none/such: No such file or directory \(its log: "):
        process.wait_until(lambda: False, timeout_s=30)


def test_an_interrupt_while_it_starts_leaves_nothing():
    def interrupted() -> bool:
        raise KeyboardInterrupt

    process = ServerProcess("fake engine", [sys.executable, fake_engine.__file__, "well", "--port", str(free_port())])
    with pytest.raises(KeyboardInterrupt):
        process.wait_until(interrupted, timeout_s=30)
    process.stop()


def test_a_killed_treeopt_leaves_nothing(tmp_path):
    """Killed by SIGKILL, which no program can handle."""
    code = (
        "import sys, time\n"
        "from treeopt.engines.connections.servers import Launch, ServerPool\n"
        "from tests.helpers import fake_engine\n"
        "launch = Launch([sys.executable, fake_engine.__file__, 'leaves children'])\n"
        "ServerPool('fake engine', lambda length: launch, timeout_s=30).server(0)\n"
        "print('up', flush=True)\n"
        "time.sleep(600)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        assert len(marked()) >= 4
        process.kill()


def test_the_first_cause_is_shown_and_the_whole_log_is_kept(tmp_path, monkeypatch):
    """Fail as vLLM does: one process says why, another that it failed, and neither is the last line."""
    lines = [
        "(EngineCore pid=7) ERROR [core.py:9] Traceback (most recent call last):",
        "(EngineCore pid=7) ERROR [core.py:9] ValueError: Available memory on node 0 is less than desired",
        "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above.",
        "[W] error while destroying the process group",
    ]
    process = ServerProcess("fake engine", [sys.executable, "-c", f"print({chr(10).join(lines)!r})"])
    with pytest.raises(EngineError) as failed:
        process.wait_until(lambda: False, timeout_s=30)
    said, _, log = str(failed.value).partition(" (its log: ")
    assert said == "fake engine ended while it started: ValueError: Available memory on node 0 is less than desired"
    assert lines[2] in Path(log.removesuffix(")")).read_text("utf-8")
