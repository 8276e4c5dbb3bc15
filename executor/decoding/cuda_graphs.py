"""CUDA graphs of a batch's steps: captured once for each view of the cache, replayed after that.

A replay launches all of a step's kernels at once and runs no Python, so the device does not wait for the host. What a
graph reads and writes lies at fixed addresses: the rows' and the drafter's state, and the caches. Two graphs a view,
drafting and verifying, keep the phases apart for whoever times them.

Not run on a CUDA device yet: the tests drive the same code with a capture that records nothing.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

from executor.decoding.batch_rows import Rows
from executor.verification.tree_tensors import Draft

WARM_UP = 3  # steps run before a capture: libraries allocate their workspaces, compilers compile

Replay = Callable[[], None]
Capture = Callable[[Callable[[], None]], Replay]


class Graphs:
    """Steps of some rows; shapes are the widest, since a graph cannot be told what the host has learned.

    Attributes:
        bytes: memory that the graphs hold on the device.
    """

    def __init__(self, rows: Rows, capture: Capture | None = None) -> None:
        """Nothing captured yet; `capture` replaces that of CUDA."""
        self.rows, self.bytes, self._capture = rows, 0, capture
        self._views: dict[int, tuple[Replay, Replay, Draft]] = {}  # the draft is kept: its memory is the graphs'
        self._pool: Any = None  # of CUDA's captures

    def prepare(self, *, view: int) -> bool:
        """Capture this view's steps unless they are there; whether they were not."""
        if view in self._views:
            return False
        self._views[view] = self._captured(view)
        return True

    def draft(self, *, view: int) -> None:
        """See `Rows.draft`; the view is prepared."""
        self._views[view][0]()

    def verify(self, *, view: int) -> None:
        """See `Rows.verify`, of the draft made last."""
        self._views[view][1]()

    def _captured(self, view: int) -> tuple[Replay, Replay, Draft]:
        """Warm up and capture; the state is left as it was, but that the nodes kept last lie in place."""
        rows, steps = self.rows, self.rows.growth.depth + 1
        drafts: list[Draft] = []

        def draft() -> None:
            drafts[:] = [rows.draft(view=view, steps=steps, all_fed=False)]

        def verify() -> None:
            rows.verify(drafts[0], view=view)

        before = [(tensor, tensor.clone()) for tensor in state_of(rows)]
        generator = _generator(rows)
        drawn_so_far = torch.empty(0) if generator is None else generator.get_state()
        with _where_captures_are(rows.root.device):
            for _ in range(WARM_UP):
                draft()
                verify()
                for tensor, value in before:
                    tensor.copy_(value)
                # The first draft moved what was kept into place in the drafter's cache; from there nothing is to move.
                rows.committed.fed.copy_(torch.arange(steps, device=rows.root.device))
        if generator is not None:
            generator.set_state(drawn_so_far)
        capture = self._capture or self._cuda
        return capture(draft), capture(verify), drafts[0]

    def _cuda(self, work: Callable[[], None]) -> Replay:
        device = self.rows.root.device
        with torch.cuda.device(device):
            if self._pool is None:
                self._pool = torch.cuda.graph_pool_handle()
            torch.cuda.synchronize(device)
            torch.cuda.empty_cache()  # as a capture does when it begins
            held = torch.cuda.memory_reserved(device)
            graph = torch.cuda.CUDAGraph()
            generator = _generator(self.rows)
            if generator is not None:
                graph.register_generator_state(generator)
            with torch.cuda.graph(graph, pool=self._pool, stream=_stream(device)):
                work()
            self.bytes += torch.cuda.memory_reserved(device) - held
        return graph.replay


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """One for all captures: cuBLAS keeps a workspace for each stream that it has seen."""
    return torch.cuda.Stream(device)


@contextmanager
def _where_captures_are(device: torch.device) -> Iterator[None]:
    """On CUDA on the stream of captures, so that libraries make their workspaces outside a graph's memory."""
    if device.type != "cuda":
        yield
        return
    ours, stream = torch.cuda.current_stream(device), _stream(device)
    stream.wait_stream(ours)
    with torch.cuda.stream(stream):
        yield
    ours.wait_stream(stream)


def _generator(rows: Rows) -> torch.Generator | None:
    """Where the rule takes its chances, if it takes any; CUDA must know, or every replay would draw the same."""
    rule = rows.rule if rows.imposed is None else rows.imposed.rule
    return getattr(rule, "generator", None)


def state_of(rows: Rows) -> list[Tensor]:
    """Tensors that a step changes and the next one reads, besides the caches.

    Those hold nothing behind each sequence's length, but for the nodes kept last: a drafter whose cache holds them
    moves them into place when it drafts again.
    """
    last = rows.committed
    found = [rows.lengths, rows.root, rows.idle, rows.outcome, last.tokens, last.features, last.fed, last.counts]
    if rows.imposed is not None:
        found.append(rows.imposed.anchor)
    return found if rows.drafter is None else [*found, *rows.drafter.lasting(rows.state)]
