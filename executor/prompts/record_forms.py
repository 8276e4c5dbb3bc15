"""Records of other data sets, rewritten as `messages`: pairs of a question and an answer, and other names of the same.

{"conversation": [{"role": ..., "content": ...}, ...]}        LMSYS-Chat-1M, WildChat
{"conversation": [{"human": ..., "assistant": ...}, ...]}     BELLE
{"data": ["...", "...", ...]}                                 UltraChat: the user and the assistant in turn
{"instruction": ..., "input": ..., "output": ...}             Alpaca; with `history` LLaMA-Factory
{"instruction": ..., "context": ..., "response": ...}         Dolly
{"question": ..., "answer": ...}                              GSM8K; with `response` and `system_prompt` OpenOrca
{"prompt": [messages], "completion": [messages]}              TRL
{"body": {"messages": [...]}}                                 requests of OpenAI's batches

Texts under `prompt` alone, or beside a `completion`, are not rewritten: whether a chat is meant is not known.
Where a record also has a `text`, that may be the rendered copy of its conversation, which is read instead.
"""

from collections.abc import Mapping
from typing import Any

from treeopt.errors import ExecutorError

ANSWERS = ("output", "answer", "response", "completion")
QUESTIONS = ("instruction", "question", "query")
INPUTS = ("input", "context")  # what an instruction is about
# Fields by which a record of these forms is known.
MARKS = ("conversation", "instruction", "question", "query", "body", "data")
CONVERSATIONS = ("conversations", "messages", "turns")  # fields that hold a conversation
PLAIN = (*CONVERSATIONS, "text")
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
    if not isinstance(record, Mapping) or any(_is_said(record.get(key)) for key in CONVERSATIONS):
        return record
    made = [found for form in (_batch, _conversation, _alternating, _pair, _of_messages) if (found := form(record))]
    empty = [] if record.get("text") is not None else made[:1]
    return next((found for found in [*(found for found in made if found["messages"]), *empty]), record)


def form_of(record: Any, where: str) -> str:
    """Return the field that a record is read from: a conversation before `text`, which may be its rendered copy.

    >>> form_of({"text": "<user>Hi", "messages": [{"role": "user", "content": "Hi"}]}, "line 1")
    'messages'

    Raises:
        ExecutorError: there is none.
    """
    given = [key for key in PLAIN if isinstance(record, Mapping) and record.get(key) is not None]
    if not given:
        raise ExecutorError(f"{where}: must have {KNOWN}, found {found_in(record)}")
    said = [key for key in given if key in CONVERSATIONS and _is_said(record[key])]
    return said[0] if said else "text" if "text" in given else given[0]


def _is_said(value: Any) -> bool:
    """Return True for a list that is not empty, in any of the forms in which tables hold lists."""
    if isinstance(value, str):
        return value.lstrip().startswith("[") and value.strip() != "[]"
    return any(value.values()) if isinstance(value, dict) else isinstance(value, list) and bool(value)


def _batch(record: Mapping[str, Any]) -> dict[str, Any] | None:
    body = record.get("body")
    return dict(body) if isinstance(body, Mapping) and "messages" in body else None


def _conversation(record: Mapping[str, Any]) -> dict[str, Any] | None:
    turns = record.get("conversation")
    if not isinstance(turns, list):
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
    if asked is None or (answered is None and record.get("text") is not None):
        return None
    more = next((key for key in INPUTS if asked == "instruction" and _is_text(record.get(key))), None)
    read = [key for key in (asked, more) if key is not None]
    question = "\n\n".join(record[key] for key in read if record[key])
    earlier = _earlier(record.get("history"))
    texts = [*earlier, question, *([] if answered is None else [record[answered]])]
    read += [*(["history"] if earlier else []), *([] if answered is None else [answered])]
    return _without(record, *read) | {"messages": _alternate(texts)}


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _earlier(history: Any) -> list[str]:
    """Return the texts of earlier turns, pairs of a question and an answer; none if they are something else."""
    if not isinstance(history, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in history):
        return []
    texts = [text for pair in history for text in pair]
    return texts if all(isinstance(text, str) for text in texts) else []


def _of_messages(record: Mapping[str, Any]) -> dict[str, Any] | None:
    prompt, completion = record.get("prompt"), record.get("completion", [])
    if not (isinstance(prompt, list) and isinstance(completion, list)):
        return None
    return _without(record, "prompt", "completion") | {"messages": [*prompt, *completion]}


def _alternate(texts: list[Any]) -> list[dict[str, Any]]:
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]


def _without(record: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in names}
