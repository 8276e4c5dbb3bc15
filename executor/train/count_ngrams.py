"""Count an n-gram drafter from text files: `python -m executor.train.count_ngrams TARGET TEXT... OUTPUT`.

Texts become tokens by the target's tokenizer, and each is followed by its end token, if it has one.
"""

import argparse
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from executor.checkpoints import save_drafter
from executor.drafters.ngram.drafter import MAX_ORDER, NGram
from executor.prompts.data_files import Item, items_of
from executor.prompts.message_parts import Report
from executor.prompts.prompt_files import prompt_of
from executor.target.load_hf_model import read_config
from executor.target.tokenizer import load_tokenizer
from executor.train.token_rows import tokenizer_hash
from treeopt.errors import ExecutorError, TreeoptError
from treeopt.storage.hub_models import folder_name
from treeopt.storage.provenance import this_run


def read_texts(path: Path) -> list[str]:
    """Read the texts of a file: each `text` of JSON lines or of a JSON list, or the whole of any other file.

    Raises:
        ExecutorError: the file cannot be read, is not UTF-8, or holds conversations.
    """
    return [_text(item) for item in items_of(path)]


def _text(item: Item) -> str:
    if item.text is not None:
        return item.text
    given = item.record.get("text") if isinstance(item.record, dict) else None
    prompt = prompt_of(item.record if given is None else {"text": given}, item.where, Report())
    if prompt.turns:
        raise ExecutorError(f"{item.where}: a conversation; n-grams are counted from `text`")
    return prompt.text


def build(target: Path, texts: Sequence[str], output: Path, *, order: int = 3) -> NGram:
    """Count `texts` as tokens of the model in the folder `target`, and write the drafter to the folder `output`.

    Raises:
        ExecutorError: no such model or tokenizer, or no text.
    """
    vocabulary = getattr(read_config(target).get_text_config(), "vocab_size", None)
    if type(vocabulary) is not int:
        raise ExecutorError(f"{target}: config.json: vocab_size must be a number of tokens, found {vocabulary!r:.80}")
    if not any(text.strip() for text in texts):
        raise ExecutorError("there is no text to count")
    tokenizer = load_tokenizer(target, vocabulary=vocabulary)
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    encoded = tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
    tokens = [np.array([*text, *end], dtype=np.int64) for text in encoded]
    drafter = NGram.count(tokens, order=order, vocabulary=vocabulary)
    digest = hashlib.sha256()
    for text in tokens:
        digest.update(text.tobytes() + b";")
    meta = {
        "target": folder_name(target),
        "texts": len(tokens),
        "tokens": sum(map(len, tokens)),
        "tokens_sha256": digest.hexdigest(),
        "tokenizer_sha256": tokenizer_hash(tokenizer),
        "provenance": this_run(),
    }
    save_drafter(output, drafter, dtype="float32", meta=meta)
    return drafter


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m executor.train.count_ngrams", description="Count an n-gram drafter."
    )
    parser.add_argument("target", type=Path, help="folder of the target: its tokenizer and configuration are read")
    parser.add_argument("texts", type=Path, nargs="+", help="text files, or JSON lines of {text}")
    parser.add_argument("output", type=Path, help="folder of the drafter")
    parser.add_argument("--order", type=int, default=3, choices=range(1, MAX_ORDER + 1), help="longest n-gram; 3")
    options = parser.parse_args(words)
    try:
        texts = [text for path in options.texts for text in read_texts(path)]
        drafter = build(options.target, texts, options.output, order=options.order)
    except (TreeoptError, OSError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return getattr(error, "exit_code", 1)
    counts = ", ".join(f"{len(drafter.tables()[f'counts.{k}'])}" for k in range(1, drafter.order + 1))
    print(f"{options.output}: order {drafter.order}, n-grams of each length: {counts}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
