"""Servers of one engine, launched when a draft length is first needed, a few of them alive at a time."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Generic, Self, TypeVar

from treeopt.engines.connections.completions_client import CompletionsClient
from treeopt.engines.connections.server_process import ServerProcess, free_port

Key = TypeVar("Key", bound=Hashable)
ALIVE = 1  # servers at a time; a GPU rarely holds two


@dataclass(frozen=True)
class Launch:
    """How a server is started.

    Attributes:
        name: the engine's name, for messages.
        command: program and arguments, without the port's.
        port: the option that names the port.
        environment: variables beside those of this process.
        ready: path that the server answers once it can decode.
    """

    name: str
    command: Sequence[str]
    port: str = "--port"
    environment: Mapping[str, str] = field(default_factory=dict)
    ready: str = "/v1/models"


@dataclass(frozen=True)
class Running:
    """A server that runs, and a connection to it."""

    process: ServerProcess
    client: CompletionsClient


class ServerPool(Generic[Key]):
    """Running servers by what they were launched for; the one unused for longest gives way."""

    def __init__(self, launch: Callable[[Key], Launch], *, alive: int = ALIVE, timeout_s: float) -> None:
        """Start nothing yet.

        Args:
            launch: how the server of a key is started.
            alive: servers at a time.
            timeout_s: longest time that a server may take to start, and then to send anything.
        """
        self._launch, self._alive, self._timeout_s = launch, alive, timeout_s
        self._running: OrderedDict[Key, Running] = OrderedDict()

    def __enter__(self) -> Self:
        """Return the pool."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop all servers."""
        for key in list(self._running):
            self.stop(key)

    def server(self, key: Key) -> Running:
        """Return the running server of a key, launched if there is none.

        Raises:
            EngineError: it does not start.
        """
        if key in self._running and not self._running[key].process.runs:
            self.stop(key)
        if key not in self._running:
            while len(self._running) >= self._alive:
                self.stop(next(iter(self._running)))
            self._running[key] = self._start(self._launch(key))
        self._running.move_to_end(key)
        return self._running[key]

    def stop(self, key: Key) -> None:
        """Stop the server of a key."""
        running = self._running.pop(key)
        running.client.close()
        running.process.stop()

    def _start(self, launch: Launch) -> Running:
        port = free_port()
        command = [*launch.command, launch.port, str(port)]
        process = ServerProcess(launch.name, command, environment=launch.environment)
        try:
            client = CompletionsClient(f"http://127.0.0.1:{port}", timeout_s=self._timeout_s)
            process.wait_until(lambda: client.answers(launch.ready), timeout_s=self._timeout_s)
        except BaseException:
            process.stop()
            raise
        return Running(process, client)
