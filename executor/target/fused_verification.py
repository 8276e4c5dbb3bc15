"""The fused forward of a target on CUDA: whether it has one, and whether that computes what the model does."""

import math
from importlib.util import find_spec
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from executor.target.target_model import Target
from executor.target.tensor_parallel import processes
from treeopt.errors import ExecutorError

if TYPE_CHECKING:
    from executor.kernels.fused_forward import FusedForward

DEVICE = "cuda"  # in Triton's interpreter they also run on CPU
CAPABILITY = 9  # compute capability, its first number, of the devices on which they were tried: Hopper
UPDATE = {torch.bfloat16: 0.05, torch.float32: 1e-4}  # relative error of a part; other arithmetic is off by more
PROMPT, PARENTS, VIEW = 12, (0, 0, 0, 1, 1, 3), 64  # tokens in the cache, and the tree of the comparison
LATE = 2  # nodes of this tree that stand at the end of the context


def fuse(target: Target) -> None:
    """Let a target on CUDA verify by fused kernels, if its model has them; set `fused` and `fused_reason`.

    Weights with the same input are moved next to each other. Each layer's output over a small tree, and over its root
    alone, is compared with the model's own. The fused forward adds in another order: it differs in the last bits.
    """
    target.fused, target.fused_reason = None, _refusal(target)
    if target.fused_reason is not None:
        return
    from executor.kernels.fused_forward import FusedForward

    try:
        found = FusedForward(target.model.get_decoder(), target.context_limit)
        with torch.cuda.device_of(next(target.model.parameters())):  # Triton launches on the current device
            error = worst_error(target, found)
    except Exception as caught:  # noqa: BLE001 - a driver's, a compiler's: the model's own forward verifies instead
        target.cache = None
        lines = str(caught).strip().splitlines() or [type(caught).__name__]
        target.fused_reason = f"they do not run here: {lines[0]}"
        return
    if error <= 1:
        target.fused = found
    else:
        target.fused_reason = f"they compute something else than the model ({error:.1f} times what rounding may cause)"


def _refusal(target: Target) -> str | None:
    if target.device.type != DEVICE:
        return "they are for CUDA"
    if (reason := device_refusal(target.device)) is not None:
        return reason
    if processes() > 1:
        return "the model is split over processes"
    if target.masks.windows != {"": None} or target.attention != "packed":
        return "its attention has a window, or is not the usual one"
    from executor.kernels.fused_forward import refusal

    decoder: Any = target.model.get_decoder()
    reason = refusal(decoder)
    if reason is not None:
        return reason
    try:
        _ = target.head_scaling
    except ExecutorError as error:
        return str(error)
    return None


def device_refusal(device: torch.device) -> str | None:
    """Return why kernels are not used on a device; None if they are.

    Tiles are made for the shared memory of Hopper. Where it is smaller, a large tree would fail in the middle of a run.
    """
    if find_spec("triton") is None:
        return "Triton is not installed"
    if device.type == "cuda":
        if torch.version.cuda is None:
            return "they are for NVIDIA's devices"
        major, minor = torch.cuda.get_device_capability(device)
        if major != CAPABILITY:
            return f"they were tried only on devices of compute capability {CAPABILITY}, this one has {major}.{minor}"
    return None


@torch.no_grad()
def worst_error(target: Target, fused: "FusedForward") -> float:
    """Return the largest error of a part, given the model's own input of it, over what rounding may cause.

    Parts are the embedding, the layers (for the tree, and for its root alone) and the last norm. Rounding may cause
    `UPDATE` of what a part adds to its input, and two units in the last place of its output. Whole forwards are not
    compared: errors of many layers add up.
    """
    decoder: Any = target.model.get_decoder()
    tokens, lengths, depths, ancestors = _small_tree(target)
    own: list[Tensor] = []
    hooks = [decoder.layers[0].register_forward_pre_hook(lambda module, args: own.append(args[0]))]
    hooks += [layer.register_forward_hook(lambda module, args, output: own.append(output)) for layer in decoder.layers]
    try:
        features = target.verify(tokens, lengths, depths, ancestors, VIEW).features
    finally:
        for hook in hooks:
            hook.remove()
    assert target.cache is not None
    places = target.placed(lengths, depths, ancestors, VIEW)
    embedded = decoder.embed_tokens(tokens)
    errors = [_error(embedded, own[0], own[0]), _error(fused.last_norm(own[-1]), features, features)]
    for number, (given, expected) in enumerate(pairwise(own)):
        errors.append(_error(fused.layer(number, given, places)[0], expected, expected - given))
    # The root alone, as in a plain step: one row has products of its own, and the root sees no other node.
    alone = target.placed(lengths, depths[:, :1], ancestors[:, :1, :1], VIEW)
    for number, (given, expected) in enumerate(pairwise(part[:, :1] for part in own)):
        errors.append(_error(fused.layer(number, given, alone)[0], expected, expected - given))
    target.cache = None
    return max(errors)


def _error(found: Tensor, expected: Tensor, update: Tensor) -> float:
    rounding = 2 * torch.finfo(expected.dtype).eps
    allowed = UPDATE[expected.dtype] * update.double().norm() + rounding * expected.double().norm()
    error = float((found.double() - expected.double()).norm() / allowed)
    return error if error == error else math.inf


def _small_tree(target: Target) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Fill the cache with a prompt; return the arguments of `Target.verify` for a tree after it."""
    nodes = len(PARENTS) + 1
    rng = torch.Generator().manual_seed(0)
    tokens = torch.randint(target.vocabulary, (PROMPT + nodes,), generator=rng)
    ancestors, depths = torch.eye(nodes, dtype=torch.bool), torch.zeros(nodes, dtype=torch.long)
    for node, parent in enumerate(PARENTS, 1):
        ancestors[node] |= ancestors[parent]
        depths[node] = depths[parent] + 1
    if target.context_limit is not None:  # some models scale queries of late positions
        depths[-LATE:] = depths[-LATE:].clamp(min=target.context_limit - 1 - PROMPT)
    target.allocate(1, VIEW)
    target.prefill([0], [tokens[:PROMPT].tolist()])
    lengths = torch.tensor([PROMPT], device=target.device)
    fed, depths, ancestors = (x[None].to(target.device) for x in (tokens[PROMPT:], depths, ancestors))
    return fed, lengths, depths, ancestors
