"""The hold-out split: one part of the requests to choose trees on, the rest held out to report results on."""

from functools import lru_cache

import numpy as np

from treeopt.defaults import HELD_OUT
from treeopt.errors import TraceError
from treeopt.replay.static_tree import check_ranks
from treeopt.storage.provenance import from_figure
from treeopt.traces.trace import Trace

MIN_REQUESTS = 4  # two to choose on and two to report on: one cluster has no interval


@lru_cache(maxsize=1)
def hold_out(trace: Trace, *, held_out: float = HELD_OUT, seed: int = 0) -> tuple[Trace, Trace]:
    """Split the requests at random into those that `search` chooses on and those that it reports on.

    Requests that are all invented from one figure serve for both: nothing in them is left to chance. Searches of one
    trace, one after the other, share the parts.

    Raises:
        TraceError: too few requests, or a rule whose acceptance does not follow from ranks.
    """
    check_ranks(trace)
    if from_figure(trace.meta):
        return trace, trace
    check_requests(trace)
    fit, held = trace.split(share=1 - held_out, rng=np.random.default_rng(seed))
    if held.requests < 2:
        raise TraceError(
            f"an interval needs at least 2 requests held out, {held_out} of {trace.requests} are fewer: hold out more"
        )
    return fit, held


def check_requests(trace: Trace) -> None:
    """Check that the trace has enough requests to split.

    Raises:
        TraceError: fewer than `MIN_REQUESTS`.
    """
    if trace.requests < MIN_REQUESTS:
        raise TraceError(
            f"a trace needs at least {MIN_REQUESTS} requests, two to choose trees on and two to report on; this one "
            f"has {trace.requests}; record more"
        )


def check_domains(fit: Trace, held: Trace) -> None:
    """Check that each domain has two requests in either part: one has no interval.

    Raises:
        TraceError: names the domain that has fewer.
    """
    for use, part in (("to choose on", fit), ("held out", held)):
        if part.domain is None:
            continue
        for number, name in enumerate(part.domain_names):
            count = int((part.domain == number).sum())
            if count < 2:
                total = sum(int((side.domain == number).sum()) for side in (fit, held) if side.domain is not None)
                advice = (
                    "record more, or choose another seed or share" if total >= 4 else f"record more than {total} of it"
                )
                raise TraceError(f"the worst domain needs 2 requests per domain {use}, {name!r} has {count}: {advice}")
