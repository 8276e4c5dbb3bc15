"""Texts as tokens: what a tokenizer makes of them, which of the tokens are learnt, and how they fill rows."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedTokenizerBase

from executor.prompts.conversations import messages_of, rendered
from executor.train.text_files import Rows, Text, Written
from treeopt.errors import ExecutorError


@dataclass(frozen=True)
class Encoded:
    """A text's tokens, and for each whether it is to be learnt."""

    tokens: list[int]
    learnt: list[bool]


def encode(tokenizer: PreTrainedTokenizerBase, texts: Iterable[Text]) -> list[Encoded]:
    """Tokens of every text, conversations through the tokenizer's chat template where it has one.

    Without a template the contents of a conversation are joined by line ends. What the assistant says is learnt
    together with the special token that ends it, and after a text comes the tokenizer's end token. What a target wrote
    with this tokenizer and chat template is taken as it was written.

    Raises:
        ExecutorError: a template that changes what was said, or a tokenizer that does not tell where its tokens stand.
    """
    if not tokenizer.is_fast:
        raise ExecutorError("the tokenizer does not tell where in a text its tokens stand: a fast one is needed")
    own = tokenizer_hash(tokenizer)
    found: list[Encoded] = []
    for text in texts:
        as_written = text.written and text.tokenizer == own
        found += map(_taken, text.written) if as_written else [_encoded(tokenizer, text)]
    return found


def tokenizer_hash(tokenizer: PreTrainedTokenizerBase) -> str:
    """SHA-256 over a tokenizer's tokens, their ids and its chat templates, in hex."""
    template = repr(tokenizer.chat_template) if tokenizer.chat_template else ""
    return hashlib.sha256((repr(sorted(tokenizer.get_vocab().items())) + template).encode()).hexdigest()


def shuffled(texts: Sequence[Text], seed: int) -> list[Text]:
    """All texts in an order drawn by `seed`."""
    return [texts[i] for i in np.random.default_rng(seed).permutation(len(texts))]


def _taken(written: Written) -> Encoded:
    learnt = [False] * len(written.tokens)
    for start, stop in written.learnt:
        learnt[start:stop] = [True] * (stop - start)
    return Encoded(list(written.tokens), learnt)


def _encoded(tokenizer: PreTrainedTokenizerBase, text: Text) -> Encoded:
    if text.turns and tokenizer.chat_template:
        whole, learnt = _templated(tokenizer, text)
        special = False
    else:
        end = tokenizer.eos_token or ""
        whole, learnt = _joined(text, end)
        special = True
    found = tokenizer(whole, add_special_tokens=special, return_offsets_mapping=True, verbose=False)
    spans = iter(learnt)
    start, stop = next(spans, (len(whole), len(whole)))
    mask = []
    for first, last in found["offset_mapping"]:
        while first >= stop and stop < len(whole):
            start, stop = next(spans, (len(whole), len(whole)))
        mask.append(last > start and first < stop)
    return Encoded(list(found["input_ids"]), mask)


def _joined(text: Text, end: str) -> tuple[str, list[tuple[int, int]]]:
    """The text, or the contents of its turns, and the stretches of characters that are learnt."""
    if not text.turns:
        end = "" if text.cut else end
        return text.text + end, [(len(text.prompt), len(text.text) + len(end))]
    whole, learnt = "", []
    for role, content in text.turns:
        said = content + (end if role == "assistant" else "")
        if role == "assistant":
            learnt.append((len(whole), len(whole) + len(said)))
        whole += said + "\n"
    return whole, learnt


def _templated(tokenizer: PreTrainedTokenizerBase, text: Text) -> tuple[str, list[tuple[int, int]]]:
    """The same through the chat template."""
    messages = messages_of(text.turns)
    whole = rendered(tokenizer, messages, text.where)
    learnt: list[tuple[int, int]] = []
    for index, (role, content) in enumerate(text.turns):
        if role != "assistant":
            continue
        start = _answer(tokenizer, messages[:index], whole, learnt[-1][1] if learnt else 0, text.where)
        at = whole.find(content.strip(), start)
        if start < 0 or at < 0:
            raise ExecutorError(f"{text.where}: the tokenizer's chat template changes what turn {index} says")
        stop = at + len(content.strip())
        learnt.append((start if index else at, stop + _ending(tokenizer, whole[stop:])))
    return whole, learnt


def _answer(
    tokenizer: PreTrainedTokenizerBase, before: Sequence[dict[str, str]], whole: str, after: int, where: str
) -> int:
    """Where the answer to `before` begins in the whole conversation; -1 if that cannot be told."""
    try:
        asked = rendered(tokenizer, before, where, answer=True)
    except ExecutorError:
        if before:
            raise
        return 0  # templates need not know conversations that the assistant opens
    if whole.startswith(asked):
        return len(asked)
    # Some templates open the last answer in another way than earlier ones: take what follows the question.
    if not before:
        return 0
    question = before[-1]["content"].strip()
    at = whole.find(question, after)
    return -1 if at < 0 else at + len(question)


def _ending(tokenizer: PreTrainedTokenizerBase, rest: str) -> int:
    """Characters up to the end of the special token that follows next, blanks before it passed over; 0 without one."""
    blanks = len(rest) - len(rest.lstrip())
    marked = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}
    special = marked | set(tokenizer.all_special_tokens)  # which knows only those that have a part to play
    return max((blanks + len(t) for t in special if rest.startswith(t, blanks)), default=0)


def packed(texts: Sequence[Encoded], *, length: int) -> Rows:
    """All texts one after the other, cut into rows; the remainder is dropped unless it is all there is."""
    tokens = np.fromiter((t for e in texts for t in e.tokens), dtype=np.int64)
    learnt = np.fromiter((t for e in texts for t in e.learnt), dtype=np.bool_)
    rows = len(tokens) // length
    if rows == 0:
        return padded([Encoded(tokens.tolist(), learnt.tolist())], length=length)
    cut = rows * length
    return Rows(tokens[:cut].reshape(rows, length), learnt[:cut].reshape(rows, length))


def padded(texts: Sequence[Encoded], *, length: int) -> Rows:
    """A row for each text, its end cut off, or filled up with token 0, which is never learnt."""
    tokens = np.zeros((len(texts), length), dtype=np.int64)
    learnt = np.zeros((len(texts), length), dtype=np.bool_)
    for row, text in enumerate(texts):
        tokens[row, : len(text.tokens)] = text.tokens[:length]
        learnt[row, : len(text.learnt)] = text.learnt[:length]
    return Rows(tokens, learnt)


def frequent_tokens(rows: Rows, count: int, vocabulary: int) -> list[int]:
    """The `count` tokens that are learnt most often, in ascending order; ties go to the lower id."""
    seen = np.bincount(rows.tokens[rows.mask].numpy(), minlength=vocabulary)
    return sorted(np.argsort(-seen, kind="stable")[:count].tolist())
