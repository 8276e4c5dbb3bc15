"""Files of prompts: texts to continue and conversations to answer, as JSON lines."""

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
        text: the text to continue; empty for a conversation.
        domain: a label of its origin; empty: none.
        turns: the conversation so far, the user last; empty for a text.
        where: file and line, for messages.
    """

    text: str = ""
    domain: str = ""
    turns: Turns = ()
    where: str = ""


def read_prompts(path: Path) -> list[Prompt]:
    """Read the prompts of a file of JSON lines, or of a JSON list (`.json`).

    A prompt is a `text` or a conversation (see `conversations`). Answers at a conversation's end are dropped. Only the
    first of Spec-Bench's `turns` is used, because there are no answers between them. `domain` is optional; a
    conversation may have Spec-Bench's `category` instead.

    Raises:
        ExecutorError: a record is no prompt; the message names file, line and field.
    """
    prompts = [_prompt(record, where) for record, where in records(path)]
    if not prompts:
        raise ExecutorError(f"{path}: holds no prompts")
    return prompts


def _prompt(record: Any, where: str) -> Prompt:
    fields = {key for key, value in record.items() if value is not None} if isinstance(record, dict) else set()
    if not {"text", *FORMS} & fields:
        raise ExecutorError(f"{where}: must be a JSON object with `text`, `{'`, `'.join(FORMS[:-1])}` or `{FORMS[-1]}`")
    label = "domain" if "domain" in fields or "text" in fields else "category"
    domain = string(record[label], f"{where}: `{label}`", empty=True) if label in fields else ""
    if "text" in fields:
        return Prompt(string(record["text"], f"{where}: `text`"), domain, where=where)
    turns = turns_of(record, where)
    if not {"conversations", "messages"} & fields:
        turns = turns[:1]
    while turns and turns[-1][0] == "assistant":
        turns = turns[:-1]
    if not (turns and turns[-1][0] == "user"):
        raise ExecutorError(f"{where}: the last turn before an answer must be the user's")
    return Prompt(domain=domain, turns=turns, where=where)


def encode(tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Prompt]) -> list[list[int]]:
    """Return the token ids of each prompt: a text with the tokenizer's special tokens, a conversation up to the answer.

    Raises:
        ExecutorError: the chat template raises an error for a conversation.
    """
    texts = [p.text for p in prompts if not p.turns]
    plain = iter(tokenizer(texts, add_special_tokens=True, verbose=False)["input_ids"] if texts else ())
    return [up_to_answer(tokenizer, messages_of(p.turns), p.where) if p.turns else list(next(plain)) for p in prompts]


def write_prompts(path: Path, prompts: Sequence[Prompt]) -> None:
    """Write texts to continue as JSON lines, whole or not at all."""
    lines = (json.dumps({"domain": p.domain, "text": p.text}, ensure_ascii=False) for p in prompts)
    write_text(path, "".join(line + "\n" for line in lines))
