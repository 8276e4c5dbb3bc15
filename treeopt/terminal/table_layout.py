"""Tables as lines of text that fit a width: columns leave in their order, then each row becomes a block of lines.

Blocks have room for all columns. No cell is cut or wrapped, whatever the width.
"""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from treeopt.results.blocks import Blocks, Cell, Column, Row, Table
from treeopt.terminal.terminal_text import INDENT, wrapped

GAP = "  "  # between columns
SHORT = 8  # letters: such headings stay on one line
RULE = "─"
MARKS = {"": "", "chosen": "bold green", "dim": "dim", "wrong": "bold red"}
Styled = tuple[str, str]  # a line and its style
Shape = tuple[Column, ...]


@dataclass(frozen=True)
class Layout:
    """A layout of tables of one shape.

    Attributes:
        columns: the columns that stay, by number.
        widths: the width of each.
        as_table: False where each row becomes a block of lines.
        remark: the sentence about columns that were left out.
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
    return Layout(tuple(kept), taken, as_table=True, remark=_remark(left_out, _total(widths)))


def _remark(left_out: Sequence[str], needed: int) -> str:
    if not left_out:
        return ""
    return f"Columns left out: {', '.join(left_out)}. A terminal of {needed} columns shows them, or --json."


def _width(column: Column, cells: Iterable[Cell]) -> int:
    """Return the width of a column: of its widest cell, or of its heading broken at blanks unless it is short."""
    words = [column.heading] if len(column.heading) <= SHORT else column.heading.split()
    return max(cell_len(text) for text in (*words, *(cell.text for cell in cells)))


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
        blanks = " " * (width - cell_len(text))
        cells.append(text + blanks if column.align == "left" else blanks + text)
    return GAP.join(cells).rstrip()


def _row_blocks(table: Table, layout: Layout, width: int | None) -> list[Styled]:
    """Return the lines of each row: its name, then a line for each of its other cells that are not empty."""
    columns = [table.columns[number] for number in layout.columns]
    longest = max((cell_len(column.heading) for column in columns if not column.key), default=0)
    lines: list[Styled] = []
    for row in table.rows:
        pairs = list(zip(columns, (row.cells[number] for number in layout.columns), strict=True))
        name = ", ".join(_named(column, cell) for column, cell in pairs if column.key)
        lines += [(line, MARKS[row.mark] or "bold") for line in _fitted(name, width)]
        for column, cell in pairs:
            if cell.text and not column.key:
                lines += _pair(column.heading, cell.text, longest, width)
        lines += _note(row, width)
    return lines


def _named(column: Column, cell: Cell) -> str:
    """Return the text of a key: numbers with the name of what they count."""
    return f"{column.heading} {cell.text}" if isinstance(cell.value, float) else cell.text


def _pair(label: str, text: str, longest: int, width: int | None) -> list[Styled]:
    """Return a label and its value on one line if they fit, else on two."""
    for blanks in (longest - cell_len(label) + 1, 1):
        line = f"{INDENT}{label}:{' ' * blanks}{text}"
        if width is None or cell_len(line) <= width:
            return [(line, "")]
    return [*((line, "") for line in _fitted(f"{INDENT}{label}:", width)), (f"{INDENT}{INDENT}{text}", "")]


def _note(row: Row, width: int | None) -> list[Styled]:
    return [(line, MARKS[row.mark]) for line in _fitted(INDENT + row.note, width)] if row.note else []


def _fitted(text: str, width: int | None) -> list[str]:
    return [text] if width is None else wrapped(text, width)
