"""Utilisation carried over: a measured profile on another device that does the same work as well as its rates allow."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simulate.profiles.prefill import Prefill
from simulate.profiles.profile import BatchTimes, Profile
from simulate.roofline.fitted_constants import ACROSS_CLASS_ERROR, SAME_CLASS_ERROR
from simulate.roofline.fixed_and_work import Split
from simulate.roofline.roofline_model import Roofline
from treeopt.errors import CostError

Floats = NDArray[np.float64]


def transfer(profile: Profile, *, measured_on: Roofline, to: Roofline, context: int | None = None) -> Profile:
    """What the profile would be on another device, were its work done with the same utilisation.

    A measured time is parted into what is fixed (launches and host, as `measured_on` models them; never scaled) and the
    rest, which shrinks or grows as the modelled work does. Its `Overheads` should therefore be those of the engine that
    was measured: host time that they leave out is scaled as if it were work. Drafting is scaled level by level as a
    chain is; the profile's context is taken to be the middle of its range, or that of
    the measurement nearest to `context`. Time between measured sizes is then on straight lines.

    Args:
        profile: measured.
        measured_on: the models on the device that was measured.
        to: the same models on the other one.
        context: tokens a sequence in the cache there; None: the profile's own range.

    Returns:
        A profile whose `relative_error` also holds the error of carrying it over: 10 % within a class of devices, 25 %
        across classes and of several devices; and outside the contexts that were measured 25 % of the share of a plain
        step's work that the way to the nearest of them adds or takes away; there prefill is not known. Its `meta` says
        what was done.

    Raises:
        CostError: the two are not of the same models and sizes of numbers, or not as many devices.
    """
    for name in ("target", "drafter", "weight_bytes", "draft_bytes", "kv_bytes"):
        if getattr(measured_on, name) != getattr(to, name):
            raise CostError(f"{name} must be the same on both devices")
    if measured_on.devices != to.devices:
        raise CostError(
            f"times of {measured_on.label} cannot be carried over to {to.label}: what they exchange differs"
        )
    before = sum(profile.context) // 2
    after = before if context is None else context
    carried = profile.batches
    if context is not None:  # of each batch size what was measured nearest to it
        farthest_first = sorted(carried, key=lambda times: -abs(times.context - context))
        nearest = {times.batch: times for times in farthest_first}
        carried = tuple(nearest[batch] for batch in sorted(nearest))
    same = measured_on.device.generation == to.device.generation and to.devices == 1
    across = SAME_CLASS_ERROR if same else ACROSS_CLASS_ERROR
    seen = min(max(after, profile.context[0]), profile.context[1])
    errors = {
        times.batch: math.hypot(across, ACROSS_CLASS_ERROR * _unseen(to, batch=times.batch, seen=seen, context=after))
        for times in carried
    }
    error = max(errors.values())

    def whole(times: BatchTimes) -> float:
        own = profile.relative_error if times.relative_error is None else times.relative_error
        return math.hypot(own, errors[times.batch])

    note = {"from": measured_on.label, "to": to.label, "relative_error": error, "context": [before, after]}
    return replace(
        profile,
        batches=tuple(_carried(times, measured_on, to, before, context, whole(times)) for times in carried),
        basis=None,
        context=profile.context if context is None else (after, after),
        relative_error=math.hypot(profile.relative_error, error),
        meta={name: value for name, value in profile.meta.items() if name != "growths"} | {"transfer": note},
        prefill=_read_there(profile.prefill, measured_on, to) if profile.prefill and seen == after else None,
    )


def _carried(
    times: BatchTimes, measured_on: Roofline, to: Roofline, middle: int, context: int | None, error: float
) -> BatchTimes:
    """The times of one batch size on the other device."""
    tokens, rest_s = zip(*times.rest, strict=True)
    depths, draft_s = zip(*times.draft, strict=True)

    before = round(times.context) or middle
    after = before if context is None else context
    here, there = ({"batch": times.batch, "context": tokens} for tokens in (before, after))
    plain = _scaled(times.plain_s, measured_on.plain(**here), to.plain(**there))
    rest = _scaled(rest_s, measured_on.verify(tokens, **here), to.verify(tokens, **there))
    draft = _scaled(draft_s, _chains(measured_on, depths, **here), _chains(to, depths, **there))
    fed, more_s = zip(*(times.widths or ((1, 0.0),)), strict=True)
    levels = [model.level(fed, batch=times.batch, context=at) for model, at in ((measured_on, before), (to, after))]
    more = np.array(more_s) * _times(levels[1].work_s, levels[0].work_s)
    moved = [_committing_s(model, batch=times.batch, context=at) for model, at in ((measured_on, before), (to, after))]
    return replace(
        times,
        context=times.context if context is None else float(context),
        relative_error=error,
        widths=tuple(zip(fed, more.tolist(), strict=True)) if times.widths else (),
        commit_s=times.commit_s * moved[1] / moved[0],
        growth={},  # the host's and the drafter's, which no model here tells apart
        plain_s=float(plain),
        rest=tuple(zip(tokens, rest.tolist(), strict=True)),
        draft=tuple(zip(depths, draft.tolist(), strict=True)),
    )


def _read_there(prefill: Prefill, measured_on: Roofline, to: Roofline) -> Prefill:
    """What the same prompts take on the other device."""
    found = []
    for points, drafted in ((prefill.plain, False), (prefill.drafted, True)):
        models = [(n, s, [model.prefill(n, drafted=drafted) for model in (measured_on, to)]) for n, s in points]
        found.append(tuple((n, float(_scaled(s, *splits)) if n > 1 else s) for n, s, splits in models))
    return Prefill(*found)


def _unseen(model: Roofline, *, batch: int, seen: int, context: int) -> float:
    """Share of a plain step's work in which two contexts differ."""
    works = [float(model.plain(batch=batch, context=tokens).work_s) for tokens in (seen, context)]
    return 1 - min(works) / max(works)


def _chains(model: Roofline, depths: Sequence[int], *, batch: int, context: int) -> Split:
    """Drafting of chains; float64 (depths,)."""
    chain = model.chain(max(depths), batch=batch, context=context)
    last = np.array(depths) - 1
    return Split(chain.fixed_s[last], chain.work_s[last])


def _committing_s(model: Roofline, *, batch: int, context: int) -> float:
    """Seconds that a step takes longer if it commits two tokens a sequence instead of one."""
    one, two = (
        kept.verify(1, batch=batch, context=context) + kept.level(1, batch=batch, depth=0, context=context)
        for kept in (replace(model, committed=1.0), replace(model, committed=2.0))
    )
    return float(two.work_s - one.work_s)


def _scaled(measured_s: ArrayLike, before: Split, after: Split) -> Floats:
    """Measured seconds with their fixed part kept and the rest scaled by the modelled work."""
    seconds = np.asarray(measured_s, dtype=np.float64)
    fixed = np.minimum(seconds, before.fixed_s)
    return np.asarray(fixed + (seconds - fixed) * _times(after.work_s, before.work_s))


def _times(after: Floats, before: Floats) -> Floats:
    """How many times the work takes; once where there is none, all of it being the host's."""
    return np.asarray(np.divide(after, before, out=np.ones_like(before), where=before > 0))
