"""Blocks printed on a terminal of any width, with or without colours, in the letters that it knows."""

from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console
from rich.text import Text

from treeopt.results.blocks import Block, Blocks, Line, Row, Table, notes_once
from treeopt.terminal.table_layout import Styled, layouts, table_lines
from treeopt.terminal.terminal_text import PROSE, encodable, terminal, wrapped, wrapped_command

STYLES = {"answer": "bold", "next": "", "note": "", "warning": "yellow", "condition": "dim"}
HIDDEN = "--verbose also prints all details and conditions."


def print_blocks(blocks: Sequence[Block], console: Console | None = None, *, verbose: bool = False) -> None:
    """Print blocks, each line of text once.

    Args:
        blocks: what to print, in order.
        console: where; default standard output. One with `soft_wrap` leaves it to others to break lines.
        verbose: also print blocks that are marked as detail.
    """
    console = console or terminal()
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
