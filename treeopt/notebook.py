"""Methods of values in notebooks and files: HTML, text, tables, charts, files; reads records from files.

HTML is escaped, and takes the colours of the page around it.
"""

import json
import sys
from collections.abc import Iterable, Mapping
from html import escape as html_escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treeopt.api.file_loading import FILE, path_of
from treeopt.errors import UsageError, visible
from treeopt.results.kinds import RESULTS, Record, ResultKind, Validation, kind_of_schema, known
from treeopt.results.tables_and_numbers import Blocks, Line, Table, notes_once
from treeopt.storage.json_records import parse, reading
from treeopt.storage.user_files import read_text, write_text

if TYPE_CHECKING:
    import altair as alt
    import pandas as pd
    from matplotlib.axes import Axes


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
        if isinstance(block, Table):
            parts.append(table_html(block))
            continue
        text = f"Warning: {block.text}" if block.kind == "warning" else block.text
        parts.append(f'<p style="{SMALL}">{escape(text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}...")}</p>')
    return f'<div style="{FRAME}">{"".join(parts)}</div>'


def escape(text: str) -> str:
    """Return a text as HTML that shows it, control characters as escapes."""
    return html_escape(visible(text))


def text_of(value: Any) -> str:
    """Return a value as lines of text, as a terminal shows them."""
    from treeopt.terminal import PROSE, block_lines, width_of

    title, blocks = _shown(value)
    return "\n".join(map(visible, [title, *(line for line, _ in block_lines(blocks, width_of(sys.stdout) or PROSE))]))


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


def table_html(table: Table) -> str:
    """Return a table as HTML that scrolls where it is wider than its place; of long ones the first rows."""
    styles = [CELL.format(column.align) for column in table.columns]
    head = "".join(
        f'<th scope="col" style="{style}" title="{escape(column.meaning)}">{escape(column.heading)}</th>'
        for column, style in zip(table.columns, styles, strict=True)
    )
    rows = ""
    for row in table.rows[:ROWS]:
        cells = zip(row.cells, styles, strict=True)
        shown = "".join(f'<td style="{style} white-space: nowrap;">{escape(cell.text)}</td>' for cell, style in cells)
        rows += f'<tr class="{row.mark}">{shown}</tr>'
    name = escape(table.title)
    caption = f'<caption style="text-align: left;">{name}</caption>' if name else ""
    region = f'role="region" aria-label="{name or "table"}" tabindex="0"'
    hidden = len(table.rows) - ROWS
    more = f'<p style="{SMALL}">{hidden} more rows: see <code>frame()</code></p>' if hidden > 0 else ""
    return (
        f'<div style="overflow-x: auto;" {region}><table style="border-collapse: collapse;">{caption}'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>{more}"
    )


def frame_of(value: Any) -> "pd.DataFrame":
    """Return the main table of a value."""
    kind, value = known(value)
    return kind.frame(value)


def plot_value(value: Any, ax: "Axes | None" = None, *, chart: str | None = None) -> "alt.LayerChart | Axes":
    """Return a chart of a value, or draw it into matplotlib's axes and return them; see `ValueMethods.plot`."""
    kind, shown = known(value)
    if ax is None:
        drawn: alt.LayerChart = kind.drawn(shown, chart)
        return drawn
    from treeopt.charts.matplotlib_axes import DRAWN

    if not hasattr(ax, "set_xlabel"):
        raise UsageError(f"ax must be matplotlib's axes, got {ax!r:.40}: name a chart as chart=...")
    name = chart or next(iter(kind.charts), "")
    if (kind.name, name) not in DRAWN:
        raise UsageError("only the charts speedup and tau are drawn into axes: leave ax out for altair's chart")
    DRAWN[kind.name, name](ax, shown)
    return ax


def save_value(value: Any, path: Path | str) -> None:
    """Write a value to a file, whole or not at all: a trace as .npz, a tree as its rank paths, the rest as records.

    Raises:
        TraceError, TreeError: a value that its file cannot hold.
        OSError: the file cannot be written.
    """
    file = path_of(path, FILE)
    if isinstance(value, Mapping):
        write_text(file, json.dumps(value, indent=1) + "\n")
        return
    kind, value = known(value)
    kind.save(value, file)


def load_validation(path: Path | str) -> Validation:
    """Read and check what `treeopt validate --output` or `save` of a validation wrote.

    Raises:
        UsageError: the file cannot be read, or is no validation; names file and field.

    Examples:
        >>> import treeopt
        >>> validation = treeopt.load_validation("data/validations/medusa-cpu.json")
        >>> f"{validation['mean_error']:.1%} of {len(validation.frame())} cells"
        '2.6% of 31 cells'
    """
    validation: Validation = _read(path_of(path, FILE), (RESULTS["validation"],))
    return validation


def load_record(path: Path | str) -> Record:
    """Read what `simulate`, `verdict`, `whatif`, `compare`, `validate` or `tune` wrote with `--output`.

    Raises:
        UsageError: the file cannot be read, or is no such record; names file and field.

    Examples:
        >>> import treeopt
        >>> type(treeopt.load_record("data/validations/medusa-cpu.json")).__name__
        'Validation'
    """
    record: Record = _read(path_of(path, FILE), [kind for kind in RESULTS.all() if kind.schema and not kind.read])
    return record


def _read(path: Path, kinds: Iterable[ResultKind]) -> Any:
    """Return the value of a JSON file of one of these kinds."""
    with reading(path, UsageError):
        record = parse(read_text(path), *(kind.schema for kind in kinds))
        return kind_of_schema(record["schema"]).of_record(record)
