"""Launched servers of an engine: a pool by draft length, asked request by request, stopped together."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from treeopt.engines.connections.concurrent_requests import in_flight
from treeopt.engines.connections.server_pool import Launch, Running, ServerPool
from treeopt.engines.driver import EngineRequest, EngineStep
from treeopt.errors import EngineError, UsageError

ENDING_S = 1.0  # from a broken connection until the end of a server that died is noticed
Ask = Callable[[int, EngineRequest, int], Generator[EngineStep, None, None]]  # number, request, lane


class LaunchedServers(ABC):
    """Servers of one engine, launched by draft length; see `Driver`.

    Attributes:
        meta: see `Driver.meta`.
    """

    tree_requests = 0
    meta: Mapping[str, Any]

    def __init__(self, *, alive: int, timeout_s: float) -> None:
        """Start nothing yet.

        Args:
            alive: servers at a time.
            timeout_s: longest time that a server may take to start, and then to send anything.
        """
        self._servers: ServerPool[int] = ServerPool(self._launch, alive=alive, timeout_s=timeout_s)

    @abstractmethod
    def _launch(self, length: int) -> Launch:
        """Return how the server of a draft length is started."""

    def __enter__(self) -> Self:
        """See `Driver`."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop all servers."""
        self._servers.__exit__(kind, error, trace)

    def _decoded(
        self, server: Running, requests: Sequence[EngineRequest], ask: Ask, *, concurrency: int
    ) -> Iterator[EngineStep]:
        """Yield the steps of requests that a server is asked for; where the server ended, its own words say why.

        Raises:
            UsageError: a concurrency below 1.
            EngineError: a request failed, or the server ended.
        """
        if concurrency < 1:
            raise UsageError(f"concurrency must be at least 1, got {concurrency}")
        try:
            yield from in_flight(requests, ask, concurrency=concurrency, cancel=server.client.cancel)
        except EngineError:
            server.process.check(after_s=ENDING_S)
            raise
