"""Conversations: the forms in which people keep them, and what a tokenizer's chat template makes of them.

{"conversations": [{"from": "human", "value": ...}, ...]}    ShareGPT
{"messages": [{"role": "user", "content": ...}, ...]}
{"turns": [...]}                                             Spec-Bench: what a user says, without answers
"""

from collections.abc import Sequence
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from treeopt.errors import ExecutorError

FORMS = ("conversations", "messages", "turns")
ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "model"), "assistant"),
    "system": "system",
}

Turns = tuple[tuple[str, str], ...]


def turns_of(record: dict[str, Any], where: str) -> Turns:
    """The turns of a record, each a role (system, user or assistant) and what is said; none if it has no such form.

    Raises:
        ExecutorError: names `where`, turn and field.
    """
    if "conversations" in record:
        return _turns(record, "conversations", "from", "value", where)
    if "messages" in record:
        return _turns(record, "messages", "role", "content", where)
    if "turns" in record:
        said = list_of(record, "turns", where)
        return tuple(("user", string(x, f"{where}: turns[{i}]")) for i, x in enumerate(said))
    return ()


def _turns(record: dict[str, Any], key: str, role: str, content: str, where: str) -> Turns:
    found = []
    for index, turn in enumerate(list_of(record, key, where)):
        place = f"{where}: {key}[{index}]"
        if not (isinstance(turn, dict) and role in turn and content in turn):
            raise ExecutorError(f"{place}: must be an object with `{role}` and `{content}`")
        known = ROLES.get(turn[role]) if isinstance(turn[role], str) else None
        if known is None:
            raise ExecutorError(f"{place}: `{role}` must be one of {', '.join(ROLES)}, found {turn[role]!r}")
        found.append((known, string(turn[content], f"{place}: `{content}`", empty=True)))
    return tuple(found)


def list_of(record: dict[str, Any], key: str, where: str) -> list[Any]:
    """A list that is not empty, from a field."""
    found = record[key]
    if not (isinstance(found, list) and found):
        raise ExecutorError(f"{where}: `{key}` must be a list that is not empty, found {type(found).__name__}")
    return found


def string(value: Any, name: str, *, empty: bool = False) -> str:
    """A string in Unicode."""
    if not isinstance(value, str) or not (value or empty):
        raise ExecutorError(f"{name} must be a string{'' if empty else ' that is not empty'}")
    try:
        value.encode()
    except UnicodeEncodeError as error:  # half a surrogate pair
        raise ExecutorError(f"{name} must be Unicode: {error.reason}") from error
    return value


def messages_of(turns: Turns) -> list[dict[str, str]]:
    """Turns as chat templates take them."""
    return [{"role": role, "content": content} for role, content in turns]


def rendered(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[dict[str, str]], where: str, *, answer: bool = False
) -> str:
    """A conversation through the chat template; with `answer`, up to where the assistant's begins.

    Raises:
        ExecutorError: the template refuses it.
    """
    try:
        return str(tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=answer))
    except (TemplateError, ValueError, TypeError, KeyError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ExecutorError(f"{where}: the tokenizer's chat template refuses this conversation: {reason}") from error


def up_to_answer(tokenizer: PreTrainedTokenizerBase, messages: Sequence[dict[str, str]], where: str) -> list[int]:
    """Tokens of a conversation up to where the answer begins; without a template turns are joined by line ends.

    Raises:
        ExecutorError: the template refuses it.
    """
    if tokenizer.chat_template:
        whole = rendered(tokenizer, messages, where, answer=True)
        return list(tokenizer(whole, add_special_tokens=False, verbose=False)["input_ids"])
    end = tokenizer.eos_token or ""
    whole = "".join(m["content"] + (end if m["role"] == "assistant" else "") + "\n" for m in messages)
    return list(tokenizer(whole, add_special_tokens=True, verbose=False)["input_ids"])
