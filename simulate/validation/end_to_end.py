"""End-to-end time of runs of treeopt's loop, predicted: prefill, steps, rows that idle until the last request ends."""

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
    """The runs that are predicted: the number of requests of each, and their lengths.

    Attributes:
        pieces: by batch size, the number of requests of each run, one run after the other.
        prompts: tokens of each request's prompt.
        new_tokens: maximum new tokens per request.
        late: steps by which the host reads results late.
    """

    pieces: Mapping[int, tuple[int, ...]]
    prompts: tuple[int, ...]
    new_tokens: int
    late: int = 0

    @property
    def record(self) -> dict[str, Any]:
        """The runs as JSON values."""
        pieces = {str(batch): list(sizes) for batch, sizes in self.pieces.items()}
        return asdict(self) | {"pieces": pieces, "prompts": list(self.prompts)}


def whole_runs(plan: Plan, trace: Trace, profile: Profile, runs: Runs) -> dict[tuple[int, str], Estimate]:
    """Predict the speedup of these runs with each static tree of a plan, by batch size and tree id.

    Intervals are those of runs of as many requests, as in `simulate.validation.predicted_vs_measured.Figures.of_run`.
    The result is empty if the profile has no prefill. Steps cost what full ones do, since idle rows are computed too;
    prompts that join together are padded and read at once.

    Args:
        plan: a plan with every tree.
        trace: requests that are replayed, none of which the trees were chosen on; their prompts count as long as those
            of the runs, in turn.
        profile: step times and prefill.
        runs: the runs.

    Raises:
        CostError: prompts shorter than the profile's prefill covers, or contexts that the profile does not cover.
    """
    speedups: dict[tuple[int, str], Estimate] = {}
    prefill = profile.prefill
    if prefill is None:
        return speedups
    tokens = _spread(np.array(runs.prompts), trace.requests)
    for entry in plan.entries:

        def timed(tree: Tree | None, batch: int = entry.batch) -> Timeline:
            options: dict[str, Any] = {"by_context": profile.apart, "fixed_shape": True, "late": runs.late}
            options |= {"prompt_tokens": tokens, "prefill_s": partial(prefill.seconds, drafted=tree is not None)}
            return run(trace, tree, profile, batch=batch, piece=runs.pieces[batch], **options)

        plain = timed(None)
        for tree in ways_of(entry, static=True):
            assert isinstance(tree, Tree)
            error = profile.error(StepShape.of(tree, batch=entry.batch))
            throughput = speedup(timed(tree), plain).throughput  # over all requests like the trace's
            sampling = throughput.relative * math.sqrt(trace.requests / len(runs.prompts))
            speedups[entry.batch, tree.id] = throughput.times(1.0, relative_error=math.hypot(error, sampling))
    return speedups


def _spread(values: Ints, count: int) -> Ints:
    """Return `count` of the values: repeated in turn if there are fewer, at equal distances if there are more.

    >>> _spread(np.arange(3), 5).tolist(), _spread(np.arange(5), 2).tolist()
    ([0, 1, 2, 0, 1], [0, 2])
    """
    return np.resize(values, count) if len(values) <= count else values[np.arange(count) * len(values) // count]
