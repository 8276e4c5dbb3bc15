"""Make the shipped models in `data/models`, from nothing.

Usage: `python -m data.make.make_models data NAME... [--features FOLDER]`.

`target` is the tokenizer, the language model and the prompts; all other names are drafters for it. `make models`
makes them all, two drafters at a time; `make_traces` makes the traces.
"""

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    set_seed,
)

from data.make import stdlib_corpus
from executor.checkpoints import load_drafter
from executor.drafters.base.recipe import recipes, replaced
from executor.target.load_hf_model import load_target, prepare
from executor.target.target_model import Target
from executor.target.tokenizer import load_tokenizer
from executor.train.count_ngrams import build as count_ngrams
from executor.train.token_rows import Rows
from executor.train.training_run import LOG, Job, Trained, begun, run
from executor.train.training_run import TARGET as TRAINED
from treeopt.errors import UsageError
from treeopt.storage.provenance import this_run
from treeopt.storage.user_files import write_text

NAME = "stdlib-llama"
SEED = 20240607
LENGTH = 256
BATCH = 16
TARGET_STEPS = 1100
PROMPTS = 1300
# Deep and narrow: most of a forward's time on a CPU then does not grow with its tokens, as on a GPU.
TARGET: dict[str, Any] = {
    "hidden_size": 160,
    "intermediate_size": 432,
    "num_hidden_layers": 12,
    "num_attention_heads": 5,
    "num_key_value_heads": 5,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
}
CORPUS = "Python standard library source files"


@dataclass(frozen=True)
class Shipped:
    """A shipped drafter: its folder, steps, and changes to its recipe for a target of 4 million weights."""

    folder: str
    steps: int
    changes: tuple[str, ...] = ()
    start: str = ""  # the recipe whose drafter it starts from


# The published rates are for targets a thousand times larger and a hundred times more steps. All drafters see the same
# rows equally often, so that they can be compared, except Medusa-1, which sees more.
_RATE = "learning_rate=3e-3"
DRAFTERS: Mapping[str, Shipped] = {
    "medusa1": Shipped("stdlib-medusa", 600),
    "medusa2": Shipped("stdlib-medusa2", 400),
    "hydra": Shipped("stdlib-hydra", 400, (_RATE,)),
    "hydra++": Shipped("stdlib-hydra-plus", 400, (_RATE,)),
    "eagle": Shipped("stdlib-eagle", 400, (_RATE,)),
    "hass": Shipped("stdlib-hass", 400, (_RATE,)),
    "coral": Shipped("stdlib-coral", 400, (_RATE,)),
    "coral-router": Shipped("stdlib-coral-router", 200, start="coral"),
    "eagle3": Shipped("stdlib-eagle3", 400, (_RATE, "depths=5", "draft_vocabulary=2048")),
    "fastmtp": Shipped("stdlib-mtp", 400, (_RATE,)),
    "dflash": Shipped("stdlib-dflash", 400, (_RATE, "depths=7", "layers=1", "anchors=64")),
    "p-eagle": Shipped("stdlib-p-eagle", 400, (_RATE, "depths=5", "layers=1", "draft_vocabulary=2048")),
}


NGRAMS = {"unigram": 1, "bigram": 2}  # Leviathan et al. 2023, table 3


def build(data: Path, name: str, *, features: Path | None = None) -> None:
    """Make `target`, or one of `NGRAMS` or `DRAFTERS`; see `train_drafter`.

    Raises:
        UsageError: an unknown name.
    """
    started = time.monotonic()
    if name == "target":
        build_target(data)
    elif name in NGRAMS:
        texts = [source.text for source in stdlib_corpus.standard_library() if not source.held_out]
        count_ngrams(data / "models" / NAME, texts, data / "models" / f"stdlib-{name}", order=NGRAMS[name])
    else:
        before, after = train_drafter(data, name, features=features).acceptance
        print(f"{name}: top-1 over depths {before:.3f} -> {after:.3f}", file=sys.stderr)
    print(f"{name}: {(time.monotonic() - started) / 60:.1f} minutes", file=sys.stderr)


def build_target(data: Path, *, steps: int = TARGET_STEPS) -> None:
    """Write `data/models/stdlib-llama` and `data/prompts/stdlib.jsonl`."""
    sources = stdlib_corpus.standard_library()
    tokenizer = stdlib_corpus.train_tokenizer(sources)
    train = stdlib_corpus.pack(tokenizer, [s for s in sources if not s.held_out], length=LENGTH)
    held_out = stdlib_corpus.pack(tokenizer, [s for s in sources if s.held_out], length=LENGTH)
    folder = data / "models" / NAME
    folder.mkdir(parents=True, exist_ok=True)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=stdlib_corpus.END, clean_up_tokenization_spaces=False
    ).save_pretrained(folder)
    config = LlamaConfig(vocab_size=tokenizer.get_vocab_size(), bos_token_id=None, eos_token_id=0, **TARGET)
    meta = {**this_run(), **_meta(sources, train, held_out)}
    train_target(folder, config, train, held_out, steps=steps, meta=meta)
    (data / "prompts").mkdir(exist_ok=True)
    drawn = stdlib_corpus.prompts(tokenizer, sources, count=PROMPTS, shortest=32, longest=96, seed=SEED)
    lines = (json.dumps({"domain": prompt.domain, "text": prompt.text}, ensure_ascii=False) for prompt in drawn)
    write_text(data / "prompts" / "stdlib.jsonl", "".join(line + "\n" for line in lines))


def train_drafter(data: Path, name: str, *, steps: int | None = None, features: Path | None = None) -> Trained:
    """Train one of `DRAFTERS` for the target below `data/models`, with the target's precision, and write it.

    Args:
        data: the folder.
        name: of the recipe.
        steps: instead of those in the table.
        features: folder in which the target's features are stored for the other drafters, if these can use them.

    Raises:
        UsageError: an unknown recipe.
    """
    if name not in DRAFTERS:
        raise UsageError(f"the name must be target or one of {', '.join([*NGRAMS, *DRAFTERS])}, got {name}")
    shipped = DRAFTERS[name]
    recipe = replaced(recipes()[name], shipped.changes)
    target, tokenizer = _target(data)
    sources = stdlib_corpus.standard_library()
    raw = tokenizer.backend_tokenizer
    held_out = Rows(stdlib_corpus.pack(raw, [s for s in sources if s.held_out], length=LENGTH)[:64])
    meta: dict[str, Any] = {"corpus": CORPUS, "corpus_sha256": stdlib_corpus.fingerprint(sources)}
    meta |= {"files": len(sources), "files_held_out": sum(s.held_out for s in sources)}
    rows = Rows(stdlib_corpus.pack(raw, [s for s in sources if not s.held_out], length=LENGTH))
    start = load_drafter(data / "models" / DRAFTERS[shipped.start].folder, target) if shipped.start else None
    drafter = begun(recipe, target, start, rows=rows, seed=SEED)
    shared = recipe.trainable != "backbone" and not drafter.taps  # no other drafter reads what EAGLE-3 taps
    job = Job(
        recipe,
        data / "models" / shipped.folder,
        shipped.steps if steps is None else steps,
        seed=SEED,
        precision=json.loads((data / "models" / NAME / LOG).read_text())["precision"],
        features=features if shared else None,
        dtype="bfloat16",
        meta=meta,
    )
    trained = run(job, target, drafter, rows, held_out)
    if recipe.trainable == "backbone":
        tokenizer.save_pretrained(job.output / TRAINED)
    return trained


def quicker_precision(config: LlamaConfig, device: torch.device, *, rounds: int = 3) -> str:
    """Return the precision of training: bfloat16 if steps of this shape are measured to be quicker in it.

    A processor's instructions do not settle this: seconds in float32 over those in bfloat16 were 1.1 to 1.2 on a Xeon
    with tiles (AMX), 0.55 on one with AVX-512's bfloat16 products and no tiles, 1.28 on an EPYC with those products
    (steps of the target, two threads, torch 2.13).
    """
    if device.type == "cuda":
        return "bfloat16"
    with torch.random.fork_rng(devices=[]):
        model = LlamaForCausalLM(config)
        tokens = torch.randint(0, config.vocab_size, (BATCH, LENGTH))
    ratios = []
    for round_ in range(rounds + 1):
        seconds = []
        for bfloat16 in (False, True):
            started = time.perf_counter()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bfloat16):
                loss = model(input_ids=tokens, labels=tokens).loss
            loss.backward()
            seconds.append(time.perf_counter() - started)
        if round_:  # the first warms up
            ratios.append(seconds[0] / seconds[1])
    return "bfloat16" if statistics.median(ratios) > 1 else "float32"


def _target(data: Path) -> tuple[Target, PreTrainedTokenizerBase]:
    """Load the target as it is stored, rounded to bfloat16, and its tokenizer."""
    prepare("cpu")
    target = load_target(data / "models" / NAME)
    return target, load_tokenizer(data / "models" / NAME, vocabulary=target.vocabulary)


def _meta(sources: list[stdlib_corpus.Source], train: NDArray[np.int64], held_out: NDArray[np.int64]) -> dict[str, Any]:
    return {
        "corpus": CORPUS,
        "corpus_sha256": stdlib_corpus.fingerprint(sources),
        "files": len(sources),
        "files_held_out": sum(s.held_out for s in sources),
        "tokens_train": int(train.size),
        "tokens_held_out": int(held_out.size),
        "seed": SEED,
    }


def train_target(
    folder: Path,
    config: LlamaConfig,
    train: NDArray[np.int64],
    held_out: NDArray[np.int64],
    *,
    steps: int,
    meta: dict[str, Any],
    learning_rate: float = 3e-3,
) -> None:
    """Train a language model from nothing, and store it in bfloat16 with its log; rows int64 (rows, length)."""
    precision = quicker_precision(config, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    set_seed(SEED)
    model = LlamaForCausalLM(config)
    started = time.monotonic()
    trainer = Trainer(
        model=model,
        args=_arguments(folder, steps, learning_rate, precision),
        train_dataset=_Labelled(train),
        eval_dataset=_Labelled(held_out[:256]),
    )
    trainer.train()
    loss = trainer.evaluate()["eval_loss"]
    model.to(dtype=torch.bfloat16)  # type: ignore[call-arg]
    model.save_pretrained(folder)
    record = {
        **meta,
        "held_out_nats_per_token": round(loss, 4),
        "held_out_perplexity": round(math.exp(loss), 2),
        "steps": trainer.state.max_steps,
        "precision": precision,
        "train_s": round(time.monotonic() - started),
        "log": trainer.state.log_history,
    }
    write_text(folder / LOG, json.dumps(record, indent=1) + "\n")


class _Labelled(Rows):
    """Rows in the form that language models are trained on."""

    def __getitem__(self, index: Any) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def _arguments(folder: Path, steps: int, learning_rate: float, precision: str) -> TrainingArguments:
    """Return the Trainer's settings for the target: AdamW, cosine, no checkpoints."""
    settings = TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=BATCH,
        learning_rate=learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=max(1, round(steps * 0.05)),
        weight_decay=0.1,
        adam_beta2=0.95,
        bf16=precision == "bfloat16",
        use_cpu=not torch.cuda.is_available(),
        logging_steps=max(1, steps // 40),
        save_strategy="no",
        report_to=[],
        seed=SEED,
        dataloader_pin_memory=False,
        remove_unused_columns=False,
    )
    settings._n_gpu = min(1, settings.n_gpu)
    return settings


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--features", type=Path)
    options = parser.parse_args()
    for name in options.names:
        build(options.data, name, features=options.features)
