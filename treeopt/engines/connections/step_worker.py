"""The step worker: runs under an engine's own Python and decodes there, step by step, on orders from stdin.

`python -I step_worker.py FILE`: the file defines `Adapter`, which knows the engine. Both need the standard library and
the engine; they import nothing of treeopt. One JSON object per line.

Protocol 1. First the worker introduces itself, then it answers each order in turn:

    worker  {"event": "ready", "protocol": 1, ...}  and versions
    order   {"op": "load", "pipeline": NAME, ...}  what else it holds is the engine's
    worker  {"event": "loaded", "pipeline": NAME, ...}
    order   {"op": "decode", "pipeline": NAME, "concurrency": N, "settings": {...},
             "requests": [{"tokens": [...], "new_tokens": N, "ignore_stop": BOOL}, ...]}
    worker  {"event": "step", "at_s": SECONDS, "rows": [[REQUEST, [TOKEN, ...], ENDED], ...]}  for every engine step; a
            row of an engine that reports it holds the number of drafted tokens, too
    worker  {"event": "done"}
    order   {"op": "cancel"}        while it decodes
    worker  {"event": "cancelled"}  after the step under way, in place of "done"; a cancel that comes late is ignored

`at_s` counts from the order to the end of the step, on a monotonic clock, without the time in which the engine was
ready to run and other programs had the processors (`Waits`). A request that a step gave no token has no row. Lines
about steps are written together, at most every 50 ms, so that writing does not disturb the steps. An order that fails
is answered by {"event": "error", "message": TEXT}, the engine's own words, and ends what it was about. The worker exits
when its stdin closes.
"""

import contextlib
import json
import os
import queue
import runpy
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterator
from typing import Any, TextIO

PROTOCOL = 1
WRITE_EVERY_S = 0.05

Message = dict[str, Any]


class Orders:
    """The orders on stdin, read by a thread, so that a cancel is seen between two steps."""

    def __init__(self, stream: TextIO) -> None:
        """Start to read."""
        self._queue: queue.SimpleQueue[Message] = queue.SimpleQueue()
        threading.Thread(target=self._read, args=(stream,), daemon=True).start()

    def _read(self, stream: TextIO) -> None:
        for line in stream:
            self._queue.put(json.loads(line))
        os._exit(0)  # the parent is gone, or wants no more; nothing here needs to be saved

    def __iter__(self) -> Iterator[Message]:
        """Yield the orders as they come; never ends."""
        while True:
            yield self._queue.get()

    def cancelled(self) -> bool:
        """Return whether a cancel has come; while decoding no other order is allowed."""
        return not self._queue.empty() and self._queue.get()["op"] == "cancel"


class Answers:
    """The lines on stdout; those about steps wait for one another."""

    def __init__(self, stream: TextIO) -> None:
        """Keep the stream."""
        self._stream = stream
        self._waiting: list[str] = []
        self._written_s = 0.0

    def write(self, message: Message, *, now: bool = True) -> None:
        """Write an object, after those that wait."""
        self._waiting.append(json.dumps(message, separators=(",", ":")))
        if now or time.perf_counter() - self._written_s > WRITE_EVERY_S:
            self._stream.write("\n".join(self._waiting) + "\n")
            self._stream.flush()
            self._waiting.clear()
            self._written_s = time.perf_counter()


class Waits:
    """The seconds in which the thread that computes could have run and waited for a processor.

    Linux counts seconds run and waited by thread (/proc/PID/task/TID/schedstat). The thread that ran the longest in a
    step is the one that computes. 0 where the system does not tell.
    """

    def __init__(self) -> None:
        """Begin with the threads that run now."""
        self._files, self.total_s = list[int](), 0.0
        with contextlib.suppress(OSError):
            for thread in os.listdir("/proc/self/task"):
                self._files.append(os.open(f"/proc/self/task/{thread}/schedstat", os.O_RDONLY))
        self._before = [_ran_and_waited(file) for file in self._files]

    def add(self) -> None:
        """Add the wait since the last call."""
        now = [_ran_and_waited(file) for file in self._files]
        since = [(ran - a, waited - b) for (a, b), (ran, waited) in zip(self._before, now, strict=True)]
        self.total_s += max(since, default=(0, 0))[1] / 1e9
        self._before = now

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            os.close(file)


def _ran_and_waited(file: int) -> tuple[int, int]:
    """Return nanoseconds; none of a thread that ended."""
    try:
        ran, waited, *_ = os.pread(file, 80, 0).split()
        return int(ran), int(waited)
    except (OSError, ValueError):
        return 0, 0


def decode(adapter: Any, order: Message, orders: Orders, answers: Answers) -> str:
    """Decode all requests; return "done" or "cancelled".

    The adapter has `begin(pipeline, settings)`, `add(number, request)`, `step()`, which returns the rows, `cancel()`,
    and `drop(pipeline)` for one whose requests are in an unknown state.
    """
    started_s = time.perf_counter()
    waiting, running = deque(enumerate(order["requests"])), set[int]()
    adapter.begin(order["pipeline"], order["settings"])
    waits = Waits()
    try:
        while waiting or running:
            if orders.cancelled():
                adapter.cancel()
                return "cancelled"
            while waiting and len(running) < order["concurrency"]:
                number, request = waiting.popleft()
                adapter.add(number, request)
                running.add(number)
            rows = adapter.step()
            waits.add()
            at_s = time.perf_counter() - started_s - waits.total_s
            answers.write({"event": "step", "at_s": round(at_s, 7), "rows": rows}, now=False)
            running -= {number for number, _, ended, *_ in rows if ended}
    except BaseException:
        adapter.drop(order["pipeline"])
        raise
    finally:
        waits.close()
    return "done"


def words(error: BaseException) -> str:
    """Return what went wrong first: the message of the innermost cause."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error) or type(error).__name__


def main(file: str) -> None:
    """Answer orders until stdin closes."""
    answers = Answers(os.fdopen(os.dup(1), "w", encoding="utf-8"))
    os.dup2(2, 1)  # what the engine prints does not mix with the answers
    orders = Orders(sys.stdin)
    try:
        adapter = runpy.run_path(file)["Adapter"]()
    except ImportError as error:
        answers.write({"event": "error", "message": str(error), "missing": error.name})
        sys.exit(1)
    answers.write({"event": "ready", "protocol": PROTOCOL, **adapter.versions})
    for order in orders:
        try:
            if order["op"] == "load":
                answers.write({"event": "loaded", "pipeline": order["pipeline"], **adapter.load(order)})
            elif order["op"] == "decode":
                answers.write({"event": decode(adapter, order, orders, answers)})
            elif order["op"] != "cancel":
                raise ValueError(f"unknown op {order['op']!r}")
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the engine's errors have no common class
            traceback.print_exc()
            answers.write({"event": "error", "message": words(error)})


if __name__ == "__main__":
    main(sys.argv[1])
