"""What `treeopt whatif` prices: the devices, models and sizes that it was given, as cost models."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from treeopt.errors import CostError, UsageError
from treeopt.storage.provenance import look
from treeopt.traces.trace import Trace

if TYPE_CHECKING:
    from simulate.model_sizes.drafter_sizes import DrafterShape
    from simulate.model_sizes.model_shape import Shape
    from simulate.profiles.profile import Profile
    from simulate.roofline.data_sheets import Hardware
    from simulate.roofline.roofline_model import Roofline
    from simulate.whatif.scenarios import Setting

WITHOUT_SIZES = ("ngram", "prompt-lookup")
KINDS = ("eagle", "eagle3", "hydra", "language-model", "medusa", *WITHOUT_SIZES)
PRICES = (1e-6, 1e9)  # an hour
LINKS = (1e-6, 1e6)  # GB/s, and microseconds


def kind_of(trace: Trace, given: str | None) -> str:
    """What the drafter is priced as: what is given, else what the trace says."""
    told = look(trace.meta, "drafter", "kind")
    if given is None:
        if told not in KINDS:
            why = (
                "the trace does not say its drafter's kind"
                if told is None
                else f"no price is known of a {told} drafter"
            )
            raise UsageError(f"{why}: say with --kind what to price instead, one of {', '.join(KINDS)}")
        return str(told)
    if told not in (None, given):
        click.echo(f"Warning: the trace's drafter is of kind {told}, what is priced is {given}", err=True)
    return given


def weight_bytes(config: Path | None, given: float | None, option: str, *, default: float = 2.0) -> float:
    """Bytes of a weight: what is given, else the default unless a config says that weights are quantised."""
    from simulate.model_sizes.hf_config import quant_method

    method = None if given is not None or config is None else quant_method(config)
    if method is not None:
        raise UsageError(
            f"{config}: quantization_config says that weights are quantised (quant_method {method}): give the bytes of "
            f"one with {option}"
        )
    return default if given is None else given


def settings_of(
    hardware: str,
    contexts: tuple[int, ...],
    target: Path,
    drafter: Path | None,
    kind: str,
    heads: int,
    profile: "Profile | None",
    device: dict[str, Any],
) -> "list[Setting]":
    """A cost model for each device and context."""
    from simulate.model_sizes.drafter_sizes import DrafterShape
    from simulate.model_sizes.hf_config import parsed
    from simulate.model_sizes.model_shape import Shape
    from simulate.roofline.data_sheets import find_hardware
    from simulate.roofline.fitted_constants import constants_of
    from simulate.roofline.roofline_model import Roofline
    from simulate.whatif.profile_transfer import transfer
    from simulate.whatif.scenarios import Setting

    like = find_hardware(device["like"]) if device["like"] else None
    devices = _devices(hardware, like, device)
    there = [] if profile is None else [_measured_on(device["measured_on"])]
    if like is not None and all(constants_of(on, like) == constants_of(on, None) for _, on in (*devices, *there)):
        raise UsageError(f"--like means nothing here: the constants of {hardware} are known")
    linked = _linked([*devices, *there], device["link"])
    devices, there = linked[: len(devices)], linked[len(devices) :]
    shape = Shape.from_config(target)
    if kind in WITHOUT_SIZES:
        drafts = DrafterShape.lookup()
    else:
        drafts = DrafterShape.from_config(drafter or target, kind=kind, target=shape)
        own = drafter is not None and parsed(drafter, lambda found: any(name.startswith("hydra_") for name in found))
        _warn_of_sizes(kind, drafts, shape, own=own)
    sizes = {name: device[name] for name in ("weight_bytes", "draft_bytes", "kv_bytes")}

    def roofline(count: int, on: Any, option: str = "--hardware") -> "Roofline":
        try:
            return Roofline(shape, drafts, on, like=like, devices=count, **sizes)
        except CostError as error:
            if count == 1:
                raise
            raise CostError(f"{option} {count}x{on.name.split()[0].lower()}: {error}") from error

    settings = []
    for count, on in devices:
        for tokens in contexts:
            model = roofline(count, on)
            cost = None
            if profile is not None:
                cost = transfer(profile, measured_on=roofline(*there[0], "--measured-on"), to=model, context=tokens)
            settings.append(Setting.of(model, context=tokens, heads=heads, cost=cost))
    return settings


def _devices(hardware: str, like: "Hardware | None", device: dict[str, Any]) -> "list[tuple[int, Hardware]]":
    """How many devices, and what one is: known ones, or one in the user's own figures."""
    from simulate.roofline.data_sheets import find_hardware, own_hardware

    counted = list(dict.fromkeys(_counted(name) for name in hardware.split(",")))
    if (device["bandwidth"] is None) != (device["flops"] is None):
        raise UsageError("--bandwidth and --flops need each other")
    if device["memory"] is not None and device["bandwidth"] is None:
        raise UsageError("--memory is of a device of your own: give --bandwidth and --flops")
    if device["bandwidth"] is None:
        return list(dict.fromkeys((count, find_hardware(name)) for count, name in counted))
    if like is None or len(counted) > 1:
        raise UsageError("--bandwidth and --flops describe one device: name it with --hardware, and --like another")
    ((count, name),) = counted
    rates = {"bandwidth": device["bandwidth"] * 1e9, "flops": device["flops"] * 1e12}
    memory = None if device["memory"] is None else max(1, round(device["memory"] * 1e9))
    return [(count, own_hardware(name, **rates, like=like, memory_bytes=memory))]


def _measured_on(name: str) -> "tuple[int, Hardware]":
    """How many devices a profile was measured on, and what one is."""
    from simulate.roofline.data_sheets import find_hardware

    count, single = _counted(name)
    try:
        return count, find_hardware(single)
    except CostError as error:
        raise UsageError(f"--measured-on: {error}") from error


def _linked(devices: "list[tuple[int, Hardware]]", given: str | None) -> "list[tuple[int, Hardware]]":
    """The devices, with what is given of the exchange of those that it is not known of."""
    from simulate.roofline.interconnect import Link

    if given is None:
        return devices
    if not any(count > 1 and on.link is None for count, on in devices):
        raise UsageError("--link means nothing here: it is of several devices whose exchange is not known")
    words = [_between(word.strip(), *LINKS) for word in given.split(",")]
    if len(words) != 2 or None in words:
        bounds = f"numbers from {LINKS[0]:g} to {LINKS[1]:g}"
        raise UsageError(f"--link takes GB/s and microseconds, {bounds}, such as 20,25, not {given!r}")
    bandwidth, latency = (word for word in words if word is not None)
    source = f"given by the user, {bandwidth:g} GB/s and {latency:g} us"
    own = Link(bandwidth * 1e9, latency * 1e-6, 1.0, 0.0, source)
    return [(count, replace(on, link=own) if on.link is None else on) for count, on in devices]


def _counted(name: str) -> tuple[int, str]:
    """How many devices, and of which name.

    >>> _counted("4xh100"), _counted("RTX 4090")
    ((4, 'h100'), (1, 'RTX 4090'))
    """
    several = re.fullmatch(r"([1-9]\d{0,3})\s*x\s*(.+)", name.strip(), re.IGNORECASE)
    return (int(several[1]), several[2]) if several else (1, name.strip())


def prices_of(text: str, settings: "Sequence[Setting]") -> dict[str, float]:
    """The price of an hour by what settings call their device or devices, from such as `h100=2.5,l40s=0.9`.

    Args:
        text: the price of a single device, by names as `--hardware` takes them.
        settings: the devices, all of which must be priced.

    Raises:
        UsageError: names what is wrong or missing.
    """
    from simulate.roofline.data_sheets import find_hardware

    singles = {each.single or each.device for each in settings}
    found: dict[str, float] = {}
    for part in text.split(","):
        name, equals, number = (word.strip() for word in part.partition("="))
        price = _between(number, *PRICES) if equals else None
        if not name or price is None:
            bounds = f"a number from {PRICES[0]:g} to {PRICES[1]:g}"
            raise UsageError(f"--price takes NAME=PRICE, {bounds}, such as h100=2.5,l40s=0.9, not {part.strip()!r}")
        if _counted(name)[0] > 1:
            raise UsageError(f"--price is of one device: name {_counted(name)[1]}, not {name}")
        name = next((single for single in singles if single.casefold() == name.casefold()), name)
        if name not in singles:
            try:
                name = find_hardware(name).name
            except CostError as error:
                raise UsageError(f"--price: {error}") from error
        if name not in singles:
            raise UsageError(f"--price: {name} is not among the devices of --hardware")
        if name in found:
            raise UsageError(f"--price names {name} twice")
        found[name] = price
    missing = sorted(singles - found.keys())
    if missing:
        raise UsageError(f"--price says nothing of {', '.join(missing)}")
    return {each.device: each.count * found[each.single or each.device] for each in settings}


def _between(text: str, least: float, most: float) -> float | None:
    """A number within these bounds, or None."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if least <= number <= most else None


def _warn_of_sizes(kind: str, drafts: "DrafterShape", target: "Shape", *, own: bool) -> None:
    """Warn on stderr of a drafter that cannot be this target's, or may be priced without what it has or lacks.

    `own` says whether a configuration of Hydra's was given.
    """
    assert drafts.level.head is not None
    tokens, hidden = drafts.level.head
    if kind == "hydra" and not own:
        told = "four heads of one layer and no prefix layer: a --drafter config of Hydra's tells of others"
        click.echo(f"Warning: hydra is priced as {told}", err=True)
    if kind == "eagle3" and tokens == target.vocab:
        told = f"its head is priced over all {tokens} tokens: a --drafter config with draft_vocab_size tells of fewer"
        click.echo(f"Warning: eagle3: {told}", err=True)
    if kind != "language-model" and hidden != target.hidden:
        click.echo(f"Warning: the drafter's hidden size is {hidden}, the target's {target.hidden}", err=True)
    if kind in ("eagle", "language-model") and tokens != target.vocab:
        click.echo(f"Warning: the drafter knows {tokens} tokens, the target {target.vocab}", err=True)


def too_long(target: Path, contexts: tuple[int, ...]) -> list[str]:
    """Of contexts that no sequence of the target can have."""
    from simulate.model_sizes.hf_config import context_limit

    limit = context_limit(target)
    beyond = [] if limit is None else [str(tokens) for tokens in contexts if tokens > limit]
    if not beyond:
        return []
    return [f"context {', '.join(beyond)}: the target is built for {limit} tokens, times are as if it went on"]
