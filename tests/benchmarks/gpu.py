"""Everything that needs a CUDA device; results as JSON below `--output`, part by part.

Correctness of the loop in fp32, with CUDA graphs and without; profile, trace and validation of the shipped model at
batch 1 to 32; profiles of 1B, 8B and 14B shapes over contexts and what they predict of replayed acceptance at batch 1
to 64; steps of 1B and 8B shapes against the memory-bandwidth limit, with the host's share; the loop against Hugging
Face's; a target and drafters trained there, with their traces.
`--part NAME` runs some parts only; `--device cpu --tiny` runs the same code at toy size.
"""

import argparse
import json
import time
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
from executor.target import Target
from executor.validate import compare
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


def shipped_model(device: str, output: Path, *, tiny: bool) -> dict[str, Any]:
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
    )
    save_profile(profile, output / "profile-shipped.json")
    plan = search(trace, profile, batch=batches, solver_s=0.0)
    cells = compare(target, drafter, plan, fresh, new_tokens=32, stop=[0], blocks=2 if tiny else 4)
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
                timed = Decoder(target, drafter, tree=tree, batch=batch, timed=True, graphs=graphs)
                found = block(timed, prompts, steps=8 if tiny else 48, new_tokens=64)
                step_s = float(np.median([step.draft_s + step.rest_s for step in found]))
                plain_s = plain_s or step_s
                free = Decoder(target, drafter, tree=tree, batch=batch, graphs=graphs)
                cells.append(
                    {
                        "shape": shape,
                        "batch": batch,
                        "tree": name,
                        "tokens": tree.nodes + 1,
                        "step_s": step_s,
                        "over_plain": step_s / plain_s,
                        "share_of_copy_bandwidth": read / step_s / copied,
                        "host_gap": _host_gap(free, prompts[:batch], device),
                        "graph_mib": timed.graph_bytes / 2**20,
                    }
                )
        del model, target, heads
    return {"copy_bandwidth": copied, "cells": cells}


def _host_gap(decoder: Decoder, prompts: list[list[int]], device: str) -> float | None:
    """Share of a run's time in which the device had nothing to do; None where nobody says."""
    if not device.startswith("cuda"):
        return None

    def run() -> float:
        _wait(device)
        started = time.perf_counter()
        for _ in decoder.steps(prompts, new_tokens=64):
            pass
        _wait(device)
        return time.perf_counter() - started

    run()
    wall_s = run()
    with torch_profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run()
    busy_s = sum(event.self_device_time_total for event in profiler.key_averages()) / 1e6
    return 1 - busy_s / wall_s


def against_hugging_face(device: str, *, tiny: bool) -> dict[str, Any]:
    """See bench_executor."""
    cells = []
    for shape in ("toy",) if tiny else ("1b", "8b"):
        for batch in (1,) if tiny else (1, 8):
            cells.append(
                compare_ways(shape, torch.bfloat16, device, batch, rounds=1 if tiny else 3, new=8 if tiny else 64)
            )
            show("bfloat16", cells[-1])
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


def main() -> None:
    """Run all parts; a part that fails is reported and the others go on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--part", action="append", help="Run only this part; may be given more than once.")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    torch.backends.cuda.matmul.allow_tf32 = False
    results: dict[str, Any] = {
        "device": device_name(torch.device(options.device)),
        "provenance": this_run(),
    }
    parts = {
        "correctness": lambda: correctness(options.device, requests=4 if options.tiny else 64),
        "shipped_model": lambda: shipped_model(options.device, options.output, tiny=options.tiny),
        "replayed": lambda: replayed(options.device, options.output, tiny=options.tiny),
        "step_times": lambda: step_times(options.device, tiny=options.tiny),
        "against_hugging_face": lambda: against_hugging_face(options.device, tiny=options.tiny),
        "trained_drafters": lambda: trained_drafters(options.device, options.output / "trained", tiny=options.tiny),
    }
    for name, part in parts.items():
        if options.part and name not in options.part:
            continue
        started = time.perf_counter()
        try:
            results[name] = part()
        except Exception as error:  # noqa: BLE001 - the other parts' results are worth having
            results[name] = {"failed": repr(error)}
        results[name]["seconds"] = round(time.perf_counter() - started, 1)
        write_text(options.output / "gpu.json", json.dumps(results, indent=1) + "\n")
        print(name, json.dumps(results[name]), flush=True)


if __name__ == "__main__":
    main()
