"""Predicted step times in the form of a measured profile, for whatever reads profiles."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from simulate.profiles.prefill import Prefill, ladder
from simulate.profiles.profile import Profile
from simulate.profiles.step_tables import BatchTimes, Points
from simulate.roofline.roofline_model import PIECE, Roofline
from treeopt.cost_model import StepShape
from treeopt.errors import CostError


def tabulated(
    model: Roofline, *, batches: Sequence[int], context: int, nodes: int, depth: int, meta: Mapping[str, Any]
) -> Profile:
    """The model's times of trees of up to `nodes` and `depth`, at these batch sizes and one context.

    Times are the model's at every size. What committing more tokens costs is its mean over a step of `depth`, where the
    model has stairs. The error of a batch size is what the model states of the largest tree there.

    Args:
        model: step times from sizes and a data sheet.
        batches: batch sizes.
        context: tokens a sequence in the cache.
        nodes: of the largest tree.
        depth: of the deepest.
        meta: provenance; that the times are predicted, and of which device, is added.
    """
    tables = tuple(_table(model, batch, context, nodes, depth) for batch in sorted(set(batches)))
    error = max(times.relative_error or 0.0 for times in tables)
    told = {"device": model.label, "predicted": dict(model.meta)}
    untold = {"verification": None, "temperature": None}  # no rule's own work is in these times
    prefill = Prefill(*(_reading(model, context, drafted=drafted) for drafted in (False, True)))
    return Profile(tables, (context, context), error, {**meta, **untold, **told}, prefill=prefill)


def joined(profiles: Sequence[Profile]) -> Profile:
    """Profiles of one device at single contexts, as one; the first one's provenance.

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


def _reading(model: Roofline, context: int, *, drafted: bool) -> Points:
    """Seconds of prompts of up to `context` tokens, or of as many shorter ones as are read at once."""
    sizes = ladder(1, max(context, PIECE))
    return tuple((tokens, float(model.prefill(tokens, drafted=drafted).total_s)) for tokens in sizes)


def _table(model: Roofline, batch: int, context: int, nodes: int, depth: int) -> BatchTimes:
    model = replace(model, committed=1.0)
    at: dict[str, Any] = {"batch": batch, "context": context}
    tokens, fed = np.arange(2, nodes + 2), np.arange(1, nodes + 1)
    drafting = model.chain(depth, **at).total_s
    widths: Points = ()
    if not model.drafter.parallel:
        more = np.maximum(model.level(fed, **at).total_s - float(model.level(1, **at).total_s), 0.0)
        widths = tuple(zip(fed.tolist(), more.tolist(), strict=True))
    chain = StepShape(batch, depth + 1, (1,) * depth, context)
    none, every = model.step_s([replace(chain, committed=kept) for kept in (1.0, depth + 1.0)]).tolist()
    return BatchTimes(
        batch,
        model.plain_s(**at),
        draft=tuple(enumerate(drafting.tolist(), start=1)),
        rest=tuple(zip(tokens.tolist(), model.verify(tokens, **at).total_s.tolist(), strict=True)),
        widths=widths,
        context=float(context),
        commit_s=max(0.0, every - none) / depth,
        relative_error=model.error(StepShape(batch, nodes + 1, (1,), context)),
        widths_told=True,
    )
