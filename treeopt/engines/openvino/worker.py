"""The OpenVINO worker: runs under the engine's own Python and decodes there, step by step, on orders from stdin.

It needs the standard library, `openvino` and `openvino_genai`; it imports nothing of treeopt. One JSON object per line.

Protocol 1. First the worker introduces itself, then it answers each order in turn:

    worker  {"event": "ready", "protocol": 1, "openvino_genai": VERSION, "openvino": VERSION}
    order   {"op": "load", "pipeline": NAME, "model": FOLDER, "draft_model": FOLDER or null, "device": "CPU",
             "properties": {...}, "scheduler": {...}}
    worker  {"event": "loaded", "pipeline": NAME, "eagle3": BOOL}  whether the draft model is an EAGLE-3 head
    order   {"op": "decode", "pipeline": NAME, "concurrency": N, "settings": {...},
             "requests": [{"tokens": [...], "new_tokens": N, "ignore_stop": BOOL}, ...]}
    worker  {"event": "step", "at_s": SECONDS, "rows": [[REQUEST, [TOKEN, ...], ENDED], ...]}  for every engine step
    worker  {"event": "done"}
    order   {"op": "cancel"}        while it decodes
    worker  {"event": "cancelled"}  after the step under way, in place of "done"; a cancel that comes late is ignored

`settings` are fields of the engine's `GenerationConfig`; `scheduler` those of its `SchedulerConfig`. `at_s` counts from
the order to the end of the step, on a monotonic clock. A request that a step gave no token has no row. Lines about
steps are written together, at most every 50 ms, so that writing does not disturb the steps. An order that fails is
answered by {"event": "error", "message": TEXT}, the engine's own words, and ends what it was about. The worker exits
when its stdin closes.
"""

import json
import os
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
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


class Pipelines:
    """The engine's loaded pipelines, by name; with a draft model or prompt lookup, plain decoding needs its own."""

    def __init__(self) -> None:
        """Import the engine, without its telemetry, which would fork a process that outlives this one."""
        sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
        import openvino
        import openvino_genai

        self._openvino = openvino
        self._genai = openvino_genai
        self._loaded: dict[str, Any] = {}
        self._requests = 0  # ids are never used again
        self.versions = {"openvino_genai": openvino_genai.__version__, "openvino": openvino.__version__}

    def load(self, order: Message) -> bool:
        """Load a pipeline; one of the same name is dropped first. Return whether its draft model is an EAGLE-3 head."""
        self._loaded.pop(order["pipeline"], None)
        scheduler = self._genai.SchedulerConfig()
        for name, value in order["scheduler"].items():
            if not hasattr(scheduler, name):
                raise ValueError(f"SchedulerConfig has no field {name!r}")
            setattr(scheduler, name, value)
        properties = dict(order["properties"])
        if order["draft_model"] is not None:
            properties["draft_model"] = self._genai.draft_model(order["draft_model"], order["device"])
        self._loaded[order["pipeline"]] = self._genai.ContinuousBatchingPipeline(
            order["model"], scheduler, order["device"], properties
        )
        if order["draft_model"] is None:
            return False
        drafter = self._openvino.Core().read_model(os.path.join(order["draft_model"], "openvino_model.xml"))
        return bool(drafter.has_rt_info("eagle3_mode"))

    def decode(self, order: Message, orders: Orders, answers: Answers) -> str:
        """Decode all requests; return "done" or "cancelled"."""
        pipeline = self._loaded[order["pipeline"]]
        started_s = time.perf_counter()
        waiting = deque(enumerate(order["requests"]))
        handles: dict[int, Any] = {}
        try:
            while waiting or handles:
                if orders.cancelled():
                    self._cancel(pipeline, handles)
                    return "cancelled"
                while waiting and len(handles) < order["concurrency"]:
                    number, request = waiting.popleft()
                    handles[number] = self._add(pipeline, request, order["settings"])
                pipeline.step()
                at_s = time.perf_counter() - started_s
                rows = self._rows(handles)
                answers.write({"event": "step", "at_s": round(at_s, 7), "rows": rows}, now=False)
                for number, _, ended in rows:
                    if ended:
                        del handles[number]
        except BaseException:
            del self._loaded[order["pipeline"]]  # its requests are in an unknown state
            raise
        return "done"

    def _add(self, pipeline: Any, request: Message, settings: Mapping[str, Any]) -> Any:
        shipped = pipeline.get_config()
        config = self._genai.GenerationConfig(
            max_new_tokens=request["new_tokens"],
            ignore_eos=request["ignore_stop"],
            do_sample=False,
            eos_token_id=shipped.eos_token_id,
            stop_token_ids=shipped.stop_token_ids,
            **settings,
        )
        config.validate()
        self._requests += 1
        return pipeline.add_request(self._requests, self._openvino.Tensor([request["tokens"]]), config)

    def _rows(self, handles: Mapping[int, Any]) -> list[tuple[int, list[int], bool]]:
        rows = []
        for number, handle in handles.items():
            tokens: list[int] = []
            while handle.can_read():
                for output in handle.read().values():
                    tokens += output.generated_ids
            ended = handle.get_status() != self._genai.GenerationStatus.RUNNING
            if tokens or ended:
                rows.append((number, tokens, ended))
        return rows

    @staticmethod
    def _cancel(pipeline: Any, handles: Mapping[int, Any]) -> None:
        for handle in handles.values():
            handle.cancel()
        while pipeline.has_non_finished_requests():
            pipeline.step()


def main() -> None:
    """Answer orders until stdin closes."""
    answers = Answers(os.fdopen(os.dup(1), "w", encoding="utf-8"))
    os.dup2(2, 1)  # what the engine prints does not mix with the answers
    orders = Orders(sys.stdin)
    try:
        pipelines = Pipelines()
    except ImportError as error:
        answers.write({"event": "error", "message": str(error), "missing": error.name})
        sys.exit(1)
    answers.write({"event": "ready", "protocol": PROTOCOL, **pipelines.versions})
    for order in orders:
        try:
            if order["op"] == "load":
                eagle3 = pipelines.load(order)
                answers.write({"event": "loaded", "pipeline": order["pipeline"], "eagle3": eagle3})
            elif order["op"] == "decode":
                answers.write({"event": pipelines.decode(order, orders, answers)})
            elif order["op"] != "cancel":
                raise ValueError(f"unknown op {order['op']!r}")
        except Exception as error:  # noqa: BLE001 - the engine's errors have no common class
            answers.write({"event": "error", "message": f"{error}" or type(error).__name__})


if __name__ == "__main__":
    main()
