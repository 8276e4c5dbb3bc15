"""Parts of messages: texts, thoughts and tool calls, as in OpenAI's and Anthropic's APIs; and the tools offered.

Tool calls get the form that chat templates take: arguments are objects, functions have a type. A `ReadingReport`
says how much was read, what was passed over, and why.
"""

import json
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from treeopt.errors import ExecutorError

SHOWN = 5  # most names or reasons listed

HINT = "(--leave-out unreadable skips the record)"

PARTS = {
    "tools": "the tools that a record offers",
    "thoughts": "the thoughts of answers (`reasoning_content`, `thinking`)",
    "system": "the `system` field of a record",
    "unreadable": "records and lines that cannot be read, or that the chat template does not take",
}
TEXTS = ("text", "input_text", "output_text")  # types of parts that are texts
THOUGHT_PARTS = {"thinking": "thinking", "reasoning": "text", "reasoning_text": "text"}  # type -> field of the text
OTHERS = (
    "image",
    "image_url",
    "audio",
    "audio_url",
    "video",
    "video_url",
    "file",
    "document",
    "refusal",
    "tool_result",
)


class EmptyConversationError(ExecutorError):
    """A conversation in which nothing is said: dumps hold such records, which are skipped."""


@dataclass
class Report:
    """The record of what was read from files, and what was not.

    Attributes:
        leave_out: names of `PARTS` that are left out by request; the rest is read or refused.
        files: files that records or texts were read from.
        records: records read.
        texts: plain texts read.
        passed_over: (reason, file name) of each file that was not read.
        skipped: reasons of records that were skipped.
        left_out: number of records without a part, by the part's name or description.
        unread: number of records with a field that is not read, by the field's name.
    """

    leave_out: frozenset[str] = frozenset()
    files: int = 0
    records: int = 0
    texts: int = 0
    passed_over: list[tuple[str, str]] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    unread: Counter[str] = field(default_factory=Counter)

    def without(self, part: str) -> bool:
        """Return True if a part is left out; count it."""
        if part in self.leave_out:
            self.left_out[part] += 1
        return part in self.leave_out

    def skip(self, error: ExecutorError) -> None:
        """Skip a record that raised an error; raise it again unless nothing is said there, or such are to be left out.

        Raises:
            ExecutorError: the same, with the option that skips such records.
        """
        if "unreadable" not in self.leave_out and not isinstance(error, EmptyConversationError):
            raise error if "--leave-out" in str(error) else ExecutorError(f"{error} {HINT}") from error
        self.skipped.append(str(error))

    def count_unread(self, fields: Mapping[str, Any], read: Collection[str]) -> None:
        """Count the fields that are not read; those without a value say nothing that could be lost."""
        self.unread.update(key for key, value in fields.items() if key not in read and value not in (None, "", [], {}))

    @property
    def summary(self) -> str:
        """One sentence: how much was read from how many files."""
        parts = [_plural(count, noun) for count, noun in ((self.records, "record"), (self.texts, "text")) if count]
        return f"data: {' and '.join(parts) or 'nothing'} read from {_plural(self.files, 'file')}"

    @property
    def remarks(self) -> list[str]:
        """A sentence for each kind of thing that was not read."""
        sentences = []
        for reason in dict.fromkeys(reason for reason, _ in self.passed_over):
            names = [name for other, name in self.passed_over if other == reason]
            sentences.append(f"data: {_plural(len(names), 'file')} passed over ({_listed(names)}): {reason}")
        if self.skipped:
            sentences.append(
                f"data: {_plural(len(self.skipped), 'record')} skipped: {_listed(self.skipped, separator='; ')}"
            )
        for part, count in self.left_out.items():
            sentences.append(f"data: {PARTS.get(part, part)} left out of {_plural(count, 'record')}")
        return sentences

    @property
    def unread_fields(self) -> list[str]:
        """A sentence that names the fields that have no meaning here, if there are any."""
        names = [f"`{name}`" for name, _ in self.unread.most_common()]
        return [f"data: fields without effect: {_listed(names)}"] if names else []


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


def _listed(names: list[str], *, separator: str = ", ") -> str:
    """Return the first names, and how many more there are.

    >>> _listed(list("abcdefg"))
    'a, b, c, d, e and 2 more'
    """
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return separator.join(names[:SHOWN]) + more


def is_plain_list(content: Any) -> bool:
    """Return True for a list that is an answer in JSON, such as a tool's, and no list of parts.

    >>> is_plain_list([{"city": "Rome"}]), is_plain_list([{"type": "text", "text": "Rome"}]), is_plain_list("Rome")
    (True, False, False)
    """
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    kinds = (part.get("type", "text" if isinstance(part.get("text"), str) else None) for part in parts)
    known = (*TEXTS, *THOUGHT_PARTS, *OTHERS, "tool_use")
    return isinstance(content, list) and not any(str(kind).removeprefix("input_") in known for kind in kinds)


def joined_content(content: Any, name: str) -> tuple[Any, str, list[dict[str, Any]]]:
    """Return the text of a content, its thoughts, and its tool calls; a content that is no list as it is.

    Raises:
        ExecutorError: a part is none of these, such as an image; names it.

    >>> joined_content([{"type": "thinking", "thinking": "2 + 2"}, {"type": "output_text", "text": "4"}], "content")
    ('4', '2 + 2', [])
    """
    if not isinstance(content, list):
        return content, "", []
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for number, part in enumerate(content):
        place = f"{name}[{number}]"
        kind = part.get("type", "text") if isinstance(part, dict) else None
        if isinstance(part, str):
            texts.append(part)
        elif kind in TEXTS:
            texts.append(_text(part, "text", place))
        elif isinstance(kind, str) and kind in THOUGHT_PARTS:
            thoughts.append(_text(part, THOUGHT_PARTS[kind], place))
        elif kind == "tool_use" and isinstance(part.get("name"), str) and isinstance(part.get("input"), dict):
            calls.append({"type": "function", "function": {"name": part["name"], "arguments": part["input"]}})
        else:
            found = repr(kind)[:40] if isinstance(part, dict) else type(part).__name__
            raise ExecutorError(f"{name} must be a string or parts of text, found part {number} of type {found} {HINT}")
    return "".join(texts), "\n".join(thoughts), calls


def _text(part: dict[str, Any], key: str, place: str) -> str:
    if not isinstance(part.get(key), str):
        raise ExecutorError(f"{place}: `{key}` must be a string")
    text: str = part[key]
    return text


def calls_in(turn: Mapping[str, Any], place: str) -> list[dict[str, Any]]:
    """Return the calls in `tool_calls` of a message, or in its older `function_call`.

    Raises:
        ExecutorError: names call and field.
    """
    calls = turn.get("tool_calls") or []
    if isinstance(calls, str):
        calls = _parsed(calls, f"{place}: `tool_calls`")
    if not isinstance(calls, list):
        raise ExecutorError(f"{place}: `tool_calls` must be a list of tool calls, found {type(calls).__name__} {HINT}")
    if turn.get("function_call"):
        calls = [*calls, turn["function_call"]]
    return [_call(call, f"{place}: tool_calls[{i}]") for i, call in enumerate(calls)]


def spoken_calls(value: Any, place: str) -> list[dict[str, Any]]:
    """Return the calls that a turn of ShareGPT's role `function_call` holds as JSON text.

    >>> spoken_calls('{"name": "add", "arguments": {"a": 1}}', "turn 1")
    [{'type': 'function', 'function': {'name': 'add', 'arguments': {'a': 1}}}]

    Raises:
        ExecutorError: it is no tool call.
    """
    calls = _parsed(value, place) if isinstance(value, str) else value
    return [_call(call, place) for call in (calls if isinstance(calls, list) and calls else [calls])]


def _call(call: Any, place: str) -> dict[str, Any]:
    """Return a call; arguments that are JSON text become the object that templates take."""
    call, function = _function(call, place, "tool call with `name` and `arguments`")
    arguments = function.get("arguments", function.get("parameters"))
    if isinstance(arguments, str):
        arguments = _parsed(arguments, f"{place}: `arguments`") if arguments.strip() else {}
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise ExecutorError(f"{place}: `arguments` of a tool call must be an object, found {arguments!r:.40} {HINT}")
    found: dict[str, Any] = {"type": "function", "function": {"name": function["name"], "arguments": arguments}}
    return ({"id": call["id"]} if isinstance(call.get("id"), str) else {}) | found


def offered_tools(record: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """Return the tools that a record offers, in `tools` or in the older `functions`; either may be JSON text.

    Raises:
        ExecutorError: names tool and field.
    """
    tools: list[dict[str, Any]] = []
    for key in ("tools", "functions"):
        offered = record.get(key) or []
        if isinstance(offered, str):
            offered = _parsed(offered, f"{where}: `{key}`") if offered.strip() else []
        if not isinstance(offered, list):
            raise ExecutorError(f"{where}: `{key}` must be a list of tools, found {type(offered).__name__} {HINT}")
        for i, each in enumerate(offered):
            tool, function = _function(each, f"{where}: {key}[{i}]", "function with a `name`")
            tools.append(tool if tool.get("function") is function else {"type": "function", "function": function})
    return tools


def _function(value: Any, place: str, noun: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return an object that may be JSON text, and its function, which may be itself or named alone."""
    if isinstance(value, str):
        value = _parsed(value, place)
    function = value.get("function", value) if isinstance(value, dict) else None
    if isinstance(function, str):  # {"function": "name", "arguments": ...}
        function = {"name": function, "arguments": value.get("arguments")}
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ExecutorError(f"{place} must be a {noun}, found {value!r:.60} {HINT}")
    return value, function


def _parsed(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ExecutorError(f"{place} of a tool is not JSON: {error} {HINT}") from error
