"""A value in a notebook: sentences and tables as HTML, escaped, in the colours of the page around it; or as text."""

import sys
from collections.abc import Iterable
from html import escape
from typing import Any

from treeopt.errors import UsageError
from treeopt.results.blocks import Blocks, Cell, Line, Table, notes_once
from treeopt.results.kinds import known

ROWS = 12  # most rows of a table
LONGEST = 400  # most letters of a sentence
FRAME = "border: 1px solid rgba(128, 128, 128, 0.5); border-radius: 6px; padding: 0.5em 0.8em; margin: 0.3em 0;"
SMALL = "font-size: 0.9em; opacity: 0.8; margin: 0.3em 0;"
CELL = "padding: 0.1em 0.8em 0.1em 0; text-align: {};"


def html_of(value: Any) -> str:
    """Return a value as HTML that needs no style sheet and no script."""
    title, blocks = _shown(value)
    parts = [f"<strong>{escape(title)}</strong>"]
    for block in blocks:
        parts.append(table_html(block) if isinstance(block, Table) else _line(block))
    return f'<div style="{FRAME}">{"".join(parts)}</div>'


def text_of(value: Any) -> str:
    """Return a value as lines of text, as a terminal shows them."""
    from treeopt.terminal.terminal_blocks import block_lines
    from treeopt.terminal.terminal_text import PROSE, width_of

    title, blocks = _shown(value)
    return "\n".join([title, *(line for line, _ in block_lines(blocks, width_of(sys.stdout) or PROSE))])


def _shown(value: Any) -> tuple[str, Blocks]:
    """Return the title and the blocks of a value, without details and commands; of another record its fields."""
    try:
        kind, described = known(value)
        blocks = notes_once(kind.blocks(described))
    except (UsageError, LookupError, TypeError):
        fields = Line("note", f"fields: {', '.join(map(str, value))}")
        return f"Record {value.get('schema') or 'without a schema'}", (fields,)
    shown = (block for block in blocks if not block.detail and (isinstance(block, Table) or block.kind != "next"))
    return kind.titled(described), tuple(shown)


def _line(line: Line) -> str:
    text = f"Warning: {line.text}" if line.kind == "warning" else line.text
    return f'<p style="{SMALL}">{escape(text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}...")}</p>'


def table_html(table: Table) -> str:
    """Return a table as HTML that scrolls where it is wider than its place; of long ones the first rows."""
    styles = [CELL.format(column.align) for column in table.columns]
    head = "".join(
        f'<th scope="col" style="{style}" title="{escape(column.meaning)}">{escape(column.heading)}</th>'
        for column, style in zip(table.columns, styles, strict=True)
    )
    rows = "".join(f'<tr class="{row.mark}">{_cells(row.cells, styles)}</tr>' for row in table.rows[:ROWS])
    name = escape(table.title)
    caption = f'<caption style="text-align: left;">{name}</caption>' if name else ""
    region = f'role="region" aria-label="{name or "table"}" tabindex="0"'
    hidden = len(table.rows) - ROWS
    more = f'<p style="{SMALL}">{hidden} more rows: see <code>frame()</code></p>' if hidden > 0 else ""
    return (
        f'<div style="overflow-x: auto;" {region}><table style="border-collapse: collapse;">{caption}'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>{more}"
    )


def _cells(cells: Iterable[Cell], styles: Iterable[str]) -> str:
    pairs = zip(cells, styles, strict=True)
    return "".join(f'<td style="{style} white-space: nowrap;">{escape(cell.text)}</td>' for cell, style in pairs)
