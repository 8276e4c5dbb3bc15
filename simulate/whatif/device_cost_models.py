"""The cost models of a what-if question: devices and models with their sizes, for each device and context."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from simulate.device_memory import SHARE, DeviceMemory
from simulate.drafter_kinds import DRAFTERS, assumptions, drafter_shape, kind_of_drafter
from simulate.model_sizes.hf_config import OWN_SWEEP, context_limit, parsed, text_part
from simulate.model_sizes.model_shape import SPREAD, Shape, llama_of, shape_by_hand
from simulate.model_sizes.stored_bytes import StoredBytes, read_stored_bytes
from simulate.profiles.profile import Profile
from simulate.roofline.data_sheets import Hardware, Link, checked, constants_of, find_hardware, own_hardware
from simulate.roofline.host_overhead import Overheads
from simulate.roofline.roofline_model import Roofline
from simulate.whatif.observed_steps import Observed, shifted
from simulate.whatif.scenarios import Place
from simulate.whatif.unmeasured_profiles import transfer
from simulate.whatif.whatif_settings import Config, WhatIfSettings
from treeopt.defaults import BYTES
from treeopt.errors import CostError, UsageError
from treeopt.storage.provenance import look
from treeopt.traces.trace import Trace

QUANTISED = ("quantization_config", "hf_quant_config", "quantization")  # fields; the last is MLX's


@dataclass(frozen=True)
class Counted:
    """Devices of one name, such as `4xh100`.

    Attributes:
        count: devices that share every layer.
        tensor: see `Roofline.tensor`.
        device: data sheet of one.
    """

    count: int
    tensor: int
    device: Hardware


def drafter_kind(trace: Trace, kind: str | None, drafter: Config | None = None) -> tuple[str, list[str]]:
    """Return the kind of drafter that is priced, and a warning if the trace records another kind.

    Args:
        trace: the trace, whose drafter decides where nothing else does.
        kind: a name of `DRAFTERS`.
        drafter: the drafter's folder or config.json, which decides where `kind` is None and it states its kind.

    Raises:
        UsageError: the trace's drafter has no kind that could be priced.
        CostError: the drafter's configuration cannot be read.
    """
    if kind is None and drafter is not None:
        kind = kind_of_drafter(drafter, priced=True)
    recorded = look(trace.meta, "drafter", "kind")
    if isinstance(recorded, str):
        recorded = recorded.partition(":")[0]  # an engine's prompt lookup takes as long as treeopt's
    if kind is None:
        if recorded not in DRAFTERS:
            layers = None if drafter is None else parsed(drafter, lambda config: config.get("num_hidden_layers"))
            if type(layers) is int:
                return "eagle" if layers == 1 else "language-model", []
            why = (
                "the trace does not record its drafter's kind:"
                if recorded is None
                else f"there is no price for a {recorded} drafter: {OWN_SWEEP}, or"
            )
            raise UsageError(f"{why} choose the kind to price with --kind, one of {', '.join(DRAFTERS)}")
        return str(recorded), []
    if recorded in (None, kind):
        return kind, []
    return kind, [f"the trace records drafter kind {recorded}, but {kind} is priced"]


def bytes_per_weight(config: Config | None, given: float | None, option: str, *, default: float = BYTES) -> float:
    """Return the bytes of a stored weight: those given, else the default unless the config is quantised.

    Args:
        config: a model's folder or config.json; None: not known.
        given: the caller's figure.
        option: that the figure is given with, for the message.
        default: bytes of weights that are not quantised.

    Raises:
        UsageError: the model is quantised, and no figure was given.
    """
    if given is not None or config is None:
        return default if given is None else given
    if quantised := parsed(config, lambda content: next(filter(None, map(text_part(content).get, QUANTISED)), None)):
        name = "" if isinstance(config, Mapping) else f"{config}: "
        method = quantised
        if isinstance(quantised, Mapping):
            method = quantised.get("quant_method", quantised.get("quant_algo", "not named"))
        raise UsageError(
            f"{name}quantization_config says that weights are quantised (quant_method {method}): give the "
            f"bytes of one with {option}"
        )
    return default


def as_stored(config: Config) -> StoredBytes:
    """Return the bytes of a model's weights as its configuration states them; of none where that is not understood."""
    try:
        return parsed(config, read_stored_bytes)
    except (CostError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError):
        return StoredBytes()


def check_measured(profile: Profile, profile_file: Path | None, measured_on: str) -> list[str]:
    """Check that step times can be carried over to other devices; return a warning if they are a processor's.

    Raises:
        UsageError: they are predictions, or an engine's, which does not separate drafting from verification.
    """
    name = "" if profile_file is None else f"{profile_file}: "
    if look(profile.meta, "predicted") is not None:
        raise UsageError(f"{name}its step times are predictions, not measurements; omit --profile")
    if look(profile.meta, "imported") is not None:
        raise UsageError(
            f"{name}its step times come from an engine, which does not separate drafting from verification, so they "
            "cannot be carried over to another device; omit --profile"
        )
    device = look(profile.meta, "device")
    if str(device).startswith("cpu"):
        return [f"the profile was measured on {device}, not on {measured_on}: carried-over step times are meaningless"]
    return []


def target_shape(settings: WhatIfSettings, *, as_stored: bool = False) -> Shape:
    """Return the sizes of the target, read or given by hand; with `as_stored` also the bytes of its weights.

    Raises:
        CostError: a field is wrong, missing or not covered; names file and field.
    """
    if not settings.by_hand:
        return Shape.from_config(settings.target, as_stored=as_stored)
    return shape_by_hand(settings.target, settings.by_hand)


def places_of(settings: WhatIfSettings, *, heads: int) -> tuple[list[Place], list[str]]:
    """Return a cost model for each device and context, and warnings about the drafter's sizes.

    Args:
        settings: the question, with the kind of drafter, bytes per weight and the step times, if any, settled.
        heads: of a drafter with one head for each depth.

    Raises:
        UsageError: settings that contradict each other.
        CostError: a device, model or size that has no price.
    """
    profile = settings.profile
    assert settings.kind is not None
    assert profile is None or isinstance(profile, Profile)
    known = find_hardware(settings.like) if settings.like else None
    devices = _devices(settings, known)
    try:
        source = [] if settings.measured_on is None else [_counted(settings.measured_on)]
    except CostError as error:
        raise UsageError(f"--measured-on: {error}") from error
    everywhere = [*devices, *source]
    if known is not None and all(constants_of(c.device, known) == constants_of(c.device, None) for c in everywhere):
        raise UsageError(f"--like has no effect: the constants of {','.join(settings.hardware)} are known; omit it")
    linked = _linked(everywhere, settings.link)
    devices, source = linked[: len(devices)], linked[len(devices) :]
    shape = target_shape(settings, as_stored=settings.weight_bytes is None)
    like_target = llama_of(shape) if settings.by_hand else settings.target
    config = like_target if settings.drafter is None else settings.drafter
    drafts = drafter_shape(config, kind=settings.kind, target=shape)
    warnings = [*shape.notes, *assumptions(settings.drafter, drafts, kind=settings.kind, target=shape)]
    for device in (counted.device for counted in devices):
        if unsure := re.match(r"\[U\] (flops[^.]*)", device.note):
            warnings.append(f"{device.name}: {unsure[1]}")
    bytes_of = {name: getattr(settings, name) for name in ("weight_bytes", "draft_bytes", "kv_bytes")}
    sizes: dict[str, Any] = {name: value for name, value in bytes_of.items() if value is not None}
    sizes |= {name: size for name, size in (settings.sizes or {}).items() if name == SPREAD}

    def roofline(devices: Counted, option: str = "--hardware") -> Roofline:
        engine, _, version = (settings.engine or "").partition("==")
        how: dict[str, Any] = {"kind": settings.kind, "version": version or None, "devices": devices.count}
        host = Overheads.of(engine, **how) if engine else Overheads()
        try:
            degrees: dict[str, Any] = {"devices": devices.count, "tensor": devices.tensor}
            return Roofline(shape, drafts, devices.device, like=known, overheads=host, **degrees, **sizes)
        except CostError as error:
            if devices.count == 1:
                raise
            name = "-".join(devices.device.name.lower().split())
            name += f":tp{devices.tensor}ep{devices.count}" if devices.tensor else ""
            raise CostError(f"{option} {devices.count}x{name}: {error}") from error

    places, observed = [], [Observed.parse(text) for text in settings.observed]
    for counted in devices:
        for context in settings.context:
            model = roofline(counted)
            if observed:
                model = shifted(replace(model, context=settings.context[0]), observed)
            cost = None
            if profile is not None:
                cost = transfer(profile, measured_on=roofline(source[0], "--measured-on"), to=model, context=context)
            limit = settings.memory
            total, share = (model.device.memory_bytes, SHARE) if limit is None else (limit * 1e9, 1.0)
            names = ("weight_bytes", "draft_bytes", "kv_bytes", "devices", "tensor")
            taken: dict[str, Any] = {name: getattr(model, name) for name in names}
            held = DeviceMemory.of(shape, drafts, context=context, heads=heads, total=total, share=share, **taken)
            places.append(Place(model, context, model if cost is None else cost, held))
    return places, warnings


def context_warnings(target: Config, contexts: Sequence[int], positions: Any = None) -> list[str]:
    """Warn of contexts that are longer than the target was built for, or than the drafter has positions."""
    warnings = []
    for whose, limit, ignored in (
        ("target", context_limit(target), "step times ignore"),
        ("drafter", positions, "acceptance ignores"),
    ):
        if beyond := [str(tokens) for tokens in contexts if type(limit) is int and tokens > limit]:
            warnings.append(
                f"context {', '.join(beyond)}: the {whose} is built for {limit} tokens, {ignored} that limit"
            )
    return warnings


def count_and_name(word: str) -> tuple[int, int, str]:
    """Return the number of devices, `Roofline.tensor` and the name of one.

    Raises:
        UsageError: experts on other devices than all.

    >>> count_and_name("4xh100"), count_and_name("8xh100:tp2ep8"), count_and_name("RTX 4090")
    ((4, 0, 'h100'), (8, 2, 'h100'), (1, 0, 'RTX 4090'))
    """
    several = re.fullmatch(r"([1-9]\d{0,3})\s*x\s*([^:]+)(?::tp(\d{1,3})ep(\d{1,3}))?", word.strip(), re.IGNORECASE)
    if several is None:
        return 1, 0, word.strip()
    count, tensor, experts = int(several[1]), int(several[3] or 0), several[4]
    if experts and (int(experts) != count or not tensor or count % tensor):
        raise UsageError(f"{word}: experts are spread over all {count} devices, and tp divides them: :tp1ep{count}")
    return count, tensor, several[2]


def _counted(word: str, device: Callable[[str], Hardware] = find_hardware) -> Counted:
    """Return the devices that a word such as `4xh100` names; `device` finds one by its name."""
    count, tensor, name = count_and_name(word)
    return Counted(count, tensor, device(name))


def _devices(settings: WhatIfSettings, like: Hardware | None) -> list[Counted]:
    """Return known devices, or one in the caller's own figures."""
    if not settings.data_sheet:
        return list(dict.fromkeys(map(_counted, settings.hardware)))
    if like is None or len(set(map(count_and_name, settings.hardware))) > 1:
        raise UsageError("--data-sheet describes one device: name it with --hardware, and --like another")
    bandwidth, flops = settings.data_sheet
    own = partial(own_hardware, bandwidth=bandwidth * 1e9, flops=flops * 1e12, like=like)
    return [_counted(settings.hardware[0], own)]


def _linked(devices: list[Counted], link: Sequence[float]) -> list[Counted]:
    """Return the devices, with the caller's link for those whose exchange is not known."""
    if not link:
        return devices
    if not any(counted.count > 1 and counted.device.link is None for counted in devices):
        raise UsageError("--link has no effect: no group of devices has an unknown exchange; omit it")
    bandwidth, latency = link
    source = f"given by the user, {bandwidth:g} GB/s and {latency:g} us"
    own = Link(bandwidth * 1e9, latency * 1e-6, 1.0, 0.0, source)
    return [
        replace(counted, device=checked(replace(counted.device, link=own))) if counted.device.link is None else counted
        for counted in devices
    ]
