"""Training text files: conversations and texts to learn from, and rows of tokens with a mask of what is learnt.

JSON lines and JSON lists (of any name), parquet, arrow and what `datasets` saved to disk hold records of one of these
forms; any other file is one text (see executor/prompts/data_files.py):

    {"conversations": ...}, {"messages": ...}, {"turns": ...}    see executor/prompts/conversation_forms.py
    {"text": ..., "prompt": ..., "cut": true}                    `prompt` and `cut` are optional, see `Text`
    {"prompt": ..., "completion": ...}                           the completion is learnt

The assistant's turns are learnt, and in a text everything after its prompt. Text that a target wrote also has its
tokens:

    {..., "tokenizer": ..., "sequences": [{"tokens": [...], "learnt": [[start, stop], ...]}, ...]}
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from executor.prompts.conversation_forms import Turns, conversation_of, list_of, string, usual_form
from executor.prompts.data_files import items
from executor.prompts.message_parts import Report
from treeopt.errors import ExecutorError


@dataclass(frozen=True)
class Written:
    """Tokens that a target was given and wrote; `learnt` are the spans [start, stop) that it wrote."""

    tokens: tuple[int, ...]
    learnt: tuple[tuple[int, int], ...]


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
    written: tuple[Written, ...] = ()
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
        """Return the number of supervised anchors at a depth (from 1); see `loss_module`."""
        return int((self.mask[:, 1:-depth] & self.mask[:, 1 + depth :]).sum()) if depth < self.mask.shape[1] else 0

    def split(self, share: float) -> "tuple[Rows, Rows]":
        """Split off the last `share` of the rows; each part has at least one row if there are two."""
        held_out = min(len(self) - 1, max(1, round(len(self) * share))) if share else 0
        cut, tokens, mask = len(self) - held_out, self.tokens.numpy(), self.mask.numpy()
        return Rows(tokens[:cut], mask[:cut]), Rows(tokens[cut:], mask[cut:])


def read_texts(paths: Sequence[Path], report: Report | None = None) -> list[Text]:
    """Read the texts of files and of all files below folders, in order.

    Empty conversations, which dumps such as ShareGPT's hold, are skipped.

    Args:
        paths: files and folders.
        report: what is left out by request; gets what was read and passed over.

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
    """Return the texts after checking that each has something to learn.

    Raises:
        ExecutorError: names the first text without.
    """
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


def _sequence(record: Any, where: str) -> Written:
    if not (isinstance(record, dict) and "tokens" in record and "learnt" in record):
        raise ExecutorError(f"{where}: must be an object with `tokens` and `learnt`")
    tokens, learnt = record["tokens"], record["learnt"]
    if not (isinstance(tokens, list) and all(type(t) is int and 0 <= t < 2**31 for t in tokens)):
        raise ExecutorError(f"{where}: `tokens` must be a list of token ids")
    last = 0
    for i, span in enumerate(learnt if isinstance(learnt, list) else [None]):
        if not (isinstance(span, list) and len(span) == 2 and all(type(x) is int for x in span)):
            raise ExecutorError(f"{where}: learnt[{i}] must be two places in `tokens`")
        if not last <= span[0] <= span[1] <= len(tokens):
            raise ExecutorError(f"{where}: learnt[{i}] must lie after {last} and within {len(tokens)} tokens: {span}")
        last = span[1]
    return Written(tuple(tokens), tuple((start, stop) for start, stop in learnt))


def _record(record: Any, where: str, report: Report) -> Text:
    conversation = conversation_of(record, where, report)
    if conversation.turns:
        return Text(where, turns=conversation.turns, extras=conversation.extras)
    text = string(record["text"], f"{where}: `text`")
    prompt = string(record.get("prompt") or "", f"{where}: `prompt`", empty=True)
    if not text.startswith(prompt):
        raise ExecutorError(f"{where}: `text` must begin with `prompt`")
    cut = False if record.get("cut") is None else record["cut"]
    if not isinstance(cut, bool):
        raise ExecutorError(f"{where}: `cut` must be true or false")
    return Text(where, text=text, prompt=prompt, cut=cut)
