"""Whole runs of treeopt's own loop predicted: prompts are read before steps, rows idle before the last has ended."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from simulate.profiles.profile import Profile
from simulate.runs.batch_run import run
from simulate.runs.timeline import Ints, Timeline, speedup
from simulate.validation.predictions import ways_of
from treeopt.cost_model import StepShape
from treeopt.plans.plan import Plan
from treeopt.statistics.clustered_estimate import Estimate
from treeopt.traces.trace import Trace
from treeopt.tree import Tree


@dataclass(frozen=True)
class Runs:
    """The runs that are predicted: how many requests each has, and what these are.

    Attributes:
        pieces: by batch size, the requests of each run, one run after the other.
        prompts: tokens of each request's prompt.
        new_tokens: most that each is continued by.
        late: steps that the host reads late.
    """

    pieces: Mapping[int, tuple[int, ...]]
    prompts: tuple[int, ...]
    new_tokens: int
    late: int = 0

    @property
    def record(self) -> dict[str, Any]:
        """As JSON values."""
        pieces = {str(batch): list(sizes) for batch, sizes in self.pieces.items()}
        return asdict(self) | {"pieces": pieces, "prompts": list(self.prompts)}


def whole_runs(plan: Plan, trace: Trace, profile: Profile, runs: Runs) -> dict[tuple[int, str], Estimate]:
    """How much faster these runs are with each static tree of a plan than plain ones, by batch size and tree id.

    Intervals are of runs of as many requests, as in `simulate.validation.agreement.Figures.of_run`.

    Empty where the profile knows no prefill. Steps cost what full ones do, rows that idle being computed too, and
    prompts that join together are padded and read at once.

    Args:
        plan: with every tree.
        trace: requests that are replayed, none of which trees were chosen on; their prompts are taken to be as long as
            those of the runs, in turn.
        profile: of steps and prefill.
        runs: what is decoded.

    Raises:
        CostError: shorter prompts than the profile knows the prefill of, or contexts that it does not reach.
    """
    found: dict[tuple[int, str], Estimate] = {}
    prefill = profile.prefill
    if prefill is None:
        return found
    tokens = _spread(np.array(runs.prompts), trace.requests)
    for entry in plan.entries:

        def timed(tree: Tree | None, batch: int = entry.batch) -> Timeline:
            how: dict[str, Any] = {"by_context": profile.apart, "fixed_shape": True, "late": runs.late}
            how |= {"prompt_tokens": tokens, "prefill_s": partial(prefill.seconds, drafted=tree is not None)}
            return run(trace, tree, profile, batch=batch, piece=runs.pieces[batch], **how)

        plain = timed(None)
        for tree in ways_of(entry, static=True):
            assert isinstance(tree, Tree)
            error = profile.error(StepShape.of(tree, batch=entry.batch))
            every = speedup(timed(tree), plain).throughput  # of all requests like the trace's
            here = every.relative * math.sqrt(trace.requests / len(runs.prompts))
            found[entry.batch, tree.id] = every.times(1.0, relative_error=math.hypot(error, here))
    return found


def _spread(values: Ints, count: int) -> Ints:
    """So many of the values: all in turn, over and over, or where there are more, at equal distances.

    >>> _spread(np.arange(3), 5).tolist(), _spread(np.arange(5), 2).tolist()
    ([0, 1, 2, 0, 1], [0, 2])
    """
    return np.resize(values, count) if len(values) <= count else values[np.arange(count) * len(values) // count]
