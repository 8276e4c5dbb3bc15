"""Sentences and command lines broken into lines that fit a width, and text in letters that an output knows."""

import re
import textwrap

INDENT = "  "  # of continued lines
# Blanks of an interval such as `1.42 [1.36, 1.48]`, or of a path.
UNBROKEN = re.compile(r"(?<=\d) (?=\[[-+\d.])|(?<=[\d%],) (?=[-+\d.][^\[\]]*\])")
STAND_IN = "\N{NO-BREAK SPACE}"


def wrapped(text: str, width: int) -> list[str]:
    """Return the lines of a text, broken at blanks but those of intervals and paths; longer words stay whole.

    >>> wrapped("a speedup of 1.42 [1.36, 1.48] times", 22)
    ['a speedup of', '  1.42 [1.36, 1.48]', '  times']
    """
    held = UNBROKEN.sub(STAND_IN, text)
    rows = textwrap.wrap(held, width, subsequent_indent=INDENT, break_long_words=False, break_on_hyphens=False)
    return [row.replace(STAND_IN, " ") for row in rows] or [""]


def wrapped_command(command: str, width: int | None) -> list[str]:
    r"""Return the lines of a command line, indented, continued before options as a shell takes it.

    >>> wrapped_command("treeopt export plan.json --format vllm", 30)
    ['  treeopt export plan.json \\', '    --format vllm']
    """
    first, *options = command.split(" --")
    rows = [INDENT + first]
    for option in options:
        if width is not None and len(rows[-1]) + len(option) + 5 > width:
            rows[-1] += " \\"
            rows.append(f"{INDENT}{INDENT}--{option}")
        else:
            rows[-1] += f" --{option}"
    return rows


def encodable(text: str, encoding: str) -> str:
    r"""Return text that an output of this encoding takes: other letters become `\x..` or `\u....`.

    >>> encodable("── é", "ascii")
    '-- \\xe9'
    """
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.replace("─", "-").encode(encoding, "backslashreplace").decode(encoding)
    return text
