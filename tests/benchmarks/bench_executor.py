"""The loop against Hugging Face's own, on one device with the same random-weight models; ratios within one run.

Run as `python -m tests.benchmarks.bench_executor`. The target is a Llama of about 100 M parameters, the assistant
its embeddings and first layer; the target's later layers are damped, so that the assistant is often right. Ways to
decode alternate in shuffled order, round after round, and every ratio is the median over rounds of times in the same
round. Prints, and writes what it printed with `--output`; asserts nothing about time.
"""

import argparse
import copy
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from transformers import LlamaForCausalLM, PreTrainedModel
from transformers.utils import logging

from executor.decoding.decoder import Decoder
from executor.drafters.language_model.drafter import LanguageModel
from executor.models import SHAPES, device_name, shape_config
from executor.target.fused_verification import fuse
from executor.target.packed_linears import TIMED_ROWS, layers_by_shape, pack_linears, packed_over_plain
from executor.target.target_model import Target
from treeopt.storage.provenance import this_run
from treeopt.storage.user_files import write_text
from treeopt.tree import EMPTY, Tree

PROMPT, NEW = 128, 64
ASSISTED = (2, 3, 4, 5, 6, 7, 8)
TREES = {
    **{f"chain {k}": Tree.chain(k) for k in ASSISTED},
    "tree 7": Tree.from_paths([(0, 0, 0, 0), (0, 1), (1, 0)]),
    "tree 15": Tree.from_paths([(0, 0, 0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 2), (1, 0, 0), (1, 1), (2, 0)]),
}


def models(
    shape: str, dtype: torch.dtype, device: str, damping: float = 0.05
) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Target and assistant, in evaluation mode."""
    torch.manual_seed(0)
    config = shape_config(shape)
    with torch.device(device):
        target = LlamaForCausalLM._from_config(config, dtype=dtype, attn_implementation="sdpa").eval()
    with torch.no_grad():
        for layer in target.model.layers[1:]:
            layer.self_attn.o_proj.weight *= damping
            layer.mlp.down_proj.weight *= damping
    small = copy.copy(config)
    small.num_hidden_layers = 1
    with torch.device(device):
        assistant = LlamaForCausalLM._from_config(small, dtype=dtype, attn_implementation="sdpa").eval()
    assistant.load_state_dict(target.state_dict(), strict=False)
    return target, assistant


def packed(model: PreTrainedModel) -> PreTrainedModel:
    """A copy as `load_target` would make it."""
    own = copy.deepcopy(model)
    pack_linears(own)
    return own


class Clock(nn.Module):
    """Counts the seconds that a model's forwards take."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.seconds = self.started = 0.0
        model.register_forward_pre_hook(self.start)
        model.register_forward_hook(self.stop)

    def start(self, *_: Any) -> None:
        self.started = time.perf_counter()

    def stop(self, *_: Any) -> None:
        self.seconds += time.perf_counter() - self.started


Ran = tuple[int, float | None]


def ways(shape: str, dtype: torch.dtype, device: str, batch: int, new: int) -> dict[str, Callable[[], Ran]]:
    """Each way to decode: a function that decodes the prompts.

    It returns the target's forwards (0: unknown) and, on CUDA, the loop's seconds: graphs are captured anew in every
    run, which a server does once, so what captures take is left out of them. None: all that the call took.
    """
    target, assistant = models(shape, dtype, device)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, target.config.vocab_size, PROMPT).tolist() for _ in range(batch)]
    ids = torch.tensor(prompts, device=device)
    ones = torch.ones_like(ids)

    def hugging_face(**settings: Any) -> Ran:
        torch.backends.cuda.enable_cudnn_sdp(True)  # a `Target` leaves it out
        try:
            target.generate(ids, attention_mask=ones, do_sample=False, max_new_tokens=new, **settings)
        finally:
            torch.backends.cuda.enable_cudnn_sdp(False)
        return 0, None

    def assisted(k: int, threshold: float = 0.0) -> Ran:
        config = assistant.generation_config
        config.num_assistant_tokens, config.num_assistant_tokens_schedule = k, "constant"
        config.assistant_confidence_threshold = threshold
        return hugging_face(assistant_model=assistant)

    def loop(decoder: Decoder) -> Ran:
        steps = [step.admit_s + step.draft_s + step.rest_s for step in decoder.steps(prompts, new_tokens=new)]
        return len(steps), sum(steps) if on_cuda else None

    on_cuda = device.startswith("cuda")
    ours, own_drafter = Target(packed(target)), Target(packed(assistant))
    if on_cuda:
        fuse(ours)
        fuse(own_drafter)
    drafter = LanguageModel(own_drafter)
    decoders = {"plain": Decoder(ours, batch=batch, graphs=on_cuda)}
    if on_cuda:
        decoders["plain, unfused"] = Decoder(Target(ours.model), batch=batch, graphs=True)
    else:
        decoders["plain, weights as they are"] = Decoder(Target(copy.deepcopy(target)), batch=batch)
    decoders |= {name: Decoder(ours, drafter, tree=t, batch=batch, graphs=on_cuda) for name, t in TREES.items()}
    found: dict[str, Callable[[], Ran]] = {"HF generate": hugging_face}
    if on_cuda:
        found["HF generate, static cache, compiled"] = lambda: hugging_face(cache_implementation="static")
    if batch == 1:  # Hugging Face assists one sequence only
        found |= {f"HF assisted {k}": lambda k=k: assisted(k) for k in ASSISTED}
        found["HF assisted, default"] = lambda: assisted(20, threshold=0.4)
    return found | {name: lambda d=d: loop(d) for name, d in decoders.items()}


def compare_ways(shape: str, dtype: torch.dtype, device: str, batch: int, *, rounds: int, new: int) -> dict[str, Any]:
    """Median tokens a second, and ratios within rounds; what fails of Hugging Face's ways is told and left out."""
    runs = ways(shape, dtype, device, batch, new)
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    steps: dict[str, int] = {}
    failed: dict[str, str] = {}
    rng = np.random.default_rng(1)
    for number in range(rounds + 1):
        for index in rng.permutation(len(runs)).tolist():
            name = list(runs)[index]
            if name in failed:
                continue
            started = time.perf_counter()
            try:
                steps[name], own_s = runs[name]()
            except Exception as error:
                if not name.startswith("HF"):
                    raise
                failed[name] = repr(error)
                continue
            if device.startswith("cuda"):
                torch.cuda.synchronize()
            if number:  # the first round warms up
                seconds[name].append(time.perf_counter() - started if own_s is None else own_s)
    for name in failed:
        del runs[name], seconds[name]
    rates = {name: batch * new / float(np.median(s)) for name, s in seconds.items()}

    def ratio(name: str, other: str) -> float:
        return round(float(np.median(np.divide(seconds[other], seconds[name]))), 3)

    generate = max((name for name in runs if name.startswith("HF generate")), key=rates.__getitem__)
    best = max(TREES, key=rates.__getitem__)
    record: dict[str, Any] = {
        "shape": shape,
        "batch": batch,
        "tokens_s": {name: round(rate, 1) for name, rate in rates.items()},
        "tau": {name: round(new / n, 2) for name, n in steps.items() if n},
        "best": best,
        **({"failed": failed} if failed else {}),
        "plain_over_generate": ratio("plain", generate),
        "best_over_generate": ratio(best, generate),
    }
    if bare := [name for name in runs if name.startswith("plain,")]:
        record[f"plain_over_{bare[0].removeprefix('plain, ').replace(' ', '_')}"] = ratio("plain", bare[0])
    if assisted := [name for name in runs if name.startswith("HF assisted")]:
        rival = max(assisted, key=rates.__getitem__)
        record |= {"best_assisted": rival, "best_over_assisted": ratio(best, rival)}
    return record


def overhead(shape: str, dtype: torch.dtype, device: str, *, tree: Tree, new: int) -> float:
    """Share of a run's time, prefill left out, that is spent outside the two models' forwards; CPU."""
    target, assistant = (packed(model) for model in models(shape, dtype, device))
    clocks = [Clock(target), Clock(assistant)]
    decoder = Decoder(Target(target), LanguageModel(Target(assistant)) if tree.nodes else None, tree=tree)
    prompts = [np.random.default_rng(0).integers(0, target.config.vocab_size, PROMPT).tolist()]
    for _ in decoder.steps(prompts, new_tokens=16):
        pass
    shares = []
    for _ in range(3):
        total, before = 0.0, 0.0
        for number, step in enumerate(decoder.steps(prompts, new_tokens=new)):
            if number == 0:  # the first step's clock includes the prefill
                before = sum(clock.seconds for clock in clocks)
                continue
            total += step.draft_s + step.rest_s
        shares.append(1 - (sum(clock.seconds for clock in clocks) - before) / total)
    return float(np.median(shares))


def layer_ratios(model: PreTrainedModel) -> dict[str, list[float]]:
    """Seconds of packed over plain products by layer shape, with each of `TIMED_ROWS`; minima, see `packed_linears`."""
    return {
        f"{outputs} x {inputs}": [round(ratio, 3) for ratio in packed_over_plain(alike, 2.0).values()]
        for (outputs, inputs), alike in layers_by_shape(model).items()
    }


def main() -> None:
    """Print the comparison for each number type and batch size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--shape", choices=tuple(SHAPES), default="100m")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), action="append")
    parser.add_argument("--batch", type=int, action="append")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--new-tokens", type=int, default=NEW)
    parser.add_argument("--layers", action="store_true", help="Time packed and plain products of single layers alone.")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    logging.set_verbosity_error()
    record: dict[str, Any] = {"device": device_name(torch.device(options.device)), "provenance": this_run()}
    record["instructions"] = torch.backends.cpu.get_cpu_capability()
    for name in options.dtype or ("bfloat16", "float32"):
        settings = options.shape, getattr(torch, name), options.device
        if options.layers:
            model = models(options.shape, getattr(torch, name), options.device)[0]
            record[name] = {"rows": TIMED_ROWS, "packed_over_plain": layer_ratios(model)}
            print(name, record[name], flush=True)
            continue
        cells = []
        for batch in options.batch or (1, 4):
            cells.append(compare_ways(*settings, batch, rounds=options.rounds, new=options.new_tokens))
            show(name, cells[-1])
        record[name] = {"cells": cells}
        if options.device == "cpu":
            shares = {
                way: round(overhead(*settings, tree=tree, new=options.new_tokens), 4)
                for way, tree in {"plain": EMPTY, **TREES}.items()
                if way in ("plain", "chain 4", "tree 15")
            }
            print(f"{name}: share of a step outside the models' forwards, batch 1: {shares}", flush=True)
            record[name]["outside_forwards"] = shares
    if options.output:
        write_text(options.output, json.dumps(record, indent=1) + "\n")


def show(dtype: str, cell: dict[str, Any]) -> None:
    """One batch size as a table."""
    table = Table("way", "tokens/s", "tau", title=f"{cell['shape']}, {dtype}, batch {cell['batch']}")
    for name, rate in cell["tokens_s"].items():
        table.add_row(name, f"{rate:.1f}", str(cell["tau"].get(name, "")))
    Console().print(table)
    print({key: value for key, value in cell.items() if key not in ("tokens_s", "tau")}, flush=True)


if __name__ == "__main__":
    main()
