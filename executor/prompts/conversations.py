"""Conversations: the JSON forms that are in use, and rendering them with a tokenizer's chat template.

{"conversations": [{"from": "human", "value": ...}, ...]}    ShareGPT; or with `role` and `content`, as SpecForge has it
{"messages": [{"role": "user", "content": ...}, ...]}
{"turns": [...]}                                             Spec-Bench: the user's turns, without answers
"""

import json
import re
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from treeopt.errors import ExecutorError
from treeopt.storage.atomic_files import why

FORMS = ("conversations", "messages", "turns")
ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "model", "bing", "bard"), "assistant"),
    **dict.fromkeys(("system", "developer"), "system"),
}
SPELT = (("from", "value"), ("role", "content"))  # the names of a turn's role and text

# The date that templates print as today, so that tokens do not depend on the day: Llama 3's own default.
TODAY = date(2024, 7, 26)
_NOW = re.compile(r"""strftime_now\(\s*(["'])(.*?)\1\s*\)""")

Turns = tuple[tuple[str, str], ...]


def records(path: Path) -> Iterator[tuple[Any, str]]:
    """Yield the records of a JSON list (`.json`) or of JSON lines (any other name), each with its place in the file.

    Raises:
        ExecutorError: the file cannot be read, or is something else; names file and line.
    """
    content = read_text(path)
    if path.suffix == ".json":
        entries = _json(content, str(path))
        if not isinstance(entries, list):
            raise ExecutorError(f"{path}: must be a list of records, found {type(entries).__name__}")
        yield from ((record, f"{path}, record {number}") for number, record in enumerate(entries))
        return
    for number, line in enumerate(content.split("\n"), 1):  # other line ends may stand inside a text
        if line.strip():
            yield _json(line, f"{path}, line {number}"), f"{path}, line {number}"


def read_text(path: Path) -> str:
    """Return a file's text.

    Raises:
        ExecutorError: the file cannot be read, or is not UTF-8.
    """
    try:
        return path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ExecutorError(f"{path}: text cannot be read: {why(error)}") from error


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ExecutorError(f"{where}: not JSON: {error}") from error


def turns_of(record: dict[str, Any], where: str) -> Turns:
    """Return the turns of a record, each a role (system, user or assistant) and a text; () if it has no such form.

    Raises:
        ExecutorError: names `where`, turn and field.
    """
    for key in ("conversations", "messages"):
        if record.get(key) is not None:
            return tuple(_turn(turn, f"{where}: {key}[{i}]") for i, turn in enumerate(list_of(record, key, where)))
    if record.get("turns") is not None:
        texts = list_of(record, "turns", where)
        return tuple(("user", string(text, f"{where}: turns[{i}]")) for i, text in enumerate(texts))
    return ()


def _turn(turn: Any, place: str) -> tuple[str, str]:
    spelt = next((names for names in SPELT if isinstance(turn, dict) and set(names) <= turn.keys()), None)
    if spelt is None:
        names = " or ".join(f"`{role}` and `{content}`" for role, content in SPELT)
        raise ExecutorError(f"{place}: must be an object with {names}")
    role, content = spelt
    known = ROLES.get(turn[role]) if isinstance(turn[role], str) else None
    if known is None:
        raise ExecutorError(f"{place}: `{role}` must be one of {', '.join(ROLES)}, found {turn[role]!r}")
    return known, string(_joined(turn[content]), f"{place}: `{content}`", empty=True)


def _joined(content: Any) -> Any:
    """Join a content of several parts, if all of them are texts."""
    if not (isinstance(content, list) and all(isinstance(p, dict) and p.get("type") == "text" for p in content)):
        return content
    texts = [part.get("text") for part in content]
    return "".join(texts) if all(isinstance(text, str) for text in texts) else content


def list_of(record: dict[str, Any], key: str, where: str) -> list[Any]:
    """Return the list in a field, which must not be empty."""
    value = record[key]
    if not (isinstance(value, list) and value):
        raise ExecutorError(f"{where}: `{key}` must be a list that is not empty, found {type(value).__name__}")
    return value


def string(value: Any, name: str, *, empty: bool = False) -> str:
    """Check that a value is a Unicode string, and return it."""
    if not isinstance(value, str) or not (value or empty):
        raise ExecutorError(f"{name} must be a string{'' if empty else ' that is not empty'}")
    try:
        value.encode()
    except UnicodeEncodeError as error:  # half a surrogate pair
        raise ExecutorError(f"{name} must be Unicode: {error.reason}") from error
    return value


def messages_of(turns: Turns) -> list[dict[str, str]]:
    """Return turns in the form that chat templates take.

    >>> messages_of((("user", "Hello"),))
    [{'role': 'user', 'content': 'Hello'}]
    """
    return [{"role": role, "content": content} for role, content in turns]


def rendered(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[dict[str, str]], where: str, *, answer: bool = False
) -> str:
    """Render a conversation with the chat template; with `answer`, up to where the assistant's answer begins.

    Raises:
        ExecutorError: the template raises an error.
    """
    try:
        template = _NOW.sub(lambda call: repr(TODAY.strftime(call[2])), tokenizer.get_chat_template())
        text = tokenizer.apply_chat_template(
            list(messages), chat_template=template, tokenize=False, add_generation_prompt=answer
        )
        str(text).encode()
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ExecutorError(f"{where}: the tokenizer's chat template refuses this conversation: {reason}") from error
    return str(text)


def up_to_answer(tokenizer: PreTrainedTokenizerBase, messages: Sequence[dict[str, str]], where: str) -> list[int]:
    """Return the tokens of a conversation up to the answer; without a template, turns are joined by line ends.

    Raises:
        ExecutorError: the template raises an error or returns nothing.
    """
    if tokenizer.chat_template:
        text = rendered(tokenizer, messages, where, answer=True)
        if not text:
            raise ExecutorError(f"{where}: the tokenizer's chat template renders this conversation as nothing")
        return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
    end = tokenizer.eos_token or ""
    text = "".join(m["content"] + (end if m["role"] == "assistant" else "") + "\n" for m in messages)
    return list(tokenizer(text, add_special_tokens=True, verbose=False)["input_ids"])
