"""Kernels of the fused forward: compiled by all cores, against float64, and one by one: microseconds in a CUDA graph.

Graphs that are timed call a kernel for many weights or caches in turn, so that none is found in the device's cache.
"""

import multiprocessing
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import product
from multiprocessing.pool import Pool
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from executor.kernels.few_rows_linear import Around, gate, linear, rms_norm_rows
from executor.kernels.fused_forward import FusedForward
from executor.kernels.tree_attention import attend_to_tree
from executor.models import make_target, shape_config
from executor.target import fused_verification
from executor.target.load_hf_model import read_verifiable_config
from executor.target.target_model import Target
from executor.target.tree_attention_mask import TreeMasks, attend
from tests.benchmarks.gpu_pieces import Pieces
from tests.executor.kernels import test_few_rows_linear, test_tree_attention
from tests.helpers.interpreted_kernels import allowed, relative_error
from treeopt.storage.user_files import shipped

# Columns and inner width of an 8B model's products, and what stands around them.
LAYERS = {"qkv": (6144, 4096), "o": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}
VOCABULARY = 128256
ROWS = (1, 4, 16, 64)
MANY_ROWS = (64, 128, 256, 512, 1024, 2048, 4096)
NODES = 64  # of each sequence of many rows
READ_BYTES = 1.2e9  # of weights or caches in turn
PLACES = ((512, 1), (512, 16), (4096, 1), (4096, 8), (16384, 4))  # context, batch
TINY_LAYERS = {name: (columns // 64, inner // 64) for name, (columns, inner) in LAYERS.items()}
HEADS, SHARED, WIDTH = 32, 8, 128
REPLAYS, SAME = 7, 200

Call = Callable[[], Any]


def gathered(pool: Pool, work: Callable[[Any], Any], tasks: Sequence[Any], seconds: float) -> list[Any]:
    """Return what the processes of a pool have done of the tasks when the time is over."""
    deadline, found, waiting = time.monotonic() + seconds, list[Any](), pool.imap_unordered(work, tasks)
    for _ in tasks:
        try:
            found.append(waiting.next(None if seconds == float("inf") else max(0.0, deadline - time.monotonic())))
        except multiprocessing.TimeoutError:
            break
    return found


# --- compiled by all cores, for the parts that follow


def compiled(pool: Pool, device: str, seconds: float, *, tiny: bool) -> dict[str, Any]:
    """Run a layer of each shape with the rows of the parts, and check it: Triton keeps the kernels on disk."""
    checked = (*fused_verification.LARGE, *fused_verification.SMALL)
    places = [("shipped", False, batch, tokens, 512) for batch in (1, 4, 16, 64) for tokens in (1, 3, 26, 32, 64)]
    places += [(shape, True, *sizes) for sizes in checked for shape in ("shipped", "8b", "1b")]
    places += [
        (shape, False, batch, tokens, 512) for batch in (1, 4, 16) for tokens in (1, 64, 4) for shape in ("8b", "1b")
    ]
    places += [("8b", False, rows // NODES, NODES, view) for rows in MANY_ROWS for view in (512, 4096)]
    places = [("toy", False, 2, 4, 64)] if tiny else places
    found = gathered(pool, partial(_compiled, device=device), places, seconds)
    failed = [reason for reason in found if reason is not None]
    return {"done": len(found), "of": len(places), "failed": len(failed), "reasons": failed[:3]}


def _compiled(place: tuple[str, bool, int, int, int], *, device: str) -> str | None:
    """Run one layer, or the check at load of it; return why that failed."""
    shape, check, *sizes = place
    try:
        target = few_layers(shape, 1, device)
        if check:
            fused_verification._errors(Target(target.model), target.fused, *sizes)
        else:
            forward(target, *sizes)()
        if device.startswith("cuda"):
            torch.cuda.synchronize()
    except Exception as error:  # noqa: BLE001 - a compiler's, a driver's
        return f"{place}: {type(error).__name__}: {error}"
    return None


@cache
def few_layers(shape: str, layers: int, device: str) -> Target:
    """Return a target of the first layers of a shape; its vocabulary is small."""
    config = read_verifiable_config(shipped("models/stdlib-llama")) if shape == "shipped" else shape_config(shape)
    config.num_hidden_layers, config.vocab_size = layers, 512
    target = make_target(config, shape, torch.float32 if shape == "toy" else torch.bfloat16, device, packed=False)
    target.fused = FusedForward(target.model.get_decoder())  # unchecked: that takes kernels of its own
    return target


def forward(target: Target, batch: int, tokens: int, view: int) -> Call:
    """Return a call of the fused forward over chains of `tokens` nodes after texts that fill the view."""
    target.allocate(batch, view)
    lengths = torch.full((batch,), max(0, view - tokens - 1), device=target.device)
    depths = torch.arange(tokens, device=target.device)[None]
    ancestors = torch.ones(1, tokens, tokens, dtype=torch.bool, device=target.device).tril()
    places = target.placed(lengths, depths, ancestors, view)
    return partial(target.fused, depths.expand(batch, -1), places)


# --- against float64, and against themselves


def fuzzed(pool: Pool, device: str, seconds: float, *, tiny: bool) -> dict[str, Any]:
    """Return the number of random cases of the kernels' tests, and their largest error over the allowed one."""
    dtypes = (torch.bfloat16, torch.float32)
    places = [("linear", dtype, rows) for dtype in dtypes for rows in (1, 2, 16, 33, 64, 128)]
    places += [("attention", *place) for place in product(dtypes, (64, 96, 128, 256), (1, 4, 8))]
    places = [("linear", torch.float32, 3), ("attention", torch.float32, 64, 4)] if tiny else places
    deadline = time.monotonic() + seconds
    found = gathered(pool, partial(_fuzzed, device=device, deadline=deadline, cases=2 if tiny else 18), places, seconds)
    errors = [error for some in found for error in some]
    wrong = [(case, error) for case, error in errors if not error <= 1]
    worst = max(errors, key=lambda error: error[1]) if errors else None
    return {"cases": len(errors), "beyond": len(wrong), "worst_over_allowed": worst and worst[1], "wrong": wrong[:5]}


def _fuzzed(place: tuple[Any, ...], *, device: str, deadline: float, cases: int) -> list[tuple[str, float]]:
    """Return random cases of one kind, with errors over allowed ones, until the time is over."""
    kind, dtype, *sizes = place
    rng, found = np.random.default_rng([len(kind), *sizes]), list[tuple[str, float]]()
    for _ in range(cases):
        if time.monotonic() > deadline - 1:
            break
        said, error = "", float("inf")
        try:
            said, error = (_linear if kind == "linear" else _tree)(rng, dtype, device, *sizes)
        except Exception as caught:  # noqa: BLE001 - a compiler's, a driver's
            said = f"{type(caught).__name__}: {caught}"
        found.append((f"{kind}, {dtype}, {sizes}: {said}", error / allowed(dtype)))
    return found


def _tree(rng: np.random.Generator, dtype: torch.dtype, device: str, width: int, group: int) -> tuple[str, float]:
    """Attend over a ragged batch, by the test's own comparison: what no node may see is NaN."""
    nodes, batch = int(rng.choice((1, 2, 7, 16, 31, 33, 48, 64))), int(rng.choice((1, 2, 5)))
    view = int(rng.choice((128, 512, 1000, 4096) if device.startswith("cuda") else (128,)))
    lengths = rng.integers(0, view - nodes + 1, batch).tolist()
    trees = int(rng.choice((1, batch)))
    with pytest.MonkeyPatch.context() as monkeypatch, torch.device(device):
        error = test_tree_attention.compare(
            monkeypatch, lengths, view, nodes=nodes, heads=2 * group, width=width, trees=trees, dtype=dtype
        )
    return f"{nodes} nodes, view {view}, lengths {lengths}", error


def _linear(rng: np.random.Generator, dtype: torch.dtype, device: str, rows: int) -> tuple[str, float]:
    """Multiply, with what stands around it, by the test's own sizes and by a model's."""
    options = test_few_rows_linear.OPTIONS[rng.integers(len(test_few_rows_linear.OPTIONS))]
    sizes = ((72, 21), (520, 90), (2048, 2560), (4096, 6144)) if device.startswith("cuda") else ((72, 21),)
    inner, columns = sizes[rng.integers(len(sizes))]
    with torch.device(device):
        x, weight, around = test_few_rows_linear.drawn(rows, inner, columns, *options, dtype=dtype)
        wanted = test_few_rows_linear.expected(x, weight, around)
        return f"{inner} to {columns}, {options}", relative_error(linear(x, weight, around), wanted)


def replays(rows: int, device: str, *, tiny: bool) -> dict[str, int]:
    """Replay a graph of two layers; return the number of replays whose output is that of the first, bit by bit."""
    call = forward(few_layers("toy" if tiny else "8b", 2, device), max(1, rows // NODES), min(rows, NODES), 512)
    call()
    out, again = call()[0], call
    if device.startswith("cuda"):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = call()[0]
        again = graph.replay
    first, same = None, 0
    count = 2 if tiny else SAME
    for _ in range(count):
        made = again()
        out = out if made is None else made[0]
        first = out.clone() if first is None else first
        same += bool(torch.equal(out, first))
    return {"replays": count, "same": same}


# --- microseconds


def one_by_one(device: str, pieces: Pieces, *, tiny: bool) -> None:
    """Time products with what stands around them, and attention over contexts."""
    for name, (columns, inner) in (TINY_LAYERS if tiny else LAYERS).items():
        for rows in (1, 4) if tiny else ROWS:
            pieces.piece(f"{name}, {rows} rows", partial(_products, name, columns, inner, rows, device, tiny=tiny))
    for context, batch in ((64, 1),) if tiny else PLACES:
        for tokens in (1, 4) if tiny else (1, 64):
            label = f"attention, context {context}, batch {batch}, {tokens} tokens"
            pieces.piece(label, partial(_attention, context, batch, tokens, device, tiny=tiny))


def many_rows(load: Callable[[], Target], device: str, pieces: Pieces, *, tiny: bool) -> None:
    """Time products, attention over 512 and 4096 columns, the LM head and the whole step, for 64 to 4096 rows."""

    def piece(rows: int) -> dict[str, float]:
        target, batch, nodes = load(), max(1, rows // NODES), min(rows, NODES)
        found = {
            f"{name}_us": _products(name, *sizes, rows, device, tiny=tiny, beside=False)["fused_us"]
            for name, sizes in (TINY_LAYERS if tiny else LAYERS).items()
        }
        for view in (64,) if tiny else (512, 4096):
            us = _attention(view, batch, nodes, device, tiny=tiny, beside=False)["tree_us"]
            found[f"attention_{view}_us"] = us
        step = forward(target, batch, nodes, 64 if tiny else 512)
        last = step()[0]
        found["head_us"] = _us([lambda: target.scored(last)])
        return found | {"step_us": _us([lambda: target.scored(step()[0])])}

    for rows in (4,) if tiny else MANY_ROWS:
        pieces.piece(f"{rows} rows", partial(piece, rows))


def _products(
    name: str, columns: int, inner: int, rows: int, device: str, *, tiny: bool, beside: bool = True
) -> dict[str, float]:
    """Microseconds of the fused product and, beside it, of cuBLAS with kernels for what stands around it."""
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

    found = {"fused_us": _us([partial(linear, x, weight, around) for weight in weights])}
    if beside:
        found["library_us"] = _us([partial(library, weight) for weight in weights])
    return found | {"fused_gb_s": 2e-3 * columns * inner / found["fused_us"]}


def _attention(
    context: int, batch: int, tokens: int, device: str, *, tiny: bool, beside: bool = True
) -> dict[str, float]:
    """Microseconds of tree attention and, beside it, of packed attention by a mask."""
    dtype = torch.float32 if tiny else torch.bfloat16
    bytes_of_one = 4 * batch * SHARED * context * WIDTH
    count = 2 if tiny else min(32, max(4, int(READ_BYTES / bytes_of_one)))
    shape = count, batch, SHARED, context, WIDTH
    keys, values = (torch.randn(shape, dtype=dtype, device=device) for _ in range(2))
    q = torch.randn(batch, tokens, HEADS, WIDTH, dtype=dtype, device=device)
    lengths = torch.full((batch,), context - 64, device=device)
    ancestors = torch.ones(1, tokens, tokens, dtype=torch.bool, device=device).tril()
    ours = [
        partial(attend_to_tree, q, keys[i], values[i], lengths, ancestors, context, WIDTH**-0.5) for i in range(count)
    ]
    found = {"tree_us": _us(ours)}
    if beside:
        mask, module = TreeMasks(dtype, HEADS // SHARED)(lengths, ancestors, context), torch.nn.Module()
        packed = partial(attend, module, q.transpose(1, 2).contiguous())
        theirs = [partial(packed, keys[i], values[i], mask, scaling=WIDTH**-0.5) for i in range(count)]
        expected = theirs[0]()[0]
        found |= {"packed_us": _us(theirs), "relative_error": relative_error(ours[0](), expected)}
    return found


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
