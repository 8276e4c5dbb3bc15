"""The HTML page of results, which needs no other file: tables as printed on the terminal, and plots as SVG."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from rich.console import Console

from treeopt.charts.chart import Chart
from treeopt.charts.matplotlib_axes import as_svg
from treeopt.tables.terminal_text import PLAIN

WIDTH = 200  # columns, enough for the widest table
STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 82rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin: 2.5rem 0 0.5rem; border-bottom: 1px solid #8888; }
pre { font: 12px/1.2 ui-monospace, Consolas, Menlo, monospace; white-space: pre-wrap; min-width: 150ch; }
.wide { overflow-x: auto; }
figure { display: inline-block; margin: 0.5rem 1rem 0.5rem 0; background: white; }
footer, .from { color: #777; font-size: 13px; }
"""


@dataclass(frozen=True)
class Section:
    """A section of the page: one result.

    Attributes:
        title: its title.
        source: its file, with the checksum.
        show: prints its tables.
        draws: functions that return its charts.
    """

    title: str
    source: str
    show: Callable[[Console], None]
    draws: Sequence[Callable[[], Chart]] = ()


def as_html(title: str, sections: Sequence[Section], *, footer: str) -> str:
    """Return the whole page."""
    parts = [_section(number, section) for number, section in enumerate(sections, 1)]
    titles = (f'<li><a href="#s{n}">{escape(section.title)}</a></li>' for n, section in enumerate(sections, 1))
    contents = f"<ol>{''.join(titles)}</ol>" if len(sections) > 1 else ""
    return (
        f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        f"<style>{STYLE}</style></head>\n<body>\n<h1>{escape(title)}</h1>\n{contents}\n{''.join(parts)}"
        f"<footer><p>{escape(footer)}</p></footer>\n</body>\n</html>\n"
    )


def _section(number: int, section: Section) -> str:
    plots = "".join(f"<figure>{as_svg(draw())}</figure>\n" for draw in section.draws)
    return (
        f'<h2 id="s{number}">{escape(section.title)}</h2>\n<p class="from">{escape(section.source)}</p>\n{plots}'
        f'<div class="wide"><pre>{_printed(section.show)}</pre></div>\n'
    )


def _printed(show: Callable[[Console], None]) -> str:
    """Return the printed tables as HTML."""
    console = Console(record=True, file=io.StringIO(), width=WIDTH, color_system="truecolor", **PLAIN)
    show(console)
    return console.export_html(inline_styles=True, code_format="{code}")
