"""The tables of docs/results/gpu.md, from data/gpu/h200.json."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.helpers.engine_setups import ROOT

FILE = ROOT / "data" / "gpu" / "h200.json"
STEPS = {"plain step": 0, "chain of 3 (4 tokens)": 1, "Medusa's tree (64 tokens)": 2}
PLACES = ("batch 1", "batch 4", "batch 16", "batch 32", "batch 1, unfused")
LAYERS = {"queries, keys, values": "qkv", "attention output": "o", "gate and up": "gate_up", "down": "down"}
CONTEXTS = ((512, 1), (512, 16), (4096, 1), (4096, 8), (16384, 1), (16384, 4))

Row = list[str]


def pieces(part: str) -> dict[str, Any]:
    """Return what a part found."""
    found: dict[str, Any] = json.loads(FILE.read_text("utf-8"))[part]["pieces"]
    return found


def three_digits(value: float) -> str:
    """Return a time in three digits, below 10 with two decimals."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def short(value: float) -> str:
    """Return a number with one decimal, from 100 on without."""
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def steps() -> Iterator[Row]:
    """Yield the rows of both shapes: verification in ms, and the share of copy bandwidth."""
    found = pieces("step_times")
    for shape in ("8b", "1b"):
        cells = [found[f"{shape}, {place}"] for place in PLACES]
        for name, number in STEPS.items():
            yield [name, *(three_digits(1e3 * cell[number]["rest_s"]) for cell in cells)]
        shares = (f"{cell[0]['share_of_copy_bandwidth']:.3f}" for cell in cells)
        yield ["plain step, share of copy bandwidth", *shares]


def products() -> Iterator[Row]:
    """Yield a row per layer: microseconds fused and by cuBLAS, which the first column names."""
    found = pieces("kernels")
    label = "cuBLAS "  # in the first cell alone
    for name, layer in LAYERS.items():
        cells = [found[f"{layer}, {rows} rows"] for rows in (1, 4, 16, 64)]
        texts = [(f"{cell['fused_us']:.1f}, ", f"{cell['library_us']:.1f}") for cell in cells]
        yield [name, *(label.join(text) if text == texts[0] and layer == "qkv" else "".join(text) for text in texts)]


def attention() -> Iterator[Row]:
    """Yield a row per context and batch size: microseconds of the kernels."""
    found = pieces("kernels")
    for context, batch in CONTEXTS:
        cells = [found[f"attention, context {context}, batch {batch}, {tokens} tokens"] for tokens in (1, 8, 64)]
        times = [[cell[name] for name in ("tree_us", "packed_us", "flex_us")] for cell in cells]
        yield [f"{context}, {batch}", *(", ".join(short(us) for us in row if us is not None) for row in times)]


def predictions() -> Iterator[Row]:
    """Yield a row per batch size, and one of all: contexts, cells, mean and largest error of the speedup."""
    contexts = [found for name, found in pieces("replayed_8b").items() if name.startswith("context ")]
    cells = [cell for found in contexts for cell in found["cells"]]
    places = {1: "416, 4000, 16288", 4: "416, 4000", 16: "416, 4000", 64: "416", None: ""}
    for batch, place in places.items():
        errors = np.abs([cell["error"] for cell in cells if batch in (None, cell["batch"])])
        yield [
            str(batch or "all"),
            place,
            str(len(errors)),
            f"{100 * errors.mean():.1f} %",
            f"{100 * errors.max():.1f} %",
        ]


def hugging_face() -> Iterator[Row]:
    """Yield a row per way to decode: tokens per second at batch 1 and 8."""
    one, eight = (pieces("against_hugging_face_8b")[f"8b, batch {batch}"] for batch in (1, 8))
    names = {"`generate`": "HF generate", "`generate`, static cache, compiled": "HF generate, static cache, compiled"}
    names |= {"plain loop": "plain", "plain loop, unfused": "plain, unfused"}
    for shown, name in names.items():
        yield [shown, *(f"{found['tokens_s'][name]:.0f}" for found in (one, eight))]
    best = f"{one['tokens_s'][one['best_assisted']]:.0f}"
    yield [f"assisted generation at its best length ({one['best_assisted'][-1]})", best, "batch 1 only"]
    chains, trees = (
        [max((name for name in of["tokens_s"] if name.startswith(kind)), key=of["tokens_s"].get) for of in (one, eight)]
        for kind in ("chain", "tree")
    )
    rates = [f"{of['tokens_s'][name]:.0f} (of {name[-1]})" for of, name in zip((one, eight), chains, strict=True)]
    yield ["best chain", *rates]
    rates = [f"{of['tokens_s'][name]:.0f} ({name[5:]} nodes" for of, name in zip((one, eight), trees, strict=True)]
    yield ["best tree", f"{rates[0]}, tau {one['tau'][trees[0]]:.2f})", f"{rates[1]})"]


TABLES = {table.__name__: table for table in (steps, products, attention, predictions, hugging_face)}
