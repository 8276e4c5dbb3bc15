"""What `treeopt whatif` prices: the devices, models and sizes that it was given, as cost models."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from treeopt.errors import UsageError
from treeopt.provenance import look
from treeopt.trace import Trace

if TYPE_CHECKING:
    from simulate.forwards import DrafterShape
    from simulate.profile import Profile
    from simulate.roofline import Roofline
    from simulate.scenarios import Setting
    from simulate.shapes import Shape

KINDS = ("eagle", "eagle3", "language-model", "medusa")


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
    from simulate.shapes import quant_method

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
    from simulate.forwards import DrafterShape
    from simulate.hardware import find_hardware, own_hardware
    from simulate.kernels import constants_of
    from simulate.roofline import Roofline
    from simulate.scenarios import Setting
    from simulate.shapes import Shape
    from simulate.utilisation import transfer

    like = find_hardware(device["like"]) if device["like"] else None
    names = list(dict.fromkeys(name.strip() for name in hardware.split(",")))
    if (device["bandwidth"] is None) != (device["flops"] is None):
        raise UsageError("--bandwidth and --flops need each other")
    if device["memory"] is not None and device["bandwidth"] is None:
        raise UsageError("--memory is of a device of your own: give --bandwidth and --flops")
    if device["bandwidth"] is None:
        devices = list(dict.fromkeys(find_hardware(name) for name in names))
    else:
        if like is None or len(names) > 1:
            raise UsageError("--bandwidth and --flops describe one device: name it with --hardware, and --like another")
        rates = {"bandwidth": device["bandwidth"] * 1e9, "flops": device["flops"] * 1e12}
        memory = None if device["memory"] is None else max(1, round(device["memory"] * 1e9))
        devices = [own_hardware(names[0], **rates, like=like, memory_bytes=memory)]
    there = [] if profile is None else [find_hardware(device["measured_on"])]
    if like is not None and all(constants_of(on, like) == constants_of(on, None) for on in (*devices, *there)):
        raise UsageError(f"--like means nothing here: the constants of {hardware} are known")
    shape = Shape.from_config(target)
    drafts = DrafterShape.from_config(drafter or target, kind=kind, target=shape)
    _warn_of_sizes(kind, drafts, shape)
    sizes = {name: device[name] for name in ("weight_bytes", "draft_bytes", "kv_bytes")}

    def roofline(on: Any) -> "Roofline":
        return Roofline(shape, drafts, on, like=like, **sizes)

    settings = []
    for on in devices:
        for tokens in contexts:
            model = roofline(on)
            cost: Any = model
            if profile is not None:
                cost = transfer(profile, measured_on=roofline(*there), to=model, context=tokens)
            held = (on.memory_bytes, model.weights_bytes(heads=heads), model.sequence_bytes(context=tokens))
            settings.append(Setting(on.name, tokens, cost, *held))
    return settings


def _warn_of_sizes(kind: str, drafts: "DrafterShape", target: "Shape") -> None:
    """Warn on stderr of a drafter that cannot be this target's, or is priced without its smaller vocabulary."""
    assert drafts.level.head is not None
    tokens, hidden = drafts.level.head
    if kind == "eagle3" and tokens == target.vocab:
        told = f"its head is priced over all {tokens} tokens: a --drafter config with draft_vocab_size tells of fewer"
        click.echo(f"Warning: eagle3: {told}", err=True)
    if kind in ("eagle", "eagle3") and hidden != target.hidden:
        click.echo(f"Warning: the drafter's hidden size is {hidden}, the target's {target.hidden}", err=True)
    if kind in ("eagle", "language-model") and tokens != target.vocab:
        click.echo(f"Warning: the drafter knows {tokens} tokens, the target {target.vocab}", err=True)


def too_long(target: Path, contexts: tuple[int, ...]) -> list[str]:
    """Of contexts that no sequence of the target can have."""
    from simulate.shapes import context_limit

    limit = context_limit(target)
    beyond = [] if limit is None else [str(tokens) for tokens in contexts if tokens > limit]
    if not beyond:
        return []
    return [f"context {', '.join(beyond)}: the target is built for {limit} tokens, times are as if it went on"]
