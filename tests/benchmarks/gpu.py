"""Everything that needs a CUDA device; results as JSON below `--output`, piece by piece.

Parts, in order: correctness of the loop in fp32, with CUDA graphs and without, by the fused kernels and by the model's
own forward; steps of 1B and 8B shapes against the memory-bandwidth limit; the host's share of them; profiles of 1B, 8B
and 14B shapes over contexts and what they predict of replayed acceptance at batch 1 to 64; the fused kernels one by one
against libraries; the loop against Hugging Face's; profile, trace and validation of the shipped model; a target and
drafters trained there, with their traces. Each part runs in a process of its own, since a device that failed once
answers nothing afterwards.

Pieces that `--output` holds are not computed again, so a call that was stopped is repeated, and goes on. A device that
is lent for ten minutes: `--total-s 540 --archive results.zip` ends in time and packs all files but models; the next
call reads the archive. `--part NAME` runs some parts only. `--graphs` takes steps from CUDA graphs where they are
profiled and validated; `--device cpu --tiny` runs the same code at toy size.
"""

import argparse
import gc
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from functools import cache, partial
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity
from torch.profiler import profile as torch_profile

from executor.checkpoints import load_drafter
from executor.decoding.decoder import Decoder
from executor.drafters.medusa.drafter import MedusaHeads
from executor.models.fingerprint import device_name
from executor.profiling.loop_blocks import run_block
from executor.profiling.measure_steps import measure_profile
from executor.profiling.profile_settings import Measuring
from executor.prompts.prompt_files import read_prompts
from executor.recording.collect_trace import collect
from executor.runners.loop_runner import LoopRunner
from executor.runners.runner import Requests
from executor.target.fused_verification import device_refusal, fuse
from executor.target.load_hf_model import load_target
from executor.target.target_model import Target
from executor.target.tokenizer import load_tokenizer
from executor.validation.compare_live import compare, runs_of
from simulate.model_sizes.model_shape import Shape
from simulate.profiles.profile import load_profile, save_profile
from simulate.validation.predicted_vs_measured import comparison_record
from simulate.validation.predictions import whole_runs
from tests.benchmarks.bench_executor import compare_ways, models, show
from tests.benchmarks.gpu_drafters import trained_drafters
from tests.benchmarks.gpu_pieces import OtherDeviceError, OutOfTimeError, Pieces, results, unpack, write_part
from tests.benchmarks.gpu_replay import replayed
from treeopt.planning.held_out_split import hold_out
from treeopt.planning.search_pipeline import search
from treeopt.storage.atomic_files import shipped, write_text
from treeopt.storage.provenance import this_run
from treeopt.traces.trace import load_trace, save_trace
from treeopt.tree import EMPTY, Tree
from treeopt.tree_files.paper_trees import EAGLE, MEDUSA, published_trees

BEGINNING = 4  # steps of a run that are not looked at
PROMPT, NEW = 360, 64  # tokens; with a tree and a step that is read late they end within 512, so that one graph does
HOST_GAP_S = 5e-6  # an idle device waits for the host that long or longer, between kernels of a graph less


def correctness(device: str, pieces: Pieces, *, requests: int) -> None:
    """Count the requests whose greedy output of trees is Hugging Face's `generate`, token for token, in fp32."""

    @cache
    def expected() -> tuple[Target, MedusaHeads, list[list[int]], list[list[int]]]:
        target, drafter, tokens = _shipped_models(device, 1000, requests)
        texts = []
        for prompt in tokens:
            ids = torch.tensor([prompt], device=device)
            out = target.model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=32)
            texts.append(out[0, len(prompt) :].tolist())
        return target, drafter, tokens, texts

    def equal(tree: Tree, batch: int, *, graphs: bool, fused: bool) -> dict[str, int]:
        target, drafter, tokens, texts = expected()
        assert target.fused is not None or not fused, target.fused_reason
        if not fused:
            target = Target(target.model, name=target.name)
        decoder = Decoder(target, drafter, tree=tree, batch=batch, graphs=graphs)
        found = decoder.generate(tokens, new_tokens=32, stop=[target.model.config.eos_token_id])
        same = sum(list(g.tokens) == text for g, text in zip(found, texts, strict=True))
        return {"requests": requests, "equal_to_generate": same}

    on_cuda = device.startswith("cuda")
    kernels = (False, True) if on_cuda and _kernels_run(device, pieces) else (False,)
    for name, tree in _trees().items():
        for batch in (1, 4):
            for graphs, fused in product((False, True) if on_cuda else (False,), kernels):
                label = f"{name}, batch {batch}{', graphs' if graphs else ''}{', fused' if fused else ''}"
                pieces.piece(label, partial(equal, tree, batch, graphs=graphs, fused=fused))


def shipped_model(device: str, pieces: Pieces, *, graphs: bool, tiny: bool) -> None:
    """Trace, profile and validation of the shipped model."""
    batches = (1, 2) if tiny else (1, 4, 16, 32)
    requests = 40 if tiny else 600
    output = pieces.output

    @cache
    def loaded() -> tuple[Target, MedusaHeads, list[list[int]]]:
        return _shipped_models(device, 0, requests)

    @cache
    def fresh() -> list[list[int]]:
        return _shipped_models(device, 1000, 24 if tiny else 160)[2]

    def trace() -> dict[str, int]:
        target, drafter, tokens = loaded()
        prompts = read_prompts(shipped("prompts/stdlib.jsonl"))[:requests]
        found = collect(target, drafter, prompts, tokens, new_tokens=32, width=16, stop=[0], batch=32)
        save_trace(found, output / "trace.npz")
        return {"anchors": found.anchors}

    def profile() -> dict[str, Any]:
        settings: dict[str, Any] = {"rounds": 2, "steps": 4} if tiny else {"rounds": 4, "steps": 12, "budget_s": 120.0}
        target, drafter, _ = loaded()
        runner = LoopRunner(target, drafter, graphs=graphs)
        found = measure_profile(runner, fresh(), Measuring(batch=batches, new_tokens=32, **settings))
        save_profile(found, output / "profile-shipped.json")
        return {"plain_s": {batch: found.plain_s(batch=batch) for batch in batches}}

    def validation() -> dict[str, Any]:
        recorded, costs = load_trace(output / "trace.npz"), load_profile(output / "profile-shipped.json")
        target, drafter, _ = loaded()
        plan = search(recorded, costs, batch=batches, solver_work=0.0)
        asked, runner = Requests(fresh(), 32, [0]), LoopRunner(target, drafter, graphs=graphs)
        whole = whole_runs(plan, hold_out(recorded)[1], costs, runs_of(plan, runner, asked, blocks=2))
        record = comparison_record(compare(runner, plan, asked, blocks=2, whole=whole))
        write_text(output / "validation.json", json.dumps(record, indent=1) + "\n")
        return {name: record[name] for name in ("mean_error", "max_error", "end_to_end")}

    pieces.piece("trace", trace, file="trace.npz")
    pieces.piece("profile", profile, file="profile-shipped.json")
    pieces.piece("validation", validation, file="validation.json")


def step_times(device: str, pieces: Pieces, *, tiny: bool) -> None:
    """Measure plain steps, chains and 64 tokens: seconds and share of copy bandwidth; batch 1 unfused too."""
    copied = pieces.piece("copy bandwidth", lambda: _copy_bandwidth(device, 2**22 if tiny else 2**32))
    for shape in ("toy",) if tiny else ("1b", "8b"):
        loaded = cache(partial(_shaped, shape, device, tiny=tiny))
        for batch in (1, 2) if tiny else (1, 4, 16, 32):
            pieces.piece(f"{shape}, batch {batch}", lambda b=batch, load=loaded: _times(*load(), b, copied, tiny=tiny))

        def unfused(load: Callable[[], Any] = loaded) -> list[dict[str, Any]]:
            target, heads, prompts = load()
            return _times(Target(target.model, name=target.name), heads, prompts, 1, copied, tiny=tiny)

        pieces.piece(f"{shape}, batch 1, unfused", unfused)
        loaded.cache_clear()
        _tidied(device)


def _shaped(shape: str, device: str, *, tiny: bool) -> tuple[Target, MedusaHeads, list[list[int]]]:
    """A target of this shape, heads and prompts."""
    target = Target(models(shape, torch.bfloat16, device)[0], name=shape)
    fuse(target)
    heads = MedusaHeads(5, target.hidden).to(device, torch.bfloat16).eval().requires_grad_(False)
    rng = np.random.default_rng(0)
    return target, heads, [rng.integers(0, target.vocabulary, 64 if tiny else PROMPT).tolist() for _ in range(32)]


def _ways() -> dict[str, Tree]:
    return {"plain": EMPTY, "chain": Tree.chain(3), "Medusa": published_trees()[MEDUSA]}


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
                "fused": target.fused is not None,
            }
        )
    return cells


def host_gaps(device: str, pieces: Pieces, *, tiny: bool) -> None:
    """Measure the shares of the steps' time in which the device had nothing to do, and in which it waited for the host.

    A part of its own: once there was a profiler, steps stay slower.
    """
    for shape in ("toy",) if tiny else ("8b",):
        loaded = cache(partial(_shaped, shape, device, tiny=tiny))

        def gaps(name: str, batch: int, load: Callable[[], Any] = loaded) -> dict[str, Any]:
            target, heads, prompts = load()
            graphs, tree = target.device.type == "cuda", _ways()[name]
            decoder = Decoder(target, heads if tree.nodes else None, tree=tree, batch=batch, graphs=graphs)
            idle, waits = _idle(decoder, prompts[:batch], device)
            return {"idle": idle, "waits_for_host": waits, "waits_from_s": HOST_GAP_S}

        for batch in (1, 2) if tiny else (1, 16):
            for name in _ways():
                pieces.piece(f"{shape}, batch {batch}, {name}", partial(gaps, name, batch))
        loaded.cache_clear()
        _tidied(device)


def _idle(decoder: Decoder, prompts: list[list[int]], device: str) -> tuple[float | None, float | None]:
    """Share of the time from the first kernel to the last that lies between kernels, all and in long gaps."""
    steps = decoder.steps(prompts, new_tokens=NEW)
    for _ in islice(steps, BEGINNING):  # prefill, and the captures of graphs
        pass
    if not device.startswith("cuda"):  # the profiler has no kernels to show
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


def _tidied(device: str) -> None:
    """Let go of what nobody holds: models are parts of cycles."""
    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.empty_cache()


def against_hugging_face(shape: str, device: str, pieces: Pieces, *, tiny: bool) -> None:
    """Compare ways to decode; see bench_executor."""
    rounds, new = (1, 8) if tiny else (2, 64)

    def cell(batch: int) -> dict[str, Any]:
        found = compare_ways(shape, torch.bfloat16, device, batch, rounds=rounds, new=new)
        show("bfloat16", found)
        return found

    for batch in (1,) if tiny else (1, 8):
        pieces.piece(f"{shape}, batch {batch}", partial(cell, batch))
        _tidied(device)
        torch._dynamo.reset()  # or the next batch size would be compiled for any


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


def _kernels(device: str, pieces: Pieces, *, tiny: bool) -> None:
    """Time the fused kernels one by one, where they are used."""
    if not _kernels_run(device, pieces):
        return
    from tests.benchmarks.gpu_kernels import kernels  # imports Triton

    kernels(device, pieces, tiny=tiny)


def _kernels_run(device: str, pieces: Pieces) -> bool:
    """Return whether fused kernels are used on the device; note why not."""
    reason = device_refusal(torch.device(device))
    if not device.startswith("cuda") and os.environ.get("TRITON_INTERPRET") != "1":
        reason = "on a CPU they run with TRITON_INTERPRET=1 alone"
    if reason is not None:
        pieces.piece("without fused kernels", lambda: reason)
    return reason is None


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def _trees() -> dict[str, Tree]:
    trees = published_trees()
    return {"chain": Tree.chain(4), "Medusa": trees[MEDUSA], "EAGLE-1": trees[EAGLE]}


def _shipped_models(device: str, skip: int, requests: int) -> tuple[Target, MedusaHeads, list[list[int]]]:
    target = load_target(shipped("models/stdlib-llama"), device=device, packed=True)
    drafter = load_drafter(shipped("models/stdlib-medusa"), target)
    texts = [p.text for p in read_prompts(shipped("prompts/stdlib.jsonl"))[skip : skip + requests]]
    return (
        target,
        drafter,
        load_tokenizer(shipped("models/stdlib-llama"), vocabulary=target.vocabulary)(texts)["input_ids"],
    )


Part = Callable[[argparse.Namespace, Pieces], None]


def _of_shape(part: Callable[..., None], shape: str, **options: Any) -> Part:
    return lambda o, pieces: part("toy" if o.tiny else shape, o.device, pieces, tiny=o.tiny, **options)


def _replayed(shape: str) -> Part:
    return lambda o, pieces: replayed("toy" if o.tiny else shape, o.device, pieces, graphs=o.graphs, tiny=o.tiny)


PARTS: dict[str, Part] = {
    "correctness": lambda o, pieces: correctness(o.device, pieces, requests=4 if o.tiny else 32),
    "step_times": lambda o, pieces: step_times(o.device, pieces, tiny=o.tiny),
    "host_gaps": lambda o, pieces: host_gaps(o.device, pieces, tiny=o.tiny),
    "replayed_8b": _replayed("8b"),
    "kernels": lambda o, pieces: _kernels(o.device, pieces, tiny=o.tiny),
    **{f"replayed_{shape}": _replayed(shape) for shape in ("1b", "14b")},
    **{f"against_hugging_face_{shape}": _of_shape(against_hugging_face, shape) for shape in ("8b", "1b")},
    "shipped_model": lambda o, pieces: shipped_model(o.device, pieces, graphs=o.graphs, tiny=o.tiny),
    "trained_drafters": lambda o, pieces: trained_drafters(o.device, pieces, tiny=o.tiny),
}


def main() -> None:
    """Run all parts; report a part that fails, and run the others."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--archive", type=Path, help="ZIP of all but models: read first, written after each piece.")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument(
        "--graphs", action=argparse.BooleanOptionalAction, help="Steps as CUDA graphs; default on CUDA alone."
    )
    parser.add_argument("--limit-s", type=float, help="Seconds after which a part is stopped.")
    parser.add_argument("--total-s", type=float, help="Seconds after which the whole call is stopped.")
    parser.add_argument(
        "--part", action="append", choices=PARTS, help="Run only this part; may be given more than once."
    )
    options = parser.parse_args()
    if options.graphs is None:
        options.graphs = options.device.startswith("cuda")
    options.output.mkdir(parents=True, exist_ok=True)
    if options.archive is not None and options.archive.exists():
        unpack(options.archive, options.output)
    deadline = None if options.total_s is None else time.monotonic() + options.total_s
    parts = options.part or list(PARTS)
    if len(parts) == 1:
        sys.exit(_run(options, parts[0], deadline))
    for part in parts:
        _started(options, part, deadline)


def _started(options: argparse.Namespace, part: str, deadline: float | None) -> None:
    """Run a part in a process of its own, until it ends or its time does."""
    if results(options.output).get(part, {}).get("done"):
        print(f"{part}: done before", flush=True)
        return
    left = None if deadline is None else deadline - time.monotonic()
    if left is not None and left <= 0:
        print(f"{part}: no time was left", flush=True)
        return
    words = ["--output", str(options.output), "--device", options.device, "--part", part]
    words += ["--graphs" if options.graphs else "--no-graphs", *(["--tiny"] if options.tiny else [])]
    words += [] if left is None else ["--total-s", str(left)]
    words += [] if options.archive is None else ["--archive", str(options.archive)]
    limit_s = min((s for s in (options.limit_s, left) if s is not None), default=None)
    try:
        subprocess.run([sys.executable, "-m", __spec__.name, *words], check=True, timeout=limit_s)
    except subprocess.CalledProcessError as error:
        _stopped(options, part, f"exit code {error.returncode}")
    except subprocess.TimeoutExpired:
        _stopped(options, part, f"not done in {limit_s:g} s")


def _run(options: argparse.Namespace, part: str, deadline: float | None) -> int:
    """Run a part here; return the exit code."""
    # Asked for first: a device that failed answers nothing.
    conditions = {"device": device_name(torch.device(options.device)), "provenance": this_run()}
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        pieces = Pieces(options.output, part, conditions, deadline, options.archive)
    except OtherDeviceError as error:
        print(error, file=sys.stderr)
        return 2
    try:
        PARTS[part](options, pieces)
    except OutOfTimeError as error:
        pieces.write(under_way=True, stopped=str(error))
        return 0
    except Exception:  # noqa: BLE001 - what was found before is worth having
        pieces.write(failed=traceback.format_exc())
        traceback.print_exc()
        return 1
    pieces.write(done=True)
    return 0


def _stopped(options: argparse.Namespace, part: str, why: str) -> None:
    """Note that a part's process did not end well, beside what it left."""
    print(f"{part}: {why}", flush=True)
    write_part(options.output, part, {"failed": why} | results(options.output).get(part, {}))


if __name__ == "__main__":
    main()
