"""Requests kept in flight at one concurrency, and the steps of all of them in the order of arrival."""

import queue
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing

from treeopt.engines.driver import EngineRequest, EngineStep

# Yields the steps of one request; called with its number, the request, and the lane (0..concurrency - 1) that it uses.
Ask = Callable[[int, EngineRequest, int], Generator[EngineStep, None, None]]
JOIN_S = 30.0


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
