"""Any OpenAI-compatible server that streams one chunk per step: local, remote, or the front of a cluster.

The server decides the draft length, so each address is given with the length that its server runs.
"""

import logging
import os
import sys
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from treeopt.engines.connections.completions_client import CompletionsClient, in_flight, steps_of
from treeopt.engines.driver import Draft, DriverSettings, EngineRequest, EngineStep
from treeopt.errors import EngineError, UsageError

LOG = logging.getLogger("treeopt")
KEY = "OPENAI_API_KEY"  # environment variable with the bearer token of a remote server


class OpenAI:
    """Servers that run already, for each draft length one or several, which share the requests.

    Attributes:
        meta: see `Driver.meta`.
    """

    tree_requests = longest = 0
    alive = sys.maxsize

    def __init__(self, settings: DriverSettings) -> None:
        """Name the servers; nothing is sent yet.

        Args:
            settings: `urls` holds addresses by draft length, 0 for plain decoding. A `target` that is a folder here has
                no name there: then the first model that each server offers is asked. OPENAI_API_KEY is sent along.

        Raises:
            EngineError: not an address.
        """
        urls, key = settings.urls or {}, os.environ.get(KEY)
        self._clients = {
            length: [CompletionsClient(url, key=key, timeout_s=settings.timeout_s) for url in own.split()]
            for length, own in urls.items()
        }
        self._model = None if Path(settings.target).exists() else settings.target
        self._count = settings.count
        self.meta: Mapping[str, Any] = {"name": "openai", "urls": {str(length): url for length, url in urls.items()}}

    def launch(self, draft: Draft) -> Draft:
        """See `Driver.launch`."""
        return draft

    def __enter__(self) -> Self:
        """See `Driver`."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connections; the servers run on."""
        for client in (client for clients in self._clients.values() for client in clients):
            client.close()

    def decode(self, requests: Sequence[EngineRequest], *, draft: Draft, concurrency: int) -> Iterator[EngineStep]:
        """See `Driver.decode`.

        Raises:
            UsageError: no server is given for this length, or `draft` is a tree.
        """
        if not isinstance(draft, int) or draft not in self._clients:
            given = ", ".join(map(str, self._clients))
            raise UsageError(f"no server is given for a draft of {draft}; --url names servers for {given}")
        clients = list(self._clients[draft])
        began_s, lock, cancelled = time.monotonic(), threading.Lock(), threading.Event()

        def asked(client: CompletionsClient, number: int, request: EngineRequest) -> Generator[EngineStep, None, None]:
            chunks = client.stream(request, model=self._model or client.model())
            return steps_of(chunks, number, draft=draft, began_s=began_s, where=client.url, count=self._count)

        def ask(number: int, request: EngineRequest, lane: int) -> Generator[EngineStep, None, None]:
            while len(clients) > 1:
                client = clients[lane % len(clients)]
                try:
                    yield from list(asked(client, number, request))  # the whole answer: another server may be asked
                except EngineError as error:
                    with lock:
                        if cancelled.is_set() or len(clients) == 1:
                            raise
                        if client in clients:
                            clients.remove(client)
                            LOG.warning("%s; the other servers get its requests", error)
                else:
                    return
            yield from asked(clients[0], number, request)

        def cancel() -> None:
            cancelled.set()
            for client in self._clients[draft]:
                client.cancel()

        yield from in_flight(requests, ask, concurrency=concurrency, cancel=cancel)
