"""Whole runs of treeopt's own loop predicted: prompts are read before steps, rows idle before the last has ended."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from simulate.decode import run
from simulate.predictions import ways_of
from simulate.profile import Profile
from simulate.timeline import Ints, Timeline, speedup
from treeopt.cost import StepShape
from treeopt.estimate import Estimate
from treeopt.plan import Plan
from treeopt.trace import Trace
from treeopt.tree import Tree


def whole_runs(
    plan: Plan, trace: Trace, profile: Profile, *, prompts: Sequence[int] | Ints, pieces: Mapping[int, int]
) -> dict[tuple[int, str], Estimate]:
    """How much faster whole runs with each static tree of a plan are than plain ones, by batch size and tree id.

    Empty where the profile knows no prefill. Steps cost what full ones do, rows that idle being computed too, and
    prompts that join together are padded and read at once.

    Args:
        plan: with every tree.
        trace: requests that are replayed, none of which trees were chosen on.
        profile: of steps and prefill.
        prompts: tokens of those that are decoded; the trace's requests are given them in turn.
        pieces: by batch size, requests of a run.

    Raises:
        CostError: shorter prompts than the profile knows the prefill of, or contexts that it does not reach.
    """
    found: dict[tuple[int, str], Estimate] = {}
    prefill = profile.prefill
    if prefill is None:
        return found
    tokens = np.resize(np.asarray(prompts, dtype=np.int64), trace.requests)
    for entry in plan.entries:

        def timed(tree: Tree | None, batch: int = entry.batch) -> Timeline:
            seconds = partial(prefill.seconds, drafted=tree is not None)
            how: dict[str, Any] = {"piece": pieces[batch], "by_context": profile.apart, "fixed_shape": True}
            return run(trace, tree, profile, batch=batch, prefill_s=seconds, prompt_tokens=tokens, **how)

        plain = timed(None)
        for tree in ways_of(entry, static=True):
            assert isinstance(tree, Tree)
            error = profile.error(StepShape.of(tree, batch=entry.batch))
            found[entry.batch, tree.id] = speedup(timed(tree), plain, relative_error=error).throughput
    return found
