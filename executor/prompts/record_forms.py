"""Records of other data sets, rewritten as `messages`: pairs of a question and an answer, and other names of the same.

{"conversation": [{"role": ..., "content": ...}, ...]}        LMSYS-Chat-1M, WildChat
{"conversation": [{"human": ..., "assistant": ...}, ...]}     BELLE
{"data": ["...", "...", ...]}                                 UltraChat: the user and the assistant in turn
{"instruction": ..., "input": ..., "output": ...}             Alpaca
{"question": ..., "answer": ...}                              GSM8K; with `response` and `system_prompt` OpenOrca
{"prompt": [messages], "completion": [messages]}              TRL
{"body": {"messages": [...]}}                                 requests of OpenAI's batches

Texts under `prompt` alone, or beside a `completion`, are not rewritten: whether a chat is meant is not known.
"""

from collections.abc import Mapping
from typing import Any

ANSWERS = ("output", "answer", "response", "completion")
QUESTIONS = ("instruction", "question", "query")
# Fields by which a record of these forms is known.
MARKS = ("conversation", "instruction", "question", "query", "body", "data")
PLAIN = ("conversations", "messages", "turns", "text")
KNOWN = "`text`, `messages`, `conversations`, `turns`, or a question and an answer (`instruction` and `output`, ...)"


def found_in(record: Any) -> str:
    """Return what a record is, for messages.

    >>> found_in({"prompt": "a", "canonical_solution": "b"}), found_in(5)
    ('prompt, canonical_solution', 'a value that is no object: int')
    """
    if not isinstance(record, Mapping):
        return f"a value that is no object: {type(record).__name__}"
    return ", ".join(map(str, record))[:200] or "nothing"


def usual_form(record: Any) -> Any:
    """Return a record with `messages` in the place of another form; any other value as it is.

    >>> usual_form({"question": "1 + 1?", "answer": "2", "id": 7})["messages"][1]
    {'role': 'assistant', 'content': '2'}
    >>> usual_form({"text": "as it is"})
    {'text': 'as it is'}
    """
    if not isinstance(record, Mapping) or any(record.get(key) is not None for key in PLAIN):
        return record
    for form in (_batch, _conversation, _alternating, _pair, _of_messages):
        made: dict[str, Any] | None = form(record)
        if made is not None:
            return made
    return record


def _batch(record: Mapping[str, Any]) -> dict[str, Any] | None:
    body = record.get("body")
    return dict(body) if isinstance(body, Mapping) and "messages" in body else None


def _conversation(record: Mapping[str, Any]) -> dict[str, Any] | None:
    turns = record.get("conversation")
    if not isinstance(turns, list) or not turns:
        return None
    if all(isinstance(turn, Mapping) and "human" in turn and "assistant" in turn for turn in turns):
        texts = [turn[speaker] for turn in turns for speaker in ("human", "assistant")]
        return _without(record, "conversation") | {"messages": _alternate(texts)}
    return _without(record, "conversation") | {"messages": turns}


def _alternating(record: Mapping[str, Any]) -> dict[str, Any] | None:
    texts = record.get("data")
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        return None
    return _without(record, "data") | {"messages": _alternate(texts)}


def _pair(record: Mapping[str, Any]) -> dict[str, Any] | None:
    asked = next((key for key in QUESTIONS if isinstance(record.get(key), str)), None)
    answered = next((key for key in ANSWERS if isinstance(record.get(key), str)), None)
    if asked is None and isinstance(record.get("prompt"), str) and answered == "response":
        asked = "prompt"
    if asked is None:
        return None
    more = record.get("input") if asked == "instruction" else None
    question = f"{record[asked]}\n\n{more}" if isinstance(more, str) and more else record[asked]
    texts = [question, *([] if answered is None else [record[answered]])]
    read = (asked, *([] if answered is None else [answered]), *(["input"] if asked == "instruction" else []))
    return _without(record, *read) | {"messages": _alternate(texts)}


def _of_messages(record: Mapping[str, Any]) -> dict[str, Any] | None:
    prompt, completion = record.get("prompt"), record.get("completion", [])
    if not (isinstance(prompt, list) and isinstance(completion, list)):
        return None
    return _without(record, "prompt", "completion") | {"messages": [*prompt, *completion]}


def _alternate(texts: list[Any]) -> list[dict[str, Any]]:
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]


def _without(record: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in names}
