"""Everything that needs a CUDA device; results as JSON below `--output`, part by part.

Correctness of the loop in fp32, with CUDA graphs and without; profile, trace and validation of the shipped model;
profiles of 1B, 8B and 14B shapes over contexts and what they predict of replayed acceptance at batch 1 to 64; steps of
1B and 8B shapes against the memory-bandwidth limit, compiled too; the host's share of them; packed attention against
FlexAttention over contexts; the loop against Hugging Face's; a target and drafters trained there, with their traces.
Each part runs in a process of its own, since a device that failed once answers nothing afterwards. `--part NAME` runs
some parts only; each is meant to end in ten minutes, and what it has found is written down as it goes, so that one that
is stopped loses its last piece alone. `--graphs` takes steps from CUDA graphs where they are profiled and validated;
`--device cpu --tiny` runs the same code at toy size.
"""

import argparse
import gc
import json
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity
from torch.profiler import profile as torch_profile

from executor.checkpoints import load_drafter
from executor.decoding.decoder import Decoder
from executor.drafters.medusa import MedusaHeads
from executor.profiling.measure_steps import measure_profile
from executor.profiling.timed_block import run_block
from executor.prompts.prompt_files import read_prompts
from executor.recording.collect_trace import collect, device_name
from executor.target.load_hf_model import load_target
from executor.target.target_model import Target
from executor.target.tokenizer import load_tokenizer
from executor.validation.compare_live import Requests, compare, runs_of
from simulate.model_sizes.model_shape import Shape
from simulate.profiles.profile import save_profile
from simulate.validation.end_to_end import whole_runs
from simulate.validation.predicted_vs_measured import comparison_record
from tests.benchmarks.bench_executor import compare_ways, models, show
from tests.benchmarks.gpu_drafters import trained_drafters
from tests.benchmarks.gpu_replay import PLACES, TINY, Keep, replayed
from treeopt.planning.held_out_split import hold_out
from treeopt.planning.search_pipeline import search
from treeopt.storage.atomic_files import shipped, write_text
from treeopt.storage.provenance import this_run
from treeopt.traces.trace import save_trace
from treeopt.tree import EMPTY, Tree
from treeopt.tree_files.paper_trees import EAGLE, MEDUSA, published_trees

BEGINNING = 4  # steps of a run that are not looked at
PROMPT, NEW = 360, 64  # tokens; with a tree and a step that is read late they end within 512, so that one graph does
HOST_GAP_S = 5e-6  # an idle device waits for the host that long or longer, between kernels of a graph less


def correctness(device: str, *, requests: int) -> dict[str, Any]:
    """Greedy output of trees against Hugging Face `generate`, token for token, in fp32."""
    target, drafter, tokens = _shipped_models(device, 1000, requests)
    due = []
    for prompt in tokens:
        ids = torch.tensor([prompt], device=device)
        out = target.model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=32)
        due.append(out[0, len(prompt) :].tolist())
    stop = [target.model.config.eos_token_id]
    equal = {}
    for name, tree in _trees().items():
        for batch in (1, 4):
            for graphs in (False, True) if device.startswith("cuda") else (False,):
                decoder = Decoder(target, drafter, tree=tree, batch=batch, graphs=graphs)
                found = decoder.generate(tokens, new_tokens=32, stop=stop)
                equal[f"{name}, batch {batch}{', graphs' if graphs else ''}"] = sum(
                    list(g.tokens) == d for g, d in zip(found, due, strict=True)
                )
    return {"requests": requests, "equal_to_generate": equal}


def shipped_model(device: str, output: Path, keep: Keep, *, graphs: bool, tiny: bool) -> dict[str, Any]:
    """Trace, profile and validation of the shipped model."""
    batches = (1, 2) if tiny else (1, 4, 16, 32)
    requests = 40 if tiny else 600
    target, drafter, tokens = _shipped_models(device, 0, requests)
    prompts = read_prompts(shipped("prompts/stdlib.jsonl"))[:requests]
    trace = collect(target, drafter, prompts, tokens, new_tokens=32, width=16, stop=[0], batch=32)
    save_trace(trace, output / "trace.npz")
    keep({"anchors": trace.anchors})
    fresh = _shipped_models(device, 1000, 24 if tiny else 160)[2]
    profile = measure_profile(
        target,
        drafter,
        fresh,
        batches=batches,
        new_tokens=32,
        rounds=2 if tiny else 4,
        steps=4 if tiny else 12,
        graphs=graphs,
        budget_s=None if tiny else 120.0,
    )
    save_profile(profile, output / "profile-shipped.json")
    plan = search(trace, profile, batch=batches, solver_work=0.0)
    asked = Requests(fresh, 32, [0], graphs=graphs)
    whole = whole_runs(plan, hold_out(trace)[1], profile, runs_of(target, plan, asked, blocks=2))
    record = comparison_record(compare(target, drafter, plan, asked, blocks=2, whole=whole))
    write_text(output / "validation.json", json.dumps(record, indent=1) + "\n")
    return {name: record[name] for name in ("mean_error", "max_error", "end_to_end")}


def step_times(device: str, keep: Keep, *, tiny: bool) -> dict[str, Any]:
    """Plain steps and steps of 64 tokens: seconds, share of copy bandwidth, graphs' memory; compiled too at batch 1."""
    found: dict[str, Any] = {"copy_bandwidth": _copy_bandwidth(device, 2**22 if tiny else 2**32), "cells": []}
    for shape in ("toy",) if tiny else ("1b", "8b"):
        target, heads, prompts = _shaped(shape, device, tiny=tiny)
        batches = (1, 2) if tiny else (1, 4, 16, 32)
        for batch, compiled in (*((batch, False) for batch in batches), (1, True)):
            if compiled:  # for each shape and view anew, which takes long: at one batch size, when all else is done
                target.compile()
            cells = _times(target, heads, prompts, batch, found["copy_bandwidth"], tiny=tiny)
            found["cells"] += [cell | {"compiled": compiled} for cell in cells]
            keep(found)
        del target, heads
        _tidied(device)
    return found


def _shaped(shape: str, device: str, *, tiny: bool) -> tuple[Target, MedusaHeads, list[list[int]]]:
    """A target of this shape, heads and prompts."""
    target = Target(models(shape, torch.bfloat16, device)[0], name=shape)
    heads = MedusaHeads(5, target.hidden).to(device, torch.bfloat16).eval().requires_grad_(False)
    rng = np.random.default_rng(0)
    return target, heads, [rng.integers(0, target.vocabulary, 64 if tiny else PROMPT).tolist() for _ in range(32)]


def _ways() -> dict[str, Tree]:
    return {"plain": EMPTY, "Medusa": published_trees()[MEDUSA]}


def _times(
    target: Target, heads: MedusaHeads, prompts: list[list[int]], batch: int, copied: float, *, tiny: bool
) -> list[dict[str, Any]]:
    """A plain step's cell, and that of a tree; verification alone is held against a plain step's, drafting apart."""
    read = 2 * Shape.from_config(target.model.config.to_dict()).step_parameters
    cells: list[dict[str, Any]] = []
    for name, tree in _ways().items():
        graphs = target.device.type == "cuda"
        decoder = Decoder(target, heads if tree.nodes else None, tree=tree, batch=batch, graphs=graphs)
        steps = run_block(decoder, prompts, steps=8 if tiny else 48, new_tokens=NEW)
        draft_s, rest_s = (float(np.median([getattr(step, part) for step in steps])) for part in ("draft_s", "rest_s"))
        plain_s = cells[0]["draft_s"] + cells[0]["rest_s"] if cells else draft_s + rest_s
        cells.append(
            {
                "shape": target.name,
                "batch": batch,
                "tree": name,
                "tokens": tree.nodes + 1,
                "draft_s": draft_s,
                "rest_s": rest_s,
                "rest_over_plain": rest_s / plain_s,
                "over_plain": (draft_s + rest_s) / plain_s,
                "share_of_copy_bandwidth": read / rest_s / copied,
                "graph_mib": decoder.graph_bytes / 2**20,
            }
        )
    return cells


def host_gaps(device: str, keep: Keep, *, tiny: bool) -> dict[str, Any]:
    """Shares of the steps' time in which the device had nothing to do, and in which it waited for the host.

    A part of its own: once there was a profiler, steps go on being slower.
    """
    found: dict[str, Any] = {"waits_from_s": HOST_GAP_S, "cells": []}
    for shape in ("toy",) if tiny else ("1b", "8b"):
        target, heads, prompts = _shaped(shape, device, tiny=tiny)
        for batch in (1, 2) if tiny else (1, 16):
            for name, tree in _ways().items():
                graphs = target.device.type == "cuda"
                decoder = Decoder(target, heads if tree.nodes else None, tree=tree, batch=batch, graphs=graphs)
                idle, waits = _idle(decoder, prompts[:batch], device)
                cell = {"shape": shape, "batch": batch, "tree": name, "idle": idle, "waits_for_host": waits}
                found["cells"].append(cell)
                keep(found)
        del target, heads, decoder
        _tidied(device)
    return found


def _idle(decoder: Decoder, prompts: list[list[int]], device: str) -> tuple[float | None, float | None]:
    """Share of the time from the first kernel to the last that lies between kernels, all and in long gaps."""
    steps = decoder.steps(prompts, new_tokens=NEW)
    for _ in islice(steps, BEGINNING):  # prefill, and the captures of graphs
        pass
    if not device.startswith("cuda"):  # nobody says
        for _ in steps:
            pass
        return None, None
    _wait(device)
    with torch_profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in steps:
            pass
        _wait(device)
    spans = sorted(
        (e.time_range.start, e.time_range.end) for e in profiler.events() if e.device_type == DeviceType.CUDA
    )
    gaps, last = [], spans[0][1]
    for start, end in spans:
        gaps.append(max(0.0, start - last))
        last = max(last, end)
    long = [gap for gap in gaps if gap >= HOST_GAP_S * 1e6]
    return sum(gaps) / (last - spans[0][0]), sum(long) / (last - spans[0][0])


def attention(shape: str, device: str, keep: Keep, *, tiny: bool) -> dict[str, Any]:
    """Verification with packed attention and with FlexAttention, over contexts: plain steps, and trees of 64 tokens."""
    found: dict[str, Any] = {"cells": []}
    model, _ = models(shape, torch.bfloat16, device)
    graphs, rng = device.startswith("cuda"), np.random.default_rng(0)
    for context, batches in (TINY if tiny else PLACES).items():
        for batch in dict.fromkeys((batches[0], batches[-1])):
            cell: dict[str, Any] = {"shape": shape, "context": context, "batch": batch}
            for kind in ("packed", "flex"):
                target = Target(model, name=shape, attention=kind)
                heads = MedusaHeads(5, target.hidden).to(device, torch.bfloat16).eval().requires_grad_(False)
                prompts = [rng.integers(0, target.vocabulary, context).tolist()] * batch
                for name, tree in _ways().items():
                    decoder = Decoder(target, heads if tree.nodes else None, tree=tree, batch=batch, graphs=graphs)
                    steps = run_block(decoder, prompts, steps=4 if tiny else 24, new_tokens=NEW)
                    cell[f"{name}, {kind}"] = float(np.median([step.rest_s for step in steps]))
                del target, heads, decoder
                _tidied(device)
            found["cells"].append(cell)
            keep(found)
    return found


def _tidied(device: str) -> None:
    """Let go of what nobody holds: models are parts of cycles."""
    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.empty_cache()


def against_hugging_face(shape: str, device: str, keep: Keep, *, tiny: bool) -> dict[str, Any]:
    """See bench_executor."""
    found: dict[str, Any] = {"cells": []}
    for batch in (1,) if tiny else (1, 8):
        rounds, new = (1, 8) if tiny else (3, 64)
        found["cells"].append(compare_ways(shape, torch.bfloat16, device, batch, rounds=rounds, new=new))
        show("bfloat16", found["cells"][-1])
        keep(found)
        _tidied(device)
        torch._dynamo.reset()  # or the next batch size would be compiled for any
    return found


def _copy_bandwidth(device: str, size: int) -> float:
    """Bytes a second, read and written, of a large copy."""
    source = torch.empty(size, dtype=torch.uint8, device=device).random_()
    goal = torch.empty_like(source)
    best = float("inf")
    for _ in range(10):
        _wait(device)
        started = time.perf_counter()
        goal.copy_(source)
        _wait(device)
        best = min(best, time.perf_counter() - started)
    return 2 * size / best


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def _trees() -> dict[str, Tree]:
    trees = published_trees()
    return {"chain": Tree.chain(4), "Medusa": trees[MEDUSA], "EAGLE-1": trees[EAGLE]}


def _shipped_models(device: str, skip: int, requests: int) -> tuple[Target, MedusaHeads, list[list[int]]]:
    target = load_target(shipped("models/stdlib-llama"), device=device)
    drafter = load_drafter(shipped("models/stdlib-medusa"), target)
    texts = [p.text for p in read_prompts(shipped("prompts/stdlib.jsonl"))[skip : skip + requests]]
    return (
        target,
        drafter,
        load_tokenizer(shipped("models/stdlib-llama"), vocabulary=target.vocabulary)(texts)["input_ids"],
    )


def _replayed(shape: str, o: argparse.Namespace, keep: Keep) -> dict[str, Any]:
    return replayed("toy" if o.tiny else shape, o.device, o.output, keep, graphs=o.graphs, tiny=o.tiny)


def _against(shape: str, o: argparse.Namespace, keep: Keep) -> dict[str, Any]:
    return against_hugging_face("toy" if o.tiny else shape, o.device, keep, tiny=o.tiny)


PARTS: dict[str, Callable[[argparse.Namespace, Keep], dict[str, Any]]] = {
    "correctness": lambda o, keep: correctness(o.device, requests=4 if o.tiny else 64),
    "step_times": lambda o, keep: step_times(o.device, keep, tiny=o.tiny),
    "host_gaps": lambda o, keep: host_gaps(o.device, keep, tiny=o.tiny),
    "attention": lambda o, keep: attention("toy" if o.tiny else "8b", o.device, keep, tiny=o.tiny),
    "shipped_model": lambda o, keep: shipped_model(o.device, o.output, keep, graphs=o.graphs, tiny=o.tiny),
    **{f"replayed_{shape}": partial(_replayed, shape) for shape in ("1b", "8b", "14b")},
    **{f"against_hugging_face_{shape}": partial(_against, shape) for shape in ("1b", "8b")},
    "trained_drafters": lambda o, keep: trained_drafters(o.device, o.output / "trained", keep, tiny=o.tiny),
}


def main() -> None:
    """Run all parts; a part that fails is reported and the others go on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument(
        "--graphs", action=argparse.BooleanOptionalAction, help="Steps as CUDA graphs; default on CUDA alone."
    )
    parser.add_argument("--limit-s", type=float, help="Seconds after which a part is given up; of several parts.")
    parser.add_argument(
        "--part", action="append", choices=PARTS, help="Run only this part; may be given more than once."
    )
    options = parser.parse_args()
    if options.graphs is None:
        options.graphs = options.device.startswith("cuda")
    options.output.mkdir(parents=True, exist_ok=True)
    parts = options.part or list(PARTS)
    if len(parts) == 1:
        found = _run(options, parts[0])
        _keep(options, parts[0], found)
        sys.exit("failed" in found)
    flags = ["--graphs" if options.graphs else "--no-graphs", *(["--tiny"] if options.tiny else [])]
    for part in parts:
        words = ["--output", str(options.output), "--device", options.device, *flags, "--part", part]
        try:
            subprocess.run([sys.executable, "-m", __spec__.name, *words], check=True, timeout=options.limit_s)
        except subprocess.CalledProcessError as error:
            _failed(options, part, f"exit code {error.returncode}")
        except subprocess.TimeoutExpired:
            _failed(options, part, f"not done in {options.limit_s:g} s")


def _run(options: argparse.Namespace, part: str) -> dict[str, Any]:
    """A part's results and their conditions, which are asked for before: a device that failed tells nothing."""
    conditions = {"device": device_name(torch.device(options.device)), "provenance": this_run()}
    torch.backends.cuda.matmul.allow_tf32 = False
    started = time.perf_counter()
    so_far: dict[str, Any] = {}

    def keep(found: Mapping[str, Any]) -> None:
        so_far.update(found)
        _keep(
            options, part, so_far | {"seconds": round(time.perf_counter() - started, 1), "under_way": True} | conditions
        )

    try:
        found = PARTS[part](options, keep)
    except Exception:  # noqa: BLE001 - what was found before is worth having
        found = so_far | {"failed": traceback.format_exc()}
    return found | {"seconds": round(time.perf_counter() - started, 1)} | conditions


def _results(options: argparse.Namespace) -> dict[str, Any]:
    path = options.output / "gpu.json"
    return json.loads(path.read_text("utf-8")) if path.exists() else {}


def _keep(options: argparse.Namespace, part: str, found: dict[str, Any]) -> None:
    """Add a part's results to those that are there."""
    write_text(options.output / "gpu.json", json.dumps(_results(options) | {part: found}, indent=1) + "\n")
    print(part, json.dumps(found), flush=True)


def _failed(options: argparse.Namespace, part: str, why: str) -> None:
    """Note that a part's process did not end well, beside what it left."""
    left = _results(options).get(part, {})
    _keep(options, part, {"failed": why} | left)


if __name__ == "__main__":
    main()
