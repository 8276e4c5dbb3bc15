"""A target of about 150 M parameters and three drafters of it, trained on the device, and traces of them.

The text is Python source that the machine has: its standard library and, up to `CHARACTERS`, its installed packages.
Folders with the models are left below the output; the traces are what is kept.
"""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, PreTrainedTokenizerFast

from executor.checkpoints import load_drafter
from executor.recording.collect_trace import collect
from executor.target.load_hf_model import load_target
from executor.train.new_drafter import begun
from executor.train.recipes import RECIPES
from executor.train.shipped import stdlib_corpus
from executor.train.shipped.make_models import SEED, train_target
from executor.train.text_files import Rows
from executor.train.training_run import Job, run
from tests.benchmarks.gpu_replay import Keep
from treeopt.storage.provenance import this_run
from treeopt.traces.trace import save_trace

RECIPE_NAMES = ("medusa1", "hydra++", "eagle")
LENGTH = 512
CHARACTERS = 80_000_000  # of packages: some 20 million tokens, of which the target's steps see 16
LARGE = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 12, "num_attention_heads": 16}
TINY = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}


def trained_drafters(device: str, output: Path, keep: Keep, *, tiny: bool) -> dict[str, Any]:
    """Train and record; the shares of true tokens that each depth puts first, tokens learnt, seconds.

    `keep` is given what is found so far after each drafter.
    """
    sources = stdlib_corpus.standard_library()
    if tiny:
        sources = sources[:40]
    else:
        packages = Path(torch.__file__).parent.parent
        others = [replace(s, name=f"packages/{s.name}") for s in stdlib_corpus.standard_library(packages)]
        sources += _drawn(others, CHARACTERS)
    tokenizer = stdlib_corpus.train_tokenizer(sources, vocabulary=512 if tiny else 16384)
    train = stdlib_corpus.pack(tokenizer, [s for s in sources if not s.held_out], length=LENGTH)
    held_out = stdlib_corpus.pack(tokenizer, [s for s in sources if s.held_out], length=LENGTH)
    folder = output / "target"
    folder.mkdir(parents=True, exist_ok=True)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=stdlib_corpus.END).save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
        **(TINY if tiny else LARGE),
    )
    meta = {
        **this_run(),
        "corpus": "Python source files of the machine",
        "corpus_sha256": stdlib_corpus.fingerprint(sources),
    }
    started = time.perf_counter()
    train_target(folder, config, train, held_out, steps=4 if tiny else 2000, meta=meta, learning_rate=1e-3)
    found: dict[str, Any] = {"files": len(sources), "tokens": int(train.size)}
    found["target_s"] = round(time.perf_counter() - started, 1)
    target = load_target(folder, dtype="bfloat16", device=device)
    drawn = stdlib_corpus.prompts(tokenizer, sources, count=12 if tiny else 1000, shortest=32, longest=128, seed=SEED)
    tokens = [tokenizer.encode(p.text).ids for p in drawn]
    written: dict[int, list[list[int]]] = {}
    for name in RECIPE_NAMES:
        recipe = replace(RECIPES[name], learning_rate=1e-3)
        rows = Rows(train)
        drafter = begun(recipe, target, None, rows=rows, seed=SEED)
        job = Job(
            recipe,
            output / name.replace("++", "-plus"),
            4 if tiny else 800,
            batch=4 if tiny else 16,
            seed=SEED,
            device=device,
            precision="bfloat16",
            meta=meta,
        )
        trained = run(job, target, drafter, rows, Rows(held_out[: 4 if tiny else 256]))
        drafter = load_drafter(job.output, target)
        trace = collect(
            target,
            drafter,
            drawn,
            tokens,
            written=written,
            new_tokens=16 if tiny else 128,
            width=16,
            stop=[0],
            batch=64,
        )
        save_trace(trace, output / f"{job.output.name}-t0.npz")
        found[name] = {
            "train_s": round(trained.train_s, 1),
            "top_1": [score.accuracy[0] for score in trained.after],
            "anchors": trace.anchors,
        }
        keep(found)
    return found


def _drawn(sources: list[stdlib_corpus.Source], characters: int) -> list[stdlib_corpus.Source]:
    """Some of them, in random order, up to so many characters."""
    order = np.random.default_rng(SEED).permutation(len(sources))
    sizes = np.cumsum([len(sources[i].text) for i in order])
    return [sources[i] for i in order[: np.searchsorted(sizes, characters, side="right")]]
