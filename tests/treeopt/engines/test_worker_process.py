"""A child that speaks JSON lines: what passes, and children that misbehave; none is left."""

import os
import subprocess
import sys
import time
from contextlib import closing

import pytest

from treeopt.engines.connections.step_worker import Waits
from treeopt.engines.connections.worker_driver import WorkerProcess
from treeopt.errors import EngineError

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
