"""The process of an engine's server: started, waited for until it answers, stopped with all that it started."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from treeopt.engines.connections import engine_supervisor
from treeopt.errors import EngineError

POLL_S = 0.2
STOP_S = engine_supervisor.GRACE_S + 10
SHOWN = 3  # last lines of a log in an error message
LONGEST = 300  # characters of one of them
LOG = "engine.log"


class ServerProcess:
    """A running server.

    Its output goes to a file in a temporary folder, which vanishes with it. It ends when `stop` is called, when this
    process ends in whatever way, and when the server itself fails; nothing that it started survives.
    """

    def __init__(self, name: str, command: Sequence[str], *, environment: Mapping[str, str] | None = None) -> None:
        """Start the command.

        Args:
            name: the engine's name, for messages.
            command: program and arguments.
            environment: variables beside those of this process.
        """
        self.name = name
        folder = tempfile.mkdtemp(prefix="treeopt-engine-")
        self._log = Path(folder) / LOG
        self._tail = ""
        supervisor = [sys.executable, engine_supervisor.__file__, folder, *command]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - the user's own command
                supervisor,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )

    def log(self) -> str:
        """Return everything that the server printed so far."""
        try:
            return self._log.read_text("utf-8", errors="replace")
        except OSError:
            return self._tail

    def wait_until(self, ready: Callable[[], bool], *, timeout_s: float) -> None:
        """Wait until `ready` returns True.

        Raises:
            EngineError: the server ended, or the time is over; with its last lines. The server is stopped.
        """
        deadline_s = time.monotonic() + timeout_s
        while not ready():
            if not self.runs:
                self._fail("ended while it started")
            if time.monotonic() > deadline_s:
                self._fail(f"did not answer within {timeout_s:.0f} s (--engine-timeout)")
            time.sleep(POLL_S)

    @property
    def runs(self) -> bool:
        """True until the server has ended."""
        return self._process.poll() is None

    def check(self, *, after_s: float = 0.0) -> None:
        """Check that the server runs, for `after_s` seconds: its end is noticed some time after its connections break.

        Raises:
            EngineError: it ended; with its last lines.
        """
        deadline_s = time.monotonic() + after_s
        while self.runs and time.monotonic() < deadline_s:
            time.sleep(POLL_S / 10)
        if not self.runs:
            self._fail("ended")

    def stop(self) -> None:
        """Stop the server and all that it started, and remove its files."""
        self._tail = self.log()
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._log.parent, ignore_errors=True)

    def _fail(self, what: str) -> None:
        self.stop()
        raise EngineError(f"{self.name} {what}: {last_lines(self._tail) or 'it printed nothing'}")


def last_lines(log: str) -> str:
    """Return the last line of a log that names an error, else its last lines, as one line.

    >>> last_lines("loading the model " * 2)
    'loading the model loading the model'
    """
    lines = [line.strip()[:LONGEST] for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower() and "%" not in line]
    return " | ".join(dict.fromkeys(errors[-1:] or lines[-SHOWN:]))


def free_port() -> int:
    """Return a port of 127.0.0.1 that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
