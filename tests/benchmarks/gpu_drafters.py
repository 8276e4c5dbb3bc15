"""A target of about 150 M parameters and three drafters of it, trained on the device, and traces of them.

The text is Python source that the machine has: its standard library and, up to `CHARACTERS`, its installed packages.
Folders with the models stay below the output; archives hold the traces alone. So another machine trains anew.
"""

import time
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from transformers import LlamaConfig, PreTrainedTokenizerFast

from data.make import stdlib_corpus
from data.make.make_models import SEED, train_target
from executor.checkpoints import load_drafter
from executor.drafters.base.recipe import recipes
from executor.prompts.prompt_files import Prompt
from executor.recording.collect_trace import collect
from executor.target.load_hf_model import load_target
from executor.target.target_model import Target
from executor.train.text_files import Rows
from executor.train.trainer import Job
from executor.train.training_run import begun, run
from tests.benchmarks.gpu_pieces import Pieces
from treeopt.storage.provenance import this_run
from treeopt.traces.trace import save_trace

RECIPE_NAMES = ("medusa1", "hydra++", "eagle")
LENGTH = 512
CHARACTERS = 80_000_000  # of packages: some 20 million tokens, of which the target's steps see 16
LARGE = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 12, "num_attention_heads": 16}
TINY = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}


@dataclass(frozen=True)
class Corpus:
    """The text as tokens, and prompts cut from it."""

    sources: list[stdlib_corpus.Source]
    tokenizer: Tokenizer
    train: NDArray[np.int64]
    held_out: NDArray[np.int64]
    prompts: list[Prompt]

    @property
    def meta(self) -> dict[str, Any]:
        """Provenance of what is trained."""
        name = "Python source files of the machine"
        return {**this_run(), "corpus": name, "corpus_sha256": stdlib_corpus.fingerprint(self.sources)}


def trained_drafters(device: str, pieces: Pieces, *, tiny: bool) -> None:
    """Train and record; the shares of true tokens that each depth puts first, tokens learnt, seconds."""
    output = pieces.output / "trained"
    corpus = cache(partial(_corpus, tiny=tiny))
    written: dict[int, list[list[int]]] = {}

    @cache
    def loaded() -> Target:
        return load_target(output / "target", dtype="bfloat16", device=device, packed=True)

    def target() -> dict[str, Any]:
        for name in RECIPE_NAMES:  # of another target, which is not here
            pieces.found.pop(name, None)
        begun = time.perf_counter()
        _train_target(output / "target", corpus(), tiny=tiny)
        return {
            "files": len(corpus().sources),
            "tokens": int(corpus().train.size),
            "train_s": round(time.perf_counter() - begun, 1),
        }

    def drafter(name: str) -> dict[str, Any]:
        return _train_drafter(name, loaded(), output, corpus(), written, device=device, tiny=tiny)

    if set(RECIPE_NAMES) <= pieces.found.keys():
        return
    pieces.piece("target", target, file="trained/target/config.json")
    for name in RECIPE_NAMES:
        pieces.piece(name, partial(drafter, name), file=f"trained/{_folder(name)}-t0.npz")


def _folder(name: str) -> str:
    return name.replace("++", "-plus")


def _corpus(*, tiny: bool) -> Corpus:
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
    count = 12 if tiny else 1000
    prompts = stdlib_corpus.prompts(tokenizer, sources, count=count, shortest=32, longest=128, seed=SEED)
    return Corpus(sources, tokenizer, train, held_out, prompts)


def _train_target(folder: Path, corpus: Corpus, *, tiny: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    PreTrainedTokenizerFast(tokenizer_object=corpus.tokenizer, eos_token=stdlib_corpus.END).save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=corpus.tokenizer.get_vocab_size(),
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
        **(TINY if tiny else LARGE),
    )
    steps = 4 if tiny else 2000
    train_target(folder, config, corpus.train, corpus.held_out, steps=steps, meta=corpus.meta, learning_rate=1e-3)


def _train_drafter(
    name: str,
    target: Target,
    output: Path,
    corpus: Corpus,
    written: dict[int, list[list[int]]],
    *,
    device: str,
    tiny: bool,
) -> dict[str, Any]:
    """Train a drafter and record a trace of it; `written` holds the target's texts, once they are there."""
    recipe, rows = replace(recipes()[name], learning_rate=1e-3), Rows(corpus.train)
    drafter = begun(recipe, target, None, rows=rows, seed=SEED)
    job = Job(
        recipe,
        output / _folder(name),
        4 if tiny else 800,
        batch=4 if tiny else 16,
        seed=SEED,
        device=device,
        precision="bfloat16",
        meta=corpus.meta,
    )
    trained = run(job, target, drafter, rows, Rows(corpus.held_out[: 4 if tiny else 256]))
    drafter = load_drafter(job.output, target)
    trace = collect(
        target,
        drafter,
        corpus.prompts,
        [corpus.tokenizer.encode(prompt.text).ids for prompt in corpus.prompts],
        written=written,
        new_tokens=16 if tiny else 128,
        width=16,
        stop=[0],
        batch=64,
    )
    save_trace(trace, output / f"{job.output.name}-t0.npz")
    return {
        "train_s": round(trained.train_s, 1),
        "top_1": [score.accuracy[0] for score in trained.after],
        "anchors": trace.anchors,
    }


def _drawn(sources: list[stdlib_corpus.Source], characters: int) -> list[stdlib_corpus.Source]:
    """Some of them, in random order, up to so many characters."""
    order = np.random.default_rng(SEED).permutation(len(sources))
    sizes = np.cumsum([len(sources[i].text) for i in order])
    return [sources[i] for i in order[: np.searchsorted(sizes, characters, side="right")]]
