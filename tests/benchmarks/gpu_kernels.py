"""Kernels of the fused forward against the libraries', one kind at a time: microseconds within a CUDA graph.

Each graph calls a kernel for many weights or caches in turn, so that none is found in the device's cache.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from executor.kernels.few_rows_linear import Around, gate, linear, rms_norm_rows
from executor.kernels.tree_attention import attend_to_tree
from executor.target.attention_backends import attend
from executor.target.tree_attention_mask import TreeMasks, tree_blocks
from tests.benchmarks.gpu_pieces import Pieces

# Columns and inner width of an 8B model's products, and what stands around them.
LAYERS = {"qkv": (6144, 4096), "o": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}
ROWS = (1, 2, 4, 8, 16, 32, 64)
READ_BYTES = 1.2e9  # of weights or caches in turn
PLACES = ((512, 1), (512, 16), (4096, 1), (4096, 8), (16384, 1), (16384, 4))  # context, batch
TINY_LAYERS = {name: (columns // 64, inner // 64) for name, (columns, inner) in LAYERS.items()}
HEADS, SHARED, WIDTH = 32, 8, 128
REPLAYS = 7

Call = Callable[[], Any]


def kernels(device: str, pieces: Pieces, *, tiny: bool) -> None:
    """Time products with what stands around them, and attention over contexts."""
    for name, (columns, inner) in (TINY_LAYERS if tiny else LAYERS).items():
        for rows in (1, 4) if tiny else ROWS:
            pieces.piece(f"{name}, {rows} rows", partial(_products, name, columns, inner, rows, device, tiny=tiny))
    for context, batch in ((64, 1),) if tiny else PLACES:
        for tokens in (1, 4) if tiny else (1, 8, 64):
            label = f"attention, context {context}, batch {batch}, {tokens} tokens"
            pieces.piece(label, partial(_attention, context, batch, tokens, device, tiny=tiny))


def _products(name: str, columns: int, inner: int, rows: int, device: str, *, tiny: bool) -> dict[str, float]:
    """Microseconds of the fused product, and of cuBLAS with kernels for what stands around it."""
    dtype = torch.float32 if tiny else torch.bfloat16
    count = 2 if tiny else max(2, int(READ_BYTES / (2 * columns * inner)))
    weights = [0.02 * torch.randn(columns, inner, dtype=dtype, device=device) for _ in range(count)]
    x = torch.randn(rows, inner, dtype=dtype, device=device)
    norm = (torch.ones(inner, dtype=dtype, device=device), 1e-5) if name in ("qkv", "gate_up") else None
    gated = name == "gate_up"
    residual = None if norm is not None else torch.randn(rows, columns, dtype=dtype, device=device)
    around = Around(norm=norm, residual=residual, gated=gated)

    def library(weight: Tensor) -> Tensor:
        given = x if norm is None else rms_norm_rows(x, *norm)
        if residual is not None:
            return torch.addmm(residual, given, weight.T)
        out = F.linear(given, weight)
        return gate(out) if gated else out

    found = {
        "fused_us": _us([partial(linear, x, weight, around) for weight in weights]),
        "library_us": _us([partial(library, weight) for weight in weights]),
    }
    return found | {"fused_gb_s": 2e-3 * columns * inner / found["fused_us"]}


def _attention(context: int, batch: int, tokens: int, device: str, *, tiny: bool) -> dict[str, float | None]:
    """Microseconds of tree attention, of packed attention by a mask, and of FlexAttention where it can."""
    dtype = torch.float32 if tiny else torch.bfloat16
    bytes_of_one = 4 * batch * SHARED * context * WIDTH
    count = 2 if tiny else min(32, max(4, int(READ_BYTES / bytes_of_one)))
    shape = count, batch, SHARED, context, WIDTH
    keys, values = (torch.randn(shape, dtype=dtype, device=device) for _ in range(2))
    q = torch.randn(batch, tokens, HEADS, WIDTH, dtype=dtype, device=device)
    lengths = torch.full((batch,), context - 64 if context > 64 else 8, device=device)
    ancestors = torch.ones(1, tokens, tokens, dtype=torch.bool, device=device).tril()
    depths = torch.zeros(1, tokens, dtype=torch.long, device=device)
    mask = TreeMasks(dtype, HEADS // SHARED)(lengths, ancestors, context)
    heads_first, scale = q.transpose(1, 2).contiguous(), WIDTH**-0.5
    module = torch.nn.Module()

    def by(kind: Any) -> list[Call]:
        return [partial(attend, module, heads_first, keys[i], values[i], kind, scaling=scale) for i in range(count)]

    ours = [partial(attend_to_tree, q, keys[i], values[i], lengths, ancestors, context, scale) for i in range(count)]
    error = ours[0]().float() - by(mask)[0]()[0].float()
    flex: float | None = None
    if tokens < 64 and not tiny:  # with more, inductor (torch 2.11) finds no kernel
        flex = _us(by(tree_blocks(lengths, depths, ancestors, context)))
    return {
        "tree_us": _us(ours),
        "packed_us": _us(by(mask)),
        "flex_us": flex,
        "relative_error": float(error.norm() / by(mask)[0]()[0].float().norm()),
    }


def _us(calls: Sequence[Call]) -> float:
    """Microseconds of a call, the median over replays of a graph of all of them; on CPU of running them."""
    for call in calls[:2]:
        call()
    if not torch.cuda.is_available():
        started = time.perf_counter()
        for call in calls:
            call()
        return 1e6 * (time.perf_counter() - started) / len(calls)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        for call in calls:
            call()
    seconds = []
    for _ in range(REPLAYS):
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begun.record()
        graph.replay()
        ended.record()
        ended.synchronize()
        seconds.append(begun.elapsed_time(ended) / 1e3)
    return 1e6 * sorted(seconds)[REPLAYS // 2] / len(calls)
