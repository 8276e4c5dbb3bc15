"""Runs of a batch: a trace's walks and a cost model put together, step by step, into times of requests and tokens.

A ragged batch lets every sequence advance by what it accepted, as treeopt's loop and most engines do; in lock-step
all advance by the smallest. Rows of requests that ended are given to the next ones, whose prompts are prefilled while
the others wait. Requests may come in pieces, each begun when all of the one before have ended; a draining batch is a
piece by itself.
"""

import heapq
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from simulate.runs.timeline import Emissions, Floats, Ints, Timeline
from treeopt.cost_model import CostModel, StepShape
from treeopt.errors import CostError, UsageError
from treeopt.replay.static_tree import accepted_lengths
from treeopt.replay.walk import walked
from treeopt.traces.trace import Trace
from treeopt.tree import EMPTY, Tree

Seconds = Callable[[int, int | None], float]
Together = Callable[[Floats], Floats]  # tokens of all prompts that are read at once -> seconds

PAD = 8  # times the batch asked for: how far up a batch size with a cost is looked for


def run(
    trace: Trace,
    tree: Tree | None,
    cost: CostModel,
    *,
    batch: int,
    prefill_s: float | Floats | Together = 0.0,
    prompt_tokens: int | Ints | None = None,
    by_context: bool = True,
    accepted: Ints | None = None,
    piece: int | Sequence[int] | None = None,
    lock_step: bool = False,
    pad: bool = False,
    fixed_shape: bool = False,
    late: int = 0,
) -> Timeline:
    """Every request of the trace, decoded in the trace's order.

    Args:
        trace: the requests, and what is right of what was drafted.
        tree: drafted at every step; None decodes plainly.
        cost: seconds of a step; it is asked for every number of requests that a step holds.
        batch: requests decoded together, at most.
        prefill_s: seconds of prefill, of every request or of each, (R,), of which prompts that join together take the
            sum; or what these take by their tokens in all, parted among them by tokens.
        prompt_tokens: of every request or of each, (R,): a step costs what its mean sequence length says. None leaves
            the context to the cost model.
        by_context: False leaves it there all the same.
        accepted: drafted tokens that a step from each anchor keeps, int64 (P,); default what the ranks say.
        piece: requests that are begun when all before them have ended, or of each such piece, gone through in turn;
            None: rows are refilled to the last. As many as `batch` make a batch that drains.
        lock_step: all sequences advance by the smallest number of tokens that one of them committed. Sequences whose
            own step would end them hold nobody back.
        pad: a step of a batch that the cost model lacks costs what the nearest batch above does, up to `PAD`
            times `batch`.
        fixed_shape: steps cost what one of `batch` requests does, and prompts that join together as if each were as
            long as the longest, as in treeopt's own loop, which computes rows that idle and pads prompts.
        late: steps for which the row of a request that has ended is held, since the host reads so much later; they
            count as the request's own. The last of a piece are not waited for.

    Raises:
        UsageError: a batch or piece below 1, negative prefill or prompts, prefill by tokens that nobody told, or
            lock-step that is late.
        TraceError: the tree is deeper or wider than the trace.
        CostError: names the batch sizes that have no cost.

    >>> from simulate.profiles.profile import BatchTimes, Profile
    >>> trace = Trace(np.int32([0, 0, 0, 1]), np.int32([0, 1, 2, 0]), np.int16([[0]] * 4), 1)
    >>> profile = Profile((BatchTimes(1, 0.5, ((1, 0.25),), ((2, 0.75),)),), (0, 9), 0.0)
    >>> run(trace, Tree.chain(1), profile, batch=1).done_s.tolist()  # two steps, then one, of a second each
    [2.0, 3.0]
    """
    if batch < 1:
        raise UsageError(f"batch must be at least 1, got {batch}")
    if lock_step and late:
        raise UsageError("rows in lock-step are not held late")
    prompts = None if prompt_tokens is None else each(prompt_tokens, trace.requests, "prompt_tokens")
    if accepted is None:
        accepted = accepted_lengths(tree or EMPTY, trace)
    ends = _ends(trace.requests if piece is None else piece, trace.requests)
    given = _in_lock_step(accepted, trace, batch, ends) if lock_step else _ragged(accepted, trace, batch, ends, late)
    occupancy = np.bincount(given.step)
    context = _context(given, prompts, occupancy) if prompts is not None and by_context else None
    committed = float(given.tokens[given.tokens > 0].mean())
    price = pricing(tree, cost, committed=committed, pad_to=PAD * batch if pad else 0)
    step_s = step_seconds(np.full_like(occupancy, batch) if fixed_shape else occupancy, context, price, padded=pad)

    joined = given.step[np.flatnonzero(np.diff(given.request, prepend=-1))]
    if not callable(prefill_s):
        prefill = each(prefill_s, trace.requests, "prefill_s")
    elif prompts is None:
        raise UsageError("prefill by tokens needs prompt_tokens")
    else:
        prefill = shared(prefill_s, prompts, joined, padded=fixed_shape)
    before_s = np.bincount(joined, prefill, len(step_s))
    end_s = np.cumsum(before_s + step_s)
    return Timeline.of(
        given,
        started_s=end_s - step_s,
        step_s=step_s,
        prefill_s=prefill,
        admitted_s=np.append(0.0, end_s[:-1])[joined],
    )


def each(value: float | NDArray[np.float64] | NDArray[np.int64], requests: int, name: str) -> Floats:
    """One value for every request, float64 (R,).

    Raises:
        UsageError: another number of values, or one that is negative or no number.
    """
    values = np.asarray(value, dtype=np.float64)
    if values.shape not in ((), (requests,)):
        raise UsageError(f"{name} must be one number or {requests}, found shape {values.shape}")
    wrong = ~(np.isfinite(values) & (values >= 0))
    if wrong.any():
        place = f"[{int(wrong.argmax())}]" if values.ndim else ""
        raise UsageError(f"{name}{place} must be 0 or more and finite, got {values[wrong].flat[0]}")
    return np.broadcast_to(values, (requests,))


def shared(together: Together, tokens: Floats | Ints, group: Ints, *, padded: bool = False) -> Floats:
    """What each request takes of the prefill that those of its group take together, by tokens; float64 (R,).

    With `padded` all of a group are read as if they were as long as its longest.

    >>> shared(lambda tokens: tokens + 4.0, np.array([1, 3, 2]), np.array([0, 0, 1])).tolist()
    [2.0, 6.0, 6.0]
    """
    totals: Floats = np.bincount(group, tokens).astype(np.float64)
    read = totals
    if padded:
        longest = np.zeros_like(totals)
        np.maximum.at(longest, group, tokens)
        read = longest * np.bincount(group)
    seconds = np.zeros_like(totals)
    seconds[totals > 0] = together(read[totals > 0])
    return np.asarray(seconds[group] * tokens / np.maximum(totals, 1.0)[group])


def pricing(tree: Tree | None, cost: CostModel, *, committed: float, pad_to: int = 0) -> Seconds:
    """Seconds of a step by batch and context; a batch without cost takes the nearest above, up to `pad_to`.

    Every step is taken to commit the mean, `committed` tokens a sequence.
    """

    def price(batch: int, context: int | None) -> float:
        if tree is None or tree.nodes == 0:
            return cost.plain_s(batch=batch, context=context)
        return float(cost.step_s([StepShape.of(tree, batch=batch, context=context, committed=committed)])[0])

    def seconds(batch: int, context: int | None) -> float:
        try:
            return price(batch, context)
        except CostError:
            for size in range(batch + 1, pad_to + 1):
                try:
                    return price(size, context)
                except CostError:
                    continue
            raise

    return seconds


def step_seconds(occupancy: Ints, context: Ints | None, seconds: Seconds, *, padded: bool = False) -> Floats:
    """Seconds of steps, float64 (N,), each different one priced once.

    Of what is not `padded` an error says that it could be.

    Raises:
        CostError: names all batch sizes that have no cost.
    """
    pairs = np.stack([occupancy, np.zeros_like(occupancy) if context is None else context])
    kinds, which = np.unique(pairs, axis=1, return_inverse=True)
    found, missing, why = np.empty(kinds.shape[1]), dict[int, None](), ""
    for i, (size, length) in enumerate(kinds.T.tolist()):
        try:
            found[i] = seconds(size, None if context is None else length)
        except CostError as error:
            missing[size] = None
            why = why or str(error)
    if missing:
        sizes = ", ".join(map(str, missing))
        others = set(kinds[0].tolist()) - set(missing)
        hint = "; padding takes the nearest batch above" if others and not padded else ""
        raise CostError(f"steps of batch {sizes} have no cost ({why}){hint}")
    return found[which.ravel()]


def _ends(piece: int | Sequence[int], requests: int) -> Ints:
    """Of each request, the number of the first of the next piece, int64 (R,).

    >>> _ends([2, 1], 4).tolist()
    [2, 2, 3, 5]
    """
    sizes = np.atleast_1d(piece).astype(np.int64)
    if len(sizes) == 0 or (sizes < 1).any():
        raise UsageError(f"a piece must have at least 1 request, got {piece}")
    sizes = np.resize(sizes, requests)
    return np.repeat(np.cumsum(sizes), sizes)[:requests]


def _ragged(accepted: Ints, trace: Trace, batch: int, ends: Ints, late: int) -> Emissions:
    """Who is in which step: a request takes as many steps as it takes alone, so only beginnings depend on others."""
    walk = walked(accepted, trace)
    request = walk.request.astype(np.int64)
    steps = np.bincount(request, minlength=trace.requests)
    first = np.cumsum(steps) - steps
    begins = _begins(steps.tolist(), batch, ends.tolist(), late)
    number = np.arange(len(request)) - first[request]
    tokens = np.diff(walk.anchors, append=trace.anchors)  # requests stand one after the other
    given = Emissions(request, begins[request] + number, tokens)
    return _held(given, begins + steps, ends, late) if late else given


def _begins(steps: list[int], batch: int, ends: list[int], late: int) -> Ints:
    """The step at which each request begins, given how many it takes."""
    free, over, begins = [0] * batch, 0, []
    for request, count in enumerate(steps):
        if request and ends[request] != ends[request - 1]:
            free = [over] * batch
        begins.append(free[0])
        over = max(over, free[0] + count)
        heapq.heapreplace(free, free[0] + count + late)
    return np.array(begins, dtype=np.int64)


def _held(given: Emissions, over: Ints, ends: Ints, late: int) -> Emissions:
    """With the steps after each request's last, `over`, that its row is held for, none beyond the last of its piece."""
    piece = np.unique(ends, return_inverse=True)[1]
    until = np.zeros_like(over)
    np.maximum.at(until, piece, over)
    request, more = np.nonzero(over[:, None] + np.arange(late) < until[piece][:, None])
    everyone = np.append(given.request, request)
    order = everyone.argsort(kind="stable")
    step, tokens = np.append(given.step, over[request] + more), np.append(given.tokens, np.zeros_like(request))
    return Emissions(everyone[order], step[order], tokens[order])


def _in_lock_step(accepted: Ints, trace: Trace, batch: int, ends: Ints) -> Emissions:
    requests, steps, tokens = list[Ints](), list[Ints](), list[Ints]()
    request, here, waiting = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), 0
    while True:
        if waiting < trace.requests and (len(request) == 0 or waiting < ends[waiting - 1]):
            due = min(ends[waiting], trace.requests)
            joined = np.arange(waiting, min(waiting + batch - len(request), due))
            request, here = np.append(request, joined), np.append(here, trace.starts[joined])
            waiting += len(joined)
        if len(request) == 0:
            break
        own, left = accepted[here] + 1, trace.left[here]
        held = own < left
        taken = np.minimum(own[held].min() if held.any() else own.max(), left)
        requests.append(request)
        steps.append(np.full(len(request), len(steps)))
        tokens.append(taken)
        here = here + taken
        going = taken < left
        request, here = request[going], here[going]
    flat = np.concatenate(requests)
    order = flat.argsort(kind="stable")
    return Emissions(flat[order], np.concatenate(steps)[order], np.concatenate(tokens)[order])


def _context(given: Emissions, prompts: Floats, occupancy: Ints) -> Ints:
    """Tokens a sequence before each step, the mean of those in it, rounded; int64 (N,)."""
    total = np.cumsum(given.tokens) - given.tokens
    first = np.flatnonzero(np.diff(given.request, prepend=-1))
    cached = prompts[given.request] + total - total[first][given.request]
    mean = np.bincount(given.step, cached) / occupancy
    return np.rint(mean).astype(np.int64)
