"""The training corpus that every machine has: source files of Python's standard library, as tokens and prompts.

It defines which files are used, which are held out, and how they become tokens and prompts.
"""

import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from executor.prompts.prompt_files import Prompt

# Not used as program text: test data, generated tables, vendored wheels.
EXCLUDED = frozenset(
    [
        "test",
        "tests",
        "idle_test",
        "site-packages",
        "dist-packages",
        "idlelib",
        "lib2to3",
        "encodings",
        "pydoc_data",
        "turtledemo",
        "ensurepip",
    ]
)
END = "<|endoftext|>"
HELD_OUT_SHARE = 0.15


@dataclass(frozen=True)
class Source:
    """A file: its path inside the standard library, its text, and True if it is held out."""

    name: str
    text: str
    held_out: bool


def standard_library(root: Path | None = None) -> list[Source]:
    """Return all used files below `root` (default: the running Python's library), sorted by name.

    A file is held out when the SHA-256 of its name falls in the lowest `HELD_OUT_SHARE`; so the split does
    not move when files come or go.
    """
    root = root or Path(sysconfig.get_paths()["stdlib"])
    sources = []
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if EXCLUDED & set(name.parts):
            continue
        draw = int.from_bytes(hashlib.sha256(name.as_posix().encode()).digest()[:4], "big") / 2**32
        sources.append(Source(name.as_posix(), path.read_text("utf-8", errors="replace"), draw < HELD_OUT_SHARE))
    return sources


def fingerprint(sources: list[Source]) -> str:
    """Return the SHA-256 over names and texts: equal corpora have equal fingerprints."""
    digest = hashlib.sha256()
    for source in sources:
        digest.update(source.name.encode() + b"\0" + source.text.encode() + b"\0")
    return digest.hexdigest()


def train_tokenizer(sources: list[Source], *, vocabulary: int = 4096) -> Tokenizer:
    """Train a byte-level BPE tokenizer on the files that are not held out."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((s.text for s in sources if not s.held_out), trainer)
    return tokenizer


def pack(tokenizer: Tokenizer, sources: list[Source], *, length: int) -> NDArray[np.int64]:
    """Join all files by the end token and cut them into rows; int64 (rows, length), the remainder dropped."""
    end = tokenizer.token_to_id(END)
    stream = [t for e in tokenizer.encode_batch([s.text for s in sources]) for t in (*e.ids, end)]
    rows = len(stream) // length
    return np.asarray(stream[: rows * length], dtype=np.int64).reshape(rows, length)


def prompts(
    tokenizer: Tokenizer, sources: list[Source], *, count: int, shortest: int, longest: int, seed: int
) -> list[Prompt]:
    """Return `count` pieces of held-out files, each starting at the start of a line, in shuffled order.

    Every file is cut into consecutive stretches of `2 * longest` tokens; a prompt is the beginning of one,
    between `shortest` and `longest` tokens long, so prompts never overlap and leave room for what follows.
    """
    rng = np.random.default_rng(seed)
    pieces = []
    for source in sources:
        if not source.held_out:
            continue
        encoding = tokenizer.encode(source.text)
        for start in range(0, len(encoding.ids) - 2 * longest, 2 * longest):
            stop = start + int(rng.integers(shortest, longest + 1))
            text = source.text[encoding.offsets[start][0] : encoding.offsets[stop - 1][1]]
            text = text[text.find("\n") + 1 :] if start else text
            if len(tokenizer.encode(text).ids) >= shortest // 2:
                pieces.append(Prompt(text=text, domain=source.name.split("/")[0].removesuffix(".py")))
    order = rng.permutation(len(pieces))[:count]
    return [pieces[i] for i in order]
