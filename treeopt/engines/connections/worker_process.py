"""A child process that speaks JSON lines: started in a group of its own, read without blocking it, stopped as a group.

The child reads one JSON object per line on stdin and writes one per line on stdout. It must exit when its stdin closes,
so that it dies with its parent, however that ends. What it writes on stderr is its own words for an error message.
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import IO, Any, Self

from treeopt.errors import EngineError

GRACE_S = 5.0  # between closing stdin, SIGTERM and SIGKILL
STDERR_LINES = 2000  # kept for the log of a failure
LONGEST_EXCERPT = 200  # characters of the child's words in a message


class WorkerProcess:
    """A running child; a context, at whose end no process of its group is left."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        name: str,
        grace_s: float = GRACE_S,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start the child.

        Args:
            words: the command and its arguments.
            name: what messages call the child.
            grace_s: seconds that it has to stop, after stdin is closed and again after SIGTERM.
            environment: variables beside those of this process.

        Raises:
            EngineError: the command cannot be started.
        """
        self.name = name
        self._grace_s = grace_s
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the caller names the interpreter
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                errors="replace",
                env={**os.environ, **(environment or {})},
                start_new_session=True,  # a group of its own: an interrupt at the terminal does not reach it
            )
        except OSError as error:
            raise EngineError(f"{name} cannot be started: {words[0]}: {error.strerror}") from error
        self._orders: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._stderr: deque[str] = deque(maxlen=STDERR_LINES)
        self._threads = [
            threading.Thread(target=target, daemon=True)
            for target in (self._write_orders, self._keep_lines, self._keep_stderr)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def pid(self) -> int:
        """The child's process id, which is also its group's."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """True until the child has exited."""
        return self._process.poll() is None

    def send(self, message: Mapping[str, Any]) -> None:
        """Write one object; never waits for the child, and a child that has ended is noticed by `receive`."""
        self._orders.put(json.dumps(message, separators=(",", ":")) + "\n")

    def receive(self, timeout_s: float) -> dict[str, Any]:
        """Return the child's next object.

        Raises:
            EngineError: the child has ended, writes no line for `timeout_s`, or writes something else; holds its own
                words.
        """
        try:
            line = self._lines.get(timeout=timeout_s)
        except queue.Empty:
            raise EngineError(f"{self.name} has not answered for {timeout_s:g} s") from None
        if line is None:
            self._lines.put(None)  # for the next call
            raise self._end_error()
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise EngineError(f"{self.name} wrote a line that is no JSON object: {line.strip()[:LONGEST_EXCERPT]!r}")
        return message

    def close(self) -> None:
        """Stop the child and every process of its group: by closing its stdin, then SIGTERM, then SIGKILL."""
        self._orders.put(None)
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number is not None:
                self._signal(number)
            try:
                self._process.wait(None if number is signal.SIGKILL else self._grace_s)
                break
            except subprocess.TimeoutExpired:
                continue
        self._signal(signal.SIGKILL)  # children of the child, which may hold its pipes open
        for thread in self._threads:
            thread.join(self._grace_s)

    def __enter__(self) -> Self:
        """Return the running child."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop it."""
        self.close()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _end_error(self) -> EngineError:
        """Return the error of a child that closed its pipes: how it ended, and the last line that it wrote."""
        try:
            code = self._process.wait(self._grace_s)
        except subprocess.TimeoutExpired:
            return EngineError(f"{self.name} closed its output but still runs{self._last_words()}")
        self._threads[-1].join(self._grace_s)
        how = f"exited with code {code}" if code >= 0 else f"was killed by {_signal_name(-code)}"
        return EngineError(f"{self.name} {how}{self._last_words()}")

    def _last_words(self) -> str:
        lines = [line.strip() for line in self._stderr if line.strip()]
        return f": {lines[-1][:LONGEST_EXCERPT]}" if lines else ""

    def kept_log(self) -> str:
        """Write what the child wrote on stderr to a file that stays; return where, for the end of a message."""
        return kept_log("".join(self._stderr))

    def _write_orders(self) -> None:
        with contextlib.suppress(OSError), _pipe(self._process.stdin) as stdin:  # OSError: the child is gone
            while (order := self._orders.get()) is not None:
                stdin.write(order)
                stdin.flush()

    def _keep_lines(self) -> None:
        """Move the child's lines into a queue, so that a slow reader never makes the child wait."""
        with _pipe(self._process.stdout) as stdout:
            for line in stdout:
                self._lines.put(line)
        self._lines.put(None)

    def _keep_stderr(self) -> None:
        with _pipe(self._process.stderr) as stderr:
            self._stderr.extend(stderr)


def kept_log(text: str) -> str:
    """Write the log of an engine that failed to a file that stays; return where, for the end of a message."""
    with (
        contextlib.suppress(OSError),
        tempfile.NamedTemporaryFile("w", encoding="utf-8", prefix="treeopt-log-", suffix=".txt", delete=False) as log,
    ):
        log.write(text)
        return f" (its log: {log.name})"
    return ""


def _pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None  # every stream of the child is a pipe
    return stream


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
