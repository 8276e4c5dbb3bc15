"""The tokenizer of a target: loading it, tokens that end a text, text in pieces; comparing a draft model's tokens."""

from collections.abc import Sequence
from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from executor.target.load_hf_model import first_line
from executor.target.target_model import Target
from treeopt.errors import ExecutorError
from treeopt.storage.user_files import check_regular


def load_tokenizer(path: Path | str, *, vocabulary: int) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a local Hugging Face checkpoint folder, for a model of `vocabulary` tokens.

    Tokens that were added to the tokenizer do not count: Gemma 3's smaller models have one for images, which they do
    not know.

    Raises:
        ExecutorError: there is no tokenizer, or it has more tokens than the model.
    """
    tokenizer = _load(path)
    if tokenizer.vocab_size > vocabulary:
        raise ExecutorError(
            f"{path}: the tokenizer has {tokenizer.vocab_size} tokens, the model a vocabulary of {vocabulary}"
        )
    return tokenizer


def _load(path: Path | str) -> PreTrainedTokenizerBase:
    try:
        check_regular(path)
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            path, local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError, TypeError, AttributeError, KeyError, RuntimeError) as error:
        raise ExecutorError(f"{path}: transformers cannot load a tokenizer: {first_line(error)}") from error
    return tokenizer


def stop_tokens(target: Target, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the tokens that end a text, sorted: the tokenizer's and those of the model's generation_config.json.

    Raises:
        ExecutorError: these are no token ids.
    """
    token = tokenizer.eos_token_id
    if token is not None and type(token) is not int:
        raise ExecutorError(f"{target.name}: the tokenizer's eos_token_id must be an id, found {token!r:.80}")
    return sorted({*end_tokens(target), *([] if token is None else [token])})


def end_tokens(target: Target) -> list[int]:
    """Return the tokens that end a text by the model's generation_config.json, sorted.

    Raises:
        ExecutorError: these are no token ids.
    """
    ends = target.model.generation_config.eos_token_id if target.model.generation_config else None
    tokens = ends if isinstance(ends, list) else [ends]
    if not all(token is None or type(token) is int for token in tokens):
        raise ExecutorError(f"{target.name}: eos_token_id of generation_config.json must be ids, found {ends!r:.80}")
    return sorted({token for token in tokens if token is not None})


SHOWN = 3  # examples of tokens that differ
_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json", "tekken.json", "vocab.txt")


def check_same_tokens(target: Path, drafter: Path, vocabulary: int) -> list[str]:
    """Compare a target's tokens, below its vocabulary, with those of a language model that drafts for it.

    Tokens that only one of them has do no harm: vocabularies may be padded, and ids that the drafter lacks are not
    proposed.

    Returns:
        Warnings: a tokenizer is missing, or special tokens differ.

    Raises:
        ExecutorError: the same id is another token; with examples.
    """
    tables = []
    for folder in (target, drafter):
        try:
            tables.append(_tokens(folder, vocabulary))
        except ExecutorError as error:
            return [f"the tokens of drafter and target are not compared, and taken to be the same: {error}"]
    (ours, special), (theirs, other_special) = tables
    differing = sorted(token for token in ours.keys() & theirs.keys() if ours[token] != theirs[token])
    plain = [token for token in differing if token not in special | other_special]
    examples = ", ".join(
        f"id {token} is {ours[token]!r} for the target and {theirs[token]!r} for the drafter"
        for token in (plain or differing)[:SHOWN]
    )
    if plain:
        raise ExecutorError(
            f"{drafter}: its tokenizer is not the target's, {len(plain)} of {len(ours)} tokens differ: {examples}; "
            "drafting across tokenizers (universal assisted generation) is not supported: use a drafter with the "
            "target's tokens, or give --assume-same-tokens"
        )
    return [f"{drafter}: {len(differing)} special tokens differ from the target's: {examples}"] if differing else []


def _tokens(folder: Path, vocabulary: int) -> tuple[dict[int, str], set[int]]:
    """Return a tokenizer's tokens by id, below `vocabulary`, and the ids of those that were added to it."""
    folder = folder if folder.is_dir() else folder.parent
    if not any((folder / name).is_file() for name in _FILES):
        raise ExecutorError(f"{folder} has no tokenizer")
    tokenizer = _load(folder)
    tokens = {index: token for token, index in tokenizer.get_vocab().items() if index < vocabulary}
    return tokens, {*tokenizer.added_tokens_decoder, *tokenizer.all_special_ids}


class TextStream:
    """The text of one request in pieces, as its tokens arrive; incomplete characters are held back."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Start with no tokens."""
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        # Tokens before `read` are out; tokens from `start` on are decoded again, since a token's text may depend on
        # the one before it.
        self._start = self._read = 0

    def put(self, tokens: Sequence[int], *, last: bool = False) -> str:
        """Return the text that these tokens add; with `last`, also everything that was held back."""
        self._tokens.extend(tokens)
        out = len(self._text(self._read))
        text = self._text(len(self._tokens))
        if not last and (len(text) <= out or text.endswith("\ufffd")):
            return ""
        self._start, self._read = self._read, len(self._tokens)
        return text[out:]

    def _text(self, end: int) -> str:
        return str(self._tokenizer.decode(self._tokens[self._start : end], skip_special_tokens=True))
