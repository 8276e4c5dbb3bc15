"""Drivers of step workers: a worker is started, loaded, given orders, cancelled, and started again.

A worker reads one JSON object per line on stdin and writes one per line on stdout. It must exit when its stdin closes,
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
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self

from treeopt.engines.connections import step_worker
from treeopt.engines.connections.step_worker import PROTOCOL
from treeopt.engines.driver import EngineRequest, EngineStep
from treeopt.errors import EngineError, EngineStartError

GRACE_S = 5.0  # between closing stdin, SIGTERM and SIGKILL
STDERR_LINES = 2000  # kept for the log of a failure
LONGEST_EXCERPT = 200  # characters of the child's words in a message


class WorkerProcess:
    """A running child; no process of its group is left once it is closed.

    Attributes:
        process: the child, whose process id is also its group's.
    """

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
            self.process = subprocess.Popen(  # noqa: S603 - the caller names the interpreter
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
                self.process.wait(None if number is signal.SIGKILL else self._grace_s)
                break
            except subprocess.TimeoutExpired:
                continue
        self._signal(signal.SIGKILL)  # children of the child, which may hold its pipes open
        for thread in self._threads:
            thread.join(self._grace_s)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def _end_error(self) -> EngineError:
        """Return the error of a child that closed its pipes: how it ended, and the last line that it wrote."""
        try:
            code = self.process.wait(self._grace_s)
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
        with contextlib.suppress(OSError), _pipe(self.process.stdin) as stdin:  # OSError: the child is gone
            while (order := self._orders.get()) is not None:
                stdin.write(order)
                stdin.flush()

    def _keep_lines(self) -> None:
        """Move the child's lines into a queue, so that a slow reader never makes the child wait."""
        with _pipe(self.process.stdout) as stdout:
            for line in stdout:
                self._lines.put(line)
        self._lines.put(None)

    def _keep_stderr(self) -> None:
        with _pipe(self.process.stderr) as stderr:
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


class StepWorker(ABC):
    """A worker under an engine's own Python; see `step_worker` for what passes between them.

    Attributes:
        name: the engine's name, for messages.
        install: what to run where its environment lacks it.
        adapter: the file that the worker runs.
        events: what it may answer.
        restarts: True if a process loads an engine once, so that one that failed is started again.
    """

    name: str
    install: str
    adapter: Path
    restarts = False

    def __init__(
        self,
        python: str,
        *,
        timeout_s: float,
        grace_s: float = GRACE_S,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Keep the settings; `__enter__` starts the worker.

        Args:
            python: the interpreter of the engine's environment.
            timeout_s: longest time that the engine may take to load, and then to answer.
            grace_s: see `WorkerProcess`.
            environment: variables beside those of this process.
        """
        self._python, self._timeout_s, self._grace_s, self._environment = python, timeout_s, grace_s, environment
        self._worker: WorkerProcess | None = None
        self._entered = False
        self._loaded: set[str] = set()
        self._decoding = False
        self.hello: dict[str, Any] = {}

    @abstractmethod
    def load_order(self, pipeline: str) -> dict[str, Any]:
        """Return what the order to load a pipeline holds."""

    @abstractmethod
    def loaded(self, answer: Mapping[str, Any]) -> None:
        """Take the answer to an order to load."""

    @abstractmethod
    def check(self, order: Mapping[str, Any]) -> None:
        """Raise EngineError if the loaded engine cannot decode so."""

    def __enter__(self) -> Self:
        """Start the worker; models are loaded when they are first needed.

        Raises:
            EngineError: the interpreter does not start, lacks the engine, or speaks another protocol.
        """
        self._start()
        self._entered = True
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the worker."""
        self._entered = False
        self._stop()

    def _start(self) -> None:
        # -I: nothing of the worker's folder is on its path
        words = [self._python, "-I", step_worker.__file__, str(self.adapter)]
        self._worker = WorkerProcess(
            words, name=f"the {self.name} worker", grace_s=self._grace_s, environment=self._environment
        )
        try:
            hello = self._worker.receive(self._timeout_s)
            if hello.get("event") == "error":
                raise EngineError(
                    f"{self._python} cannot import {self.name} ({_words(hello)}); there, run: {self.install}"
                )
            if hello.get("event") != "ready" or hello.get("protocol") != PROTOCOL:
                raise EngineError(f"the {self.name} worker must speak protocol {PROTOCOL}, it opened with {hello}")
        except BaseException:
            self._stop()
            raise
        self.hello = {name: str(value) for name, value in hello.items() if name not in ("event", "protocol")}

    def steps(
        self,
        requests: Sequence[EngineRequest],
        *,
        pipeline: str,
        concurrency: int,
        settings: Mapping[str, Any],
        plain: bool,
    ) -> Iterator[EngineStep]:
        """Check the requests, and return the iterator of their steps; see `Driver.decode`.

        Args:
            requests: what is decoded.
            pipeline: the loaded engine that decodes.
            concurrency: requests in flight.
            settings: of the order.
            plain: True if nothing is drafted.

        Raises:
            EngineError: a request without tokens; the engine fails; or another iterator is still open.
        """
        for number, request in enumerate(requests):
            if not request.tokens or request.new_tokens < 1:
                raise EngineError(
                    f"request {number} needs at least 1 prompt token and 1 new token, "
                    f"got {len(request.tokens)} and {request.new_tokens}"
                )
        if concurrency < 1:
            raise EngineError(f"concurrency must be at least 1, got {concurrency}")
        order = {
            "op": "decode",
            "pipeline": pipeline,
            "concurrency": concurrency,
            "settings": dict(settings),
            "requests": [
                {"tokens": list(request.tokens), "new_tokens": request.new_tokens, "ignore_stop": request.ignore_stop}
                for request in requests
            ],
        }
        return self._steps(order, len(requests), plain=plain)

    def _steps(self, order: dict[str, Any], requests: int, *, plain: bool) -> Iterator[EngineStep]:
        if self._decoding:
            raise EngineError(f"{self.name} decodes one set of requests at a time; close the open iterator first")
        worker = self._live_worker()
        self.load(order["pipeline"])
        self.check(order)
        worker.send(order)
        self._decoding = True
        made = [0] * requests
        try:
            while (answer := self._answer(worker))["event"] == "step":
                yield from self._steps_of(answer, made, plain=plain)
            if 0 in made:
                raise EngineError(f"{self.name} ended without a token for request {made.index(0)}")
        finally:
            if self._decoding:  # closed early, or a step that makes no sense
                self._cancel()

    def _steps_of(self, answer: Mapping[str, Any], made: list[int], *, plain: bool) -> Iterator[EngineStep]:
        """Yield an engine step's rows; `made` counts the steps of every request.

        Raises:
            EngineError: a request ended without a token, which is what an engine does where its cache is too small.
        """
        for row in answer["rows"]:
            request, tokens, ended, *drafted = row
            if not tokens:
                raise EngineError(
                    f"{self.name} gave up request {request} after {made[request]} steps: its cache has no room; lower "
                    "the concurrency"
                )
            prefill = made[request] == 0
            made[request] += 1
            yield EngineStep(
                request=request,
                committed=len(tokens),
                at_s=answer["at_s"],
                tokens=tuple(tokens),
                drafted=0 if plain or prefill else drafted[0] if drafted else None,
                prefill=prefill,
                ended=ended,
            )

    def load(self, pipeline: str) -> None:
        """Load a pipeline unless it is loaded.

        Raises:
            EngineStartError: the engine's own words.
        """
        if pipeline in self._loaded:
            return
        worker = self._live_worker()
        worker.send({"op": "load", "pipeline": pipeline, **self.load_order(pipeline)})
        try:
            self.loaded(self._answer(worker))
        except EngineError as error:
            raise EngineStartError(str(error)) from error
        self._loaded.add(pipeline)

    def _answer(self, worker: WorkerProcess) -> dict[str, Any]:
        """Return the worker's next object, unless it is an error.

        A worker that fails at an order drops its pipeline; one that breaks the protocol or hangs is stopped.
        """
        try:
            answer = worker.receive(self._timeout_s)
            if answer.get("event") not in ("loaded", "step", "done", "cancelled", "error"):
                raise EngineError(f"the {self.name} worker wrote {str(answer)[:200]}, which its protocol does not know")
        except EngineError:
            self._stop()
            raise
        if answer["event"] != "step":
            self._decoding = False
        if answer["event"] == "error":
            self._loaded.clear()  # the worker drops what failed; the next call loads again
            log = ""
            if self.restarts:
                self._stop()
                log = worker.kept_log()
            raise EngineError(f"{self.name}: {_words(answer)}{log}")
        return answer

    def _cancel(self) -> None:
        """Cancel what the worker decodes; an iterator closed early must not fail."""
        try:
            worker = self._live_worker()
            worker.send({"op": "cancel"})
            while self._answer(worker)["event"] == "step":
                pass
        except EngineError:
            self._stop()

    def _live_worker(self) -> WorkerProcess:
        if self._worker is None:
            if not self._entered:
                raise EngineError(f"the {self.name} worker does not run; start it with `with`")
            self._start()  # it died, and said so
        assert self._worker is not None
        return self._worker

    def _stop(self) -> None:
        worker, self._worker = self._worker, None
        self._loaded.clear()
        self._decoding = False
        if worker is not None:
            worker.close()


def _words(answer: Mapping[str, Any]) -> str:
    r"""Return an error's own words in one line, without the places in the engine's source.

    >>> _words({"message": "Exception from /src/utils.cpp:500:\nCould not find a model\n"})
    'Could not find a model'
    """
    lines = [line.strip() for line in str(answer.get("message", "")).splitlines() if line.strip()]
    return " ".join([line for line in lines if not line.startswith("Exception from ")] or lines)
