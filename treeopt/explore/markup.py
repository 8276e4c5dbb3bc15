"""Pieces of the page's HTML; everything that comes from files or controls is escaped."""

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from treeopt.charts.chart_files import Figure
from treeopt.engines.export import Export
from treeopt.explore.answers import Answer, Failure
from treeopt.explore.page_words import in_page_words
from treeopt.explore.questions import NO_POLICIES, Device
from treeopt.results.blocks import Blocks, Line, Row, Table
from treeopt.results.plan import ENTRY as PLAN

HEADER = (
    "<header><h1>treeopt explore</h1><p>Choose a trace, step times and limits. "
    "The answer is what <code>treeopt search</code> says.</p></header>"
)
STEP_TIMES = "Step times:"  # label of the condition that says where they come from


def panel(*groups: Mapping[str, Any]) -> str:
    """Return the controls, a group below the other."""
    rows = "".join(f"<div>{_fields(group.values())}</div>" for group in groups)
    return f'<section class="panel" aria-label="Controls">{rows}</section>'


def searching(dynamic: Mapping[str, Any]) -> str:
    """Return what stands there while a search runs; the style hides the last answer meanwhile.

    Args:
        dynamic: values of the controls of dynamic trees.
    """
    tried = dynamic.get("dynamic", NO_POLICIES) != NO_POLICIES
    long = " Dynamic trees are replayed one by one, which takes up to a minute or two." if tried else ""
    return f'<p class="status searching" role="status">Searching …{long}</p>'


def status(answer: Answer | Failure) -> str:
    """Return what became of the search: its time, or the error in one line."""
    if isinstance(answer, Failure):
        return failure_card(answer)
    return f'<p class="status" role="status">Answered in {answer.seconds:.1f} s.</p>'


def failure_card(failure: Failure) -> str:
    """Return an error in one line."""
    return f'<p class="failure" role="alert">{_words(failure.line)}</p>'


def answer_card(answer: Answer, batch: int) -> str:
    """Return the answer: the sentence of one batch size in front, then its check, then the other sizes."""
    place = [entry.batch for entry in answer.plan.entries].index(batch)
    lines = [in_page_words(line) for line in _lines(PLAN.blocks(answer.plan), "answer")]
    check = [answer.checks[batch]] if batch in answer.checks else []
    others = [line for number, line in enumerate(lines) if number != place]
    return (
        f'<section class="answer" aria-live="polite" aria-label="Answer">'
        f'<p class="headline">{_unbroken(lines[place])}</p>'
        f"{_list(check, 'check')}{_list(others, 'others')}</section>"
    )


def configurations(answer: Answer, batch: int) -> str:
    """Return the table of a batch size's configurations with its notes; the first row is the choice."""
    blocks = PLAN.blocks(answer.plan)
    titles = [block.title if isinstance(block, Table) else "" for block in blocks]
    start = titles.index(f"batch {batch}")
    notes = []
    for block in blocks[start + 1 :]:
        if not isinstance(block, Line) or block.kind != "note":
            break
        notes.append(block.text)
    table = blocks[start]
    assert isinstance(table, Table)
    name = f"Configurations at {table.title}"
    return f'<section class="cells-box">{_table(table, name)}{_list(notes, "notes")}</section>'


def token_prices(priced: Blocks | Failure) -> str:
    """Return the price of tokens: its sentence, its table and what they hold for; nothing without a price."""
    if isinstance(priced, Failure):
        return failure_card(priced)
    tables = "".join(_table(block, block.title) for block in priced if isinstance(block, Table))
    sentences = "".join(f"<p>{_unbroken(line)}</p>" for line in _lines(priced, "answer"))
    notes = _list(_lines(priced, "note"), "notes")
    return f'<section class="cells-box" aria-label="Prices">{sentences}{tables}{notes}</section>' if priced else ""


def figures(drawn: Iterable[tuple[Figure, str]]) -> str:
    """Return charts, each with the HTML that draws it, under their titles and over their conditions."""
    return f'<section class="charts" aria-label="Charts">{"".join(_figure(*pair) for pair in drawn)}</section>'


def footnotes(answer: Answer) -> str:
    """Return warnings and conditions; details are folded."""
    blocks = PLAN.blocks(answer.plan)
    memory = [f"Batch {batch} does not fit the memory of the device." for batch in answer.too_large]
    warned = dict.fromkeys((*memory, *map(_sentence, answer.warnings)))
    lines = [block for block in blocks if isinstance(block, Line) and block.kind == "condition"]
    if isinstance(answer.question.steps, Device):
        lines = [_priced(answer.question.steps), *(line for line in lines if not line.text.startswith(STEP_TIMES))]
    open_lines = [*map(_sentence, answer.notes), *(line.text for line in lines if not line.detail)]
    folded = _list([line.text for line in lines if line.detail], "conditions")
    warnings = f"<h2>Warnings</h2>{_list(list(warned), 'warnings')}" if warned else ""
    more = f"<details><summary>How this was found</summary>{folded}</details>" if folded else ""
    return f'<section class="footnotes">{warnings}<h2>Conditions</h2>{_list(open_lines, "conditions")}{more}</section>'


def handover(controls: Mapping[str, Any], text: str, files: Sequence[object]) -> str:
    """Return the downloads, and what the engine gets."""
    return (
        f'<section class="handover" aria-label="Downloads"><h2>Downloads</h2><div class="files">{_fields(files)}</div>'
        f'<div class="fields">{_fields(controls.values())}</div>{text}</section>'
    )


def handed_over(export: Export) -> str:
    """Return what an engine gets, and how it is started."""
    launch = f'<p>To start the engine:</p><pre tabindex="0">{escape(export.launch)}</pre>' if export.launch else ""
    notes = _list([_sentence(in_page_words(note)) for note in export.notes], "notes")
    return f'<pre tabindex="0">{escape(export.text)}</pre>{launch}{notes}'


def no_exporter(engine: str | None) -> str:
    """Return what to do where no engine's configuration can be written."""
    if engine is None:
        return "<p>Choose an engine to get its configuration.</p>"
    return f"<p>There is no exporter for {escape(engine)}: download the plan.</p>"


def _priced(device: Device) -> Line:
    """Return where the step times of a device come from."""
    sizes = f"its data sheet and the sizes of {device.target}, {device.context} tokens in the cache"
    return Line("condition", f"{STEP_TIMES} predicted for {device.hardware} from {sizes}; nothing was measured.")


def _fields(controls: Iterable[object]) -> str:
    return "".join(f'<div class="control">{control}</div>' for control in controls)


def _figure(figure: Figure, html: str) -> str:
    conditions = "".join(f"<p>{escape(line)}</p>" for line in figure.conditions)
    return (
        f"<figure><h2>{escape(figure.title)}</h2>"
        f'<div style="min-height:{figure.height}px">{html}</div>'
        f"<figcaption>{conditions}</figcaption></figure>"
    )


def _table(table: Table, caption: str) -> str:
    head = "".join(
        f'<th scope="col" class="{column.align}" title="{escape(column.meaning)}">{escape(column.heading)}</th>'
        for column in table.columns
    )
    body = "".join(_row(table, row) for row in table.rows)
    name = escape(caption)
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{name}"><table class="cells">'
        f"<caption>{name}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _row(table: Table, row: Row) -> str:
    cells = zip(table.columns, row.cells, strict=True)
    inside = "".join(
        f'<th scope="row" class="{column.align}">{escape(cell.text)}</th>'
        if column.key
        else f'<td class="{column.align}">{escape(cell.text)}</td>'
        for column, cell in cells
    )
    return f'<tr class="{row.mark}">{inside}</tr>'


def _lines(blocks: Blocks, kind: str) -> list[str]:
    return [block.text for block in blocks if isinstance(block, Line) and block.kind == kind]


def _unbroken(text: str) -> str:
    """Return a text whose intervals stay on one line with their values.

    >>> _unbroken("1.42 [1.36, 1.48] times")
    '<span class="figure">1.42 [1.36, 1.48]</span> times'
    """
    return re.sub(
        r"\d\S* \[[^\]]*\]", lambda found: f'<span class="figure">{found[0]}</span>', escape(text, quote=False)
    )


def _words(text: str) -> str:
    """Return a text with its commands as code, and with intervals that stay on one line with their values.

    >>> _words("run `treeopt profile`")
    'run <code>treeopt profile</code>'
    """
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", _unbroken(text))


def _sentence(line: str) -> str:
    """Return a message of the library as a sentence.

    >>> _sentence("record more domains")
    'Record more domains.'
    """
    return f"{line[:1].upper()}{line[1:].removesuffix('.')}."


def _list(lines: Sequence[str], kind: str) -> str:
    if not lines:
        return ""
    return f'<ul class="{kind}">{"".join(f"<li>{_words(line)}</li>" for line in lines)}</ul>'
