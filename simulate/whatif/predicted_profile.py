"""Predicted profile: a roofline's step times in the form of a measured profile, for commands that read profiles."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from simulate.profiles.profile import Profile
from simulate.profiles.step_tables import BatchTimes, Points, Prefill, ladder
from simulate.roofline.roofline_model import PIECE, Roofline
from treeopt.cost_model import StepShape
from treeopt.errors import CostError


def tabulated(
    model: Roofline, *, batches: Sequence[int], context: int, nodes: int, depth: int, meta: Mapping[str, Any]
) -> Profile:
    """Return the model's times of trees of up to `nodes` and `depth`, at these batch sizes and one context.

    Times are the model's at every size. The cost of each additional committed token is its mean over a step of `depth`,
    where the model has stairs. The error of a batch size is the model's stated error of the largest tree.

    Args:
        model: step times from sizes and a data sheet.
        batches: batch sizes.
        context: tokens per sequence in the cache.
        nodes: nodes of the largest tree.
        depth: depth of the deepest tree.
        meta: provenance; that the times are predicted, and for which device, is added.
    """
    tables = tuple(_table(model, batch, context, nodes, depth) for batch in sorted(set(batches)))
    error = max(times.relative_error or 0.0 for times in tables)
    prediction = {"device": model.label, "predicted": dict(model.meta)}
    no_rule = {"verification": None, "temperature": None}  # these times include no rule's own work
    prefill = Prefill(*(_prefill_points(model, context, drafted=drafted) for drafted in (False, True)))
    return Profile(tables, (context, context), error, {**meta, **no_rule, **prediction}, prefill=prefill)


def joined(profiles: Sequence[Profile]) -> Profile:
    """Join profiles of one device at single contexts into one, with the first one's provenance.

    Raises:
        CostError: no profiles, or two at one batch size and context.
    """
    if not profiles:
        raise CostError("there is no profile to join")
    tables = sorted(
        (t for profile in profiles for t in profile.batches), key=lambda times: (times.batch, times.context)
    )
    low, high = (pick(end for profile in profiles for end in profile.context) for pick in (min, max))
    error = max(profile.relative_error for profile in profiles)
    longest = max(profiles, key=lambda profile: profile.context[1])
    return replace(
        profiles[0], batches=tuple(tables), context=(low, high), relative_error=error, prefill=longest.prefill
    )


def _prefill_points(model: Roofline, context: int, *, drafted: bool) -> Points:
    """Return (tokens, seconds) of prompts of up to `context` tokens, or of shorter ones that are read at once."""
    sizes = ladder(1, max(context, PIECE))
    return tuple((tokens, float(model.prefill(tokens, drafted=drafted).total_s)) for tokens in sizes)


def _table(model: Roofline, batch: int, context: int, nodes: int, depth: int) -> BatchTimes:
    """Return the table of one batch size."""
    model = replace(model, committed=1.0)
    place: dict[str, Any] = {"batch": batch, "context": context}
    tokens, fed = np.arange(2, nodes + 2), np.arange(1, nodes + 1)
    drafting = model.chain(depth, **place).total_s
    widths: Points = ()
    if not model.drafter.parallel:
        width_s = np.maximum(model.level(fed, **place).total_s - float(model.level(1, **place).total_s), 0.0)
        widths = tuple(zip(fed.tolist(), width_s.tolist(), strict=True))
    chain = StepShape(batch, depth + 1, (1,) * depth, context)
    none_s, all_s = model.step_s([replace(chain, committed=committed) for committed in (1.0, depth + 1.0)]).tolist()
    return BatchTimes(
        batch,
        model.plain_s(**place),
        draft=tuple(enumerate(drafting.tolist(), start=1)),
        rest=tuple(zip(tokens.tolist(), model.verify(tokens, **place).total_s.tolist(), strict=True)),
        widths=widths,
        context=float(context),
        commit_s=max(0.0, all_s - none_s) / depth,
        relative_error=model.error(StepShape(batch, nodes + 1, (1,), context)),
        widths_told=True,
    )
