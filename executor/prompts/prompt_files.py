"""Files of prompts: texts to continue and conversations to answer, as records of any of the forms that are read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from executor.prompts.chat_template import messages_of, up_to_answer
from executor.prompts.conversation_forms import (
    QUESTIONS,
    Turns,
    conversation_of,
    form_of,
    has_roles,
    string,
    usual_form,
)
from executor.prompts.data_files import items
from executor.prompts.message_parts import Report
from treeopt.errors import ExecutorError

# What is left out of records with several questions, such as MT-bench's, in messages.
LATER = "questions after the first (acceptance on later turns may differ)"


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
    the first of Spec-Bench's `turns`, or of a list of questions, is asked, because there are no answers between them.
    `domain` is optional; a conversation may have Spec-Bench's `category` instead. Plain texts below a folder are no
    prompts. Empty conversations are skipped.

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
            prompts += [prompt_of(record, item.where, report) for record in _requests(item.record)]
        except ExecutorError as error:
            report.skip(error)
    report.records += len(prompts)
    if not prompts:
        raise ExecutorError("; ".join([f"{path}: holds no prompts", *report.remarks]))
    return prompts


def _requests(record: Any) -> list[Any]:
    """Return the requests of a record; one of OpenAI's completions may hold several texts."""
    body: Any = record.get("body") if isinstance(record, dict) else None
    texts: Any = body.get("prompt") if isinstance(body, dict) else None
    several = isinstance(texts, list) and texts and all(isinstance(text, str) for text in texts)
    return [{**body, "prompt": text} for text in texts] if several else [record]


def prompt_of(record: Any, where: str, report: Report) -> Prompt:
    """Return the prompt that a record holds.

    Raises:
        ExecutorError: it is none; names `where` and field.
    """
    record = usual_form(record)
    turns, extras = conversation_of(record, where, report)
    if not turns:
        report.count_unread({key: record.get(key) for key in ("prompt", "cut", "completion")}, ())
        text = string(record["text"], f"{where}: `text`")
        return Prompt(text, _label(record, ("domain",), where, report), where=where)
    form = form_of(record, where)
    several = form == "turns" or (form in QUESTIONS and not has_roles(record[form]))
    if several and all(turn[0] != "assistant" for turn in turns):
        asked = next((i for i, turn in enumerate(turns) if turn[0] == "user"), -1)
        if turns[asked + 1 :]:
            report.left_out[LATER] += 1
        turns = turns[: asked + 1]
    while turns and turns[-1][0] == "assistant":
        turns = turns[:-1]
    if not (turns and turns[-1][0] in ("user", "tool")):
        raise ExecutorError(f"{where}: the last turn before an answer must be the user's or a tool's")
    label = _label(record, ("domain", "category"), where, report)
    return Prompt(domain=label, turns=turns, where=where, extras=extras)


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
