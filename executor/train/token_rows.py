"""Training text: files of conversations and texts, tokens with a mask of those to be learnt, packed or padded rows.

JSON lines and JSON lists (of any name), parquet, arrow and what `datasets` saved to disk hold records of one of these
forms; any other file is one text (see executor/prompts/data_files.py):

    {"conversations": ...}, {"messages": ...}, {"turns": ...}    see executor/prompts/conversation_forms.py
    {"text": ..., "prompt": ..., "cut": true}                    `prompt` and `cut` are optional, see `Text`
    {"prompt": ..., "completion": ...}                           the completion is learnt

The assistant's turns are learnt, and in a text everything after its prompt. Text that a target wrote also has its
tokens:

    {..., "tokenizer": ..., "sequences": [{"tokens": [...], "learnt": [[start, stop], ...]}, ...]}
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from executor.prompts.chat_template import Message, check_plain, messages_of, rendered
from executor.prompts.conversation_forms import Turns, conversation_of, fields_of, list_of, string, usual_form
from executor.prompts.data_files import items
from executor.prompts.message_parts import Report
from treeopt.errors import ExecutorError


@dataclass(frozen=True)
class Encoded:
    """The tokens of a text, and for each True if it is to be learnt."""

    tokens: list[int]
    learnt: list[bool]


@dataclass(frozen=True)
class Text:
    """A conversation, or a text without turns.

    Attributes:
        where: file and line, for messages.
        turns: (role, content) and further fields, the role being system, user, assistant or tool.
        text: a text without turns.
        prompt: the beginning of that text, which is not learnt.
        cut: the text was cut off, so no end token follows it.
        written: the tokens, if a target wrote the text: templates and decoders do not always reproduce them.
        tokenizer: hash of the tokenizer that these tokens belong to, see `tokenizer_hash`.
        extras: arguments of the chat template as JSON, such as `tools`; empty: none.
    """

    where: str
    turns: Turns = ()
    text: str = ""
    prompt: str = ""
    cut: bool = False
    written: tuple[Encoded, ...] = ()
    tokenizer: str = ""
    extras: str = ""

    @property
    def answered(self) -> bool:
        """True if there is something to learn: an assistant's turn, or text after the prompt."""
        return any(turn[0] == "assistant" for turn in self.turns) or len(self.text) > len(self.prompt)


class Rows(Dataset[dict[str, Tensor]]):
    """Token rows, int64 (rows, length), and a mask of what is to be learnt, bool of the same shape."""

    def __init__(self, tokens: NDArray[np.int64], mask: NDArray[np.bool_] | None = None) -> None:
        """Wrap the arrays; without a mask everything is learnt."""
        self.tokens = torch.from_numpy(tokens)
        self.mask = torch.ones_like(self.tokens, dtype=torch.bool) if mask is None else torch.from_numpy(mask)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.tokens)

    def __getitem__(self, index: Any) -> dict[str, Tensor]:
        """Return a row, or several, as `Lesson` takes them."""
        return {"input_ids": self.tokens[index], "loss_mask": self.mask[index]}

    def anchors(self, depth: int) -> int:
        """Return the number of supervised anchors at a depth (from 1); see `losses`."""
        return int((self.mask[:, 1:-depth] & self.mask[:, 1 + depth :]).sum()) if depth < self.mask.shape[1] else 0

    def split(self, share: float) -> "tuple[Rows, Rows]":
        """Split off the last `share` of the rows; each part has at least one row if there are two."""
        held_out = min(len(self) - 1, max(1, round(len(self) * share))) if share else 0
        cut, tokens, mask = len(self) - held_out, self.tokens.numpy(), self.mask.numpy()
        return Rows(tokens[:cut], mask[:cut]), Rows(tokens[cut:], mask[cut:])


def read_texts(paths: Sequence[Path], report: Report | None = None) -> list[Text]:
    """Read the texts of files and of all files below folders, in order; `report` gets what was read and passed over.

    Empty conversations, which dumps such as ShareGPT's hold, are skipped.

    Raises:
        ExecutorError: a file cannot be read, or a record has no known form; names file, line and field.
    """
    report = Report() if report is None else report
    texts: list[Text] = []
    for item in items(paths, report):
        if item.text is not None:
            report.texts += 1
            texts.append(Text(item.where, text=item.text))
        else:
            try:
                texts.append(_text(item.record, item.where, report))
                report.records += 1
            except ExecutorError as error:
                report.skip(error)
    if not texts:
        raise ExecutorError("; ".join([f"{', '.join(map(str, paths))}: no text here", *report.remarks]))
    return texts


def answered(texts: Sequence[Text]) -> Sequence[Text]:
    """Return the texts; raise ExecutorError, naming the first that has nothing to learn."""
    for text in texts:
        if not text.answered:
            raise ExecutorError(f"{text.where}: holds no answers: let the target write them (--self-distill)")
    return texts


def _text(record: Any, where: str, report: Report) -> Text:
    asked = isinstance(record, dict) and not record.get("text")
    record = usual_form(record)
    text = _record(record, where, report)
    if text.text and asked:  # a prompt to continue
        completion = string(record.get("completion") or "", f"{where}: `completion`", empty=True)
        text = replace(text, text=text.text + completion, prompt=text.text)
    if not {"sequences", "tokenizer"} <= record.keys():  # elsewhere `sequences` may mean something else
        return text
    sequences = list_of(record, "sequences", where)
    written = tuple(_sequence(sequence, f"{where}: sequences[{i}]") for i, sequence in enumerate(sequences))
    return replace(text, written=written, tokenizer=string(record.get("tokenizer"), f"{where}: `tokenizer`"))


def _sequence(record: Any, where: str) -> Encoded:
    if not (isinstance(record, dict) and "tokens" in record and "learnt" in record):
        raise ExecutorError(f"{where}: must be an object with `tokens` and `learnt`")
    tokens, learnt = record["tokens"], record["learnt"]
    if not (isinstance(tokens, list) and all(type(t) is int and 0 <= t < 2**31 for t in tokens)):
        raise ExecutorError(f"{where}: `tokens` must be a list of token ids")
    last, mask = 0, [False] * len(tokens)
    for i, span in enumerate(learnt if isinstance(learnt, list) else [None]):
        if not (isinstance(span, list) and len(span) == 2 and all(type(x) is int for x in span)):
            raise ExecutorError(f"{where}: learnt[{i}] must be two places in `tokens`")
        if not last <= span[0] <= span[1] <= len(tokens):
            raise ExecutorError(f"{where}: learnt[{i}] must lie after {last} and within {len(tokens)} tokens: {span}")
        first, last = span
        mask[first:last] = [True] * (last - first)
    return Encoded(tokens, mask)


def _record(record: Any, where: str, report: Report) -> Text:
    turns, extras = conversation_of(record, where, report)
    if turns:
        return Text(where, turns=turns, extras=extras)
    text = string(record["text"], f"{where}: `text`")
    prompt = string(record.get("prompt") or "", f"{where}: `prompt`", empty=True)
    if not text.startswith(prompt):
        raise ExecutorError(f"{where}: `text` must begin with `prompt`")
    cut = False if record.get("cut") is None else record["cut"]
    if not isinstance(cut, bool):
        raise ExecutorError(f"{where}: `cut` must be true or false")
    return Text(where, text=text, prompt=prompt, cut=cut)


def encode(tokenizer: PreTrainedTokenizerBase, texts: Iterable[Text], report: Report | None = None) -> list[Encoded]:
    """Return the tokens of every text, conversations through the tokenizer's chat template if it has one.

    Without a template the contents of a conversation are joined by line ends. The assistant's turns are learnt together
    with the special token that ends them, and a text ends with the tokenizer's end token. Text that a target wrote with
    this tokenizer and chat template keeps its tokens.

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
            encoded += text.written if as_written else [_encoded(tokenizer, text)]
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
        end = stop + len(whole[stop:]) - len(whole[stop:].lstrip())  # of blanks; a special token may come next
        last = max((end + len(token) for token in _special(tokenizer) if whole.startswith(token, end)), default=stop)
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
