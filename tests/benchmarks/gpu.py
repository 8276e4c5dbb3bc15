"""Everything that needs a CUDA device; results as JSON below `--output`, part by part.

Correctness of the loop in fp32, with CUDA graphs and without; profile, trace and validation of the shipped model at
batch 1 to 32; profiles of 1B, 8B and 14B shapes over contexts and what they predict of replayed acceptance at batch 1
to 64; steps of 1B and 8B shapes against the memory-bandwidth limit, with the host's share; the loop against Hugging
Face's; a target and drafters trained there, with their traces.
Each part runs in a process of its own, since a device that failed once answers nothing afterwards. `--part NAME` runs
some parts only; each is meant to end in ten minutes; `--graphs` takes steps from CUDA graphs where they are profiled
and validated; `--device cpu --tiny` runs the same code at toy size.
"""

import argparse
import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity
from torch.profiler import profile as torch_profile

from executor.blocks import block
from executor.checkpoints import load_drafter
from executor.decode import Decoder
from executor.drafters.medusa import MedusaHeads
from executor.loading import load_target, load_tokenizer
from executor.measure import measure_profile
from executor.prompts import read_prompts
from executor.record import collect, device_name
from executor.steps import Step
from executor.target import Target
from executor.validate import Requests, compare
from simulate.agreement import comparison_record
from simulate.profile import save_profile
from simulate.shapes import Shape
from tests.benchmarks.bench_executor import compare_ways, models, show
from tests.benchmarks.gpu_drafters import trained_drafters
from tests.benchmarks.gpu_replay import replayed
from treeopt.files import shipped, write_text
from treeopt.optimize import search
from treeopt.provenance import this_run
from treeopt.published import EAGLE, MEDUSA, published_trees
from treeopt.trace import save_trace
from treeopt.tree import Tree

BEGINNING = 4  # steps of a run that are not looked at


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


def shipped_model(device: str, output: Path, *, graphs: bool, tiny: bool) -> dict[str, Any]:
    """Trace, profile and validation of the shipped model."""
    batches = (1, 2) if tiny else (1, 2, 4, 8, 16, 32)
    requests = 40 if tiny else 600
    target, drafter, tokens = _shipped_models(device, 0, requests)
    prompts = read_prompts(shipped("prompts/stdlib.jsonl"))[:requests]
    trace = collect(target, drafter, prompts, tokens, new_tokens=32, width=16, stop=[0], batch=32)
    save_trace(trace, output / "trace.npz")
    fresh = _shipped_models(device, 1000, 24 if tiny else 300)[2]
    profile = measure_profile(
        target,
        drafter,
        fresh,
        batches=batches,
        new_tokens=32,
        rounds=2 if tiny else 4,
        steps=4 if tiny else 12,
        graphs=graphs,
    )
    save_profile(profile, output / "profile-shipped.json")
    plan = search(trace, profile, batch=batches, solver_work=0.0)
    cells = compare(target, drafter, plan, Requests(fresh, 32, [0], graphs=graphs), blocks=2 if tiny else 4)
    record = comparison_record(cells)
    write_text(output / "validation.json", json.dumps(record, indent=1) + "\n")
    return {"mean_error": record["mean_error"], "max_error": record["max_error"]}


def step_times(device: str, *, tiny: bool) -> dict[str, Any]:
    """Plain steps and steps of 64 tokens: seconds, share of copy bandwidth, share of the host, memory of graphs."""
    graphs = device.startswith("cuda")
    copied = _copy_bandwidth(device, 2**22 if tiny else 2**32)
    cells = []
    for shape in ("toy",) if tiny else ("1b", "8b"):
        model, _ = models(shape, torch.bfloat16, device)
        target = Target(model, name=shape)
        heads = MedusaHeads(5, target.hidden).to(device, torch.bfloat16).eval().requires_grad_(False)
        rng = np.random.default_rng(0)
        prompts = [rng.integers(0, target.vocabulary, 64 if tiny else 512).tolist() for _ in range(32)]
        read = 2 * Shape.from_config(model.config.to_dict()).step_parameters
        for batch in (1, 2) if tiny else (1, 4, 16, 32):
            plain_s = None
            for name, tree in {"plain": Tree((), ()), "Medusa": published_trees()[MEDUSA]}.items():
                drafter = heads if tree.nodes else None
                decoder = Decoder(target, drafter, tree=tree, batch=batch, graphs=graphs)
                found = block(decoder, prompts, steps=8 if tiny else 48, new_tokens=64)
                step_s = float(np.median([step.draft_s + step.rest_s for step in found]))
                plain_s = plain_s or step_s
                cells.append(
                    {
                        "shape": shape,
                        "batch": batch,
                        "tree": name,
                        "tokens": tree.nodes + 1,
                        "step_s": step_s,
                        "over_plain": step_s / plain_s,
                        "share_of_copy_bandwidth": read / step_s / copied,
                        "graph_mib": decoder.graph_bytes / 2**20,
                        "host_gap": _host_gap(decoder, prompts[:batch], device),
                    }
                )
        del model, target, heads
        gc.collect()  # models are parts of cycles
    return {"copy_bandwidth": copied, "cells": cells}


def _host_gap(decoder: Decoder, prompts: list[list[int]], device: str) -> float | None:
    """Share of the steps' time in which the device had nothing to do; None where nobody says."""
    if not device.startswith("cuda"):
        return None

    def seconds(steps: Iterator[Step]) -> float:
        return sum(step.draft_s + step.rest_s for step in steps)

    wall_s = seconds(islice(decoder.steps(prompts, new_tokens=64), BEGINNING, None))
    steps = decoder.steps(prompts, new_tokens=64)
    for _ in islice(steps, BEGINNING):  # prefill, and the captures of graphs
        pass
    _wait(device)
    with torch_profile(activities=[ProfilerActivity.CUDA]) as profiler:
        seconds(steps)  # the first is under way already; in its place one is seen that is begun after the last
        _wait(device)
    busy_s = sum(event.self_device_time_total for event in profiler.key_averages()) / 1e6
    return 1 - busy_s / wall_s


def against_hugging_face(shape: str, device: str, *, tiny: bool) -> dict[str, Any]:
    """See bench_executor."""
    cells = []
    for batch in (1,) if tiny else (1, 8):
        cells.append(compare_ways(shape, torch.bfloat16, device, batch, rounds=1 if tiny else 3, new=8 if tiny else 64))
        show("bfloat16", cells[-1])
        gc.collect()
    return {"cells": cells}


def _copy_bandwidth(device: str, size: int) -> float:
    """Bytes a second, read and written, of a large copy."""
    source = torch.empty(size, dtype=torch.uint8, device=device)
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


def _replayed(shape: str, o: argparse.Namespace) -> dict[str, Any]:
    return replayed("toy" if o.tiny else shape, o.device, o.output, graphs=o.graphs, tiny=o.tiny)


def _against(shape: str, o: argparse.Namespace) -> dict[str, Any]:
    return against_hugging_face("toy" if o.tiny else shape, o.device, tiny=o.tiny)


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "correctness": lambda o: correctness(o.device, requests=4 if o.tiny else 64),
    "step_times": lambda o: step_times(o.device, tiny=o.tiny),
    "shipped_model": lambda o: shipped_model(o.device, o.output, graphs=o.graphs, tiny=o.tiny),
    **{f"replayed_{shape}": partial(_replayed, shape) for shape in ("1b", "8b", "14b")},
    **{f"against_hugging_face_{shape}": partial(_against, shape) for shape in ("1b", "8b")},
    "trained_drafters": lambda o: trained_drafters(o.device, o.output / "trained", tiny=o.tiny),
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
        _keep(options, parts[0], _run(options, parts[0]))
        return
    flags = ["--graphs" if options.graphs else "--no-graphs", *(["--tiny"] if options.tiny else [])]
    for part in parts:
        words = ["--output", str(options.output), "--device", options.device, *flags, "--part", part]
        try:
            subprocess.run([sys.executable, "-m", __spec__.name, *words], check=True, timeout=options.limit_s)
        except subprocess.CalledProcessError as error:
            _keep(options, part, {"failed": f"exit code {error.returncode}"})
        except subprocess.TimeoutExpired:
            _keep(options, part, {"failed": f"not done in {options.limit_s:g} s"})


def _run(options: argparse.Namespace, part: str) -> dict[str, Any]:
    """A part's results and their conditions, which are asked for before: a device that failed tells nothing."""
    conditions = {"device": device_name(torch.device(options.device)), "provenance": this_run()}
    torch.backends.cuda.matmul.allow_tf32 = False
    started = time.perf_counter()
    try:
        found = PARTS[part](options)
    except Exception as error:  # noqa: BLE001 - the other parts' results are worth having
        found = {"failed": repr(error)}
    return found | {"seconds": round(time.perf_counter() - started, 1)} | conditions


def _keep(options: argparse.Namespace, part: str, found: dict[str, Any]) -> None:
    """Add a part's results to those that are there."""
    path = options.output / "gpu.json"
    results: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    write_text(path, json.dumps(results | {part: found}, indent=1) + "\n")
    print(part, json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
