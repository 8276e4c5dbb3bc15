"""The tokenizer of a Hugging Face folder as GGUF stores it: byte-level BPE with a pre-tokenizer known to llama.cpp."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treeopt.errors import ExecutorError
from treeopt.storage.user_files import read_text

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5  # gguf.TokenType
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS = {WORDS + r"\p{N}{1,3}" + REST: "llama-bpe", WORDS + r"\p{N}" + REST: "qwen2"}


@dataclass(frozen=True)
class Vocabulary:
    """The tokens in the order of their ids, the type of each, and llama.cpp's name of the pre-tokenizer."""

    tokens: tuple[str, ...]
    types: tuple[int, ...]
    pre_tokenizer: str


def read_vocabulary(folder: Path, vocabulary: int) -> Vocabulary:
    """Read `tokenizer.json`; ids of the model that have no token are unused.

    Raises:
        ExecutorError: no tokenizer, another kind, more tokens than the model has, or an unknown pre-tokenizer.
    """
    file = folder / "tokenizer.json"
    try:
        content = json.loads(read_text(file))
        model, added = content["model"], content.get("added_tokens") or []
        ids = dict(model["vocab"]) | {token["content"]: token["id"] for token in added}
        special = {token["id"]: CONTROL if token["special"] else USER_DEFINED for token in added}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ExecutorError(f"{file}: must be the tokenizer of a Hugging Face folder: {error}") from error
    if model.get("type") != "BPE" or model.get("byte_fallback"):
        raise ExecutorError(f"{file}: gguf is written for byte-level BPE tokenizers, found {model.get('type')}")
    if max(ids.values()) >= vocabulary:
        raise ExecutorError(f"{file}: token id {max(ids.values())} is not in the model's vocabulary of {vocabulary}")
    names = {number: token for token, number in ids.items()}
    tokens = tuple(names.get(i, f"[PAD{i}]") for i in range(vocabulary))
    types = tuple(special.get(i, NORMAL if i in names else UNUSED) for i in range(vocabulary))
    return Vocabulary(tokens, types, pre_tokenizer_name(content.get("pre_tokenizer"), file))


def pre_tokenizer_name(rule: Any, file: Path) -> str:
    """Return llama.cpp's name of a pre-tokenizer.

    Raises:
        ExecutorError: it has none that is known here; another name would split texts differently.

    >>> pre_tokenizer_name({"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}, Path("t.json"))
    'gpt-2'
    """
    parts = rule.get("pretokenizers", [rule]) if isinstance(rule, dict) else [{}]
    *before, last = parts
    if last.get("type") == "ByteLevel" and not last.get("add_prefix_space"):
        if last.get("use_regex", True) and not before:
            return "gpt-2"
        if (
            last.get("use_regex", True)
            and [p.get("type") for p in before] == ["Digits"]
            and before[0]["individual_digits"]
        ):
            return "smollm"
        if len(before) == 1 and before[0].get("type") == "Split" and before[0].get("behavior") == "Isolated":
            name = PATTERNS.get(before[0].get("pattern", {}).get("Regex"))
            if name is not None:
                return name
    raise ExecutorError(
        f"{file}: llama.cpp's name of this pre-tokenizer is not known here; convert with llama.cpp's own "
        "convert_hf_to_gguf.py"
    )
