"""Token rows: texts as tokens, with a mask of the tokens to be learnt, packed or padded into rows."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedTokenizerBase

from executor.prompts.conversation_forms import fields_of
from executor.prompts.message_parts import Report
from executor.prompts.prompt_files import Message, check_plain, messages_of, rendered
from executor.train.text_files import Rows, Text, Written
from treeopt.errors import ExecutorError


@dataclass(frozen=True)
class Encoded:
    """The tokens of a text, and for each True if it is to be learnt."""

    tokens: list[int]
    learnt: list[bool]


def encode(tokenizer: PreTrainedTokenizerBase, texts: Iterable[Text], report: Report | None = None) -> list[Encoded]:
    """Return the tokens of every text, conversations through the tokenizer's chat template if it has one.

    Without a template the contents of a conversation are joined by line ends. The assistant's turns are learnt together
    with the special token that ends them, and a text ends with the tokenizer's end token. Text that a target wrote with
    this tokenizer and chat template keeps its tokens.

    Args:
        tokenizer: the target's.
        texts: the texts.
        report: what is left out by request; gets the texts that the template does not take.

    Raises:
        ExecutorError: a template that changes the turns or leaves out a part of them,
            or a tokenizer that does not report where its tokens stand.
    """
    if not tokenizer.is_fast:
        raise ExecutorError("the tokenizer does not report where in a text its tokens stand: a fast one is needed")
    this_tokenizer = tokenizer_hash(tokenizer)
    encoded: list[Encoded] = []
    report = Report() if report is None else report
    for text in texts:
        as_written = text.written and text.tokenizer == this_tokenizer
        try:
            encoded += map(_as_written, text.written) if as_written else [_encoded(tokenizer, text)]
        except ExecutorError as error:
            report.skip(error)
    return encoded


def tokenizer_hash(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the SHA-256 over a tokenizer's tokens, their ids and its chat templates, in hex."""
    template = repr(tokenizer.chat_template) if tokenizer.chat_template else ""
    return hashlib.sha256((repr(sorted(tokenizer.get_vocab().items())) + template).encode()).hexdigest()


def shuffled(texts: Sequence[Text], seed: int) -> list[Text]:
    """Return all texts in an order drawn with `seed`."""
    return [texts[i] for i in np.random.default_rng(seed).permutation(len(texts))]


def _as_written(written: Written) -> Encoded:
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
    encoding = tokenizer(whole, add_special_tokens=special, return_offsets_mapping=True, verbose=False)
    spans = iter(learnt)
    start, stop = next(spans, (len(whole), len(whole)))
    mask = []
    for first, last in encoding["offset_mapping"]:
        while first >= stop and stop < len(whole):
            start, stop = next(spans, (len(whole), len(whole)))
        mask.append(last > start and first < stop)
    return Encoded(list(encoding["input_ids"]), mask)


def _joined(text: Text, end: str) -> tuple[str, list[tuple[int, int]]]:
    """Return the text, or the contents of its turns, and the spans of characters that are learnt."""
    if not text.turns:
        end = "" if text.cut else end
        return text.text + end, [(len(text.prompt), len(text.text) + len(end))]
    whole, learnt = "", []
    check_plain(messages_of(text.turns), text.extras, text.where)
    for role, content, *more in text.turns:
        turn = content + (end if role == "assistant" else "")
        if role == "assistant" and not more:  # a turn of weight 0 is not learnt
            learnt.append((len(whole), len(whole) + len(turn)))
        whole += turn + "\n"
    return whole, learnt


def _templated(tokenizer: PreTrainedTokenizerBase, text: Text) -> tuple[str, list[tuple[int, int]]]:
    """Return the same as `_joined`, through the chat template."""
    messages = messages_of(text.turns)
    whole = rendered(tokenizer, messages, text.where, extras=text.extras)
    learnt: list[tuple[int, int]] = []
    last = 0
    for index, turn in enumerate(text.turns):
        content, fields = turn[1].strip(), fields_of(turn)
        if turn[0] != "assistant":
            continue
        start = _answer(tokenizer, messages[:index], whole, last, text)
        at = whole.find(content, start)
        if start < 0 or at < 0:
            raise ExecutorError(f"{text.where}: the tokenizer's chat template changes the text of turn {index}")
        stop = at + len(content)
        last = stop + _ending(tokenizer, whole[stop:])
        if "tool_calls" in fields:
            last = _end_of_calls(tokenizer, messages[: index + 1], whole, stop, text)
        if fields.get("weight") != 0:
            learnt.append((start if index else at, last))
    return whole, learnt


def _end_of_calls(
    tokenizer: PreTrainedTokenizerBase, upto: Sequence[Message], whole: str, after: int, text: Text
) -> int:
    """Return where the last of some messages, whose tool calls follow its content, ends in the whole conversation."""
    through = rendered(tokenizer, upto, text.where, extras=text.extras).rstrip()
    if whole.startswith(through):
        return len(through)
    # The template writes earlier answers in another way: take what ends a turn there.
    end = max((token for token in _special(tokenizer) if through.endswith(token)), key=len, default="")
    at = whole.find(end, after) if end else -1
    if at < 0:
        raise ExecutorError(
            f"{text.where}: the tokenizer's chat template changes the tool calls of turn {len(upto) - 1}; "
            "--leave-out unreadable skips such records"
        )
    return at + len(end)


def _answer(tokenizer: PreTrainedTokenizerBase, before: Sequence[Message], whole: str, after: int, text: Text) -> int:
    """Return where the answer to `before` begins in the whole conversation; -1 if it cannot be found."""
    try:
        question = rendered(tokenizer, before, text.where, extras=text.extras, answer=True)
    except ExecutorError:
        if before:
            raise
        return 0  # templates need not support conversations that the assistant opens
    if whole.startswith(question):
        return len(question)
    # Some templates open the last answer differently from earlier ones: take what follows the last turn.
    if not before:
        return 0
    last_turn = before[-1]["content"].strip()
    at = whole.find(last_turn, after)
    if at < 0:
        return -1
    # What follows the last turn opens the answer, if it is what the template writes there.
    opening = question[question.rfind(last_turn) + len(last_turn) :]
    at += len(last_turn)
    return at + len(opening) if whole.startswith(opening, at) else at


def _ending(tokenizer: PreTrainedTokenizerBase, following: str) -> int:
    """Return the characters up to the end of the special token that comes next, blanks included; 0 without one."""
    blanks = len(following) - len(following.lstrip())
    return max((blanks + len(t) for t in _special(tokenizer) if following.startswith(t, blanks)), default=0)


def _special(tokenizer: PreTrainedTokenizerBase) -> set[str]:
    """Return all special tokens; `all_special_tokens` alone are only the ones that have a role."""
    marked = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}
    return {token for token in marked | set(tokenizer.all_special_tokens) if token}


def packed(texts: Sequence[Encoded], *, length: int) -> Rows:
    """Join all texts and cut them into rows; the remainder is dropped unless there is no full row."""
    tokens = np.fromiter((t for e in texts for t in e.tokens), dtype=np.int64)
    learnt = np.fromiter((t for e in texts for t in e.learnt), dtype=np.bool_)
    rows = len(tokens) // length
    if rows == 0:
        return padded([Encoded(tokens.tolist(), learnt.tolist())], length=length)
    cut = rows * length
    return Rows(tokens[:cut].reshape(rows, length), learnt[:cut].reshape(rows, length))


def padded(texts: Sequence[Encoded], *, length: int) -> Rows:
    """Return a row for each text, cut at `length` or filled up with token 0, which is never learnt."""
    tokens = np.zeros((len(texts), length), dtype=np.int64)
    learnt = np.zeros((len(texts), length), dtype=np.bool_)
    for row, text in enumerate(texts):
        tokens[row, : len(text.tokens)] = text.tokens[:length]
        learnt[row, : len(text.learnt)] = text.learnt[:length]
    return Rows(tokens, learnt)


def frequent_tokens(rows: Rows, count: int, vocabulary: int) -> list[int]:
    """Return the `count` tokens that are learnt most often, in ascending order; ties go to the lower id."""
    seen = np.bincount(rows.tokens[rows.mask].numpy(), minlength=vocabulary)
    return sorted(np.argsort(-seen, kind="stable")[:count].tolist())
