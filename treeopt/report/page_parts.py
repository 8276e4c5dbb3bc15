"""The parts of the page as values: results, and files that could not be read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from treeopt.results.blocks import Blocks
from treeopt.results.kinds import ResultKind

if TYPE_CHECKING:
    import altair as alt


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
