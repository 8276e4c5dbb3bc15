"""Prompts: texts to continue and conversations to answer, read from and written to JSON lines."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from executor.prompts.conversations import FORMS, Turns, messages_of, records, string, turns_of, up_to_answer
from treeopt.errors import ExecutorError
from treeopt.storage.atomic_files import write_text


@dataclass(frozen=True)
class Prompt:
    """A text to continue, or a conversation whose next answer is wanted.

    Attributes:
        text: continued as it stands.
        domain: the label of where it comes from; empty: none.
        turns: what was said so far, the user last; empty for a text.
        where: file and line, for messages.
    """

    text: str = ""
    domain: str = ""
    turns: Turns = ()
    where: str = ""


def read_prompts(path: Path) -> list[Prompt]:
    """The prompts of a file of JSON lines, or of a JSON list (`.json`).

    A prompt is a `text` or a conversation (see `conversations`). Answers at a conversation's end are left out,
    and of Spec-Bench's `turns`, which have no answers between them, all but the first. `domain` is optional; of a
    conversation Spec-Bench's `category` takes its place.

    Raises:
        ExecutorError: a record is no prompt; the message names file, line and field.
    """
    prompts = [_prompt(record, where) for record, where in records(path)]
    if not prompts:
        raise ExecutorError(f"{path}: holds no prompts")
    return prompts


def _prompt(record: Any, where: str) -> Prompt:
    told = {key for key, value in record.items() if value is not None} if isinstance(record, dict) else set()
    if not {"text", *FORMS} & told:
        raise ExecutorError(f"{where}: must be a JSON object with `text`, `{'`, `'.join(FORMS[:-1])}` or `{FORMS[-1]}`")
    label = "domain" if "domain" in told or "text" in told else "category"
    domain = string(record[label], f"{where}: `{label}`", empty=True) if label in told else ""
    if "text" in told:
        return Prompt(string(record["text"], f"{where}: `text`"), domain, where=where)
    turns = turns_of(record, where)
    if not {"conversations", "messages"} & told:
        turns = turns[:1]
    while turns and turns[-1][0] == "assistant":
        turns = turns[:-1]
    if not (turns and turns[-1][0] == "user"):
        raise ExecutorError(f"{where}: the user must have the last word before an answer")
    return Prompt(domain=domain, turns=turns, where=where)


def encode(tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Prompt]) -> list[list[int]]:
    """Token ids of each: of a text with the tokenizer's special tokens, of a conversation up to the answer.

    Raises:
        ExecutorError: the chat template refuses a conversation.
    """
    texts = [p.text for p in prompts if not p.turns]
    plain = iter(tokenizer(texts, add_special_tokens=True, verbose=False)["input_ids"] if texts else ())
    return [up_to_answer(tokenizer, messages_of(p.turns), p.where) if p.turns else list(next(plain)) for p in prompts]


def write_prompts(path: Path, prompts: Sequence[Prompt]) -> None:
    """Write texts to continue as JSON lines, whole or not at all."""
    lines = (json.dumps({"domain": p.domain, "text": p.text}, ensure_ascii=False) for p in prompts)
    write_text(path, "".join(line + "\n" for line in lines))
