"""Conversations: the JSON forms that are in use, read into turns of a role, a text and further fields.

{"conversations": [{"from": "human", "value": ...}, ...]}    ShareGPT; or with `role` and `content`, as SpecForge has it
{"messages": [{"role": "user", "content": ...}, ...]}        contents may be parts; OpenAI's chat and responses
{"turns": [...]}                                             Spec-Bench: the user's turns; or turns with roles
{"question": ..., "answer": ...}                             a question, or a list of them as in `turns`
{"prompt": ..., "completion": ...}                           a text to continue; with `response` a question
{"body": {"messages": [...]}}                                requests of OpenAI's batches, also with a `prompt`

A `prompt` may be a list as in `turns` or `messages` too; in a batch, its texts are as many requests. Answers
(`answer`, `response`, `completion`, `output`) are optional.
Where a record also has a `text`, that may be the rendered copy of its conversation, which is read instead.
Beside them `system`, and what a chat template takes: `tools`, `documents`, `chat_template_kwargs`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from executor.prompts.message_parts import (
    HINT,
    EmptyConversationError,
    Report,
    calls_in,
    is_plain_list,
    joined_content,
    offered_tools,
    spoken_calls,
)
from treeopt.errors import ExecutorError

ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "model", "bing", "bard", "ai", "bot"), "assistant"),
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("tool", "function", "observation", "ipython", "tool_response", "function_response"), "tool"),
}
CALLS = ("function_call", "tool_call")  # roles of a turn whose text is a tool call, as ShareGPT's
SPELT = (("from", "value"), ("role", "content"))  # the names of a turn's role and text
THOUGHTS = ("reasoning_content", "reasoning", "thinking")  # the names of an answer's thoughts
KEPT = ("tool_call_id", "name")  # further fields of a message that templates take as they are
OTHER_MEDIA = ("images", "image", "videos", "video", "audios", "audio")
# Fields of a record that have no effect on the text.
SILENT = ("id", "domain", "category", "question_id", "tokenizer", "sequences")
TEXT = ("text", "prompt", "cut")  # fields of a record that is a text

CONVERSATIONS = ("conversations", "messages", "turns", "conversation")  # fields that hold a conversation
QUESTIONS, ANSWERS = ("question", "prompt"), ("answer", "response", "completion", "output")
FORMS = frozenset((*CONVERSATIONS, *QUESTIONS, "text", "body"))  # a record has one of these
KNOWN = "`text`, `messages`, `conversations`, `turns`, `prompt` or `question`"

# Role (system, user, assistant or tool), text, and further fields of the message as JSON, if any.
Turn = tuple[str, str] | tuple[str, str, str]
Turns = tuple[Turn, ...]


def usual_form(record: Any) -> Any:
    """Return a record with `messages` or a `text` in the place of a question or a batch's request.

    Lists of questions stay where they are.

    >>> usual_form({"question": "1 + 1?", "answer": "2", "id": 7})["messages"][1]
    {'role': 'assistant', 'content': '2'}
    >>> usual_form({"prompt": ["a", "b"]}), usual_form({"prompt": "a", "completion": "b"})
    ({'prompt': ['a', 'b']}, {'completion': 'b', 'text': 'a'})
    """
    if not isinstance(record, Mapping):
        return record
    if isinstance(record.get("body"), Mapping):
        return usual_form(record["body"])
    asked = next((key for key in QUESTIONS if record.get(key) not in (None, "")), None)
    if asked is None or any(_is_said(record.get(key)) for key in CONVERSATIONS):
        return record
    question, text = record[asked], record.get("text")
    answered = next((key for key in ANSWERS if isinstance(record.get(key), str | list)), None)
    answer = None if answered is None else record[answered]
    rest = {key: value for key, value in record.items() if key not in (asked, answered)}
    if isinstance(question, list) and any(isinstance(turn, dict) for turn in question):
        return rest | {asked: [*question, *(answer if isinstance(answer, list) else [])]}
    if not isinstance(question, str) or (text is not None and answer is None):
        return record
    if isinstance(answer, list) or (asked == "prompt" and answered != "response"):
        return record if text is not None else {k: v for k, v in record.items() if k != asked} | {"text": question}
    pair = [("user", question), *([] if answer is None else [("assistant", answer)])]
    return rest | {"messages": [{"role": role, "content": content} for role, content in pair]}


def form_of(record: Any, where: str) -> str:
    """Return the field that a record is read from: a conversation before `text`, which may be its rendered copy.

    >>> form_of({"text": "<user>Hi", "messages": [{"role": "user", "content": "Hi"}]}, "line 1")
    'messages'

    Raises:
        ExecutorError: there is none.
    """
    lists = [key for key in QUESTIONS if isinstance(record, Mapping) and isinstance(record.get(key), list)]
    known = (*CONVERSATIONS, *lists, "text")
    fields = [key for key in known if isinstance(record, Mapping) and record.get(key) is not None]
    asked = next((key for key in QUESTIONS if isinstance(record, Mapping) and key in record), None)
    if not fields and asked is not None:
        raise ExecutorError(f"{where}: `{asked}` must be a text or a list of turns, found {_brief(record[asked])}")
    if not fields:
        what = f"a value that is no object: {type(record).__name__}"
        held = record if isinstance(record, Mapping) else {what: 0}
        found = (
            ", ".join(f"{key} null" if value is None else str(key) for key, value in held.items())[:200] or "nothing"
        )
        raise ExecutorError(f"{where}: must have {KNOWN}, found {found}")
    said = [key for key in fields if key != "text" and _is_said(record[key])]
    return said[0] if said else "text" if "text" in fields else fields[0]


def _is_said(value: Any) -> bool:
    """Return True for a list that is not empty; tables hold some lists as JSON texts."""
    if isinstance(value, str):
        return value.lstrip().startswith("[") and value.strip() != "[]"
    return isinstance(value, list) and bool(value)


def conversation_of(record: Mapping[str, Any], where: str, report: Report) -> tuple[Turns, str]:
    """Return the turns of a record, none if it is a text, and arguments of the chat template as a JSON object, or "".

    Raises:
        EmptyConversationError: nothing is said in it.
        ExecutorError: it is neither; or names `where`, turn and field.
    """
    key = form_of(record, where)
    for name in OTHER_MEDIA:
        if record.get(name):
            raise ExecutorError(f"{where}: `{name}`: only texts are read {HINT}")
    if key == "text":
        report.count_unread(record, (*TEXT, *SILENT))
        return (), ""
    entries = list_of(record, key, where, empty=True)
    if not entries:
        raise EmptyConversationError(f"{where}: an empty conversation")
    turns = _turns(entries, key, where, report)
    report.count_unread(record, (key, *SILENT, *TEMPLATE, *SYSTEM))  # another conversation beside it is not read
    return _with_system(turns, record, where, report), _extras(record, where, report)


TEMPLATE = ("tools", "functions", "documents", "chat_template_kwargs")  # fields that become the template's arguments
SYSTEM = ("system", "system_prompt")


def _turns(entries: list[Any], key: str, where: str, report: Report) -> Turns:
    """Return the turns of a list; without roles, questions and `turns` are all the user's."""
    if has_roles(entries) or key not in ("turns", *QUESTIONS):
        return tuple(_turn(turn, f"{where}: {key}[{i}]", report) for i, turn in enumerate(entries))
    asked = [entry["content"] if isinstance(entry, dict) and "content" in entry else entry for entry in entries]
    if key in QUESTIONS and all(type(text) is int for text in asked):
        raise ExecutorError(f"{where}: `{key}` holds numbers: token ids are not read, write their text {HINT}")
    return tuple(("user", string(text, f"{where}: {key}[{i}]")) for i, text in enumerate(asked))


def has_roles(entries: Sequence[Any]) -> bool:
    """Return True if a list holds turns that name who speaks."""
    return any(isinstance(entry, dict) and {"role", "from"} & set(entry) for entry in entries)


def _extras(record: Mapping[str, Any], where: str, report: Report) -> str:
    """Return the arguments of the chat template that a record holds, as JSON."""
    arguments: dict[str, Any] = {}
    given = record.get("chat_template_kwargs")
    if given is not None:
        if not isinstance(given, dict):
            raise ExecutorError(f"{where}: `chat_template_kwargs` must be an object, found {type(given).__name__}")
        arguments |= given
    tools = offered_tools(record, where)
    if tools and not report.without("tools"):
        arguments["tools"] = tools
    if record.get("documents"):
        arguments["documents"] = record["documents"]
    return as_json(arguments, where) if arguments else ""


def _with_system(turns: Turns, record: Mapping[str, Any], where: str, report: Report) -> Turns:
    """Return turns that the record's own system prompt opens."""
    for key in SYSTEM:
        if not record.get(key):
            continue
        text = string(record[key], f"{where}: `{key}`")
        if report.without("system"):
            continue
        if turns and turns[0][0] == "system":
            if turns[0][1] != text:
                raise ExecutorError(f"{where}: `{key}` differs from the first turn, which is the system's too")
            continue
        turns = (("system", text), *turns)
    return turns


def _turn(turn: Any, place: str, report: Report) -> Turn:
    spelt = next((names for names in SPELT if isinstance(turn, dict) and names[0] in turn), None)
    if spelt is None or not (spelt[1] in turn or any(turn.get(key) for key in ("tool_calls", "function_call"))):
        names = " or ".join(f"`{role}` and `{content}`" for role, content in SPELT)
        raise ExecutorError(f"{place}: must be an object with {names}")
    role, content = spelt
    name = turn[role]
    if name in CALLS:
        return ("assistant", "", as_json({"tool_calls": spoken_calls(turn[content], f"{place}: `{content}`")}, place))
    known = ROLES.get(name) if isinstance(name, str) else None
    if known is None:
        raise ExecutorError(f"{place}: `{role}` must be one of {', '.join((*ROLES, *CALLS))}, found {name!r:.80}")
    fields: dict[str, Any] = {}
    given = turn.get(content)
    if known == "tool" and (isinstance(given, dict | int | float) or is_plain_list(given)):
        given = as_json(given, place)  # what a tool answers may be any JSON
    text, thoughts, calls = joined_content(given, f"{place}: `{content}`")
    calls += calls_in(turn, place)
    if calls:
        fields["tool_calls"] = calls
        text = "" if text is None else text
    fields |= _thoughts(turn, thoughts, place, report)
    fields |= {key: string(turn[key], f"{place}: `{key}`") for key in KEPT if turn.get(key)}
    if turn.get("weight") is not None:
        fields |= _weight(turn["weight"], place)
    said = string(text, f"{place}: `{content}`", empty=True)
    report.count_unread(turn, (role, content, *THOUGHTS, *KEPT, "tool_calls", "function_call", "weight", "type"))
    return (known, said, as_json(fields, place)) if fields else (known, said)


def _thoughts(turn: Mapping[str, Any], thoughts: str, place: str, report: Report) -> dict[str, str]:
    """Return the thoughts of an answer, by the name that the record has for them."""
    named = {key: string(turn[key], f"{place}: `{key}`") for key in THOUGHTS if turn.get(key)}
    if thoughts:
        named.setdefault(THOUGHTS[0], thoughts)
    if len(set(named.values())) > 1:
        raise ExecutorError(f"{place}: `{'` and `'.join(named)}` differ: an answer has one thought")
    if not named or report.without("thoughts"):
        return {}
    return dict([next(iter(named.items()))])


def _weight(value: Any, place: str) -> dict[str, int]:
    """Return OpenAI's weight of a turn: 0 is not learnt."""
    if isinstance(value, bool) or value not in (0, 1):
        raise ExecutorError(f"{place}: `weight` must be 0 or 1, found {value!r:.40}")
    return {} if value == 1 else {"weight": 0}


def fields_of(turn: Turn) -> dict[str, Any]:
    """Return the further fields of a turn's message.

    >>> fields_of(("user", "Hello")), fields_of(("assistant", "4", '{"thinking": "2 + 2"}'))
    ({}, {'thinking': '2 + 2'})
    """
    fields: dict[str, Any] = json.loads(turn[2]) if len(turn) > 2 else {}
    return fields


def as_json(value: Any, where: str) -> str:
    """Return JSON text of a value, so that it can be compared; raise ExecutorError if it is none, or not Unicode."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ExecutorError(f"{where}: holds what is not JSON: {error!s:.80}") from error
    return text


def list_of(record: Mapping[str, Any], key: str, where: str, *, empty: bool = False) -> list[Any]:
    """Return the list in a field, which may be empty only with `empty`; tables hold some lists as JSON texts."""
    value = record[key]
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ExecutorError(f"{where}: `{key}` is not JSON: {error}") from error
    if not (isinstance(value, list) and (value or empty)):
        raise ExecutorError(f"{where}: `{key}` must be a list that is not empty, found {_brief(value)}")
    return value


def _brief(value: Any) -> str:
    return repr(value) if value in ([], {}, "", None) else type(value).__name__


def string(value: Any, name: str, *, empty: bool = False) -> str:
    """Check that a value is a Unicode string, and return it."""
    if not isinstance(value, str) or not (value or empty):
        raise ExecutorError(f"{name} must be a string{'' if empty else ' that is not empty'}, found {value!r:.40}")
    try:
        value.encode()
    except UnicodeEncodeError as error:  # half a surrogate pair
        raise ExecutorError(f"{name} must be Unicode: {error.reason}") from error
    return value


def has_tools(turns: Sequence[Turn]) -> bool:
    """Return True if a conversation calls tools or holds their answers."""
    return any(turn[0] == "tool" or "tool_calls" in fields_of(turn) for turn in turns)
