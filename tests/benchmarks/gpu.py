"""Everything that needs a CUDA device, in about seven minutes of an H200; results as they come, below `--output`.

The parts, in this order, each with a limit of its own:

* `rates`: kernels compiled by all cores at once, then the rates of a copy and of a product
* `checks`: kernels against float64, and replays of a graph against each other
* `steps`: whole steps of 1B and 8B shapes against copy bandwidth, plain, with a chain and with a tree
* `live`: the shipped target with its drafters: profiles, predictions with a hash, then the measurement
* `rows`: what 64 to 4096 rows of the 8B shape take
* `kernels`: the fused kernels one by one against libraries
* `graphs`: steps with CUDA graphs and without, and the seconds of capturing
* `equality`: texts in fp32 against those of `generate`, and margins in bfloat16

With `--total-s` a part is begun only if its whole limit is left: the last parts are left out first. Each part has a
process of its own, since a device that failed once answers nothing afterwards; it is forked: imports are paid once.

Pieces that `--output` holds are not computed again, so a call that was stopped is repeated, and resumes.
`--archive results.zip` packs all files; the next call reads it. `--device cpu --tiny` runs the same code at toy size.
"""

import argparse
import gc
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers.utils import logging

from executor.checkpoints import load_drafter
from executor.decoding.decoder import Decoder
from executor.decoding.self_test import Audit, audit_text
from executor.drafters.base.drafter import Drafter
from executor.drafters.medusa.drafter import MedusaHeads
from executor.models import device_name, random_target
from executor.profiling.timed_blocks import run_block
from executor.prompts.prompt_files import read_prompts
from executor.target import fused_verification
from executor.target.load_hf_model import load_target
from executor.target.target_model import Target
from executor.target.tokenizer import load_tokenizer
from simulate.model_sizes.model_shape import Shape
from tests.benchmarks.gpu_live import live
from tests.benchmarks.gpu_pieces import OtherDeviceError, OutOfTimeError, Pieces, results, unpack, write_part
from treeopt.storage.provenance import this_run
from treeopt.storage.user_files import shipped
from treeopt.tree import EMPTY, Tree
from treeopt.tree_files.choice_lists import MEDUSA, published_trees

PROMPT, NEW = 360, 64  # tokens; with a tree and a step that is read late they end within 512, so that one graph does
FORK = multiprocessing.get_context("fork")
Models = tuple[Target, Drafter, list[list[int]]]
DRAFTERS = ("eagle3", "dflash", "mtp", "p-eagle", "eagle", "hydra", "hydra-plus", "llama", "suffix:4", "prompt-lookup")
WAYS = {"plain": EMPTY, "chain": Tree.chain(3), "Medusa": published_trees()[MEDUSA]}


def rates(o: argparse.Namespace, pieces: Pieces) -> None:
    """Compile kernels, on all cores; then measure bytes a second of a copy, and FLOP a second of a product."""
    if kernels_run(o, pieces):
        from tests.benchmarks.gpu_kernels import compiled

        pieces.piece("compiled", lambda: compiled(o.pool, o.device, pieces.seconds_left() - 4, tiny=o.tiny))
        o.pool.terminate()  # its processes would take part of the device
    pieces.piece("copy bandwidth", lambda: copy_rate(o))
    pieces.piece("product", lambda: product_rate(o.device, 64 if o.tiny else 8192))


def checks(o: argparse.Namespace, pieces: Pieces) -> None:
    """Compare kernels with float64, on all cores, and replays of a graph with each other."""
    if kernels_run(o, pieces):
        from tests.benchmarks.gpu_kernels import fuzzed, replays

        for rows in (4,) if o.tiny else (1, 4, 64, 128):
            pieces.piece(f"replays, {rows} rows", partial(replays, rows, o.device, tiny=o.tiny))
        pieces.piece("against float64", lambda: fuzzed(o.pool, o.device, pieces.seconds_left() - 2, tiny=o.tiny))


def steps(o: argparse.Namespace, pieces: Pieces) -> None:
    """Measure plain steps, chains and 64 tokens: seconds and share of copy bandwidth; batch 1 unfused too."""
    copied = pieces.piece("copy bandwidth", lambda: copy_rate(o))
    for shape in ("toy",) if o.tiny else ("1b", "8b"):
        with shaped(shape, o) as load:
            for batch in (1, 2) if o.tiny else (1, 4, 16):
                pieces.piece(f"{shape}, batch {batch}", lambda b=batch, load=load: times(*load(), b, copied, o))

            def unfused(load: Callable[[], Models] = load) -> dict[str, Any]:
                target, heads, prompts = load()
                return times(Target(target.model, name=target.name), heads, prompts, 1, copied, o)

            def check(load: Callable[[], Models] = load) -> dict[str, Any]:
                target, begun = load()[0], time.monotonic()
                fused_verification.fuse(target)
                return {"s": time.monotonic() - begun, "reason": target.fused_reason}

            pieces.piece(f"{shape}, batch 1, unfused", unfused)
            pieces.piece(f"{shape}, check at load", check)


def graphs(o: argparse.Namespace, pieces: Pieces) -> None:
    """Measure steps without CUDA graphs and with them, and the seconds of each capture."""
    copied = pieces.piece("copy bandwidth", lambda: copy_rate(o))

    def cell(load: Callable[[], Models], batch: int, on: bool) -> dict[str, Any]:
        return times(*load(), batch, copied, o, graphs=on)

    for shape in ("toy",) if o.tiny else ("1b", "8b"):
        with shaped(shape, o) as load:
            for batch, on in product((1,) if o.tiny else (1, 16), (False, True) if o.graphs else (False,)):
                name = f"{shape}, batch {batch}{', graphs' if on else ''}"
                pieces.piece(name, partial(cell, load, batch, on))


def equality(o: argparse.Namespace, pieces: Pieces) -> None:
    """Compare greedy texts of drafters with Hugging Face's `generate`, in fp32; audit Medusa's in bfloat16."""
    requests = 2 if o.tiny else 16

    @cache
    def expected() -> list[list[int]]:
        target, _, tokens = shipped_models(o.device, "medusa", requests)
        texts = []
        for prompt in tokens:
            ids = torch.tensor([prompt], device=o.device)
            out = target.model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=32)
            texts.append(out[0, len(prompt) :].tolist())
        return texts

    def written(models: Models, tree: Tree, batch: int, graphs: bool) -> list[list[int]]:
        target, drafter, tokens = models
        decoder = Decoder(target, drafter, tree=tree, batch=batch, graphs=graphs)
        return [list(g.tokens) for g in decoder.generate(tokens, new_tokens=32, stop=[0])]

    def equal(name: str, batch: int, graphs: bool, fused: bool, kind: str = "medusa") -> dict[str, int]:
        target, drafter, tokens = shipped_models(o.device, kind, requests)
        assert target.fused is not None or not fused, target.fused_reason
        verifier = target if fused else Target(target.model, name=target.name)
        found = written((verifier, drafter, tokens), WAYS[name], batch, graphs)
        return {"requests": requests, "equal_to_generate": sum(map(list.__eq__, found, expected()))}

    def margins(name: str, batch: int) -> dict[str, Any]:
        target, drafter, tokens = shipped_models(o.device, "medusa", requests, dtype="bfloat16")
        texts = written((target, drafter, tokens), WAYS[name], batch, o.graphs)
        audits = [audit_text(target, prompt, text) for prompt, text in zip(tokens, texts, strict=True)]
        return vars(Audit.total(audits)) | {"fused": target.fused is not None}

    on_cuda = o.device.startswith("cuda")
    for name, batch in (("chain", 4), ("Medusa", 1)):
        for graphs, fused in ((True, True), (False, True), (True, False)) if on_cuda else ((False, False),):
            label = f"{name}, batch {batch}{', graphs' if graphs else ''}{', fused' if fused else ''}"
            pieces.piece(label, partial(equal, name, batch, graphs, fused))
    for kind in DRAFTERS[: 2 if o.tiny else None]:
        pieces.piece(f"chain, batch 4, {kind}", partial(equal, "chain", 4, o.graphs, on_cuda, kind))
    for name, batch in (("chain", 4), ("Medusa", 1)):
        pieces.piece(f"{name}, batch {batch}, bfloat16", partial(margins, name, batch))


def rows(o: argparse.Namespace, pieces: Pieces) -> None:
    """Time 64 to 4096 rows of the 8B shape."""
    if kernels_run(o, pieces):
        from tests.benchmarks.gpu_kernels import many_rows

        with shaped("toy" if o.tiny else "8b", o) as load:
            many_rows(lambda: load()[0], o.device, pieces, tiny=o.tiny)


def kernels(o: argparse.Namespace, pieces: Pieces) -> None:
    """Time the fused kernels one by one."""
    if kernels_run(o, pieces):
        from tests.benchmarks.gpu_kernels import one_by_one

        one_by_one(o.device, pieces, tiny=o.tiny)


def live_part(o: argparse.Namespace, pieces: Pieces) -> None:
    """Compare predicted speedups of the shipped target with measured ones."""
    live(partial(shipped_models, o.device), pieces, graphs=o.graphs, tiny=o.tiny, longer=o.longer)


# --- what parts share


def times(
    target: Target,
    heads: Drafter,
    prompts: list[list[int]],
    batch: int,
    copied: float,
    o: argparse.Namespace,
    *,
    graphs: bool | None = None,
) -> dict[str, Any]:
    """Return medians over the steps of alternating rounds."""
    read = 2 * Shape.from_config(target.model.config.to_dict()).step_parameters
    graphs = o.graphs if graphs is None else graphs
    decoders = {name: Decoder(target, heads, tree=tree, batch=batch, graphs=graphs) for name, tree in WAYS.items()}
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in WAYS}
    with target.keeping_prompts():
        for turn in range(2 if o.tiny else 3):
            for name in sorted(WAYS, reverse=turn % 2 == 1):
                block = run_block(decoders[name], prompts, steps=2 if o.tiny else 16, new_tokens=NEW)
                taken[name] += [(step.draft_s, step.rest_s) for step in block]
    middle = {name: np.median(seconds, axis=0).tolist() for name, seconds in taken.items()}
    plain_s = sum(middle["plain"])
    cells = [
        {
            "tree": name,
            "draft_s": draft_s,
            "rest_s": rest_s,
            "over_plain": (draft_s + rest_s) / plain_s,
            "share_of_copy_bandwidth": read / rest_s / copied,
            "graph_mib": decoders[name].graph_bytes / 2**20,
            "capture_s": decoders[name].capture_s,
        }
        for name, (draft_s, rest_s) in middle.items()
    ]
    headline = {f"{cell['tree']}_ms": 1e3 * cell["rest_s"] for cell in cells}
    share = cells[0]["share_of_copy_bandwidth"]
    headline |= {"plain_share": share, "capture_s": sum(cell["capture_s"] for cell in cells)}
    return headline | {"fused": target.fused is not None, "cells": cells}


@contextmanager
def shaped(shape: str, o: argparse.Namespace) -> Iterator[Callable[[], Models]]:
    """Give what loads, once, a target of random weights, heads and prompts; let go of them at the end."""

    @cache
    def load() -> Models:
        dtype = torch.float32 if o.tiny else torch.bfloat16  # which Triton's interpreter multiplies wrongly
        target = random_target(shape, dtype=dtype, device=o.device)
        if fused_verification.DEVICE in o.device and fused_verification.device_refusal(target.device) is None:
            from executor.kernels.fused_forward import FusedForward

            target.fused = FusedForward(target.model.get_decoder())  # the check at load is timed apart
        heads = MedusaHeads(5, target.hidden).to(o.device, dtype).eval().requires_grad_(False)
        rng = np.random.default_rng(0)
        return target, heads, rng.integers(0, target.vocabulary, (32, 64 if o.tiny else PROMPT)).tolist()

    yield load
    load.cache_clear()
    gc.collect()  # models are parts of cycles
    if o.device.startswith("cuda"):
        torch.cuda.empty_cache()


@cache
def shipped_target(device: str, dtype: str) -> Target:
    """Load the shipped target, once in a process."""
    return load_target(shipped("models/stdlib-llama"), device=device, dtype=dtype, packed=True)


def shipped_models(device: str, drafter: str, requests: int, *, dtype: str = "float32") -> Models:
    """Load the shipped target with a drafter, and prompts that no trace holds."""
    target = shipped_target(device, dtype)
    texts = [p.text for p in read_prompts(shipped("prompts/stdlib.jsonl"))[1000 : 1000 + requests]]
    tokenizer = load_tokenizer(shipped("models/stdlib-llama"), vocabulary=target.vocabulary)
    path = shipped(f"models/stdlib-{drafter}")
    return target, load_drafter(path if path.exists() else drafter, target), tokenizer(texts)["input_ids"]


def copy_rate(o: argparse.Namespace) -> float:
    """Return bytes a second, read and written, of a large copy."""
    size = 2**22 if o.tiny else 2**32
    source = torch.empty(size, dtype=torch.uint8, device=o.device).random_()
    goal = torch.empty_like(source)
    return 2 * size / best_s(lambda: goal.copy_(source), o.device)


def product_rate(device: str, size: int) -> float:
    """Return FLOP a second of a square product of random bfloat16 numbers."""
    left, right = (torch.randn(size, size, dtype=torch.bfloat16, device=device) for _ in range(2))
    return 2 * size**3 / best_s(lambda: left @ right, device)


def best_s(work: Callable[[], Any], device: str) -> float:
    """Return the least seconds of ten turns."""
    seconds = []
    for _ in range(10):
        started = time.perf_counter()
        work()
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def kernels_run(o: argparse.Namespace, pieces: Pieces) -> bool:
    """Return whether fused kernels are used on the device; note why not."""
    reason = fused_verification.device_refusal(torch.device(o.device))
    if not o.device.startswith("cuda") and os.environ.get("TRITON_INTERPRET") != "1":
        reason = "on a CPU they run with TRITON_INTERPRET=1 alone"
    if reason is not None:
        pieces.piece("without fused kernels", lambda: reason)
    return reason is None


# --- parts and their processes


class Part(NamedTuple):
    """A part: what measures, seconds after which it is stopped, and whether it tries kernels, with a pool `o.pool`."""

    run: Callable[[argparse.Namespace, Pieces], None]
    limit_s: float
    kernels: bool = False


PARTS: dict[str, Part] = {
    "rates": Part(rates, 30, kernels=True),
    "checks": Part(checks, 35, kernels=True),
    "steps": Part(steps, 80),
    "live": Part(live_part, 270),
    "rows": Part(rows, 35, kernels=True),
    "kernels": Part(kernels, 25, kernels=True),
    "graphs": Part(graphs, 50),
    "equality": Part(equality, 50),
}


def main() -> None:
    """Run the parts; report a part that fails, and run the others."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--archive", type=Path, help="ZIP of all files: read first, written after each piece.")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument(
        "--graphs", action=argparse.BooleanOptionalAction, help="Steps as CUDA graphs; default on CUDA alone."
    )
    parser.add_argument("--limit-s", type=float, help="Seconds after which each part is stopped, not its own limit.")
    parser.add_argument("--longer", type=float, default=1.0, help="Factor of the seconds of live profiles.")
    parser.add_argument("--total-s", type=float, help="Seconds that the whole call may take.")
    parser.add_argument(
        "--part", action="append", choices=PARTS, help="Run only this part; may be given more than once."
    )
    o = parser.parse_args()
    o.graphs = o.device.startswith("cuda") if o.graphs is None else o.graphs
    o.output.mkdir(parents=True, exist_ok=True)
    if o.archive is not None and o.archive.exists():
        unpack(o.archive, o.output)
    logging.disable_progress_bar()
    if find_spec("triton") is not None:
        import_module("tests.benchmarks.gpu_kernels")  # once, for the processes of all parts
    begun, failed = time.monotonic(), 0
    for name in o.part or PARTS:
        limit_s = o.limit_s or PARTS[name].limit_s
        left_s = None if o.total_s is None else o.total_s - (time.monotonic() - begun)
        if results(o.output).get(name, {}).get("done"):
            print(f"{name}: done before", flush=True)
        elif left_s is not None and left_s < limit_s:
            print(f"{name}: left out, it may take {limit_s:g} s and {max(0.0, left_s):.0f} s are left", flush=True)
        else:
            print(f"{name}: begins at {time.monotonic() - begun:.0f} s, may take {limit_s:g} s", flush=True)
            failed |= _forked(o, name, limit_s)
    sys.exit(failed)


def _forked(o: argparse.Namespace, name: str, limit_s: float) -> int:
    """Run a part in a process of its own, until it ends or its time does; return 1 if it did not end well."""
    process = FORK.Process(target=_run, args=(o, name, time.monotonic() + limit_s))
    process.start()
    try:
        process.join(limit_s)
    finally:
        code = process.exitcode
        with suppress(ProcessLookupError):  # its workers too
            os.killpg(process.pid, signal.SIGKILL)
    if code not in (0, 1):  # 1: it said why itself
        why = f"not done in {limit_s:g} s" if code is None else f"exit code {code}"
        print(f"{name}: {why}", flush=True)
        process.join()
        write_part(o.output, name, {"failed": why} | results(o.output).get(name, {}))
    return int(code != 0)


def _run(o: argparse.Namespace, name: str, deadline: float) -> None:
    """Run a part here, in a process group with its workers; end with the exit code."""
    os.setpgrp()
    part, torch.backends.cuda.matmul.allow_tf32 = PARTS[name], False
    torch.set_grad_enabled(False)
    if part.kernels:  # the pool is forked before this process asks for the device, which it could not share
        fused_verification.DEVICE = o.device.partition(":")[0]
        o.pool = FORK.Pool(os.cpu_count(), torch.set_num_threads, (1,))
    # Asked for first: a device that failed answers nothing.
    conditions = {"device": device_name(torch.device(o.device)), "provenance": this_run()}
    try:
        pieces = Pieces(o.output, name, conditions, deadline, o.archive)
        part.run(o, pieces)
    except OtherDeviceError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    except OutOfTimeError as error:
        pieces.write(under_way=True, stopped=str(error))
        print(f"{name}: {error}", flush=True)
        sys.exit(0)
    except Exception:  # noqa: BLE001 - what was found before is worth having
        pieces.failures["part"] = traceback.format_exc()
        traceback.print_exc()
    finally:
        if part.kernels:
            o.pool.terminate()
    pieces.write(**({} if pieces.failures else {"done": True}))
    sys.exit(bool(pieces.failures))


if __name__ == "__main__":
    main()
