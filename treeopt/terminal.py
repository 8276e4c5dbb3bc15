"""Results on a terminal of any width: lines of text, tables, and blocks of both, in the letters that it knows.

Tables fit the width: columns leave in their order, then each row becomes a block of lines, which have room for all
columns. No cell is cut or wrapped.
"""

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TextIO

from treeopt.errors import visible
from treeopt.results.tables_and_numbers import Block, Blocks, Cell, Column, Line, Row, Table, notes_once

if TYPE_CHECKING:
    from rich.console import Console


def _width_of(text: str) -> int:
    """Return the columns that a text takes on a terminal; wide characters take two."""
    from rich.cells import cell_len

    return cell_len(text)


ANY_WIDTH = 240  # columns, where nothing limits them
PROSE = 120  # columns: longer lines of text are hard to read
HEIGHT = 25  # lines; nothing depends on it
PLAIN: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}  # names are printed as they are
# Blanks of an interval such as `1.42 [1.36, 1.48]`, or of a path.
UNBROKEN = re.compile(r"(?<=\d) (?=\[[-+\d.])|(?<=[\d%],) (?=[-+\d.][^\[\]]*\])")
INDENT = "  "  # of continued lines
WORD = re.compile(r"""(?:[^\s'"]|'[^']*'|"[^"]*")+""")  # of a command line
STAND_IN = "\N{NO-BREAK SPACE}"


def standard_output() -> "Console":
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
    r"""Return text that an output of this encoding takes: other letters and controls become `\x..` or `\u....`.

    >>> encodable("── é", "ascii")
    '-- \\xe9'
    """
    text = visible(text)
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.replace("─", "-").encode(encoding, "backslashreplace").decode(encoding)
    return text


GAP = "  "  # between columns
SHORT = 8  # letters: such headings stay on one line
RULE = "─"
MARKS = {"": "", "chosen": "bold green", "dim": "dim", "wrong": "bold red"}
Styled = tuple[str, str]  # a line and its style
Shape = tuple[Column, ...]


@dataclass(frozen=True)
class Layout:
    """A layout of tables of one shape: columns that stay, by number, and their widths; blocks of lines if no table.

    The remark is the sentence about columns that were left out.
    """

    columns: tuple[int, ...]
    widths: tuple[int, ...]
    as_table: bool
    remark: str


def layouts(blocks: Blocks, width: int | None) -> Mapping[Shape, Layout]:
    """Return the layout of tables by their columns: tables of the same columns look alike; None is any width."""
    rows: dict[Shape, list[Row]] = {}
    for block in blocks:
        if isinstance(block, Table):
            rows.setdefault(block.columns, []).extend(block.rows)
    return {columns: _layout(columns, shown, width) for columns, shown in rows.items()}


def _layout(columns: Shape, rows: Sequence[Row], width: int | None) -> Layout:
    """Return the layout with the most columns that fit; a block of all of them a row where not even the last fit."""
    widths = [_width(column, [row.cells[number] for row in rows]) for number, column in enumerate(columns)]
    kept = list(range(len(columns)))
    while width is not None and _total(widths[number] for number in kept) > width:
        leaving = max(columns[number].drop for number in kept)
        if leaving == 0:
            break
        kept = [number for number in kept if columns[number].drop < leaving]
    if width is not None and _total(widths[number] for number in kept) > width:
        return Layout(tuple(range(len(columns))), tuple(widths), as_table=False, remark="")
    left_out = [column.heading for number, column in enumerate(columns) if number not in kept]
    taken = tuple(widths[number] for number in kept)
    wider = f"A terminal of {_total(widths)} columns shows them, or --json."
    remark = f"Columns left out: {', '.join(left_out)}. {wider}" if left_out else ""
    return Layout(tuple(kept), taken, as_table=True, remark=remark)


def _width(column: Column, cells: Iterable[Cell]) -> int:
    """Return the width of a column: of its widest cell, or of its heading broken at blanks unless it is short."""
    words = [column.heading] if len(column.heading) <= SHORT else column.heading.split()
    return max(_width_of(text) for text in (*words, *(cell.text for cell in cells)))


def _total(widths: Iterable[int]) -> int:
    taken = list(widths)
    return sum(taken) + len(GAP) * (len(taken) - 1)


def table_lines(table: Table, layout: Layout, width: int | None) -> list[Styled]:
    """Return the lines of a table, its title first."""
    title = [(line, "bold") for line in _fitted(table.title, width)] if table.title else []
    return title + (_table if layout.as_table else _row_blocks)(table, layout, width)


def _table(table: Table, layout: Layout, width: int | None) -> list[Styled]:
    columns = [table.columns[number] for number in layout.columns]
    lines = [(heading, "bold") for heading in _headings(columns, layout.widths)]
    lines.append((RULE * _total(layout.widths), "dim"))
    for row in table.rows:
        cells = [row.cells[number].text for number in layout.columns]
        lines.append((_joined(cells, columns, layout.widths), MARKS[row.mark]))
        lines += _note(row, width)
    return lines


def _headings(columns: Sequence[Column], widths: Sequence[int]) -> list[str]:
    """Return the lines of the headings, all of which end on the last line."""
    stacks = [
        textwrap.wrap(column.heading, width, break_long_words=False, break_on_hyphens=False)
        for column, width in zip(columns, widths, strict=True)
    ]
    height = max(map(len, stacks))
    padded = [[""] * (height - len(stack)) + stack for stack in stacks]
    return [_joined(texts, columns, widths) for texts in zip(*padded, strict=True)]


def _joined(texts: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> str:
    """Return one line of a table, without blanks at its end."""
    cells = []
    for text, column, width in zip(texts, columns, widths, strict=True):
        blanks = " " * (width - _width_of(text))
        cells.append(text + blanks if column.align == "left" else blanks + text)
    return GAP.join(cells).rstrip()


def _row_blocks(table: Table, layout: Layout, width: int | None) -> list[Styled]:
    """Return the lines of each row: its name, then a line for each of its other cells that are not empty."""
    columns = [table.columns[number] for number in layout.columns]
    longest = max((_width_of(column.heading) for column in columns if not column.key), default=0)
    lines: list[Styled] = []
    for row in table.rows:
        pairs = list(zip(columns, (row.cells[number] for number in layout.columns), strict=True))
        keys = ((column.heading, cell) for column, cell in pairs if column.key)
        # Numbers with the name of what they count.
        name = ", ".join(f"{key} {cell.text}" if isinstance(cell.value, float) else cell.text for key, cell in keys)
        lines += [(line, MARKS[row.mark] or "bold") for line in _fitted(name, width)]
        for column, cell in pairs:
            if cell.text and not column.key:
                lines += _pair(column.heading, cell.text, longest, width)
        lines += _note(row, width)
    return lines


def _pair(label: str, text: str, longest: int, width: int | None) -> list[Styled]:
    """Return a label and its value on one line if they fit, else on two."""
    for blanks in (longest - _width_of(label) + 1, 1):
        line = f"{INDENT}{label}:{' ' * blanks}{text}"
        if width is None or _width_of(line) <= width:
            return [(line, "")]
    return [*((line, "") for line in _fitted(f"{INDENT}{label}:", width)), (f"{INDENT}{INDENT}{text}", "")]


def _note(row: Row, width: int | None) -> list[Styled]:
    return [(line, MARKS[row.mark]) for line in _fitted(INDENT + row.note, width)] if row.note else []


def _fitted(text: str, width: int | None) -> list[str]:
    return [text] if width is None else wrapped(text, width)


STYLES = {"answer": "bold", "next": "", "note": "", "warning": "yellow", "condition": "dim"}
HIDDEN = "--verbose also prints all details and conditions."


def print_blocks(blocks: Sequence[Block], console: "Console | None" = None, *, verbose: bool = False) -> None:
    """Print blocks, each line of text once.

    Args:
        blocks: what to print, in order.
        console: where; default standard output. One with `soft_wrap` leaves it to others to break lines.
        verbose: also print blocks that are marked as detail.
    """
    from rich.text import Text

    console = console or standard_output()
    known = tuple(_encodable(block, console.encoding) for block in blocks)
    for line, style in block_lines(known, None if console.soft_wrap else console.width, verbose=verbose):
        console.print(Text(encodable(line, console.encoding), style), soft_wrap=True)


def block_lines(blocks: Blocks, width: int | None, *, verbose: bool = False) -> list[Styled]:
    """Return the lines of blocks, with styles, that fit a width; None is any width."""
    blocks = notes_once(blocks)
    shown = tuple(block for block in blocks if verbose or not block.detail)
    chosen = layouts(shown, width)
    lines: list[Styled] = []
    for above, block in zip((None, *shown), shown, strict=False):
        if above is not None and not _together(above, block):
            lines.append(("", ""))
        lines += _line(block, width) if isinstance(block, Line) else table_lines(block, chosen[block.columns], width)
    remarks = [*dict.fromkeys(layout.remark for layout in chosen.values() if layout.remark)]
    remarks += [HIDDEN] if len(shown) < len(blocks) else []
    spaced = [("", "")] if remarks else []
    return lines + spaced + [styled for remark in remarks for styled in _text(remark, width, "dim")]


def _together(above: Block, below: Block) -> bool:
    """Return whether no blank line stands between two blocks."""
    if isinstance(below, Table):
        return False
    return below.kind == "note" if isinstance(above, Table) else above.kind == below.kind


def _line(line: Line, width: int | None) -> list[Styled]:
    label = "Warning: " if line.kind == "warning" else ""
    command = wrapped_command(line.command, width) if line.command else []
    return _text(label + line.text, width, STYLES[line.kind]) + [(row, "cyan") for row in command]


def _text(text: str, width: int | None, style: str) -> list[Styled]:
    if width is None:
        return [(text, style)]
    return [(row, style) for row in wrapped(text, min(width, PROSE))]


def _encodable(block: Block, encoding: str) -> Block:
    """Return a block in letters of this encoding, so that widths are those of what is printed."""

    def known(text: str) -> str:
        return encodable(text, encoding)

    if isinstance(block, Line):
        return replace(block, text=known(block.text), command=known(block.command))
    columns = tuple(replace(c, name=known(c.name), unit=known(c.unit)) for c in block.columns)
    rows = tuple(
        Row(tuple(replace(cell, text=known(cell.text)) for cell in row.cells), row.mark, known(row.note))
        for row in block.rows
    )
    return replace(block, title=known(block.title), columns=columns, rows=rows)
