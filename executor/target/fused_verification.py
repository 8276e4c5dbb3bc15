"""The fused forward of a target on CUDA: whether it has one, and whether that computes what the model does."""

import copy
import math
from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from executor.target.kv_cache import TreeCache, cache_argument
from executor.target.positions import looks_at_positions
from executor.target.target_model import Target
from executor.target.tensor_parallel import processes
from treeopt.errors import ExecutorError

if TYPE_CHECKING:
    from executor.kernels.fused_forward import FusedForward

DEVICE = "cuda"  # in Triton's interpreter they also run on CPU
CAPABILITY = 9  # compute capability, its first number, of the devices on which they were tried: Hopper
UPDATE = {torch.bfloat16: 0.05, torch.float32: 1e-4}  # relative error of a part; other arithmetic is off by more
# Sequences, nodes of the tree of each, columns that are read. The large ones take the kernels of long texts and of many
# rows: one that cannot run fails here, and not in the middle of a run.
SMALL, LARGE = ((2, 4, 64), (1, 1, 64)), ((1, 1, 1024), (1, 64, 1024), (2, 64, 1024), (3, 64, 1024))
LATE = 2  # nodes of a tree that stand at the end of the context: some models scale queries of late positions
RMS = 0.1  # of a layer's input in fp32, at most
MLP = 2048  # columns of the MLP that an fp32 copy of a layer has: that of an 8B model takes less than 1 GB


def fuse(target: Target) -> None:
    """Let a target on CUDA verify by fused kernels, if its model has them; set `fused` and `fused_reason`.

    Weights with the same input are moved next to each other. Each layer's output over small and large trees is compared
    with the model's own. The fused forward adds in another order: it differs in the last bits.
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
    if looks_at_positions(target.model):
        return "its positions depend on the length of the text"
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
    """Return why kernels are not used on a device; None if they are. Tiles are made for Hopper's shared memory."""
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

    Parts are the embedding, the layers, the norms between them, the last norm and the LM head. Rounding may cause
    `UPDATE` of what a part adds to its input, and two units in the last place of its output. In bfloat16 that hides
    much, so copies in fp32 are compared too, one layer at a time. Whole forwards are not compared: errors of many
    layers add up.
    """
    errors = [error for sizes in (*SMALL, *LARGE) for error in _errors(target, fused, *sizes)]
    target.cache = None
    return max(errors)


def _errors(target: Target, fused: "FusedForward", batch: int, nodes: int, view: int) -> list[float]:
    from executor.kernels.few_rows_linear import Around, linear

    decoder: Any = target.model.get_decoder()
    tokens, lengths, depths, ancestors = _trees(target, batch, nodes, view)
    cache = target.cache
    assert cache is not None
    slots, positions = lengths[:, None] + cache.columns[:nodes], lengths[:, None] + depths
    own: list[Tensor] = []
    hooks = [decoder.layers[0].register_forward_pre_hook(lambda module, args: own.append(args[0]))]
    hooks += [layer.register_forward_hook(lambda module, args, output: own.append(output)) for layer in decoder.layers]
    try:
        features = target.verify(tokens, lengths, depths, ancestors, view).features
    finally:
        for hook in hooks:
            hook.remove()
    for store in cache.stores:  # the kernels must write them again
        store[:, cache.columns[:batch, None], :, slots] = 0
    places = target.placed(lengths, depths, ancestors, view)
    embedded = decoder.embed_tokens(tokens)
    errors = [0.0 if embedded.equal(own[0]) else math.inf, _error(fused.last_norm(own[-1]), features, features)]
    last, identity = features[:1, :1], torch.eye(own[0].shape[2], dtype=own[0].dtype, device=own[0].device)
    scores: Tensor = target.head(last)
    errors.append(_error(fused.scores(last, target.head), scores, scores))
    for number, (given, expected) in enumerate(pairwise(own)):
        found, norm = fused.layer(number, given, places)
        errors.append(_error(found, expected, expected - given))
        if norm is not None and (batch, nodes, view) in SMALL:  # the next layer's, which this one may have prepared
            normed: Tensor = decoder.layers[number + 1].input_layernorm(found)
            rows = linear(found.flatten(0, 1), identity, Around(norm=norm))
            errors.append(_error(rows.view_as(normed), normed, normed))
    if (batch, nodes, view) not in SMALL:
        return errors
    # In fp32, by a decoder of one layer.
    one = copy.deepcopy(decoder, {id(part): part for part in (decoder.embed_tokens, decoder.layers)})
    one.norm.float()
    stores = tuple(store.float() for store in cache.stores)
    wide = TreeCache(replace(target.layout, dtype=torch.float32), batch, view, target.device, stores)
    wide.place(slots, view)
    mask: Any = target.masks.tree(lengths, depths, ancestors, view)
    inputs = {"attention_mask": mask.float(), "position_ids": positions, "use_cache": True, cache_argument(one): wide}
    for number, layer in enumerate(decoder.layers):
        small = (RMS / own[number].float().square().mean(-1).median().sqrt()).clamp(max=1)
        given, outputs = small * own[number].float(), list[Tensor]()
        one.layers = nn.ModuleList([_in_fp32(layer, small)])
        one.layers[0].register_forward_hook(lambda module, args, output, outputs=outputs: outputs.append(output))
        exact = type(fused)(one)
        places = replace(places, stores=tuple(store[number:] for store in stores))
        found = exact.layer(0, given, places)[0]
        features = one(inputs_embeds=given, **inputs)[0]
        errors.append(_error(found, outputs[0], outputs[0] - given))
        errors.append(_error(exact.last_norm(outputs[0]), features, features))
    return errors


def _in_fp32(layer: Any, small: Tensor) -> Any:
    """Return a copy of a layer with the first columns of its MLP, which adds `small` times as much.

    With an input as many times as small it computes the same, except that the epsilons of its norms show.
    """
    made = copy.deepcopy(layer, {id(weight): nn.Parameter(weight.float(), False) for weight in layer.parameters()})
    for name, count in (("gate_proj", 1), ("up_proj", 1), ("gate_up_proj", 2)):
        if (part := getattr(made.mlp, name, None)) is not None:
            part.weight.data = torch.cat([each[:MLP] for each in part.weight.data.chunk(count)])
            part.out_features = len(part.weight)
    attention, down = made.self_attn, made.mlp.down_proj
    down.weight.data = small * down.weight.data[:, :MLP]
    attention.o_proj.weight.data = small * attention.o_proj.weight.data
    if hasattr(attention, "q_norm"):
        for part in (attention.q_proj, attention.k_proj):
            part.weight.data = RMS * part.weight.data
    return made


def _error(found: Tensor, expected: Tensor, update: Tensor) -> float:
    rounding = 2 * torch.finfo(expected.dtype).eps
    allowed = UPDATE[expected.dtype] * update.double().norm() + rounding * expected.double().norm()
    error = float((found.double() - expected.double()).norm() / allowed)
    return error if error == error else math.inf


def _trees(target: Target, batch: int, nodes: int, view: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Fill the cache with prompts; return the arguments of `Target.verify` for trees after them, one unlike another."""
    limit = target.context_limit
    tokens = torch.randint(target.vocabulary, (batch, view), generator=torch.Generator().manual_seed(0))
    lengths = (min(view, limit or view) - nodes - 5 * torch.arange(batch)).clamp(min=0)
    ancestors, depths = torch.eye(nodes, dtype=torch.bool).repeat(batch, 1, 1), torch.zeros(batch, nodes).long()
    for row in range(batch):
        for node in range(1, nodes):
            parent = (node - 1) // (row + 2)
            ancestors[row, node] |= ancestors[row, parent]
            depths[row, node] = depths[row, parent] + 1
    if limit is not None:
        depths[:, -LATE:] = limit - 1 - lengths[:, None]
    target.allocate(batch, view)
    target.prefill(range(batch), [tokens[row, nodes : nodes + lengths[row]].tolist() for row in range(batch)])
    fed, lengths, depths, ancestors = (x.to(target.device) for x in (tokens[:, :nodes], lengths, depths, ancestors))
    return fed, lengths, depths, ancestors
