"""Stand-ins for SGLang's CPU kernels, in torch, so that its server, scheduler and speculative workers run on any CPU.

SGLang's own are built from its source for processors with AMX. Each function has the name and arguments of the one that
it replaces; those of trees and cache slots do what their twins for GPUs in `sglang/kernels/ops` do. Sliding windows,
soft caps, cross attention and attention sinks are not needed here, and refused.
"""

import ctypes
from itertools import pairwise

import torch
from torch import Tensor

_LIBRARY = torch.library.Library("sgl_kernel", "FRAGMENT")
_CACHES = "Tensor(a!) keys, Tensor(b!) values, float key_scale, float value_scale"
_TABLE = "Tensor table, Tensor rows, Tensor lengths"
_LAYER = "float scale, float cap, bool cross, int window, Tensor? encoder_lengths, Tensor? sinks"
_LIBRARY.define(
    f"decode_attention_cpu(Tensor q, {_CACHES}, Tensor(c!) out, Tensor? k, Tensor? v, Tensor slots, Tensor logits, "
    f"{_TABLE}, {_LAYER}) -> ()"
)
_LIBRARY.define(
    f"extend_attention_cpu(Tensor q, Tensor? k, Tensor? v, Tensor(c!) out, {_CACHES}, {_TABLE}, Tensor new, "
    f"Tensor starts, int longest, {_LAYER}, Tensor? mask, bool causal) -> ()"
)


def _attend(q: Tensor, keys: Tensor, values: Tensor, scale: float, mask: Tensor | None) -> Tensor:
    """Return attention of queries (n, heads, d) over keys (m, kv_heads, d) with a mask (n, m)."""
    q, keys, values = (x.transpose(0, 1)[None] for x in (q, keys, values))
    out = torch.nn.functional.scaled_dot_product_attention(q, keys, values, mask, scale=scale, enable_gqa=True)
    return out[0].transpose(0, 1)


def _refuse(cap: float, cross: bool, window: int, sinks: Tensor | None) -> None:
    if cap or cross or window > 0 or sinks is not None:
        raise NotImplementedError("the stand-in has no soft cap, cross attention, window or sinks")


def _decode(q, keys, values, key_scale, value_scale, out, k, v, slots, logits, table, rows, lengths, *layer):
    scale, cap, cross, window, _, sinks = layer
    _refuse(cap, cross, window, sinks)
    if k is not None:
        keys[slots] = k.view(-1, *keys.shape[1:])
        values[slots] = v.view(-1, *values.shape[1:])
    for i, length in enumerate(lengths.tolist()):
        at = table[rows[i], :length].long()
        out[i : i + 1] = _attend(q[i : i + 1], keys[at], values[at], scale, None)


def _extend(q, k, v, out, keys, values, key_scale, value_scale, table, rows, lengths, new, starts, longest, *layer):
    scale, cap, cross, window, _, sinks, mask, _ = layer
    _refuse(cap, cross, window, sinks)
    for i, (length, count, start) in enumerate(zip(lengths.tolist(), new.tolist(), starts.tolist(), strict=True)):
        at = table[rows[i], :length].long()
        seen = torch.ones(count, length, dtype=torch.bool).tril(length - count)
        if mask is not None:
            seen[:, length - count :] = mask.view(len(lengths), count, count)[i].bool()
        part = slice(start, start + count)
        out[part] = _attend(q[part], keys[at], values[at], scale, seen)


_LIBRARY.impl("decode_attention_cpu", _decode, "CPU")
_LIBRARY.impl("extend_attention_cpu", _extend, "CPU")


def build_draft_decode_metadata_cpu(
    table: Tensor, rows: Tensor, lengths: Tensor, topk: int, steps: int, width: int
) -> Tensor:
    """Return the slots of each candidate of each request: its prefix, then those of its own drafted tokens."""
    slots = table.new_zeros(len(lengths) * topk, width)
    for i, length in enumerate(lengths.tolist()):
        for branch in range(topk):
            first, row = length + branch * steps, slots[i * topk + branch]
            row[:length] = table[rows[i], :length]
            row[length : length + steps] = table[rows[i], first : first + steps]
    return slots


def build_tree_kernel_efficient_cpu(
    parents: Tensor,
    selected: Tensor,
    lengths: Tensor,
    mask: Tensor,
    positions: Tensor,
    index: Tensor,
    next_token: Tensor,
    next_sibling: Tensor,
    topk: int,
    depth: int,
    nodes: int,
    mode: int,
) -> None:
    """Fill mask, positions and links of trees whose nodes are the root and the selected candidates in order."""
    if mode != 1:
        raise NotImplementedError(f"the stand-in fills masks of drafted tokens alone, not of mode {mode}")
    masks, places = mask.view(-1, nodes, nodes), positions.view(-1, nodes)
    masks[:] = False
    masks[:, :, 0] = True
    for b, (length, chosen) in enumerate(zip(lengths.tolist(), selected.tolist(), strict=True)):
        index[b] = torch.arange(b * nodes, (b + 1) * nodes)
        above = [0] * nodes
        for node, candidate in enumerate(chosen, 1):
            group = candidate // topk
            above[node] = chosen.index(int(parents[b, group])) + 1 if group else 0
        for node in range(nodes - 1, 0, -1):
            next_sibling[b, node] = next_token[b, above[node]]
            next_token[b, above[node]] = node
        for node in range(nodes):
            at, level = node, 0
            while at:
                masks[b, node, at] = True
                at, level = above[at], level + 1
            places[b, node] = length + level


def verify_tree_greedy_cpu(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Walk each tree along the target's tokens, and write the accepted nodes and the token after the last of them."""
    wanted = target_predict.reshape(-1).tolist()
    for b in range(len(candidates)):
        tokens, index = candidates[b].tolist(), retrive_index[b].tolist()
        child, sibling = retrive_next_token[b].tolist(), retrive_next_sibling[b].tolist()
        node, accepted = 0, 0
        accept_index[b, 0] = index[0]
        while accepted + 1 < accept_index.shape[1]:
            below = child[node]
            while below != -1 and tokens[below] != wanted[index[node]]:
                below = sibling[below]
            if below == -1:
                break
            predicts[index[node]] = wanted[index[node]]
            node, accepted = below, accepted + 1
            accept_index[b, accepted] = index[node]
        accept_token_num[b] = accepted
        predicts[index[node]] = wanted[index[node]]


def copy_all_layer_kv_cache_cpu(addresses: Tensor, strides: Tensor, targets: Tensor, sources: Tensor) -> None:
    """Copy rows of all layers' caches, which are known by address; all are read before one is written."""
    for base, stride in zip(addresses.tolist(), strides.tolist(), strict=True):
        kept = [ctypes.string_at(base + source * stride, stride) for source in sources.tolist()]
        for target, row in zip(targets.tolist(), kept, strict=True):
            ctypes.memmove(base + target * stride, row, stride)


def rotate_input_ids_cpu(
    ids: Tensor, starts: Tensor, lengths: Tensor, last: Tensor, select: Tensor | None = None
) -> None:
    """Shift each segment left by one token, and write its last one."""
    for i, (start, length) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
        if length:
            ids[start : start + length - 1] = ids[start + 1 : start + length].clone()
            ids[start + length - 1 if select is None else int(select[i])] = last.view(-1)[i]


def fill_accept_out_cache_loc_cpu(accept_index: Tensor, slots: Tensor, out: Tensor) -> None:
    """Write the slots of the accepted nodes one after the other."""
    taken = accept_index[accept_index > -1].long()
    out.view(-1)[: len(taken)] = slots[taken]


def fill_bonus_tokens_cpu(tokens: Tensor, lengths: Tensor, out: Tensor, stride: int) -> None:
    """Write the last token of each request's `stride` tokens that was accepted."""
    out[:] = tokens.view(-1, stride).gather(1, lengths.long()[:, None] - 1)[:, 0]


def assign_draft_cache_locs_contiguous_cpu(
    rows: Tensor, table: Tensor, lengths: Tensor, out: Tensor, width: int, topk: int, steps: int
) -> None:
    """Write the slots of each request's next `topk * steps` tokens."""
    assign_extend_cache_locs_cpu(rows, table, lengths, lengths + topk * steps, out, width)


def assign_extend_cache_locs_cpu(
    rows: Tensor, table: Tensor, begins: Tensor, ends: Tensor, out: Tensor, width: int
) -> None:
    """Write the slots of each request from begin to end, one request after the other."""
    for row, begin, end, at in _spans(rows, begins, ends):
        out.view(-1)[at : at + end - begin] = table[row, begin:end]


def assign_req_to_token_pool_cpu(
    rows: Tensor, table: Tensor, begins: Tensor, ends: Tensor, slots: Tensor, width: int
) -> None:
    """Write new slots into each request's row from begin to end."""
    for row, begin, end, at in _spans(rows, begins, ends):
        table[row, begin:end] = slots[at : at + end - begin].to(table.dtype)


def _spans(rows: Tensor, begins: Tensor, ends: Tensor) -> list[tuple[int, int, int, int]]:
    """Return row, begin, end and place among the slots of each request."""
    places = [0, *torch.cumsum(ends - begins, 0).tolist()]
    return [
        (row, begin, begin + after - at, at)
        for row, begin, (at, after) in zip(rows.tolist(), begins.tolist(), pairwise(places), strict=True)
    ]
