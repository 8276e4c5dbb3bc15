"""CUDA graphs of a batch's steps: captured once for each view of the cache, replayed after that.

A replay launches all of a step's kernels at once and runs no Python, so the device does not wait for the host. What a
graph reads and writes lies at fixed addresses: the rows' and the drafter's state, and the caches. Each view has two
graphs, one for drafting and one for the rest of the step, so that the two phases can be timed.
"""

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

from executor.decoding.batch_rows import Rows
from executor.verification.tree_tensors import Draft
from treeopt.errors import ExecutorError

WARM_UP = 3  # steps run before a capture: libraries allocate their workspaces, compilers compile
ADVICE = "give --graphs off"

Replay = Callable[[], None]
Capture = Callable[[Callable[[], None]], Replay]


class Graphs:
    """Steps of some rows; shapes are the widest, since a graph cannot use what the host has read since its capture.

    Attributes:
        bytes: memory of the graphs on the device.
        seconds: of all captures, with what warms up before them.
    """

    def __init__(self, rows: Rows, capture: Capture | None = None) -> None:
        """Begin with no graph; `capture` replaces that of CUDA."""
        self.rows, self.bytes, self.seconds, self._capture = rows, 0, 0.0, capture
        self._views: dict[int, tuple[Replay, Replay, Draft]] = {}  # the draft is kept: its memory is the graphs'
        self._pool: Any = None  # of CUDA's captures

    def prepare(self, *, view: int, strict: bool = False) -> bool:
        """Capture this view's steps if they are missing; return True if they were; raise ExecutorError if it fails.

        If `strict`, what makes the host wait is found before: a capture that fails leaves torch's allocator unusable.
        """
        if view in self._views:
            return False
        started = time.perf_counter()
        try:
            self._views[view] = self._captured(view, strict=strict)
        except Exception as error:  # torch's, a driver's, a compiler's
            reason = f"{type(error).__name__}: {error}".split("\n")[0].split(". GPU")[0]
            raise ExecutorError(
                f"a step cannot be captured (experts may ask the host, suffix decoding does): {reason}: {ADVICE}"
            ) from error
        self.seconds += time.perf_counter() - started
        return True

    def draft(self, *, view: int) -> None:
        """Replay `Rows.draft`; the view must be prepared."""
        self._views[view][0]()

    def verify(self, *, view: int) -> None:
        """Replay `Rows.verify` and `Rows.settle` for the last draft."""
        self._views[view][1]()

    def _captured(self, view: int, *, strict: bool = False) -> tuple[Replay, Replay, Draft]:
        """Warm up and capture; the state stays as it was, except that the last accepted nodes are moved into place."""
        rows, steps = self.rows, self.rows.growth.depth + 1
        drafts: list[Draft] = []

        def draft() -> None:
            drafts[:] = [rows.draft(view=view, steps=steps, all_fed=False)]

        def verify() -> None:
            rows.settle(drafts[0], rows.verify(drafts[0], view=view))

        before = [(tensor, tensor.clone()) for tensor in state_of(rows)]
        generator = _generator(rows)
        generator_state = torch.empty(0) if generator is None else generator.get_state()
        for number in range(WARM_UP):
            with _on_capture_stream(rows.root.device, strict=strict and number == WARM_UP - 1):
                draft()
                verify()
            for tensor, value in before:
                tensor.copy_(value)
            # The first draft moved accepted nodes into place in the drafter's cache: later ones move nothing.
            rows.committed.fed.copy_(torch.arange(steps, device=rows.root.device))
        if generator is not None:
            generator.set_state(generator_state)
        capture = self._capture or self._cuda
        # Without a drafter nothing is drafted: the tree is the root, where it stands.
        return (lambda: None) if rows.drafter is None else capture(draft), capture(verify), drafts[0]

    def _cuda(self, work: Callable[[], None]) -> Replay:
        device = self.rows.root.device
        with torch.cuda.device(device):
            if self._pool is None:
                self._pool = torch.cuda.graph_pool_handle()
            torch.cuda.synchronize(device)
            torch.cuda.empty_cache()  # as a capture does when it begins
            reserved = torch.cuda.memory_reserved(device)
            graph = torch.cuda.CUDAGraph()
            generator = _generator(self.rows)
            if generator is not None:
                graph.register_generator_state(generator)
            with torch.cuda.graph(graph, pool=self._pool, stream=_stream(device)):
                work()
            self.bytes += torch.cuda.memory_reserved(device) - reserved
        return graph.replay


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """Return the one stream for all captures: cuBLAS keeps a workspace for each stream that it has seen."""
    return torch.cuda.Stream(device)


@contextmanager
def _on_capture_stream(device: torch.device, *, strict: bool) -> Iterator[None]:
    """Use the stream of captures on CUDA, so that libraries make their workspaces outside a graph's memory."""
    if device.type != "cuda":
        yield
        return
    ours, stream = torch.cuda.current_stream(device), _stream(device)
    stream.wait_stream(ours)
    with warnings.catch_warnings():  # torch says once that the mode is a prototype
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error" if strict else "default")
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
    ours.wait_stream(stream)


def _generator(rows: Rows) -> torch.Generator | None:
    """Return the rule's random generator, if any; CUDA must know it, or every replay would draw the same numbers."""
    rule = rows.rule if rows.imposed is None else rows.imposed.rule
    return getattr(rule, "generator", None)


def state_of(rows: Rows) -> list[Tensor]:
    """Return the tensors that a step changes and the next one reads, besides the caches.

    The caches hold nothing after each sequence's length except the last accepted nodes: a drafter whose cache holds
    them moves them into place when it drafts again.
    """
    last = rows.committed
    tensors = [rows.lengths, rows.root, rows.idle, rows.outcome, last.tokens, last.features, last.fed, last.counts]
    if rows.imposed is not None:
        tensors.append(rows.imposed.anchor)
    return tensors if rows.drafter is None else [*tensors, *rows.drafter.lasting(rows.state)]
