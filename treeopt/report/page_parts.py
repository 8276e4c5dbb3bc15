"""The parts of the page as values: questions, the results that answer them, and files that could not be read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from treeopt.charts.chart import Chart
from treeopt.results.blocks import Blocks


@dataclass(frozen=True)
class Question:
    """A question that a section of the page answers: its name in addresses, its words, and its place."""

    key: str
    text: str


# In the order of the page.
QUESTIONS = {
    question.key: question
    for question in (
        Question("plan", "Which tree, and how fast?"),
        Question("validation", "Does the prediction hold?"),
        Question("predictions", "Which speed was predicted before measuring?"),
        Question("comparison", "Which drafter?"),
        Question("trace", "Which tokens does the drafter get right?"),
        Question("profile", "How long does a step take?"),
        Question("whatif", "How fast would other devices be?"),
        Question("run", "How long do the requests take?"),
        Question("serving", "How does a server cope?"),
        Question("capacity", "How much does a server carry?"),
        Question("acceptance", "Do engines accept what replay says?"),
    )
}


@dataclass(frozen=True)
class Finding:
    """A result: one file.

    Attributes:
        question: key of the question that it answers.
        title: what it is.
        source: its file, with the checksum.
        blocks: its tables and sentences.
        charts: its charts.
        answers: its answers in one sentence each, for the summary; empty: those of its blocks.
    """

    question: str
    title: str
    source: str
    blocks: Blocks
    charts: Sequence[Chart] = ()
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
        sliders: data of the sliders, see `slider_model.embedded`; None: a page without them.
        notes: sentences about the files as they were given.
    """

    title: str
    findings: Sequence[Finding]
    problems: Sequence[Problem] = ()
    footer: str = ""
    sliders: Mapping[str, Any] | None = field(default=None)
    notes: Sequence[str] = ()
