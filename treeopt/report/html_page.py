"""The HTML page of results, which needs no other file: tables, charts that can be explored, and sliders."""

import json
import re
import zlib
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treeopt.charts.marks import DARK, LIGHT, Figure, themed, themed_spec
from treeopt.errors import visible
from treeopt.results.blocks import Blocks, Line, Table, notes_once
from treeopt.results.kinds import ResultKind

if TYPE_CHECKING:
    import altair as alt
    from jinja2 import Environment
    from markupsafe import Markup


@dataclass(frozen=True)
class Finding:
    """A result: one file.

    Attributes:
        kind: its kind, whose question it answers.
        title: what it is.
        source: its file, with the checksum.
        blocks: its tables and sentences.
        charts: its charts.
        answers: its answers in one sentence each, for the summary; empty: those of its blocks.
    """

    kind: ResultKind
    title: str
    source: str
    blocks: Blocks
    charts: "Sequence[alt.LayerChart]" = ()
    answers: tuple[str, ...] = ()


KINDS = (
    "A page shows traces (.npz) and their folders, plans, profiles, predictions, engine checks, and what `compare`, "
    "`simulate`, `validate` and `whatif` write with --output."
)


@dataclass(frozen=True)
class Problem:
    """A file that could not be read, and why."""

    file: str
    reason: str


@dataclass(frozen=True)
class Page:
    """A page.

    Attributes:
        title: its title.
        findings: its results.
        problems: files that could not be read.
        footer: how it was made.
        sliders: data of the sliders, see `slider_model.slider_data`; None: a page without them.
        notes: sentences about the files as they were given.
    """

    title: str
    findings: Sequence[Finding]
    problems: Sequence[Problem] = ()
    footer: str = ""
    sliders: Mapping[str, Any] | None = field(default=None)
    notes: Sequence[str] = ()


FOLDER = Path(__file__).parent / "page_files"
ANSWERS, SHARED = 4, 2  # answers to one question in the summary, from one file and from each of several
# A value with its interval or unit.
FIGURES = re.compile(
    r"[+\u2212-]?\d[\d.,]*( \[[^\[\]]{1,40}, [^\[\]]{1,40}\]( (ms|tokens/s))?| (ms|s|%|tokens/s|nodes?))(?!\w)"
)


def as_html(page: Page, *, static: bool = False) -> str:
    """Return the whole page.

    Args:
        page: its parts.
        static: charts as pictures alone, without scripts: for mail.
    """
    asked = _asked(page)
    sections = [_section(kind, page.findings, interactive=not static) for kind in asked]
    charts = [chart for section in sections for finding in section["findings"] for chart in finding["charts"]]
    sliders = None if static else page.sliders
    template = _environment().get_template("page.html.j2")
    return template.render(
        page=page,
        description=_description(page),
        kinds=KINDS.replace("`", ""),
        summary=[{"question": kind.question, "key": kind.name, "answers": _answers(page, kind)} for kind in asked],
        sections=sections,
        css=_colours() + (FOLDER / "page.css").read_text("utf-8"),
        scripts=() if static else _scripts(sliders=sliders is not None),
        vega=_vega() if charts and not static else "",
        specs=_embedded({chart["id"]: chart["spec"] for chart in charts if chart["spec"]}),
        sliders="" if sliders is None else _embedded(sliders),
        formula=_formula(),
        static=static,
    )


def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(FOLDER)
    environment = Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined, finalize=_plain
    )
    environment.globals["zip"] = zip
    environment.filters["figures"] = _unbroken
    return environment


def _plain(value: Any) -> Any:
    """Return a text with control characters as escapes; other values, and markup, as they are."""
    return visible(value, lines=True) if type(value) is str else value


def _unbroken(text: str) -> "Markup":
    """Return a sentence whose values stay on one line with their intervals and units."""
    from markupsafe import Markup, escape

    return Markup(FIGURES.sub(r'<span class="figures">\g<0></span>', str(escape(visible(text)))))  # noqa: S704


def _scripts(*, sliders: bool) -> Iterator[str]:
    """Yield the scripts of the page."""
    yield (FOLDER / "page.js").read_text("utf-8")
    if sliders:
        yield (FOLDER / "sliders.js").read_text("utf-8")


@cache
def _vega() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script, deflated, in base64; bundling takes seconds.

    `page.js` unpacks it when the first chart comes near: until then it costs a reader neither half of the page's bytes
    nor the time to compile it.
    """
    import vl_convert

    script: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return b64encode(zlib.compress(script.encode(), 9)).decode("ascii")


def _asked(page: Page) -> list[ResultKind]:
    """Return the kinds of the results, in the order of their questions on the page."""
    kinds = {finding.kind.name: finding.kind for finding in page.findings}
    return sorted(kinds.values(), key=lambda kind: (kind.place, kind.name))


def _answers(page: Page, kind: ResultKind) -> list[str]:
    """Return the answers to a question, those of several files with the files' names."""
    findings = [finding for finding in page.findings if finding.kind == kind]
    several = len(findings) > 1
    most, lines = SHARED if several or kind.name == "predictions" else ANSWERS, []
    for finding in findings:
        texts = list(finding.answers[:most])
        if left := len(finding.answers) - len(texts):
            texts[-1] += f" ({left} more below)"
        lines += [f"{finding.source.split(',')[0]}: {text}" if several else text for text in texts]
    return lines


def _description(page: Page) -> str:
    """Return the page's content in one sentence, as search engines and previews show it."""
    results = ", ".join(finding.title for finding in page.findings[:3])
    more = len(page.findings) - 3
    return f"Results of treeopt: {results}{f' and {more} more' if more > 0 else ''}." if results else "No results."


def _section(kind: ResultKind, findings: Sequence[Finding], *, interactive: bool) -> dict[str, Any]:
    chosen = [(place, finding) for place, finding in enumerate(findings) if finding.kind == kind]
    return {
        "key": kind.name,
        "text": kind.question,
        "several": len(chosen) > 1,
        "findings": [_finding(place, finding, interactive=interactive) for place, finding in chosen],
    }


def _finding(place: int, finding: Finding, *, interactive: bool) -> dict[str, Any]:
    blocks = notes_once(finding.blocks)
    drawn = enumerate(finding.charts)
    return {
        "id": f"result-{place}",
        "title": finding.title,
        "source": finding.source,
        "lead": [_block(block) for block in blocks if _leads(block)],
        "shown": [_block(block) for block in blocks if not (block.detail or _leads(block) or _is_condition(block))],
        "more": [_block(block) for block in blocks if block.detail or _is_condition(block)],
        "charts": [_chart(f"chart-{place}-{number}", chart, interactive=interactive) for number, chart in drawn],
    }


def _is_condition(block: Table | Line) -> bool:
    return isinstance(block, Line) and block.kind == "condition"


def _leads(block: Table | Line) -> bool:
    """Return True for blocks that stand before the charts."""
    return not block.detail and isinstance(block, Line) and block.kind in ("answer", "next", "warning")


def _block(block: Table | Line) -> dict[str, Any]:
    return {"table": block if isinstance(block, Table) else None, "line": block if isinstance(block, Line) else None}


def _chart(name: str, chart: "alt.LayerChart", *, interactive: bool) -> dict[str, Any]:
    figure = Figure.of(chart)
    svg = themed(figure.svg())
    for mark in ('id="', 'href="#', "url(#"):  # ids of its own
        svg = svg.replace(mark, f"{mark}{name}-")
    return {
        "id": name,
        "figure": figure,
        "svg": svg.replace("<svg ", '<svg aria-hidden="true" focusable="false" ', 1),
        "spec": themed_spec(figure.spec) if interactive else None,
    }


def _colours() -> str:
    """Return the custom properties of both themes."""
    dark = DARK.properties()
    return (
        f":root{{{LIGHT.properties()}}}\n"
        f"@media screen and (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{dark}}}}}\n"
        f"@media screen{{:root[data-theme=dark]{{{dark}}}}}\n"
    )


def _embedded(value: Any) -> str:
    """Return JSON that can stand in a script element."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def _formula() -> list[str]:
    """Return the formulas of the sliders, as their module states them."""
    from treeopt.report import slider_model

    text = (slider_model.__doc__ or "").split("\n\n", 1)[1]
    return [" ".join(part.split()) for part in text.split("\n* ")]
