"""Any OpenAI-compatible server that streams one chunk per step: local, remote, or the front of a cluster.

The server decides the draft length, so each address is given with the length that its server runs.
"""

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from executor.engines.connections.completions_client import Chunk, CompletionsClient
from executor.engines.connections.concurrent_requests import in_flight
from executor.engines.engine import Draft, EngineRequest, EngineStep
from treeopt.errors import EngineError, UsageError

Count = Callable[[str], int]  # tokens of a text
TIMEOUT_S = 600.0


class OpenAI:
    """Servers that run already, one for each draft length.

    Attributes:
        meta: see `Engine.meta`.
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
        """See `Engine`."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections; the servers run on."""
        for client in self._clients.values():
            client.close()

    def decode(self, requests: Sequence[EngineRequest], *, draft: Draft, concurrency: int) -> Iterator[EngineStep]:
        """See `Engine.decode`.

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


def steps_of(
    chunks: Generator[Chunk, None, None],
    number: int,
    *,
    draft: int,
    began_s: float,
    where: str,
    count: Count | None = None,
) -> Generator[EngineStep, None, None]:
    """Yield the steps of one request from the chunks of its answer; the last one is marked.

    A first chunk of several tokens holds the prefill's token and those of the first step.

    Args:
        chunks: of the answer.
        number: of the request.
        draft: drafted tokens per step.
        began_s: when the run began, on the clock of the chunks.
        where: the server, for messages.
        count: counts the tokens of a text.

    Raises:
        EngineError: a chunk does not show how many tokens it holds, or holds more than a step commits.
    """
    held: EngineStep | None = None
    total, text = 0, ""
    with closing(chunks):
        for chunk in chunks:
            text += chunk.text
            committed = _tokens(chunk, text, total, count, where)
            total += committed
            for size, tokens in _cut(committed, chunk.tokens, first=held is None):
                if size > draft + 1:
                    raise EngineError(
                        f"{where}: a chunk holds {size} tokens, a step of {draft} drafted tokens at most {draft + 1}: "
                        "the server does not stream by step (SGLang: --stream-interval 1), or drafts more than stated"
                    )
                if held is not None:
                    yield held
                held = EngineStep(number, size, chunk.at_s - began_s, tokens, prefill=held is None)
    if held is None:
        raise EngineError(f"{where}: the answer to request {number} holds no token")
    yield replace(held, ended=True)


def _cut(
    committed: int, tokens: tuple[int, ...] | None, *, first: bool
) -> Iterator[tuple[int, tuple[int, ...] | None]]:
    """Yield size and tokens of the steps in a chunk: one, or at the beginning also the prefill."""
    if not committed:
        return
    if first and committed > 1:
        yield 1, None if tokens is None else tokens[:1]
        yield committed - 1, None if tokens is None else tokens[1:]
    else:
        yield committed, tokens


def _tokens(chunk: Chunk, text: str, before: int, count: Count | None, where: str) -> int:
    """Return the number of tokens of a chunk."""
    if chunk.tokens is not None:
        return len(chunk.tokens)
    if chunk.total is not None:
        if chunk.total < before:
            raise EngineError(f"{where}: `usage.completion_tokens` fell from {before} to {chunk.total}")
        return chunk.total - before
    if chunk.logged is not None:
        return chunk.logged
    if not chunk.text:
        return 0
    if count is None:
        raise EngineError(
            f"{where}: chunks do not say how many tokens they hold (no token_ids, usage or logprobs): give --target, "
            "whose tokenizer counts them"
        )
    return max(count(text) - before, 0)
