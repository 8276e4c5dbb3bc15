"""Prompts: texts to continue, read from and written to JSON lines."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from treeopt.errors import ExecutorError
from treeopt.files import why, write_text


@dataclass(frozen=True)
class Prompt:
    """A text to continue and the label of where it comes from (empty: none)."""

    text: str
    domain: str = ""


def read_prompts(path: Path) -> list[Prompt]:
    """The prompts of a JSON-lines file: one object a line with `text` and, optionally, `domain`.

    Raises:
        ExecutorError: a line is not such an object; the message names file and line.
    """
    prompts = []
    try:
        lines = path.read_text("utf-8").split("\n")  # other line ends may stand inside a text
    except (OSError, UnicodeDecodeError) as error:
        raise ExecutorError(f"{path}: prompts cannot be read: {why(error)}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            text, domain = record["text"], record.get("domain", "")
            f"{text}{domain}".encode()  # half a surrogate pair is no text
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ExecutorError(f"{path}, line {number}: must be a JSON object with a `text` in Unicode") from error
        if not (isinstance(text, str) and text and isinstance(domain, str)):
            raise ExecutorError(f"{path}, line {number}: `text` must be a non-empty string, `domain` a string")
        prompts.append(Prompt(text, domain))
    if not prompts:
        raise ExecutorError(f"{path}: holds no prompts")
    return prompts


def write_prompts(path: Path, prompts: Sequence[Prompt]) -> None:
    """Write prompts as JSON lines, whole or not at all."""
    lines = (json.dumps({"domain": p.domain, "text": p.text}, ensure_ascii=False) for p in prompts)
    write_text(path, "".join(line + "\n" for line in lines))
