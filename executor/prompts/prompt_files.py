"""Files of prompts: texts to continue and conversations to answer, as records of any of the forms that are read."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from executor.prompts.conversation_forms import Turns, conversation_of, form_of, string, usual_form
from executor.prompts.conversations import messages_of, up_to_answer
from executor.prompts.data_files import items
from executor.prompts.reading_report import Report
from treeopt.errors import ExecutorError
from treeopt.storage.atomic_files import write_text


@dataclass(frozen=True)
class Prompt:
    """A text to continue, or a conversation whose next answer is wanted.

    Attributes:
        text: the text to continue; empty for a conversation.
        domain: a label of its origin; empty: none.
        turns: the conversation so far, the user or a tool last; empty for a text.
        where: file and line, for messages.
        extras: arguments of the chat template as JSON, such as `tools`; empty: none.
    """

    text: str = ""
    domain: str = ""
    turns: Turns = ()
    where: str = ""
    extras: str = ""


def read_prompts(path: Path, report: Report | None = None) -> list[Prompt]:
    """Read the prompts of a file of records: JSON lines, a JSON list (`.json`), parquet, arrow; or of a folder of them.

    A prompt is a `text` or a conversation (see `conversation_forms`). Answers at a conversation's end are dropped. Only
    the first of Spec-Bench's `turns` is used, because there are no answers between them. `domain` is optional; a
    conversation may have Spec-Bench's `category` instead. Plain texts below a folder are no prompts. Empty
    conversations are skipped.

    Args:
        path: file or folder.
        report: what is left out by request; gets what was read and passed over.

    Raises:
        ExecutorError: a record is no prompt; the message names file, line and field.
    """
    report = Report() if report is None else report
    prompts = []
    for item in items([path], report, records=True):
        if item.text is not None:
            report.passed_over.append(("a plain text is no prompt", Path(item.where).name))
            continue
        try:
            prompts.append(prompt_of(item.record, item.where, report))
        except ExecutorError as error:
            report.skip(error)
    report.records += len(prompts)
    if not prompts:
        raise ExecutorError("; ".join([f"{path}: holds no prompts", *report.remarks]))
    return prompts


def prompt_of(record: Any, where: str, report: Report) -> Prompt:
    """Return the prompt that a record holds.

    Raises:
        ExecutorError: it is none; names `where` and field.
    """
    record = usual_form(record)
    conversation = conversation_of(record, where, report)
    if not conversation.turns:
        report.count_unread({key: record.get(key) for key in ("prompt", "cut", "completion")}, ())
        text = string(record["text"], f"{where}: `text`")
        return Prompt(text, _label(record, ("domain",), where, report), where=where)
    turns = conversation.turns
    if form_of(record, where) == "turns" and all(turn[0] != "assistant" for turn in turns):
        asked = next((i for i, turn in enumerate(turns) if turn[0] == "user"), -1)
        report.count_unread({"turns[1:]": turns[asked + 1 :]}, ())
        turns = turns[: asked + 1]
    while turns and turns[-1][0] == "assistant":
        turns = turns[:-1]
    if not (turns and turns[-1][0] in ("user", "tool")):
        raise ExecutorError(f"{where}: the last turn before an answer must be the user's or a tool's")
    label = _label(record, ("domain", "category"), where, report)
    return Prompt(domain=label, turns=turns, where=where, extras=conversation.extras)


def _label(record: Mapping[str, Any], names: Sequence[str], where: str, report: Report) -> str:
    """Return the label of a record: the first of the fields that is a string; others have no effect."""
    for name in names:
        value = record.get(name)
        if isinstance(value, str):
            return string(value, f"{where}: `{name}`", empty=True)
        report.count_unread({name: value}, ())
    return ""


def encode(tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Prompt]) -> list[list[int]]:
    """Return the token ids of each prompt: a text with the tokenizer's special tokens, a conversation up to the answer.

    Raises:
        ExecutorError: the chat template raises an error for a conversation, or leaves out a part of it.
    """
    return [tokens for _, tokens in encoded(tokenizer, prompts, Report())]


def encoded(
    tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Prompt], report: Report
) -> list[tuple[Prompt, list[int]]]:
    """Return each prompt with its token ids, see `encode`; without those that are left out by request.

    Raises:
        ExecutorError: see `encode`.
    """
    texts = [p.text for p in prompts if not p.turns]
    plain = iter(tokenizer(texts, add_special_tokens=True, verbose=False)["input_ids"] if texts else ())
    pairs: list[tuple[Prompt, list[int]]] = []
    for prompt in prompts:
        if not prompt.turns:
            pairs.append((prompt, list(next(plain))))
            continue
        try:
            tokens = up_to_answer(tokenizer, messages_of(prompt.turns), prompt.where, extras=prompt.extras)
            pairs.append((prompt, tokens))
        except ExecutorError as error:
            report.skip(error)
    return pairs


def write_prompts(path: Path, prompts: Sequence[Prompt]) -> None:
    """Write texts to continue as JSON lines, whole or not at all."""
    lines = (json.dumps({"domain": p.domain, "text": p.text}, ensure_ascii=False) for p in prompts)
    write_text(path, "".join(line + "\n" for line in lines))
