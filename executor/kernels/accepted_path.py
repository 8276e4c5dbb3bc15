"""The end of a step: the longest accepted path and what is committed of it, and its entries of the cache."""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from executor.kernels.dependent_launch import launch_options


@triton.jit
def _commit_kernel(
    tokens,
    emitted,
    parents,
    depths,
    below,
    paths,
    present,
    fed,
    idle,
    lengths,
    root,
    last_tokens,
    last_fed,
    counts,
    outcome,
    starts,
    path_out,
    count,
    steps,
    tree_stride,
    fed_stride,
    PRESENT: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_STEPS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    tree = row * tree_stride
    node, step = tl.arange(0, BLOCK), tl.arange(0, BLOCK_STEPS)
    ok, walked = node < count, step < steps
    parent = tl.load(parents + tree * count + node, mask=ok, other=0)
    token = tl.load(tokens + row * count + node, mask=ok, other=0)
    missed = token != tl.load(emitted + row * count + parent, mask=ok, other=0)
    drafted = count - 1
    if PRESENT:
        there = tl.load(present + tree * count + node, mask=ok, other=0).to(tl.int32)
        missed, drafted = missed | (there == 0), tl.sum(there, 0) - 1
    at = (tree * count + node[:, None]) * count + node[None, :]
    above = tl.load(below + at, mask=ok[:, None] & ok[None, :], other=0) != 0
    cut = tl.max((above & missed[None, :]).to(tl.int32), 1) != 0
    depth = tl.where(ok & ~cut, tl.load(depths + tree * count + node, mask=ok, other=0), -1)
    accepted = tl.max(depth, 0)
    best = tl.min(tl.where(depth == accepted, node, BLOCK), 0)
    path = tl.load(paths + (tree * count + best) * steps + step, mask=walked, other=0)
    word = tl.load(emitted + row * count + path, mask=walked, other=0)
    place = tl.load(fed + row * fed_stride * count + path, mask=walked, other=0)
    length = tl.load(lengths + row)
    committed = tl.where(tl.load(idle + row) != 0, 0, accepted + 1)
    tl.store(path_out + row * steps + step, path, mask=walked)
    tl.store(last_tokens + row * steps + step, word, mask=walked)
    tl.store(last_fed + row * steps + step, place, mask=walked)
    tl.store(outcome + row * (steps + 3) + 3 + step, word, mask=walked)
    final = step == steps - 1
    tl.store(outcome + row * (steps + 3) + 1 + 0 * step, place, mask=final)
    tl.store(root + row + 0 * step, word, mask=final)
    tl.store(outcome + row * (steps + 3), accepted)
    tl.store(outcome + row * (steps + 3) + 2, drafted)
    tl.store(counts + row, committed)
    tl.store(starts + row, length)
    tl.store(lengths + row, length + committed)


def commit_longest(
    tokens: Tensor,
    emitted: Tensor,
    tree: tuple[Tensor, Tensor, Tensor, Tensor],
    present: Tensor | None,
    fed: Tensor,
    idle: Tensor,
    changed: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor],
) -> tuple[Tensor, Tensor]:
    """Accept the longest path on which every drafted token equals what its parent emitted, and commit it.

    Args:
        tokens: int64 (batch, count), the drafted trees.
        emitted: int64 (batch, count), contiguous, the token that the rule emits at each node.
        tree: `parent`, `depth`, `below` and `path` of the topology.
        present: its entries that are no fillers; None if all are.
        fed: int64 (1 or batch, count), places of the nodes in the order of feeding.
        idle: bool (batch,), rows that stay where they are.
        changed: lengths, roots, the last committed tokens, their places in the order of feeding and counts, and the
            outcome, as the loop's rows hold them.

    Returns:
        The lengths before the step, int64 (batch,), and the accepted path, int64 (batch, depth + 1).
    """
    lengths, steps, count = changed[0], tree[3].shape[-1], tokens.shape[1]
    starts = torch.empty_like(lengths)
    path = torch.empty(len(tokens), steps, dtype=torch.long, device=tokens.device)
    parts = [part.contiguous() for part in (tree[0], tree[1], tree[2].view(torch.uint8), tree[3])]
    there = None if present is None else present.contiguous().view(torch.uint8)
    _commit_kernel[len(tokens),](
        tokens.contiguous(),
        emitted,
        *parts,
        parts[2] if there is None else there,
        fed.contiguous(),
        idle.view(torch.uint8),
        *changed,
        starts,
        path,
        count,
        steps,
        int(len(tree[0]) > 1),
        int(len(fed) > 1),
        PRESENT=there is not None,
        BLOCK=max(2, triton.next_power_of_2(count)),
        BLOCK_STEPS=max(2, triton.next_power_of_2(steps)),
        num_warps=4,
        **launch_options(tokens.device),
    )
    return starts, path


@triton.jit
def _move_kernel(
    keys,
    values,
    lengths,
    path,
    heads,
    batch,
    capacity,
    steps,
    WIDTH: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
    BLOCK_STEPS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    line = tl.program_id(0).to(tl.int64)  # of layers * batch * heads
    row = line // heads % batch
    step, width = tl.arange(0, BLOCK_STEPS), tl.arange(0, BLOCK_WIDTH)
    node = tl.load(path + row * steps + step, mask=step < steps, other=0)
    moved = ((step < steps) & (node != step))[:, None] & (width < WIDTH)[None, :]
    start = line * capacity + tl.load(lengths + row)
    source = (start + node)[:, None] * WIDTH + width[None, :]
    goal = (start + step)[:, None] * WIDTH + width[None, :]
    key, value = tl.load(keys + source, mask=moved), tl.load(values + source, mask=moved)
    tl.debug_barrier()  # all are read before one is written
    tl.store(keys + goal, key, mask=moved)
    tl.store(values + goal, value, mask=moved)


def move_accepted(stores: tuple[Tensor, ...], lengths: Tensor, path: Tensor) -> None:
    """Move the entries of accepted paths to the end of each sequence, in all layers at once.

    Args:
        stores: keys and values, (layers, batch, heads, capacity, width), contiguous.
        lengths: int64 (batch,), committed tokens before the step.
        path: int64 (batch, steps), contiguous, node of each path position, the root (0) first.
    """
    keys, values = stores
    layers, batch, heads, capacity, width = keys.shape
    steps = path.shape[1]
    _move_kernel[layers * batch * heads,](
        keys,
        values,
        lengths,
        path,
        heads,
        batch,
        capacity,
        steps,
        WIDTH=width,
        BLOCK_WIDTH=triton.next_power_of_2(width),
        BLOCK_STEPS=max(2, triton.next_power_of_2(steps)),
        num_warps=4,
        **launch_options(path.device),
    )
