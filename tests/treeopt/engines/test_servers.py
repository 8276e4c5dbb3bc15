"""Processes of engines, servers and workers: they start or say why not, and nothing of them is left."""

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
from treeopt.engines.connections.step_worker import Waits
from treeopt.engines.connections.worker_driver import WorkerProcess
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


ECHO = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"


def child(script: str, grace_s: float = 5.0) -> closing[WorkerProcess]:
    return closing(WorkerProcess([sys.executable, "-I", "-c", script], name="the worker", grace_s=grace_s))


def gone(group: int) -> bool:
    """Return whether no process of the group runs; a killed one closes its pipes a moment before it is listed so."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        listed = subprocess.run(["ps", "-A", "-o", "pgid=,stat="], capture_output=True, text=True, check=True).stdout
        rows = (line.split() for line in listed.splitlines())
        if not any(int(pgid) == group and not state.startswith("Z") for pgid, state in rows):
            return True
        time.sleep(0.01)
    return False


def test_objects_pass_both_ways_and_nothing_is_left():
    with child(ECHO) as worker:
        worker.send({"a": [1, 2]})
        worker.send({"ä": None})
        assert [worker.receive(10), worker.receive(10)] == [{"a": [1, 2]}, {"ä": None}]
        assert worker.process.poll() is None
    assert worker.process.poll() is not None
    assert gone(worker.process.pid)


def test_a_long_order_to_a_child_that_does_not_read_does_not_block():
    with child("import time; time.sleep(60)", grace_s=0.05) as worker:
        worker.send({"tokens": [1] * 1_000_000})
        with pytest.raises(EngineError, match=r"the worker has not answered for 0\.05 s"):
            worker.receive(0.05)
    assert gone(worker.process.pid)


def test_a_program_that_does_not_exist():
    with pytest.raises(EngineError, match=r"the worker cannot be started: /nowhere/python: No such file"):
        WorkerProcess(["/nowhere/python"], name="the worker")


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("import sys; print('no space left', file=sys.stderr); sys.exit(3)", "exited with code 3: no space left"),
        ("pass", "exited with code 0"),
        ("import os; os.kill(os.getpid(), 9)", "was killed by SIGKILL"),
        ("import os, time; os.close(1); time.sleep(60)", "closed its output but still runs"),
        ("print('Loading model ...', flush=True)", "no JSON object: 'Loading model ...'"),
        ("print('[1]', flush=True)", r"no JSON object: '\[1\]'"),
    ],
    ids=["exits", "exits-silently", "killed", "closes-stdout", "garbage", "no-object"],
)
def test_a_child_that_misbehaves_is_named_and_gone(script, message):
    with child(script, grace_s=0.3) as worker:
        for _ in range(2 if "exited" in message else 1):  # the end is reported again
            with pytest.raises(EngineError, match=f"^the worker .*{message}$"):
                worker.receive(10)
    assert gone(worker.process.pid)


@pytest.mark.parametrize(
    "script",
    [
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('{}', flush=True); time.sleep(60)",
        "import subprocess, sys; subprocess.Popen(['sleep', '60']); print('{}', flush=True); sys.stdin.read()",
    ],
    ids=["ignores-sigterm", "has-children"],
)
def test_nothing_is_left_of_a_child(script):
    with child(script, grace_s=0.05) as worker:
        assert worker.receive(10) == {}
    assert gone(worker.process.pid)


def test_time_in_which_other_programs_had_the_processor_is_no_time_of_a_step():
    """Start busy programs that take the processor from this thread; without the count it seems slower by far."""
    allowed = os.sched_getaffinity(0)
    core = min(allowed)
    busy = f"import os\nos.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    others = [subprocess.Popen([sys.executable, "-c", busy]) for _ in range(2)]
    try:
        os.sched_setaffinity(0, {core})
        time.sleep(0.3)
        waits, began_s, ran_s = Waits(), time.perf_counter(), time.process_time()
        while time.process_time() - ran_s < 0.15:
            pass
        waits.add()
        took_s = time.perf_counter() - began_s
        waits.close()
    finally:
        os.sched_setaffinity(0, allowed)
        for other in others:
            other.kill()
            other.wait()
    assert took_s - waits.total_s == pytest.approx(time.process_time() - ran_s, rel=0.5)
    assert waits.total_s > 0.3 * took_s
