"""A summary of a value as HTML: a title, facts, a table and notes; escaped, with the colours of the page around it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

ROWS = 12  # most rows of a table
LONGEST = 400  # most letters of a note
FRAME = "border: 1px solid rgba(128, 128, 128, 0.5); border-radius: 6px; padding: 0.5em 0.8em; margin: 0.3em 0;"
SMALL = "font-size: 0.9em; opacity: 0.8; margin: 0.3em 0;"
CELL = "padding: 0.1em 0.8em 0.1em 0; text-align: {};"


@dataclass(frozen=True)
class Summary:
    """A value in a few lines.

    Attributes:
        title: name and size of the value.
        facts: facts by name, in plain words.
        head: heads of the table's columns, with units.
        rows: the table's cells; of many rows the first are shown.
        notes: conditions and warnings.
    """

    title: str
    facts: Mapping[str, str] = field(default_factory=dict)
    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    notes: Sequence[str] = ()


def summary_html(summary: Summary) -> str:
    """Return a summary as HTML that needs no style sheet and no script.

    >>> summary_html(Summary("a < b")).count("a &lt; b")
    1
    """
    facts = "<br>".join(f"{escape(name)}: {escape(fact)}" for name, fact in summary.facts.items())
    parts = [f"<strong>{escape(summary.title)}</strong>", f'<p style="{SMALL}">{facts}</p>' if facts else ""]
    if summary.rows:
        parts.append(_table(summary))
    parts += [f'<p style="{SMALL}">{escape(_shortened(note))}</p>' for note in summary.notes]
    return f'<div style="{FRAME}">{"".join(parts)}</div>'


def summary_text(summary: Summary) -> str:
    """Return title, facts and table of a summary as lines of text.

    >>> print(summary_text(Summary("Plan", {"on": "cpu"}, ["batch", "tau"], [["1", "1.56"], ["16", "1.31"]])))
    Plan
    on: cpu
    batch  tau
        1 1.56
       16 1.31
    """
    lines = [summary.title, *(f"{name}: {fact}" for name, fact in summary.facts.items())]
    if summary.rows:
        shown = [list(summary.head), *map(list, summary.rows[:ROWS])]
        widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
        lines += [" ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in shown]
    return "\n".join(lines)


def _table(summary: Summary) -> str:
    left = [_is_text([row[column] for row in summary.rows]) for column in range(len(summary.head))]
    styles = [CELL.format("left" if text else "right") for text in left]
    head = "".join(
        f'<th scope="col" style="{style}">{escape(name)}</th>' for name, style in zip(summary.head, styles, strict=True)
    )
    rows = "".join(f"<tr>{_cells(row, styles)}</tr>" for row in summary.rows[:ROWS])
    hidden = len(summary.rows) - ROWS
    more = f'<p style="{SMALL}">{hidden} more rows: see <code>frame()</code></p>' if hidden > 0 else ""
    table = f'<table style="border-collapse: collapse;"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    return f'<div style="overflow-x: auto;">{table}</div>{more}'


def _cells(row: Sequence[str], styles: Sequence[str]) -> str:
    return "".join(
        f'<td style="{style} white-space: nowrap;">{escape(cell)}</td>' for cell, style in zip(row, styles, strict=True)
    )


def _is_text(cells: Sequence[str]) -> bool:
    """Return whether a column holds names rather than numbers."""
    return any(cell and not (cell[0].isdigit() or cell[0] in "-+−") for cell in cells)


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
