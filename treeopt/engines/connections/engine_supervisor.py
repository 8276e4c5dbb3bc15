"""A small program between treeopt and an engine: it ends the engine's processes when treeopt ends, however that is.

`python engine_supervisor.py FOLDER COMMAND...` runs the command. When its standard input closes, since its parent
stopped the engine or died, it terminates the command and all that this started, kills what is left after `GRACE_S`, and
removes the temporary folder. If the command ends by itself, only what it left running is ended, and the folder stays
for its reader. The exit code is the command's. Linux with /proc; standard library only.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

GRACE_S = float(os.environ.get("TREEOPT_ENGINE_GRACE_S", "10"))
POLL_S = 0.05
MARK = "TREEOPT_ENGINE"  # in the environment of all that the command starts, also of those that left its session


def main(folder: str, command: list[str]) -> int:
    """Run the command until it ends or standard input closes; return its exit code."""
    mark = f"{os.getpid()}-{time.time_ns()}"
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the end of standard input is the only order
    try:
        child = subprocess.Popen(  # noqa: S603 - the user's own command
            command, stdin=subprocess.DEVNULL, env={**os.environ, MARK: mark}, preexec_fn=_default_signals
        )
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        return 127
    closed = threading.Event()
    threading.Thread(target=_wait_for_end, args=(closed,), daemon=True).start()
    while child.poll() is None and not closed.wait(POLL_S):
        pass
    _end_all(mark)
    code = child.wait()
    if closed.is_set():
        shutil.rmtree(folder, ignore_errors=True)
    return code if code >= 0 else 128 - code


def _default_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _wait_for_end(closed: threading.Event) -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    closed.set()


def _end_all(mark: str) -> None:
    """Terminate every process that carries the mark; kill those that are left after the grace period."""
    deadline_s = time.monotonic() + GRACE_S
    for number in _processes(mark):
        _send(number, signal.SIGTERM)
    while _processes(mark):
        if time.monotonic() > deadline_s:
            for number in _processes(mark):
                _send(number, signal.SIGKILL)
        time.sleep(POLL_S)


def _send(number: int, order: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(number, order)


def _processes(mark: str) -> list[int]:
    """Return the numbers of the running processes whose environment holds the mark."""
    entry = f"{MARK}={mark}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            if entry in (folder / "environ").read_bytes().split(b"\0") and _runs(folder):
                found.append(int(folder.name))
        except OSError:
            continue  # it ended meanwhile, or is another user's
    return found


def _runs(folder: Path) -> bool:
    """Return True unless the process has ended and waits for its parent."""
    return (folder / "stat").read_text().rpartition(")")[2].split()[0] != "Z"


if __name__ == "__main__":
    os._exit(main(sys.argv[1], sys.argv[2:]))  # a thread may still wait for standard input
