"""The tables of docs/results/gpu.md, from data/gpu."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.helpers.engine_setups import ROOT

FOLDER = ROOT / "data" / "gpu"
STEPS = {"plain step": 0, "chain of 3 (4 tokens)": 1, "Medusa's tree (64 tokens)": 2}
PLACES = ("batch 1", "batch 4", "batch 16", "batch 1, unfused")
LAYERS = {"queries, keys, values": "qkv", "attention output": "o", "gate and up": "gate_up", "down": "down"}
CONTEXTS = ((512, 1), (512, 16), (4096, 1), (4096, 8), (16384, 4))
CELLS = {"plain step": "plain1", "4 tokens": "chain1", "64 tokens": "tree1", "128 tokens": "tree2"}
LIVE = {  # file and part, by conditions
    "H200, bf16": ("h200-live", "live"),
    "H200, bf16, first run": ("h200-live", "live_first"),
    "H100, fp32, before": ("h100", "live"),
}
CASES = tuple(f"{drafter}-t{heat}" for drafter in ("medusa", "eagle3", "dflash", "mtp", "p-eagle") for heat in (0, 1))

Row = list[str]


def pieces(part: str, card: str = "h100") -> dict[str, Any]:
    """Return what a part found."""
    found: dict[str, Any] = json.loads((FOLDER / f"{card}.json").read_text("utf-8"))[part]["pieces"]
    return found


def three_digits(value: float) -> str:
    """Return a time in three digits, below 10 with two decimals."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def short(value: float) -> str:
    """Return a number with one decimal, from 100 on without."""
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def percent(value: float) -> str:
    """Return a share in percent with one decimal."""
    return f"{100 * value:.1f} %"


def steps() -> Iterator[Row]:
    """Yield the rows of both shapes: verification in ms, and the share of copy bandwidth."""
    found = pieces("steps")
    for shape in ("8b", "1b"):
        cells = [found[f"{shape}, {place}"]["cells"] for place in PLACES]
        for name, number in STEPS.items():
            yield [name, *(three_digits(1e3 * cell[number]["rest_s"]) for cell in cells)]
        shares = (f"{cell[0]['share_of_copy_bandwidth']:.3f}" for cell in cells)
        yield ["plain step, share of copy bandwidth", *shares]


def changes() -> Iterator[Row]:
    """Yield verification in ms before the changes and after them, by card."""
    found = json.loads((FOLDER / "changes.json").read_text("utf-8"))
    for name, cell in CELLS.items():
        for shape in ("8b", "1b"):
            places = [(card, when) for card in ("h200", "h100") for when in ("before_ms", "after_ms")]
            times = [found[card][when][f"{shape} {cell}"] for card, when in places]
            yield [f"{shape.upper()}, {name}", *(f"{ms:.3f}" for ms in times)]


def rows() -> Iterator[Row]:
    """Yield microseconds of the parts of a step by its rows."""
    for name, found in pieces("rows").items():
        layers = [short(found[f"{layer}_us"]) for layer in LAYERS.values()]
        attention_us = [short(found[f"attention_{view}_us"]) for view in (512, 4096)]
        yield [name.removesuffix(" rows"), *layers, *attention_us, short(found["head_us"]), f"{found['step_us']:,.0f}"]


def graphs() -> Iterator[Row]:
    """Yield milliseconds of steps without graphs and with them, and the seconds of the three captures."""
    found = pieces("graphs")
    for shape in ("1b", "8b"):
        for batch in (1, 16):
            off, on = (found[f"{shape}, batch {batch}{how}"] for how in ("", ", graphs"))
            times = (
                f"{three_digits(off[name])}, {three_digits(on[name])}" for name in ("plain_ms", "chain_ms", "Medusa_ms")
            )
            yield [f"{shape.upper()}, {batch}", *times, f"{on['capture_s']:.2f}"]


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
        cells = [found[f"attention, context {context}, batch {batch}, {tokens} tokens"] for tokens in (1, 64)]
        yield [f"{context}, {batch}", *(f"{short(cell['tree_us'])}, {short(cell['packed_us'])}" for cell in cells)]


def live() -> Iterator[Row]:
    """Yield a row per card, type, drafter and temperature, and one of all: cells, errors, intervals that hold."""
    for conditions, (file, part) in LIVE.items():
        found = pieces(part, file)
        by_case = {
            case: [c for n, p in found.items() if n.startswith(f"{case}, batch") for c in p["cells"]]
            for case in (*CASES, "eagle-candidates-t0")
        }
        for case, cells in {**by_case, "all": [cell for some in by_case.values() for cell in some]}.items():
            if not cells:
                continue
            errors = np.abs([cell["error"] for cell in cells])
            step = np.abs([(1 + cell["error"]) / (1 + cell["tau_error"]) - 1 for cell in cells])
            tau = np.abs([cell["tau_error"] for cell in cells])
            held = sum(cell["covered"] for cell in cells)
            shares = map(percent, (errors.mean(), np.median(errors), errors.max(), step.mean(), tau.mean()))
            yield [f"{conditions}: {case}", str(len(cells)), *shares, f"{held} of {len(cells)}"]


def predictions() -> Iterator[Row]:
    """Yield a row per batch size, and one of all: contexts, cells, mean and largest error of the speedup."""
    contexts = [found for name, found in pieces("replayed_8b", "h200").items() if name.startswith("context ")]
    cells = [cell for found in contexts for cell in found["cells"]]
    places = {1: "416, 4000, 16288", 4: "416, 4000", 16: "416, 4000", 64: "416", None: ""}
    for batch, place in places.items():
        errors = np.abs([cell["error"] for cell in cells if batch in (None, cell["batch"])])
        yield [str(batch or "all"), place, str(len(errors)), percent(errors.mean()), percent(errors.max())]


def hugging_face() -> Iterator[Row]:
    """Yield a row per way to decode: tokens per second at batch 1 and 8."""
    one, eight = (pieces("against_hugging_face_8b", "h200")[f"8b, batch {batch}"] for batch in (1, 8))
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


TABLES = {
    table.__name__: table
    for table in (steps, changes, rows, graphs, products, attention, live, predictions, hugging_face)
}
