"""Profiles of devices that were not measured: predicted by a roofline, or carried over from a device that was.

A transfer takes the other device to reach the same utilisation.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simulate.profiles.profile import Profile
from simulate.profiles.step_tables import BatchTimes, Points, Prefill, ladder
from simulate.roofline.data_sheets import ACROSS_CLASS_ERROR, SAME_CLASS_ERROR
from simulate.roofline.forward_time import Split
from simulate.roofline.roofline_model import PIECE, Roofline
from treeopt.cost_model import StepShape
from treeopt.errors import CostError

Floats = NDArray[np.float64]


def tabulated(
    model: Roofline, *, batches: Sequence[int], context: int, nodes: int, depth: int, meta: Mapping[str, Any]
) -> Profile:
    """Return the model's times of trees of up to `nodes` and `depth`, at these batch sizes and one context.

    Times are the model's at every size. The cost of each additional committed token is its mean over a step of `depth`,
    where the model has stairs. The error of a batch size is the model's stated error, by tokens.

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
    prompts = ladder(1, max(context, PIECE))  # shorter ones are read at once
    read_s = ([(n, float(model.prefill(n, drafted=drafted).total_s)) for n in prompts] for drafted in (False, True))
    prefill = Prefill(*map(tuple, read_s))
    return Profile(tables, (context, context), error, {**meta, **no_rule, **prediction}, prefill=prefill)


def joined(profiles: Sequence[Profile]) -> Profile:
    """Join profiles of one device at single contexts into one, with the first one's provenance.

    Raises:
        CostError: two at one batch size and context.
    """
    tables = sorted(
        (t for profile in profiles for t in profile.batches), key=lambda times: (times.batch, times.context)
    )
    low, high = (pick(end for profile in profiles for end in profile.context) for pick in (min, max))
    error = max(profile.relative_error for profile in profiles)
    longest = max(profiles, key=lambda profile: profile.context[1])
    return replace(
        profiles[0], batches=tuple(tables), context=(low, high), relative_error=error, prefill=longest.prefill
    )


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
    errors = [(n, model.error(StepShape(batch, n, (1,), context))) for n in tokens.tolist()]
    return BatchTimes(
        batch,
        model.plain_s(**place),
        draft=tuple(enumerate(drafting.tolist(), start=1)),
        rest=tuple(zip(tokens.tolist(), model.verify(tokens, **place).total_s.tolist(), strict=True)),
        widths=widths,
        context=float(context),
        commit_s=max(0.0, all_s - none_s) / depth,
        relative_error=errors[-1][1],
        errors=tuple(
            point for point, (_, before) in zip(errors, [(0, None), *errors], strict=False) if point[1] != before
        ),
        widths_told=True,
    )


def transfer(profile: Profile, *, measured_on: Roofline, to: Roofline, context: int) -> Profile:
    """Return the profile that the same models would have on another device at the same utilisation.

    A measured time is split into a fixed part (launches and host, as `measured_on` models them; never scaled) and the
    rest, which scales as the modelled work does. Its `Overheads` should therefore be those of the engine that was
    measured: host time that they leave out is scaled as if it were work. Drafting is scaled level by level, as for a
    chain. The profile's context counts as the middle of its range, or as that of the measurement nearest to `context`.
    Time between measured sizes is then interpolated on straight lines.

    Args:
        profile: measured.
        measured_on: the models on the device that was measured.
        to: the same models on the other device.
        context: tokens per sequence in the cache there.

    Returns:
        A profile whose `relative_error` includes the error of the transfer: 10 % within a class of devices, 25 % across
        classes and for several devices. A context outside the measured range adds 25 % of the share of a plain step's
        work by which it differs from the nearest measured one; prefill is not known there. `meta` records the transfer.

    Raises:
        CostError: the two differ in the number of devices.
    """
    if (measured_on.devices, measured_on.tensor) != (to.devices, to.tensor):
        raise CostError(
            f"times of {measured_on.label} cannot be carried over to {to.label}: their exchange between devices "
            "differs; name as many devices on both sides"
        )
    before = sum(profile.context) // 2
    nearest_measured = min(max(context, profile.context[0]), profile.context[1])
    farthest_first = sorted(profile.batches, key=lambda times: -abs(times.context - context))
    nearest = {times.batch: times for times in farthest_first}
    same_class = measured_on.device.generation == to.device.generation and to.devices == 1
    across = SAME_CLASS_ERROR if same_class else ACROSS_CLASS_ERROR
    batches, errors = [], []
    for _, times in sorted(nearest.items()):
        works = [float(to.plain(batch=times.batch, context=c).work_s) for c in (nearest_measured, context)]
        unseen = 1 - min(works) / max(works)  # share of a plain step's work in which the two contexts differ
        errors.append(math.hypot(across, ACROSS_CLASS_ERROR * unseen))
        own = profile.relative_error if times.relative_error is None else times.relative_error
        batches.append(_carry_table(times, measured_on, to, before, context, math.hypot(own, errors[-1])))
    error = max(errors)
    note = {"from": measured_on.label, "to": to.label, "relative_error": error, "context": [before, context]}
    known_prefill = profile.prefill if nearest_measured == context else None
    return replace(
        profile,
        batches=tuple(batches),
        basis=None,
        context=(context, context),
        relative_error=math.hypot(profile.relative_error, error),
        meta={name: value for name, value in profile.meta.items() if name != "growths"} | {"transfer": note},
        prefill=_carry_prefill(known_prefill, measured_on, to) if known_prefill else None,
    )


def _carry_table(
    times: BatchTimes, measured_on: Roofline, to: Roofline, middle: int, context: int, error: float
) -> BatchTimes:
    """Return the times of one batch size on the other device."""
    tokens, rest_s = zip(*times.rest, strict=True)
    depths, draft_s = zip(*times.draft, strict=True)
    here, there = ({"batch": times.batch, "context": c} for c in (round(times.context) or middle, context))
    plain = _scaled(times.plain_s, measured_on.plain(**here), to.plain(**there))
    rest = _scaled(rest_s, measured_on.verify(tokens, **here), to.verify(tokens, **there))
    draft = _scaled(draft_s, _chains(measured_on, depths, **here), _chains(to, depths, **there))
    fed, width_s = zip(*(times.widths or ((1, 0.0),)), strict=True)
    levels = [model.level(fed, **place) for model, place in ((measured_on, here), (to, there))]
    widths = np.array(width_s) * _ratio(levels[1].work_s, levels[0].work_s)
    commit = [_commit_s(model, **place) for model, place in ((measured_on, here), (to, there))]
    return replace(
        times,
        context=float(context),
        relative_error=error,
        errors=(),
        widths=tuple(zip(fed, widths.tolist(), strict=True)) if times.widths else (),
        commit_s=times.commit_s * commit[1] / commit[0],
        growth={},  # host's and drafter's time together, which no model here separates
        plain_s=float(plain),
        rest=tuple(zip(tokens, rest.tolist(), strict=True)),
        draft=tuple(zip(depths, draft.tolist(), strict=True)),
    )


def _carry_prefill(prefill: Prefill, measured_on: Roofline, to: Roofline) -> Prefill:
    """Return the seconds of the same prompts on the other device."""
    tables = []
    for points, drafted in ((prefill.plain, False), (prefill.drafted, True)):
        models = [(n, s, [model.prefill(n, drafted=drafted) for model in (measured_on, to)]) for n, s in points]
        tables.append(tuple((n, float(_scaled(s, *splits)) if n > 1 else s) for n, s, splits in models))
    return Prefill(*tables)


def _chains(model: Roofline, depths: Sequence[int], *, batch: int, context: int) -> Split:
    """Return the seconds of drafting chains; float64 (depths,)."""
    chain = model.chain(max(depths), batch=batch, context=context)
    last = np.array(depths) - 1
    return Split(chain.fixed_s[last], chain.work_s[last])


def _commit_s(model: Roofline, *, batch: int, context: int) -> float:
    """Return the additional seconds of a step that commits two tokens per sequence instead of one."""
    one, two = (
        variant.verify(1, batch=batch, context=context) + variant.level(1, batch=batch, depth=0, context=context)
        for variant in (replace(model, committed=1.0), replace(model, committed=2.0))
    )
    return float(two.work_s - one.work_s)


def _scaled(measured_s: ArrayLike, before: Split, after: Split) -> Floats:
    """Return measured seconds with their fixed part unchanged and the rest scaled by the modelled work."""
    seconds = np.asarray(measured_s, dtype=np.float64)
    fixed = np.minimum(seconds, before.fixed_s)
    return np.asarray(fixed + (seconds - fixed) * _ratio(after.work_s, before.work_s))


def _ratio(after: Floats, before: Floats) -> Floats:
    """Return after / before; 1 where there was no work before, all time being the host's."""
    return np.asarray(np.divide(after, before, out=np.ones_like(before), where=before > 0))
