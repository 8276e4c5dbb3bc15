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
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from executor.decode import Decoder
from executor.drafters.language_model import LanguageModel
from executor.fingerprint import device_name
from executor.packing import pack_linears
from executor.target import Target
from treeopt.files import write_text
from treeopt.provenance import this_run
from treeopt.tree import Tree

HUNDRED_M = {
    "vocab_size": 8192,
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 14,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "max_position_embeddings": 2048,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
PROMPT, NEW = 128, 64
ASSISTED = (2, 3, 4, 5, 6, 7, 8)
TREES = {
    **{f"chain {k}": Tree.chain(k) for k in ASSISTED},
    "tree 7": Tree.from_paths([(0, 0, 0, 0), (0, 1), (1, 0)]),
    "tree 15": Tree.from_paths([(0, 0, 0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 2), (1, 0, 0), (1, 1), (2, 0)]),
}


def models(dtype: torch.dtype, device: str, damping: float = 0.05) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Target and assistant, in evaluation mode."""
    torch.manual_seed(0)
    config = LlamaConfig(**HUNDRED_M, initializer_range=0.05)
    target = LlamaForCausalLM._from_config(config, attn_implementation="sdpa").eval()
    with torch.no_grad():
        for layer in target.model.layers[1:]:
            layer.self_attn.o_proj.weight *= damping
            layer.mlp.down_proj.weight *= damping
    small = copy.copy(config)
    small.num_hidden_layers = 1
    assistant = LlamaForCausalLM._from_config(small, attn_implementation="sdpa").eval()
    assistant.load_state_dict(target.state_dict(), strict=False)
    return target.to(device, dtype), assistant.to(device, dtype)


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


def ways(dtype: torch.dtype, device: str, batch: int, new: int) -> dict[str, Callable[[], int]]:
    """Each way to decode: a function that decodes the prompts and returns the target's forwards."""
    target, assistant = models(dtype, device)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, HUNDRED_M["vocab_size"], PROMPT).tolist() for _ in range(batch)]
    ids = torch.tensor(prompts, device=device)
    ones = torch.ones_like(ids)

    def hugging_face(**settings: Any) -> int:
        target.generate(ids, attention_mask=ones, do_sample=False, max_new_tokens=new, **settings)
        return 0

    def assisted(k: int) -> int:
        config = assistant.generation_config
        config.num_assistant_tokens, config.num_assistant_tokens_schedule = k, "constant"
        config.assistant_confidence_threshold = 0.0
        return hugging_face(assistant_model=assistant)

    def assisted_by_default() -> int:
        config = assistant.generation_config
        config.num_assistant_tokens, config.num_assistant_tokens_schedule = 20, "constant"
        config.assistant_confidence_threshold = 0.4
        return hugging_face(assistant_model=assistant)

    ours, drafter = Target(packed(target)), LanguageModel(Target(packed(assistant)))
    plain, bare = Decoder(ours, batch=batch), Decoder(Target(copy.deepcopy(target)), batch=batch)
    decoders = {name: Decoder(ours, drafter, tree=tree, batch=batch) for name, tree in TREES.items()}

    def loop(decoder: Decoder) -> int:
        return sum(1 for _ in decoder.steps(prompts, new_tokens=new))

    found: dict[str, Callable[[], int]] = {
        "HF generate": hugging_face,
        "plain, weights as they are": lambda: loop(bare),
        "plain": lambda: loop(plain),
    }
    if batch == 1:  # Hugging Face assists one sequence only
        found |= {f"HF assisted {k}": lambda k=k: assisted(k) for k in ASSISTED}
        found["HF assisted, default"] = assisted_by_default
    return found | {name: lambda d=d: loop(d) for name, d in decoders.items()}


def compare_ways(dtype: torch.dtype, device: str, batch: int, *, rounds: int, new: int) -> dict[str, Any]:
    """Median tokens a second, and ratios within rounds."""
    runs = ways(dtype, device, batch, new)
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    steps: dict[str, int] = {}
    rng = np.random.default_rng(1)
    for number in range(rounds + 1):
        for index in rng.permutation(len(runs)).tolist():
            name = list(runs)[index]
            started = time.perf_counter()
            steps[name] = runs[name]()
            if device.startswith("cuda"):
                torch.cuda.synchronize()
            if number:  # the first round warms up
                seconds[name].append(time.perf_counter() - started)
    rates = {name: batch * new / float(np.median(s)) for name, s in seconds.items()}

    def ratio(name: str, other: str) -> float:
        return float(np.median(np.divide(seconds[other], seconds[name])))

    best = max(TREES, key=rates.__getitem__)
    record: dict[str, Any] = {
        "batch": batch,
        "tokens_s": {name: round(rate, 1) for name, rate in rates.items()},
        "tau": {name: round((new * batch) / (n * batch), 2) for name, n in steps.items() if n},
        "best": best,
        "packed_over_bare": round(ratio("plain", "plain, weights as they are"), 3),
        "plain_over_generate": round(ratio("plain", "HF generate"), 3),
        "best_over_generate": round(ratio(best, "HF generate"), 3),
    }
    if assisted := [name for name in runs if name.startswith("HF assisted")]:
        rival = max(assisted, key=rates.__getitem__)
        record |= {"best_assisted": rival, "best_over_assisted": round(ratio(best, rival), 3)}
    return record


def overhead(dtype: torch.dtype, device: str, *, tree: Tree, new: int) -> float:
    """Share of a run's time, prefill left out, that is spent outside the two models' forwards; CPU."""
    target, assistant = (packed(model) for model in models(dtype, device))
    clocks = [Clock(target), Clock(assistant)]
    decoder = Decoder(Target(target), LanguageModel(Target(assistant)) if tree.nodes else None, tree=tree)
    prompts = [np.random.default_rng(0).integers(0, HUNDRED_M["vocab_size"], PROMPT).tolist()]
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


def main() -> None:
    """Print the comparison for both number types."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), action="append")
    parser.add_argument("--batch", type=int, action="append")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--new-tokens", type=int, default=NEW)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    record: dict[str, Any] = {"device": device_name(torch.device(options.device)), "provenance": this_run()}
    for name in options.dtype or ("bfloat16", "float32"):
        dtype = getattr(torch, name)
        cells = []
        for batch in options.batch or (1, 4):
            cell = compare_ways(dtype, options.device, batch, rounds=options.rounds, new=options.new_tokens)
            cells.append(cell)
            show(name, cell)
        shares = {
            way: round(overhead(dtype, options.device, tree=tree, new=options.new_tokens), 4)
            for way, tree in {"plain": Tree((), ()), "chain 4": TREES["chain 4"], "tree 15": TREES["tree 15"]}.items()
        }
        print(f"{name}: share of a step outside the models' forwards, batch 1: {shares}", flush=True)
        record[name] = {"cells": cells, "outside_forwards": shares}
    if options.output:
        write_text(options.output, json.dumps(record, indent=1) + "\n")


def show(dtype: str, cell: dict[str, Any]) -> None:
    """One batch size as a table."""
    table = Table("way", "tokens/s", "tau", title=f"{dtype}, batch {cell['batch']}")
    for name, rate in cell["tokens_s"].items():
        table.add_row(name, f"{rate:.1f}", str(cell["tau"].get(name, "")))
    Console().print(table)
    print({key: value for key, value in cell.items() if key not in ("tokens_s", "tau")}, flush=True)


if __name__ == "__main__":
    main()
