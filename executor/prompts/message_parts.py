"""The content of a message: a text, or parts of texts, thoughts and tool calls, as in OpenAI's and Anthropic's APIs."""

from typing import Any

from treeopt.errors import ExecutorError

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


def is_plain_list(content: Any) -> bool:
    """Return True for a list that is an answer in JSON, such as a tool's, and no list of parts.

    >>> is_plain_list([{"city": "Rome"}]), is_plain_list([{"type": "text", "text": "Rome"}]), is_plain_list("Rome")
    (True, False, False)
    """
    return isinstance(content, list) and not any(isinstance(part, dict) and _is_part(part) for part in content)


def _is_part(part: dict[str, Any]) -> bool:
    kind = part.get("type", "text" if isinstance(part.get("text"), str) else None)
    return str(kind).removeprefix("input_") in (*TEXTS, *THOUGHT_PARTS, *OTHERS, "tool_use")


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
            raise ExecutorError(
                f"{name} must be a string or parts of text, found part {number} of type {found} "
                "(--leave-out unreadable skips the record)"
            )
    return "".join(texts), "\n".join(thoughts), calls


def _text(part: dict[str, Any], key: str, place: str) -> str:
    if not isinstance(part.get(key), str):
        raise ExecutorError(f"{place}: `{key}` must be a string")
    text: str = part[key]
    return text
