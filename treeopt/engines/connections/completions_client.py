"""A client of the OpenAI completions API: streamed chunks with their times, steps of chunks, requests in flight.

Servers that decode speculatively send one chunk per step and request, so a chunk holds the tokens that a step
committed. Its number of tokens comes from the first of these that the server sends: `token_ids` (vLLM), the running
`usage` (vLLM, SGLang), the tokens of `logprobs`; else the caller counts them in the text.
"""

import json
import queue
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any

import httpx2

from treeopt.engines.driver import Count, EngineRequest, EngineStep
from treeopt.errors import EngineError

RETRIED = {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE}
REFUSED = {HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY}
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 30.0
CONNECT_S = 10.0
LONGEST = 300  # characters of a server's own words
JOIN_S = 30.0  # longest wait for the threads of cancelled requests
# Asked for beside the standard fields; a server that refuses unknown fields is asked again without them.
REPORTED = {
    "return_token_ids": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
}

Records = Generator[tuple[float, Mapping[str, Any]], None, None]  # objects of a streamed answer, each with its time
# Yields the steps of one request; called with its number, the request, and the lane (0..concurrency - 1) that it uses.
Ask = Callable[[int, EngineRequest, int], Generator[EngineStep, None, None]]


@dataclass(frozen=True)
class Chunk:
    """A piece of a streamed answer.

    Attributes:
        at_s: when it arrived, seconds of the monotonic clock.
        text: its text.
        tokens: its token ids, if the server sends them.
        total: tokens of the answer so far, if the server sends them.
        logged: its tokens as counted in `logprobs`, if the server sends them.
        finish: why the answer ended; None before its last chunk.
        record: the whole object.
    """

    at_s: float
    text: str
    tokens: tuple[int, ...] | None
    total: int | None
    logged: int | None
    finish: str | None
    record: Mapping[str, Any] = field(repr=False)


class UnknownFieldError(EngineError):
    """A server that refuses a field that was asked for beside the standard ones."""


class CompletionsClient:
    """A connection to one server."""

    def __init__(self, url: str, *, key: str | None = None, timeout_s: float) -> None:
        """Prepare a client; nothing is sent yet.

        Args:
            url: such as http://127.0.0.1:8000 or .../v1.
            key: sent as a bearer token.
            timeout_s: longest wait for the next piece of an answer.

        Raises:
            EngineError: not an http address.
        """
        self.url = url.rstrip("/").removesuffix("/v1")
        self.timeout_s = timeout_s
        self._model: str | None = None
        self._reading: set[socket.socket] = set()
        self._reported: Mapping[str, Any] = REPORTED
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        timeout = httpx2.Timeout(timeout_s, connect=min(CONNECT_S, timeout_s))
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
        try:
            self._client = httpx2.Client(
                base_url=self.url, headers=headers, timeout=timeout, limits=limits, trust_env=False
            )
            self._client.build_request("GET", "/v1/models")
        except (httpx2.InvalidURL, httpx2.UnsupportedProtocol) as error:
            raise EngineError(f"{url}: not an http address: {error}") from error
        if httpx2.URL(self.url).scheme not in ("http", "https") or not httpx2.URL(self.url).host:
            raise EngineError(f"{url}: not an http address, such as http://127.0.0.1:8000")

    def close(self) -> None:
        """Close the client; no stream may be read any more."""
        self._client.close()

    def cancel(self) -> None:
        """End all answers that are being read: their readers get an error, and the server sees the connection close."""
        for open_socket in tuple(self._reading):
            with suppress(OSError):
                open_socket.shutdown(socket.SHUT_RDWR)

    def answers(self, path: str = "/v1/models") -> bool:
        """Return True if the server answers a request for `path`."""
        try:
            return self._client.get(path).is_success
        except httpx2.HTTPError:
            return False

    def model(self) -> str:
        """Return the name of the first model that the server offers; it is asked for once.

        Raises:
            EngineError: the server cannot be reached, or names none.
        """
        if self._model is None:
            answer = self._json("/v1/models")
            try:
                name = answer["data"][0]["id"]
            except (KeyError, IndexError, TypeError):
                name = None
            if not isinstance(name, str):
                raise EngineError(f"{self.url}/v1/models names no model: is this an OpenAI-compatible server?")
            self._model = name
        return self._model

    def text(self, path: str) -> str | None:
        """Return the text at `path`, or None if there is none."""
        answer = self._get(path)
        return answer.text if answer.is_success else None

    def stream(self, request: EngineRequest, *, model: str) -> Generator[Chunk, None, None]:
        """Send a completion request and yield the chunks of the answer.

        Args:
            request: the prompt.
            model: name of the model.

        Raises:
            EngineError: see `events`.
        """
        body, reported = _body(request, model), self._reported
        try:
            records = self.events("/v1/completions", {**body, **reported})
            yield from self._chunks(records)
        except UnknownFieldError:
            self._reported = {}
            yield from self._chunks(self.events("/v1/completions", body))

    def events(self, path: str, body: Mapping[str, Any]) -> Records:
        """Post a request and yield the objects of the streamed answer, each with its time of arrival.

        A server that is busy is asked again, after 0.5 s, 1 s, ... 30 s, until the timeout is used up.

        Raises:
            UnknownFieldError: the server refuses one of the fields in `REPORTED`.
            EngineError: no connection, an error of the server (in its words), an answer that is not streamed or broken.
        """
        waited_s, wait_s = 0.0, FIRST_WAIT_S
        while True:
            try:
                with self._client.stream("POST", path, json=dict(body)) as response:
                    if response.is_success:
                        with self._cancellable(response):
                            yield from self._records(response)
                        return
                    status, words = response.status_code, _words(response)
                    asked_s = _seconds(response.headers.get("retry-after"))
            except httpx2.HTTPError as error:
                raise EngineError(f"{self.url}: {_failure(error)}") from error
            message = f"{self.url} answered {status} {response.reason_phrase}: {words}"
            if status in REFUSED and any(name in body and name in words for name in REPORTED):
                raise UnknownFieldError(message)
            if status not in RETRIED or waited_s >= self.timeout_s:
                raise EngineError(message)
            pause_s = min(asked_s or wait_s, self.timeout_s)
            time.sleep(pause_s)
            waited_s, wait_s = waited_s + pause_s, min(2 * wait_s, LONGEST_WAIT_S)

    def _get(self, path: str) -> httpx2.Response:
        try:
            return self._client.get(path)
        except httpx2.HTTPError as error:
            raise EngineError(f"{self.url}: {_failure(error)}") from error

    def _json(self, path: str) -> Any:
        answer = self._get(path)
        if not answer.is_success:
            raise EngineError(f"{self.url}{path} answered {answer.status_code}: {_words(answer)}")
        try:
            return answer.json()
        except (ValueError, RecursionError) as error:
            raise EngineError(
                f"{self.url}{path}: the answer is not JSON: is this an OpenAI-compatible server?"
            ) from error

    @contextmanager
    def _cancellable(self, response: httpx2.Response) -> Iterator[None]:
        """Let `cancel` end the connection of an answer while it is read."""
        stream = response.extensions.get("network_stream")
        connection = None if stream is None else stream.get_extra_info("socket")
        if connection is not None:
            self._reading.add(connection)
        try:
            yield
        finally:
            self._reading.discard(connection)

    def _records(self, response: httpx2.Response) -> Records:
        """Yield the objects of a streamed answer."""
        if "text/event-stream" not in response.headers.get("content-type", ""):
            response.read()
            raise EngineError(f"{self.url}: the server does not stream its answer; step times and lengths need that")
        for event in httpx2.EventSource(response):
            at_s = time.monotonic()
            if event.data.strip() == "[DONE]":
                return
            try:
                record = json.loads(event.data)
            except (ValueError, RecursionError) as error:
                raise EngineError(f"{self.url}: a chunk is not JSON: {event.data!r:.100}") from error
            if not isinstance(record, dict):
                raise EngineError(f"{self.url}: a chunk is not an object: {event.data!r:.100}")
            if record.get("error") is not None:
                raise EngineError(f"{self.url}: {_message(record)}")
            yield at_s, record

    def _chunks(self, records: Records) -> Iterator[Chunk]:
        began = finished = False
        with closing(records):
            for at_s, record in records:
                chunk = _chunk(record, at_s)
                began |= bool(record.get("choices"))
                finished |= chunk.finish is not None
                yield chunk
        if began and not finished:
            raise EngineError(f"{self.url}: the connection broke: the answer has no end")


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


def in_flight(
    requests: Sequence[EngineRequest], ask: Ask, *, concurrency: int, cancel: Callable[[], None]
) -> Iterator[EngineStep]:
    """Yield the steps of all requests, `concurrency` of which are in flight until none is left to begin.

    Args:
        requests: begun in this order.
        ask: sends one request and yields its steps.
        concurrency: requests in flight, each in a thread of its own.
        cancel: ends requests that are under way; called when the iterator is closed early or a request fails.

    Raises:
        EngineError: what `ask` raised first.
    """
    numbers = iter(range(len(requests)))
    lock, stopped = threading.Lock(), threading.Event()
    arrived: queue.SimpleQueue[EngineStep | BaseException | None] = queue.SimpleQueue()

    def work(lane: int) -> None:
        try:
            while not stopped.is_set():
                with lock:
                    number = next(numbers, None)
                if number is None:
                    break
                with closing(ask(number, requests[number], lane)) as steps:
                    for step in steps:
                        arrived.put(step)
                        if stopped.is_set():
                            return
        except BaseException as error:  # noqa: BLE001 - raised again by the reader
            arrived.put(error)
        finally:
            arrived.put(None)

    lanes = min(concurrency, len(requests))
    threads = [threading.Thread(target=work, args=(lane,), daemon=True) for lane in range(lanes)]
    for thread in threads:
        thread.start()
    left, done = lanes, False
    try:
        while left:
            item = arrived.get()
            if isinstance(item, BaseException):
                raise item
            if item is None:
                left -= 1
            else:
                yield item
        done = True
    finally:
        stopped.set()
        if not done:
            cancel()
        for thread in threads:
            thread.join(JOIN_S)


def _body(request: EngineRequest, model: str) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": model,
        "prompt": list(request.tokens) if request.text is None else request.text,
        "max_tokens": request.new_tokens,
        "temperature": 0,
        "stream": True,
    }
    return body | ({"ignore_eos": True} if request.ignore_stop else {})


def _chunk(record: Mapping[str, Any], at_s: float) -> Chunk:
    """Return the chunk of an object."""
    choices = record.get("choices") or [{}]
    choice = choices[0] if isinstance(choices, list) and isinstance(choices[0], dict) else {}
    tokens, usage, logged = choice.get("token_ids"), record.get("usage"), choice.get("logprobs")
    total = usage.get("completion_tokens") if isinstance(usage, dict) else None
    listed = logged.get("tokens") if isinstance(logged, dict) else None
    return Chunk(
        at_s,
        text if isinstance(text := choice.get("text"), str) else "",
        tuple(tokens) if isinstance(tokens, list) and all(type(token) is int for token in tokens) else None,
        total if type(total) is int else None,
        len(listed) if isinstance(listed, list) else None,
        finish if isinstance(finish := choice.get("finish_reason"), str) else None,
        record,
    )


def _words(response: httpx2.Response) -> str:
    """Return the server's own words for an error."""
    response.read()
    try:
        record = response.json()
    except (ValueError, RecursionError):
        record = None
    return _message(record) if isinstance(record, dict) else " ".join(response.text.split())[:LONGEST] or "no text"


def _message(record: Mapping[str, Any]) -> str:
    error = record.get("error", record)
    message = error.get("message", error.get("detail", error)) if isinstance(error, dict) else error
    return " ".join(str(message).split())[:LONGEST]


def _failure(error: httpx2.HTTPError) -> str:
    """Return what failed, in words."""
    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
        return f"cannot be reached: {error}"
    if isinstance(error, httpx2.TimeoutException):
        return "sent nothing within the time limit (--engine-timeout)"
    if isinstance(error, httpx2.SSEError):
        return f"the stream cannot be read: {error}"
    return f"the connection broke: {str(error) or type(error).__name__}"


def _seconds(value: str | None) -> float | None:
    try:
        return min(float(value), LONGEST_WAIT_S) if value else None
    except ValueError:
        return None


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
