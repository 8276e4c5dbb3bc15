"""CUDA graphs of a batch's steps: captured once for each view of the cache, replayed after that.

A replay launches all of a step's kernels at once and runs no Python, so the device does not wait for the host. What a
graph reads and writes lies at fixed addresses: the rows' and the drafter's state, and the caches. Two graphs a view,
drafting and verifying, keep the phases apart for whoever times them.

Not run on a CUDA device yet: the tests drive the same code with a capture that records nothing.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from executor.rows import Rows
from executor.topology import Draft

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
        self.rows, self.bytes = rows, 0
        self._capture = capture or self._cuda
        self._views: dict[int, tuple[Replay, Replay, Draft]] = {}  # the draft is kept: its memory is the graphs'
        self._pool: Any = None

    def draft(self, *, view: int) -> None:
        """See `Rows.draft`."""
        if view not in self._views:
            self._views[view] = self._captured(view)
        self._views[view][0]()

    def verify(self, *, view: int) -> None:
        """See `Rows.verify`, of the draft made last."""
        self._views[view][1]()

    def _captured(self, view: int) -> tuple[Replay, Replay, Draft]:
        """Warm up and capture; the state is left as it was."""
        rows, steps = self.rows, self.rows.growth.depth + 1
        drafts: list[Draft] = []

        def draft() -> None:
            drafts[:] = [rows.draft(view=view, steps=steps, all_fed=False)]

        def verify() -> None:
            rows.verify(drafts[0], view=view)

        before = [(tensor, tensor.clone()) for tensor in state_of(rows)]
        for _ in range(WARM_UP):
            draft()
            verify()
            for tensor, value in before:
                tensor.copy_(value)
        return self._capture(draft), self._capture(verify), drafts[0]

    def _cuda(self, work: Callable[[], None]) -> Replay:
        device = self.rows.root.device
        torch.cuda.synchronize(device)
        held = torch.cuda.memory_reserved(device)
        graph = torch.cuda.CUDAGraph()
        generator = getattr(self.rows.rule, "generator", None)
        if generator is not None:
            graph.register_generator_state(generator)
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        with torch.cuda.graph(graph, pool=self._pool):
            work()
        self.bytes += torch.cuda.memory_reserved(device) - held
        return graph.replay


def state_of(rows: Rows) -> list[Tensor]:
    """Tensors that a step changes and the next one reads, besides the caches: behind each sequence's length those
    hold nothing.
    """
    last = rows.committed
    found = [rows.lengths, rows.root, rows.idle, rows.outcome, last.tokens, last.features, last.fed, last.counts]
    if rows.imposed is not None:
        found.append(rows.imposed.anchor)
    return found if rows.drafter is None else [*found, *rows.drafter.lasting(rows.state)]
