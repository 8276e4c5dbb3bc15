"""Transfer of a profile: measured step times carried over to another device that reaches the same utilisation."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simulate.profiles.profile import BatchTimes, Profile
from simulate.profiles.step_tables import Prefill
from simulate.roofline.data_sheets import ACROSS_CLASS_ERROR, SAME_CLASS_ERROR
from simulate.roofline.forward_time import Split
from simulate.roofline.roofline_model import Roofline
from treeopt.errors import CostError

Floats = NDArray[np.float64]


def transfer(profile: Profile, *, measured_on: Roofline, to: Roofline, context: int | None = None) -> Profile:
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
        context: tokens per sequence in the cache there; None: the profile's own range.

    Returns:
        A profile whose `relative_error` includes the error of the transfer: 10 % within a class of devices, 25 % across
        classes and for several devices. A context outside the measured range adds 25 % of the share of a plain step's
        work by which it differs from the nearest measured one; prefill is not known there. `meta` records the transfer.

    Raises:
        CostError: the two differ in models, sizes of numbers or the number of devices.
    """
    _check_comparable(measured_on, to)
    before = sum(profile.context) // 2
    after = before if context is None else context
    nearest_measured = min(max(after, profile.context[0]), profile.context[1])
    carried = profile.batches if context is None else _nearest_tables(profile.batches, context)
    errors = {
        times.batch: _transfer_error(measured_on, to, batch=times.batch, seen=nearest_measured, context=after)
        for times in carried
    }
    error = max(errors.values())
    batches = []
    for times in carried:
        own = profile.relative_error if times.relative_error is None else times.relative_error
        combined = math.hypot(own, errors[times.batch])
        batches.append(_carry_table(times, measured_on, to, before, context, combined))
    note = {"from": measured_on.label, "to": to.label, "relative_error": error, "context": [before, after]}
    known_prefill = profile.prefill if nearest_measured == after else None
    return replace(
        profile,
        batches=tuple(batches),
        basis=None,
        context=profile.context if context is None else (after, after),
        relative_error=math.hypot(profile.relative_error, error),
        meta={name: value for name, value in profile.meta.items() if name != "growths"} | {"transfer": note},
        prefill=_carry_prefill(known_prefill, measured_on, to) if known_prefill else None,
    )


def _check_comparable(measured_on: Roofline, to: Roofline) -> None:
    """Raise CostError unless models, sizes of numbers and the number of devices are the same."""
    for name in ("target", "drafter", "weight_bytes", "draft_bytes", "kv_bytes"):
        if getattr(measured_on, name) != getattr(to, name):
            raise CostError(f"{name} must be the same on both devices")
    if measured_on.devices != to.devices:
        raise CostError(
            f"times of {measured_on.label} cannot be carried over to {to.label}: their exchange between devices "
            "differs; name as many "
            "devices on both sides"
        )


def _nearest_tables(tables: Sequence[BatchTimes], context: int) -> tuple[BatchTimes, ...]:
    """Return for each batch size the table that was measured nearest to a context."""
    farthest_first = sorted(tables, key=lambda times: -abs(times.context - context))
    nearest = {times.batch: times for times in farthest_first}
    return tuple(nearest[batch] for batch in sorted(nearest))


def _transfer_error(measured_on: Roofline, to: Roofline, *, batch: int, seen: int, context: int) -> float:
    """Return the error of the transfer at one batch size, as a share.

    Args:
        measured_on: the measured device.
        to: the other device.
        batch: sequences.
        seen: the measured context nearest to `context`.
        context: tokens per sequence in the cache on the other device.
    """
    same_class = measured_on.device.generation == to.device.generation and to.devices == 1
    across = SAME_CLASS_ERROR if same_class else ACROSS_CLASS_ERROR
    works = [float(to.plain(batch=batch, context=tokens).work_s) for tokens in (seen, context)]
    unseen = 1 - min(works) / max(works)  # share of a plain step's work in which the two contexts differ
    return math.hypot(across, ACROSS_CLASS_ERROR * unseen)


def _carry_table(
    times: BatchTimes, measured_on: Roofline, to: Roofline, middle: int, context: int | None, error: float
) -> BatchTimes:
    """Return the times of one batch size on the other device."""
    tokens, rest_s = zip(*times.rest, strict=True)
    depths, draft_s = zip(*times.draft, strict=True)
    before = round(times.context) or middle
    after = before if context is None else context
    here, there = ({"batch": times.batch, "context": tokens} for tokens in (before, after))
    plain = _scaled(times.plain_s, measured_on.plain(**here), to.plain(**there))
    rest = _scaled(rest_s, measured_on.verify(tokens, **here), to.verify(tokens, **there))
    draft = _scaled(draft_s, _chains(measured_on, depths, **here), _chains(to, depths, **there))
    fed, width_s = zip(*(times.widths or ((1, 0.0),)), strict=True)
    levels = [model.level(fed, **place) for model, place in ((measured_on, here), (to, there))]
    widths = np.array(width_s) * _ratio(levels[1].work_s, levels[0].work_s)
    commit = [_commit_s(model, **place) for model, place in ((measured_on, here), (to, there))]
    return replace(
        times,
        context=times.context if context is None else float(context),
        relative_error=error,
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
