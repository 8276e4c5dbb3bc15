"""Launched servers of an engine: a pool by draft length, asked request by request, stopped together."""

import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from treeopt.engines.connections.concurrent_requests import in_flight
from treeopt.engines.connections.server_pool import Launch, Running, ServerPool
from treeopt.engines.driver import Draft, DriverSettings, EngineRequest, EngineStep
from treeopt.errors import EngineError, UsageError

ENDING_S = 1.0  # from a broken connection until the end of a server that died is noticed


class LaunchedServers(ABC):
    """Servers of one engine, launched by draft length; see `Driver`.

    Attributes:
        title: the engine's name, for messages.
        meta: see `Driver.meta`.
    """

    title: str
    tree_requests = 0
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
        self._servers: ServerPool[int] = ServerPool(self._launch, alive=settings.servers, timeout_s=settings.timeout_s)

    @abstractmethod
    def _launch(self, length: int) -> Launch:
        """Return how the server of a draft length is started."""

    @abstractmethod
    def _steps(
        self, server: Running, number: int, request: EngineRequest, *, lane: int, draft: int, began_s: float
    ) -> Generator[EngineStep, None, None]:
        """Ask a server to decode a request, and yield its steps.

        Args:
            server: the server.
            number: of the request.
            request: the request.
            lane: number of its place among the requests in flight.
            draft: tokens drafted per step.
            began_s: when the run began, seconds of the monotonic clock.
        """

    def _version(self, server: Running) -> str | None:
        """Return the version of a server; None if it is not known."""
        return None

    def __enter__(self) -> Self:
        """See `Driver`."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop all servers."""
        self._servers.__exit__(kind, error, trace)

    def decode(self, requests: Sequence[EngineRequest], *, draft: Draft, concurrency: int) -> Iterator[EngineStep]:
        """See `Driver.decode`; where the server ended, its own words say why.

        Raises:
            UsageError: a tree, drafted tokens without a drafter, or a concurrency below 1.
            EngineError: a request failed, or the server ended.
        """
        if not isinstance(draft, int):
            raise UsageError(f"{self.title} verifies chains, not trees: give draft lengths")
        if draft and not self._drafts:
            raise UsageError(
                f"{self.title} needs a drafter for a draft of {draft}: give --method, and --engine-drafter if it has a "
                "file"
            )
        if concurrency < 1:
            raise UsageError(f"concurrency must be at least 1, got {concurrency}")
        server, length = self._servers.server(draft), draft
        if "version" not in self.meta and (version := self._version(server)) is not None:
            self.meta = {**self.meta, "version": version}
        began_s = time.monotonic()

        def ask(number: int, request: EngineRequest, lane: int) -> Generator[EngineStep, None, None]:
            return self._steps(server, number, request, lane=lane, draft=length, began_s=began_s)

        try:
            yield from in_flight(requests, ask, concurrency=concurrency, cancel=server.client.cancel)
        except EngineError:
            server.process.check(after_s=ENDING_S)
            raise
