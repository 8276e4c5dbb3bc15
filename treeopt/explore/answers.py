"""The library's answer to a question, with the warnings and notes that it reports on the way."""

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

from simulate.validation.predicted_vs_measured import live_checks
from simulate.whatif.whatif_settings import WhatIfSettings
from treeopt.api.messages import LOG
from treeopt.api.search_trace import search
from treeopt.api.whatif_devices import WhatIf
from treeopt.errors import TreeoptError
from treeopt.explore.offered_files import Offer
from treeopt.explore.questions import MEASURED, Device, Question, question_of
from treeopt.plans.plan import Plan
from treeopt.traces.trace import Trace

ONE_AT_A_TIME = threading.Lock()  # searches use all of a core, and pages may be several


@dataclass(frozen=True, eq=False)
class Answer:
    """A plan, and what a reader must know beside it.

    Attributes:
        question: what was asked.
        trace: the trace.
        files: the files of the trace and of the profile, if one was chosen.
        plan: as `treeopt.search` returns it.
        checks: a sentence for each batch size whose tree a shipped validation measured.
        too_large: batch sizes that do not fit the device's memory.
        warnings: what a reader must know before believing the plan.
        notes: what else the library reported, such as the profile that it found.
        seconds: time that the answer took.
    """

    question: Question
    trace: Trace
    files: tuple[Path, ...]
    plan: Plan
    checks: dict[int, str]
    too_large: tuple[int, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    seconds: float


def answer(question: Question, offer: Offer) -> Answer:
    """Ask the library.

    Raises:
        TreeoptError: what `treeopt.search` and `treeopt.whatif` raise.
    """
    start = perf_counter()
    with reported() as log:
        trace = offer.trace(question.trace, candidates=bool(question.policies))
        if isinstance(question.steps, Device):
            plan, too_large = _predicted(question, question.steps, trace, offer)
        else:
            plan, too_large = _measured(question, trace, offer), ()
    profile = question.steps if isinstance(question.steps, str) else None
    return Answer(
        question=question,
        trace=trace,
        files=offer.files(question.trace, profile),
        plan=plan,
        checks=live_checks(plan),
        too_large=too_large,
        warnings=tuple(dict.fromkeys((*log.warnings, *plan.warnings))),
        notes=tuple(log.notes),
        seconds=perf_counter() - start,
    )


def attempt(controls: Mapping[str, Any], offer: Offer) -> Answer | TreeoptError:
    """Ask the library what the controls say; an error is returned."""
    try:
        deepest = offer.trace(controls["trace"]).depth
        return answer(question_of(controls, deepest=deepest, policies=takes_policies(controls, offer)), offer)
    except TreeoptError as error:
        return error


def takes_policies(controls: Mapping[str, Any], offer: Offer) -> bool:
    """Return True if dynamic trees can be tried with the step times that were chosen."""
    return controls["source"] == MEASURED and offer.takes_policies(controls["trace"], controls["profile"])


@contextmanager
def reported() -> Iterator["Collected"]:
    """Collect what the library reports from this thread, instead of printing it; one block runs at a time.

    Yields:
        The messages, which grow while the block runs.
    """
    with ONE_AT_A_TIME:
        collected, level = Collected(threading.get_ident()), LOG.level
        LOG.addFilter(collected)
        LOG.setLevel(logging.INFO)
        try:
            yield collected
        finally:
            LOG.removeFilter(collected)
            LOG.setLevel(level)


class Collected(logging.Filter):
    """Takes the messages of one thread out of the log."""

    def __init__(self, thread: int) -> None:
        """Take the messages of the thread with this identifier."""
        super().__init__()
        self.thread, self.warnings, self.notes = thread, list[str](), list[str]()

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep a message; return False for it, so that nothing prints it."""
        if record.thread != self.thread:
            return True
        kept = self.warnings if record.levelno >= logging.WARNING else self.notes
        kept.append(record.getMessage())
        return False


def _measured(question: Question, trace: Trace, offer: Offer) -> Plan:
    """Return the plan for measured step times."""
    return search(
        trace,
        None if question.steps is None else offer.profile(str(question.steps)),
        batch=question.batches,
        max_nodes=question.max_nodes,
        max_depth=question.max_depth,
        objective=question.objective,
        max_tpot_s=question.max_tpot_s,
        engine=question.engine,
        policies=question.policies,
    )


def _predicted(question: Question, device: Device, trace: Trace, offer: Offer) -> tuple[Plan, tuple[int, ...]]:
    """Return the plan for a device, and the batch sizes that do not fit its memory."""
    settings = WhatIfSettings(
        hardware=(device.hardware,),
        target=offer.target(device.target),
        drafter=offer.drafter,
        batch=question.batches,
        context=(device.context,),
        max_nodes=question.max_nodes,
        max_depth=question.max_depth,
        engine=question.engine,
    )
    asked = WhatIf.prepare(trace, settings)
    search = asked.search.changed(objective=question.objective, max_tpot_s=question.max_tpot_s)
    found = replace(asked, search=search).answer()
    for warning in asked.warnings:
        LOG.warning("%s", warning)
    (plan,) = found.plans().values()
    return plan, tuple(scenario.batch for scenario in found.scenarios if scenario.fits is False)
