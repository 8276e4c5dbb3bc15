"""The tokenizer's chat template: conversations as text and tokens, with tools, calls and thoughts, or a refusal."""

import json
import re
from collections.abc import Sequence
from datetime import date
from typing import Any

from transformers import PreTrainedTokenizerBase

from executor.prompts.conversation_forms import THOUGHTS, Turns, fields_of
from treeopt.errors import ExecutorError

# The date that templates print as today, so that tokens do not depend on the day: Llama 3's own default.
TODAY = date(2024, 7, 26)
_NOW = re.compile(r"""strftime_now\(\s*(["'])(.*?)\1\s*\)""")
Message = dict[str, Any]
# Arguments of the template that no record sets.
OURS = ("chat_template", "tokenize", "add_generation_prompt", "continue_final_message", "conversation", "padding")


def messages_of(turns: Turns) -> list[Message]:
    """Return turns in the form that chat templates take.

    >>> messages_of((("user", "Hello"),))
    [{'role': 'user', 'content': 'Hello'}]
    """
    return [{"role": turn[0], "content": turn[1], **fields_of(turn)} for turn in turns]


def as_fields(extras: str) -> dict[str, Any]:
    """Return further arguments of the template as the fields of a record that they are read from.

    >>> as_fields('{"tools": [], "enable_thinking": false}')
    {'tools': [], 'chat_template_kwargs': {'enable_thinking': False}}
    """
    given: dict[str, Any] = json.loads(extras) if extras else {}
    fields = {key: given.pop(key) for key in ("tools", "documents") if key in given}
    return fields | ({"chat_template_kwargs": given} if given else {})


def rendered(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    where: str,
    *,
    extras: str = "",
    answer: bool = False,
) -> str:
    """Render a conversation with the chat template; with `answer`, up to where the assistant's answer begins.

    `where` is its file and line, for messages; `extras` are arguments of the template as JSON, such as `tools`.

    Raises:
        ExecutorError: the template raises an error, or leaves out tools, their answers, or the thoughts of the answer.
    """
    given: dict[str, Any] = json.loads(extras) if extras else {}
    try:
        template = tokenizer.get_chat_template(tools=given.get("tools"))
        template = _NOW.sub(lambda call: repr(TODAY.strftime(call[2])), template)
        text = tokenizer.apply_chat_template(
            _as_named(messages, template),
            **{"chat_template": template, "tokenize": False, "add_generation_prompt": answer, **_arguments(given)},
        )
        str(text).encode()
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ExecutorError(f"{where}: the tokenizer's chat template refuses this conversation: {reason}") from error
    _check_complete(messages, given, str(text), where)
    return str(text)


def _arguments(given: dict[str, Any]) -> dict[str, Any]:
    """Return a record's arguments of the template but those that only the caller may set."""
    return {key: value for key, value in given.items() if key not in OURS and not key.startswith("return_")}


def _as_named(messages: Sequence[Message], template: str) -> list[Message]:
    """Return messages whose thoughts have the name that the template reads; OpenAI's weights are not shown to it."""
    names = [name for name in THOUGHTS if re.search(rf"\b{name}\b", template)]
    renamed = []
    for message in messages:
        name = next((name for name in THOUGHTS if name in message), None)
        fields = {key: value for key, value in message.items() if key not in (name, "weight")}
        if name is not None:
            fields[name if name in names or not names else names[0]] = message[name]
        renamed.append(fields)
    return renamed


def _check_complete(messages: Sequence[Message], given: dict[str, Any], text: str, where: str) -> None:
    """Raise ExecutorError if the template passed over tools, a call, a tool's answer, or the last answer's thoughts.

    Templates leave out thoughts of earlier answers on purpose.
    """
    for tool in given.get("tools", ()):
        if tool["function"]["name"] not in text:
            raise ExecutorError(
                f"{where}: the tokenizer's chat template leaves out `tools`; --leave-out tools does so on purpose"
            )
    last_user = max((i for i, message in enumerate(messages) if message["role"] == "user"), default=-1)
    for number, message in enumerate(messages):
        parts = [call["function"]["name"] for call in message.get("tool_calls", ())]
        if message["role"] == "tool":
            parts.append(message["content"].strip())
        if not all(_shown(part, text) for part in parts):
            raise ExecutorError(
                f"{where}: the tokenizer's chat template leaves out the tool call or answer of turn {number}; "
                "--leave-out unreadable skips such records"
            )
        thought = next((message[name] for name in THOUGHTS if name in message), "").strip()
        if number > last_user and thought not in text:
            raise ExecutorError(
                f"{where}: the tokenizer's chat template leaves out the thoughts of turn {number}; "
                "--leave-out thoughts does so on purpose"
            )


def _shown(part: str, text: str) -> bool:
    """Return True if a text has a part, as it is or as JSON spells it."""
    return part in text or any(json.dumps(part, ensure_ascii=ascii_only)[1:-1] in text for ascii_only in (True, False))


def up_to_answer(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], where: str, *, extras: str = ""
) -> list[int]:
    """Return the tokens of a conversation up to the answer; without a template, turns are joined by line ends.

    Raises:
        ExecutorError: the template raises an error or returns nothing, or is missing and needed.
    """
    if tokenizer.chat_template:
        text = rendered(tokenizer, messages, where, extras=extras, answer=True)
        if not text:
            raise ExecutorError(f"{where}: the tokenizer's chat template renders this conversation as nothing")
        return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
    check_plain(messages, extras, where)
    end = tokenizer.eos_token or ""
    text = "".join(m["content"] + (end if m["role"] == "assistant" else "") + "\n" for m in messages)
    return list(tokenizer(text, add_special_tokens=True, verbose=False)["input_ids"])


def check_plain(messages: Sequence[Message], extras: str, where: str) -> None:
    """Check that turns can be joined without a template.

    Raises:
        ExecutorError: there are tools, thoughts or other fields, which only a template knows how to write.
    """
    names = dict.fromkeys(key for message in messages for key in message if key not in ("role", "content", "weight"))
    names |= dict.fromkeys(json.loads(extras) if extras else ())
    if any(message["role"] == "tool" for message in messages) or names:
        raise ExecutorError(
            f"{where}: the tokenizer has no chat template, which {', '.join(names) or 'the answers of tools'} need; "
            "--leave-out tools,thoughts,unreadable reads the rest"
        )
