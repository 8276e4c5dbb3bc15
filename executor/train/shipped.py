"""The model in `data/models`, made from nothing: tokenizer, target, Medusa heads, prompts.

`python -m executor.train.shipped data` is what `make models` runs first; the traces and the profile follow
through the command line.
"""

import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Trainer, set_seed

from executor.checkpoints import save_drafter
from executor.drafters.medusa import MedusaHeads
from executor.prompts import write_prompts
from executor.target import Target
from executor.train import corpus
from executor.train.recipes import MEDUSA1
from executor.train.trainer import DrafterTrainer, Rows, arguments, depth_losses, top_accuracy
from treeopt.files import write_text
from treeopt.provenance import this_run

NAME = "stdlib-llama"
HEADS_NAME = "stdlib-medusa"
SEED = 20240607
LENGTH = 256
TARGET_STEPS = 1100
HEAD_STEPS = 600
PROMPTS = 1300
# Deep and narrow: on a CPU a forward then costs much that does not grow with its tokens, as on a GPU.
TARGET: dict[str, Any] = {
    "hidden_size": 160,
    "intermediate_size": 432,
    "num_hidden_layers": 12,
    "num_attention_heads": 5,
    "num_key_value_heads": 5,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
}


def build(data: Path, *, target_steps: int = TARGET_STEPS, head_steps: int = HEAD_STEPS) -> None:
    """Write `data/models/{stdlib-llama,stdlib-medusa}` and `data/prompts/stdlib.jsonl`, with their training logs."""
    started = time.monotonic()
    torch.set_num_threads(2)
    sources = corpus.standard_library()
    tokenizer = corpus.train_tokenizer(sources)
    train = corpus.pack(tokenizer, [s for s in sources if not s.held_out], length=LENGTH)
    held_out = corpus.pack(tokenizer, [s for s in sources if s.held_out], length=LENGTH)
    meta = {
        **this_run(),
        "corpus": "Python standard library source files",
        "corpus_sha256": corpus.fingerprint(sources),
        "files": len(sources),
        "files_held_out": sum(s.held_out for s in sources),
        "tokens_train": int(train.size),
        "tokens_held_out": int(held_out.size),
        "seed": SEED,
    }
    folder = data / "models" / NAME
    folder.mkdir(parents=True, exist_ok=True)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=corpus.END, clean_up_tokenization_spaces=False
    ).save_pretrained(folder)
    target = _train_target(folder, tokenizer.get_vocab_size(), train, held_out, target_steps, meta)
    _train_heads(data / "models" / HEADS_NAME, target, train, held_out, head_steps, meta)
    (data / "prompts").mkdir(exist_ok=True)
    drawn = corpus.prompts(tokenizer, sources, count=PROMPTS, shortest=32, longest=96, seed=SEED)
    write_prompts(data / "prompts" / "stdlib.jsonl", drawn)
    print(f"made {data / 'models'} in {(time.monotonic() - started) / 60:.1f} minutes", file=sys.stderr)


def _train_target(
    folder: Path,
    vocabulary: int,
    train: NDArray[np.int64],
    held_out: NDArray[np.int64],
    steps: int,
    meta: dict[str, Any],
) -> Target:
    set_seed(SEED)
    end = 0
    model = LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, bos_token_id=None, eos_token_id=end, **TARGET))
    started = time.monotonic()
    settings = arguments(folder, steps=steps, batch=16, learning_rate=3e-3, warmup=0.05, weight_decay=0.1, seed=SEED)
    trainer = Trainer(model=model, args=settings, train_dataset=Rows(train), eval_dataset=Rows(held_out[:256]))
    trainer.train()
    loss = trainer.evaluate()["eval_loss"]
    model.to(dtype=torch.bfloat16)  # type: ignore[call-arg]
    model.save_pretrained(folder)
    model.float()  # the heads are trained on the target as it is stored: rounded to bfloat16
    _log(
        folder,
        trainer,
        meta | {"held_out_nats_per_token": round(loss, 4), "held_out_perplexity": round(math.exp(loss), 2)},
        time.monotonic() - started,
    )
    return Target(model, name=NAME)


def _train_heads(
    folder: Path,
    target: Target,
    train: NDArray[np.int64],
    held_out: NDArray[np.int64],
    steps: int,
    meta: dict[str, Any],
) -> None:
    set_seed(SEED)
    folder.mkdir(parents=True, exist_ok=True)
    drafter = MedusaHeads(MEDUSA1.depths, target.hidden)
    started = time.monotonic()
    settings = arguments(
        folder,
        steps=steps,
        batch=8,
        learning_rate=MEDUSA1.learning_rate,
        warmup=MEDUSA1.warmup,
        weight_decay=MEDUSA1.weight_decay,
        seed=SEED,
    )
    trainer = DrafterTrainer(drafter, target=target, recipe=MEDUSA1, args=settings, train_dataset=Rows(train))
    trainer.train()
    drafter.eval()
    with torch.no_grad():
        losses = depth_losses(drafter, target, torch.from_numpy(held_out[:64]), MEDUSA1.depths)
    figures = {
        "held_out_nats_by_depth": [round(float(x), 4) for x in losses],
        "held_out_top_1_2_4_8_by_depth": top_accuracy(drafter, target, held_out[:256], depths=MEDUSA1.depths),
    }
    save_drafter(folder, drafter, dtype="bfloat16", meta={"target": target.name, "recipe": "medusa1"})
    _log(folder, trainer, meta | figures, time.monotonic() - started)


def _log(folder: Path, trainer: Trainer, meta: dict[str, Any], seconds: float) -> None:
    record = meta | {
        "steps": trainer.state.max_steps,
        "train_s": round(seconds),
        "log": trainer.state.log_history,
    }
    write_text(folder / "training.json", json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    build(Path(sys.argv[1]))
