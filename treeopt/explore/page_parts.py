"""Pieces of the page's HTML; everything that comes from files or controls is escaped."""

import re
from collections.abc import Sequence
from html import escape

from treeopt.engines.export import Export
from treeopt.explore.answer_words import HEAD, cautions, conditions, preferred, rows, sentence
from treeopt.explore.answers import Answer, Failure


HEADER = (
    "<header><h1>treeopt explore</h1><p>Choose a trace, step times and limits; "
    "the answer below is the library's.</p></header>"
)
SEARCHING = '<p class="status searching" role="status">Searching …</p>'


def panel(what: Sequence[object], limits: Sequence[object]) -> str:
    """Return the controls: what is asked about, and its limits."""
    first, second = ("".join(f'<div class="control">{control}</div>' for control in row) for row in (what, limits))
    return f'<section class="panel" aria-label="Controls"><div>{first}</div><div>{second}</div></section>'


def status(answer: Answer | Failure) -> str:
    """Return what became of the search: its time, or the error in one line."""
    if isinstance(answer, Failure):
        return failure_card(answer)
    return f'<p class="status" role="status">Answered in {answer.seconds:.1f} s.</p>'


def answer_card(answer: Answer, batch: int) -> str:
    """Return the answer: the sentence of one batch size in front, those of the others below."""
    entry = answer.plan.entry(batch)
    others = [sentence(other) for other in answer.plan.entries if other.batch != batch]
    more = [line for line in (answer.checks.get(batch), preferred(answer)) if line]
    return (
        f'<section class="answer" aria-live="polite"><p class="headline">{_unbroken(sentence(entry))}</p>'
        f"{_list(more, 'more')}{_list(others, 'others')}</section>"
    )


def failure_card(failure: Failure) -> str:
    """Return an error in one line."""
    return f'<p class="failure" role="alert">{escape(failure.line)}</p>'


def configurations(answer: Answer, batch: int) -> str:
    """Return the table of a batch size's configurations; the first row is the choice."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in HEAD)
    body = "".join(_row(row) for row in rows(answer.plan.entry(batch)))
    return (
        f'<section class="cells-box"><div class="wide" tabindex="0" role="region" aria-label="Table of batch {batch}">'
        f'<table class="cells"><caption>Configurations at batch {batch}.</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div></section>"
    )


def footnotes(answer: Answer) -> str:
    """Return warnings and conditions."""
    warned = cautions(answer)
    warnings = f"<h2>Warnings</h2>{_list(warned, 'warnings')}" if warned else ""
    notes = [*(f"{line[:1].upper()}{line[1:]}." for line in answer.notes), *conditions(answer)]
    return f"{warnings}<h2>Conditions</h2>{_list(notes, 'conditions')}"


def handover(controls: Sequence[object], text: str, files: Sequence[object]) -> str:
    """Return the downloads, and what the engine gets."""
    fields = "".join(f'<div class="control">{control}</div>' for control in controls)
    buttons = "".join(f'<div class="control">{file}</div>' for file in files)
    return (
        f'<section class="handover" aria-label="Downloads"><h2>Take it along</h2><div class="files">{buttons}</div>'
        f'<div class="fields">{fields}</div>{text}</section>'
    )


def handed_over(export: Export) -> str:
    """Return what an engine gets, and how it is started."""
    return (
        f'<pre tabindex="0">{escape(export.text)}</pre><p>Start the engine with</p>'
        f'<pre tabindex="0">{escape(export.launch)}</pre>{_list(export.notes, "notes")}'
    )


def no_exporter(engine: str | None) -> str:
    """Return what to do where no engine's configuration can be written."""
    if engine is None:
        return "<p>Choose an engine to get its configuration.</p>"
    return f"<p>There is no exporter for {escape(engine)}: download the plan.</p>"


def _row(cells: Sequence[str]) -> str:
    name, *figures = map(escape, cells)
    return f'<tr><th scope="row">{name}</th>{"".join(f"<td>{figure}</td>" for figure in figures)}</tr>'


def _unbroken(text: str) -> str:
    """Return a text whose intervals stay on one line with their values.

    >>> _unbroken("1.42 [1.36, 1.48] times")
    '<span class="figure">1.42 [1.36, 1.48]</span> times'
    """
    return re.sub(r"\d\S* \[[^\]]*\]", lambda found: f'<span class="figure">{found[0]}</span>', escape(text))


def _list(lines: Sequence[str], kind: str) -> str:
    if not lines:
        return ""
    return f'<ul class="{kind}">{"".join(f"<li>{escape(line)}</li>" for line in lines)}</ul>'
