"""Schedule of a batch: the requests in each step and the tokens they commit there; ragged batches and lock-step.

In a ragged batch every sequence advances by what it accepted; in lock-step all advance by the smallest. A row whose
request has ended goes to the next request of its piece.
"""

import heapq
from collections.abc import Sequence

import numpy as np

from simulate.runs.timeline import Emissions, Ints
from treeopt.errors import UsageError
from treeopt.replay.walk import walked
from treeopt.traces.trace import Trace


def piece_ends(piece: int | Sequence[int], requests: int) -> Ints:
    """Return for each request the number of the first request of the next piece, int64 (R,).

    Raises:
        UsageError: a piece below 1.

    >>> piece_ends([2, 1], 4).tolist()
    [2, 2, 3, 5]
    """
    sizes = np.atleast_1d(piece).astype(np.int64)
    if len(sizes) == 0 or (sizes < 1).any():
        raise UsageError(f"a piece must have at least 1 request, got {piece}")
    sizes = np.resize(sizes, requests)
    return np.repeat(np.cumsum(sizes), sizes)[:requests]


def ragged(accepted: Ints, trace: Trace, *, batch: int, ends: Ints, late: int) -> Emissions:
    """Schedule a batch in which every sequence advances by what it accepted.

    A request takes as many steps as it takes alone, so only its first step depends on the others.

    Args:
        accepted: drafted tokens that a step from each anchor accepts, int64 (P,).
        trace: the requests.
        batch: rows.
        ends: see `piece_ends`.
        late: steps for which the row of a request that has ended is held.
    """
    walk = walked(accepted, trace)
    request = walk.request.astype(np.int64)
    steps = np.bincount(request, minlength=trace.requests)
    first = np.cumsum(steps) - steps
    begins = _first_steps(steps.tolist(), batch, ends.tolist(), late)
    number = np.arange(len(request)) - first[request]
    tokens = np.diff(walk.anchors, append=trace.anchors)  # requests stand one after the other
    emissions = Emissions(request, begins[request] + number, tokens)
    return _hold_rows(emissions, begins + steps, ends, late) if late else emissions


def _first_steps(steps: list[int], batch: int, ends: list[int], late: int) -> Ints:
    """Return the step at which each request begins, given the number of steps it takes."""
    batch, piece_over, begins = min(batch, len(steps)), 0, []
    free = [0] * batch
    for request, count in enumerate(steps):
        if request and ends[request] != ends[request - 1]:
            free = [piece_over] * batch
        begins.append(free[0])
        piece_over = max(piece_over, free[0] + count)
        heapq.heapreplace(free, free[0] + count + late)
    return np.array(begins, dtype=np.int64)


def _hold_rows(emissions: Emissions, over: Ints, ends: Ints, late: int) -> Emissions:
    """Return the emissions with the steps after each request's end, `over`, for which its row is held.

    No row is held beyond the end of its piece.
    """
    piece = np.unique(ends, return_inverse=True)[1]
    until = np.zeros_like(over)
    np.maximum.at(until, piece, over)
    request, extra = np.nonzero(over[:, None] + np.arange(late) < until[piece][:, None])
    requests = np.append(emissions.request, request)
    order = requests.argsort(kind="stable")
    step, tokens = np.append(emissions.step, over[request] + extra), np.append(emissions.tokens, np.zeros_like(request))
    return Emissions(requests[order], step[order], tokens[order])


def in_lock_step(accepted: Ints, trace: Trace, *, batch: int, ends: Ints) -> Emissions:
    """Schedule a batch in which all sequences advance by the smallest number of tokens that one of them committed.

    Sequences whose own step would end them do not slow the others. Arguments as in `ragged`.
    """
    requests, steps, tokens = list[Ints](), list[Ints](), list[Ints]()
    request, anchor, waiting = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), 0
    while True:
        if waiting < trace.requests and (len(request) == 0 or waiting < ends[waiting - 1]):
            piece_end = min(ends[waiting], trace.requests)
            joined = np.arange(waiting, min(waiting + batch - len(request), piece_end))
            request, anchor = np.append(request, joined), np.append(anchor, trace.starts[joined])
            waiting += len(joined)
        if len(request) == 0:
            break
        left = trace.left[anchor]
        taken = _lock_step_tokens(accepted[anchor] + 1, left)
        requests.append(request)
        steps.append(np.full(len(request), len(steps)))
        tokens.append(taken)
        unfinished = taken < left
        request, anchor = request[unfinished], (anchor + taken)[unfinished]
    flat = np.concatenate(requests)
    order = flat.argsort(kind="stable")
    return Emissions(flat[order], np.concatenate(steps)[order], np.concatenate(tokens)[order])


def _lock_step_tokens(committed: Ints, left: Ints) -> Ints:
    """Return the tokens that each sequence advances by, given what each would commit and what it has left."""
    limiting = committed < left
    common = committed[limiting].min() if limiting.any() else committed.max()
    return np.asarray(np.minimum(common, left))
