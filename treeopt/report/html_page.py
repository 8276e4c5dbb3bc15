"""The HTML page of results, which needs no other file: tables, charts that can be explored, and sliders."""

import json
import re
import zlib
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treeopt.charts.marks import DARK, LIGHT, Figure, themed, themed_spec
from treeopt.errors import visible
from treeopt.results.kinds import ResultKind
from treeopt.results.tables_and_numbers import Blocks, Line, notes_once

if TYPE_CHECKING:
    import altair as alt
    from jinja2 import Environment
    from markupsafe import Markup


@dataclass(frozen=True)
class Finding:
    """A result: its kind, title, file with checksum, tables and sentences, charts, and answers for the summary."""

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
    """A page: its results, files that could not be read, how it was made, and sentences about the files.

    Data of the sliders are those of `slider_model.slider_data`; None: a page without them.
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
    """Return the whole page; `static`: charts as pictures alone, without scripts: for mail."""
    kinds = {finding.kind.name: finding.kind for finding in page.findings}
    sections: list[dict[str, Any]] = [
        {
            "key": kind.name,
            "text": kind.question,
            "answers": _answers(page, kind),
            "findings": [
                _finding(place, finding, interactive=not static)
                for place, finding in enumerate(page.findings)
                if finding.kind == kind
            ],
        }
        for kind in sorted(kinds.values(), key=lambda kind: (kind.place, kind.name))
    ]
    charts = [chart for section in sections for finding in section["findings"] for chart in finding["charts"]]
    sliders = None if static else page.sliders
    results = ", ".join(finding.title for finding in page.findings[:3])
    more = f" and {len(page.findings) - 3} more" if len(page.findings) > 3 else ""
    scripts = [] if static else ["page.js"] if sliders is None else ["page.js", "sliders.js"]
    template = _environment().get_template("page.html.j2")
    return template.render(
        page=page,
        # The content in one sentence, as search engines and previews show it.
        description=f"Results of treeopt: {results}{more}." if results else "No results.",
        kinds=KINDS.replace("`", ""),
        sections=sections,
        css=_colours() + (FOLDER / "page.css").read_text("utf-8"),
        scripts=[(FOLDER / name).read_text("utf-8") for name in scripts],
        vega=_vega() if charts and not static else "",
        specs=_embedded({chart["id"]: chart["spec"] for chart in charts if chart["spec"]}),
        sliders="" if sliders is None else _embedded(sliders),
        formula=_formula(),
        static=static,
    )


def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    def plain(value: Any) -> Any:  # markup stays as it is
        return visible(value, lines=True) if type(value) is str else value

    loader = FileSystemLoader(FOLDER)
    environment = Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined, finalize=plain
    )
    environment.globals["zip"] = zip
    environment.filters["figures"] = _unbroken
    return environment


def _unbroken(text: str) -> "Markup":
    """Return a sentence whose values stay on one line with their intervals and units."""
    from markupsafe import Markup, escape

    return Markup(FIGURES.sub(r'<span class="figures">\g<0></span>', str(escape(visible(text)))))  # noqa: S704


@cache
def _vega() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script, deflated, in base64; bundling takes seconds.

    `page.js` unpacks it when the first chart comes near: until then it costs a reader neither half of the page's bytes
    nor the time to compile it.
    """
    import vl_convert

    script: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return b64encode(zlib.compress(script.encode(), 9)).decode("ascii")


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


def _finding(place: int, finding: Finding, *, interactive: bool) -> dict[str, Any]:
    """Return a result: what stands before its charts, below them, and folded."""
    blocks, drawn = notes_once(finding.blocks), enumerate(finding.charts)
    more = [block for block in blocks if block.detail or (isinstance(block, Line) and block.kind == "condition")]
    rest = [block for block in blocks if block not in more]
    lead = [block for block in rest if isinstance(block, Line) and block.kind in ("answer", "next", "warning")]
    return {
        "id": f"result-{place}",
        "title": finding.title,
        "source": finding.source,
        "lead": lead,
        "shown": [block for block in rest if block not in lead],
        "more": more,
        "charts": [_chart(f"chart-{place}-{number}", chart, interactive=interactive) for number, chart in drawn],
    }


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
