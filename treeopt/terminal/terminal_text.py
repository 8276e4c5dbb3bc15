"""The terminal, and lines of text that fit it; knows no results."""

import os
import re
import shutil
import sys
import textwrap
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console

ANY_WIDTH = 240  # columns, where nothing limits them
PROSE = 120  # columns: longer lines of text are hard to read
HEIGHT = 25  # lines; nothing depends on it
PLAIN: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}  # names are printed as they are
# Blanks of an interval such as `1.42 [1.36, 1.48]`, or of a path.
UNBROKEN = re.compile(r"(?<=\d) (?=\[[-+\d.])|(?<=[\d%],) (?=[-+\d.][^\[\]]*\])")
INDENT = "  "  # of continued lines
WORD = re.compile(r"""(?:[^\s'"]|'[^']*'|"[^"]*")+""")  # of a command line
STAND_IN = "\N{NO-BREAK SPACE}"


def terminal() -> "Console":
    """Return standard output, as wide as COLUMNS says or the terminal is; a file or pipe takes lines of any length."""
    from rich.console import Console

    width = width_of(sys.stdout)
    # With a height, too, rich believes the width on terminals that it takes for dumb.
    return Console(**PLAIN, width=width or ANY_WIDTH, height=HEIGHT, soft_wrap=width is None)


def width_of(stream: TextIO) -> int | None:
    """Return how wide lines of an output may be: as COLUMNS says or the terminal is; None for a file or pipe."""
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given) > 0:
        return int(given)
    return shutil.get_terminal_size().columns if stream.isatty() else None


def wrapped(text: str, width: int) -> list[str]:
    """Return the lines of a text, broken at blanks but those of intervals and paths; longer words stay whole.

    >>> wrapped("a speedup of 1.42 [1.36, 1.48] times", 22)
    ['a speedup of', '  1.42 [1.36, 1.48]', '  times']
    """
    held = UNBROKEN.sub(STAND_IN, text)
    rows = textwrap.wrap(held, width, subsequent_indent=INDENT, break_long_words=False, break_on_hyphens=False)
    return [row.replace(STAND_IN, " ") for row in rows] or [""]


def wrapped_command(command: str, width: int | None, *, indent: str = INDENT) -> list[str]:
    r"""Return the lines of a command line, broken at blanks, with each option and its value on one line.

    Args:
        command: words and quoted words between blanks.
        width: of a line; None is any width. A piece that is wider stays whole.
        indent: before each line; twice before those that continue it.

    >>> wrapped_command("treeopt export plan.json --format vllm", 30)
    ['  treeopt export plan.json \\', '    --format vllm']
    >>> wrapped_command("treeopt compare first.npz second.npz", 30)
    ['  treeopt compare first.npz \\', '    second.npz']
    """
    if width is None:
        return [indent + command]
    first, *pieces = _pieces(command)
    rows = [indent + first]
    for number, piece in enumerate(pieces, 1):
        end = 0 if number == len(pieces) else len(" \\")
        if len(rows[-1]) + 1 + len(piece) + end > width:
            rows[-1] += " \\"
            rows.append(f"{indent}{indent}{piece}")
        else:
            rows[-1] += f" {piece}"
    return rows


def _pieces(command: str) -> list[str]:
    """Return what stays together: the program and its command, and an option with its value.

    >>> _pieces("treeopt trace info 'a b.npz' --nodes 2 --json")
    ['treeopt trace', 'info', "'a b.npz'", '--nodes 2', '--json']
    """
    pieces: list[str] = []
    for number, word in enumerate(WORD.findall(command)):
        whole = pieces and " " not in pieces[-1] and not word.startswith("-")
        if number == 1 or (whole and pieces[-1].startswith(("-", ">"))):
            pieces[-1] += f" {word}"
        else:
            pieces.append(word)
    return pieces


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
