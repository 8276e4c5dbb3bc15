"""Any OpenAI-compatible server that streams one chunk per step: local, remote, or the front of a cluster.

The server decides the draft length, so each address is given with the length that its server runs.
"""

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from treeopt.engines.connections.completions_client import CompletionsClient
from treeopt.engines.connections.concurrent_requests import in_flight
from treeopt.engines.connections.streamed_steps import TIMEOUT_S, steps_of
from treeopt.engines.driver import Count, Draft, EngineRequest, EngineStep
from treeopt.errors import UsageError


class OpenAI:
    """Servers that run already, one for each draft length.

    Attributes:
        meta: see `Driver.meta`.
    """

    tree_requests = 0

    def __init__(
        self,
        urls: Mapping[int, str],
        *,
        model: str | None = None,
        key: str | None = None,
        timeout_s: float = TIMEOUT_S,
        count: Count | None = None,
    ) -> None:
        """Name the servers; nothing is sent yet.

        Args:
            urls: address by draft length, 0 for plain decoding.
            model: name of the model; None: the first that each server offers.
            key: bearer token.
            timeout_s: longest wait for the next piece of an answer.
            count: counts the tokens of a text, for servers that do not report them.

        Raises:
            EngineError: not an address.
        """
        self._clients = {length: CompletionsClient(url, key=key, timeout_s=timeout_s) for length, url in urls.items()}
        self._model, self._count = model, count
        self.meta: Mapping[str, Any] = {"name": "openai", "urls": {str(length): url for length, url in urls.items()}}

    def __enter__(self) -> Self:
        """See `Driver`."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections; the servers run on."""
        for client in self._clients.values():
            client.close()

    def decode(self, requests: Sequence[EngineRequest], *, draft: Draft, concurrency: int) -> Iterator[EngineStep]:
        """See `Driver.decode`.

        Raises:
            UsageError: no server is given for this length, or `draft` is a tree.
        """
        if not isinstance(draft, int) or draft not in self._clients:
            given = ", ".join(map(str, self._clients))
            raise UsageError(f"no server is given for a draft of {draft}; --url names servers for {given}")
        client = self._clients[draft]
        model = self._model or client.model()
        began_s = time.monotonic()

        def ask(number: int, request: EngineRequest, lane: int) -> Generator[EngineStep, None, None]:
            chunks = client.stream(request, model=model)
            return steps_of(chunks, number, draft=draft, began_s=began_s, where=client.url, count=self._count)

        yield from in_flight(requests, ask, concurrency=concurrency, cancel=client.cancel)
