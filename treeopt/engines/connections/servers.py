"""Servers of an engine: their processes, a pool of them by draft length, and the part that their drivers share."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

from treeopt.engines.connections import engine_supervisor
from treeopt.engines.connections.completions_client import CompletionsClient, in_flight
from treeopt.engines.connections.worker_driver import kept_log
from treeopt.engines.driver import Draft, DriverSettings, EngineRequest, EngineStep
from treeopt.errors import EngineError, EngineStartError, UsageError, root_cause

POLL_S = 0.2
STOP_S = engine_supervisor.GRACE_S + 10
ENDING_S = 1.0  # from a broken connection until the end of a server that died is noticed
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

    def wait_until(self, ready: Callable[[], bool], *, timeout_s: float) -> None:
        """Wait until `ready` returns True.

        Raises:
            EngineStartError: the server ended, or the time is over; with its last lines. The server is stopped.
        """
        deadline_s = time.monotonic() + timeout_s
        while not ready():
            if not self.runs:
                self._fail("ended while it started", EngineStartError)
            if time.monotonic() > deadline_s:
                self._fail(f"did not answer within {timeout_s:.0f} s (--engine-timeout)", EngineStartError)
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
        with contextlib.suppress(OSError):  # removed: it was stopped before
            self._tail = self._log.read_text("utf-8", errors="replace")
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._log.parent, ignore_errors=True)

    def _fail(self, what: str, kind: type[EngineError] = EngineError) -> None:
        self.stop()
        log = kept_log(self._tail) if self._tail.strip() else ""
        raise kind(f"{self.name} {what}: {root_cause(self._tail) or 'it printed nothing'}{log}")


@dataclass(frozen=True)
class Launch:
    """How a server is started.

    Attributes:
        command: program and arguments, without the port's.
        environment: variables beside those of this process.
        ready: path that the server answers once it can decode.
    """

    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    ready: str = "/v1/models"


@dataclass(frozen=True)
class Running:
    """A server that runs, and a connection to it."""

    process: ServerProcess
    client: CompletionsClient


class ServerPool:
    """Running servers by the draft that they were launched for; the one unused for longest gives way."""

    def __init__(self, name: str, launch: Callable[[Draft], Launch], *, alive: int = 1, timeout_s: float) -> None:
        """Start nothing yet.

        Args:
            name: the engine's name, for messages.
            launch: how the server of a draft is started.
            alive: servers at a time; a GPU rarely holds two.
            timeout_s: longest time that a server may take to start, and then to send anything.
        """
        self._name, self._launch, self._alive, self._timeout_s = name, launch, alive, timeout_s
        self._running: OrderedDict[Draft, Running] = OrderedDict()

    def close(self) -> None:
        """Stop all servers."""
        for draft in list(self._running):
            self._stop(draft)

    def server(self, draft: Draft) -> Running:
        """Return the running server of a draft, launched if there is none.

        Raises:
            EngineError: it does not start.
        """
        if draft in self._running and not self._running[draft].process.runs:
            self._stop(draft)
        if draft not in self._running:
            while len(self._running) >= self._alive:
                self._stop(next(iter(self._running)))
            self._running[draft] = self._start(self._launch(draft))
        self._running.move_to_end(draft)
        return self._running[draft]

    def _stop(self, draft: Draft) -> None:
        running = self._running.pop(draft)
        running.client.close()
        running.process.stop()

    def _start(self, launch: Launch) -> Running:
        port = free_port()
        process = ServerProcess(self._name, [*launch.command, "--port", str(port)], environment=launch.environment)
        try:
            client = CompletionsClient(f"http://127.0.0.1:{port}", timeout_s=self._timeout_s)
            process.wait_until(lambda: client.answers(launch.ready), timeout_s=self._timeout_s)
        except BaseException:
            process.stop()
            raise
        return Running(process, client)


class LaunchedServers(ABC):
    """Servers of one engine, launched by draft length; see `Driver`.

    Attributes:
        title: the engine's name, for messages.
        meta: see `Driver.meta`.
    """

    title: str
    tree_requests = longest = 0
    meta: Mapping[str, Any]

    def __init__(self, settings: DriverSettings, *, drafts: bool, **meta: Any) -> None:
        """Start nothing yet.

        Args:
            settings: of the driver.
            drafts: True if the settings say how the engine drafts.
            meta: what the engine is started with.
        """
        self.settings, self._drafts = settings, drafts
        self._arguments = settings.words
        self.meta = {"name": settings.engine, **meta, "arguments": self._arguments}
        self.alive = settings.servers or 1
        self._servers = ServerPool(self.title, self._launch, alive=self.alive, timeout_s=settings.timeout_s)

    def launch(self, draft: Draft) -> Draft:
        """See `Driver.launch`."""
        if draft and not self._drafts:
            raise UsageError(
                f"{self.title} needs a drafter for a draft of {draft}: give --method, and --engine-drafter if it has a "
                "file"
            )
        return draft

    @abstractmethod
    def _launch(self, draft: Any) -> Launch:
        """Return how the server of a draft is started: the length of a chain, or a tree for engines of trees."""

    @abstractmethod
    def _steps(
        self, server: Running, number: int, request: EngineRequest, lane: int, *, draft: int, began_s: float
    ) -> Generator[EngineStep, None, None]:
        """Ask a server to decode a request, and yield its steps.

        Args:
            server: the server.
            number: of the request.
            request: the request.
            lane: number of its place among the requests in flight.
            draft: most tokens that a step accepts.
            began_s: when the run began, seconds of the monotonic clock.
        """

    def _version(self, server: Running) -> str | None:
        """Return the version of a server; None if it is not known."""
        return None

    def __enter__(self) -> Self:
        """See `Driver`."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop all servers."""
        self._servers.close()

    def decode(self, requests: Sequence[EngineRequest], *, draft: Draft, concurrency: int) -> Iterator[EngineStep]:
        """See `Driver.decode`; where the server ended, its own words say why.

        Raises:
            UsageError: a tree, drafted tokens without a drafter, or a concurrency below 1.
            EngineError: a request failed, or the server ended.
        """
        if not isinstance(draft, int) and not self.tree_requests:
            raise UsageError(f"{self.title} verifies chains, not trees: give draft lengths")
        self.launch(draft)
        if concurrency < 1:
            raise UsageError(f"concurrency must be at least 1, got {concurrency}")
        server, longest = self._servers.server(draft), draft if isinstance(draft, int) else draft.depth
        if "version" not in self.meta and (version := self._version(server)) is not None:
            self.meta = {**self.meta, "version": version}
        ask = partial(self._steps, server, draft=longest, began_s=time.monotonic())
        try:
            yield from in_flight(requests, ask, concurrency=concurrency, cancel=server.client.cancel)
        except EngineError:
            server.process.check(after_s=ENDING_S)
            raise


def free_port() -> int:
    """Return a port of 127.0.0.1 that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
