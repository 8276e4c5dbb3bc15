"""The files and devices that the page offers; the controls' state as a question, and the library's answer."""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

from simulate.model_sizes.hf_config import context_limit, shape_fields
from simulate.profiles.profile import Profile, profile_of_trace
from simulate.validation.predicted_vs_measured import live_checks
from simulate.whatif.whatif_settings import WhatIfSettings
from treeopt.api.file_loading import load_profile, load_trace
from treeopt.api.messages import LOG, warn
from treeopt.api.report_files import report_page
from treeopt.api.search_trace import search
from treeopt.api.whatif_devices import WhatIf
from treeopt.comparison.mismatch_warnings import differing_models, names_weights
from treeopt.defaults import NODES
from treeopt.engines import ENGINES
from treeopt.engines.export import Export
from treeopt.errors import CostError, TreeoptError, UsageError
from treeopt.planning.search_settings import SearchSettings
from treeopt.plans import Plan, to_json
from treeopt.storage.user_files import shipped
from treeopt.traces.resumable_shards import optional_in
from treeopt.traces.trace import Trace

if TYPE_CHECKING:
    from simulate.whatif.whatif_settings import Config

Value = TypeVar("Value")

SIZES = ("1b", "8b", "14b", "70b")  # shapes that the page offers as targets
FIRST = "medusa-t0.npz"  # of the shipped traces, the first to be shown
COUNTS = (1, 2, 4, 8)  # devices that share every layer


@dataclass(frozen=True)
class Offer:
    """Files by the names that the page shows; targets and drafter (None: as the target's) are sizes, for devices."""

    traces: Mapping[str, Path]
    profiles: Mapping[str, Path]
    targets: "Mapping[str, Config]"
    drafter: Path | None = None

    @classmethod
    def of_files(
        cls,
        traces: Sequence[Path | str] = (),
        profiles: Sequence[Path | str] = (),
        targets: Sequence[Path | str] = (),
        drafter: Path | str | None = None,
    ) -> "Offer":
        """Return an offer of these files; shipped traces and profiles where none is given.

        Raises:
            UsageError: no trace was given, and none is shipped.
        """
        own = sorted(sorted(shipped("traces").glob("*.npz")), key=lambda path: path.name != FIRST)
        named_traces = _by_name(traces or own)
        if not named_traces:
            raise UsageError("this installation ships no traces: give one with --trace")
        named_targets: dict[str, Config] = {**_by_name(targets), **{name: shape_fields(name) for name in SIZES}}
        named_profiles = _by_name(profiles or sorted(shipped("profiles").glob("*.json")))
        return cls(named_traces, named_profiles, named_targets, None if drafter is None else Path(drafter))

    def trace(self, name: str, *, candidates: bool = False) -> Trace:
        """Return an offered trace, read once; with `candidates` also what a folder's parts hold besides ranks.

        Raises:
            UsageError: it is not offered.
            TraceError: names what is wrong in the file.
        """
        return _read_trace(_offered(self.traces, name, "trace"), ranks_only=not candidates)

    def takes_policies(self, trace: str, profile: str) -> bool:
        """Return True if dynamic trees can be tried: the trace records candidates, the profile priced drafting them.

        Raises:
            UsageError: a file is not offered.
        """
        path = _offered(self.traces, trace, "trace")
        recorded = "candidates" in optional_in(path) if path.is_dir() else self.trace(trace).candidates is not None
        return recorded and bool(self.profile(profile).growths)

    def profile(self, name: str) -> Profile:
        """Return a profile, read once.

        Raises:
            UsageError: it is not offered.
            CostError: names what is wrong in the file.
        """
        return _read_profile(_offered(self.profiles, name, "profile"))

    def target(self, name: str) -> "Config":
        """Return the sizes of a target.

        Raises:
            UsageError: it is not offered.
        """
        return _offered(self.targets, name, "target")

    def profiles_for(self, trace: str) -> list[str]:
        """Return the names of the profiles, the best for this trace first, then those of the same models, then others.

        The best is the one that `treeopt search` finds, if it is offered.
        """
        meta, best = self.trace(trace).meta, None
        with suppress(CostError):
            best = profile_of_trace(self.trace(trace).meta)[0].meta

        def place(name: str) -> tuple[bool, bool]:
            profile = self.profile(name)
            other = not names_weights(meta) or bool(differing_models(profile.meta, meta))
            return profile.meta != best, other

        return sorted(self.profiles, key=place)

    def check(self) -> None:
        """Read every file.

        Raises:
            TreeoptError: names file and field of what is wrong.
        """
        for name in self.traces:
            self.trace(name)
        for name in self.profiles:
            self.profile(name)
        for config in (*self.targets.values(), *([] if self.drafter is None else [self.drafter])):
            context_limit(config)


def _by_name(paths: Sequence[Path | str]) -> dict[str, Path]:
    """Return files by their names, with the folder where two files share a name."""
    named: dict[str, Path] = {}
    for path in map(Path, paths):
        name = path.name if path.name not in named else str(path)
        named[name] = path
    return named


def _offered(offered: Mapping[str, Value], name: str, noun: str) -> Value:
    if name not in offered:
        raise UsageError(f"the page offers no {noun} {name!r}; it offers {', '.join(offered)}")
    return offered[name]


_read_trace: Callable[..., Trace] = lru_cache(maxsize=16)(load_trace)
_read_profile: Callable[[Path], Profile] = lru_cache(maxsize=64)(load_profile)


MOST_BATCHES = 12  # that one question may ask for
LARGEST_BATCH = 4096
ANY_TREE = "any tree"  # label of no engine
NO_POLICIES, ALL_POLICIES = "none", "all kinds"  # labels of dynamic trees
SOURCES = MEASURED, PREDICTED = "measured", "from a data sheet"  # labels of step times


@dataclass(frozen=True)
class Device:
    """A device of data/hardware.json, or several that share every layer; an offered target, and tokens in the cache."""

    name: str
    count: int = 1
    target: str = "8b"
    context: int = 512

    @property
    def hardware(self) -> str:
        """The device as `treeopt whatif --hardware` takes it.

        >>> Device("H100 SXM", count=4).hardware
        '4xH100 SXM'
        """
        return self.name if self.count == 1 else f"{self.count}x{self.name}"


@dataclass(frozen=True)
class Question:
    """A state of the controls: the name of an offered trace, that of a profile or a device, and the search."""

    trace: str
    steps: str | Device
    search: SearchSettings


def question_of(controls: Mapping[str, Any], offer: Offer) -> Question:
    """Return the question of the controls' values, by their names; right ends of sliders are the library's defaults.

    Raises:
        UsageError: batch sizes that are none, or a file that is not offered.
    """
    measured, engine, dynamic = controls["source"] == MEASURED, controls["engine"], controls["dynamic"]
    kinds = {NO_POLICIES: (), ALL_POLICIES: ("all",)}.get(dynamic, (dynamic,))
    device = [] if measured else [controls[name] for name in ("device", "count", "target", "context")]
    search = SearchSettings(
        batch=batch_sizes(controls["batches"]),
        engine=None if engine == ANY_TREE else engine,
        max_nodes=controls["nodes"] if controls["nodes"] < NODES else None,
        max_depth=controls["depth"] if controls["depth"] < offer.trace(controls["trace"]).depth else None,
        max_tpot_s=controls["tpot"] / 1e3 if controls["tpot"] else None,
        objective=controls["objective"],
        policies=kinds if takes_policies(controls, offer) else (),
    )
    return Question(controls["trace"], controls["profile"] if measured else Device(*device), search)


def batch_sizes(text: str) -> tuple[int, ...]:
    """Return the batch sizes of a text, each once, in rising order.

    Raises:
        UsageError: other than whole numbers between commas or spaces, or too many of them.

    >>> batch_sizes("4, 1 16")
    (1, 4, 16)
    """
    words = text.replace(",", " ").split()
    if not words or not all(word.isascii() and word.isdigit() and len(word) < 8 for word in words):
        raise UsageError(f"batch sizes must be whole numbers such as 1, 4, 16, got {text.strip()[:40]!r}")
    sizes = tuple(sorted(set(map(int, words))))
    if not 1 <= sizes[0] <= sizes[-1] <= LARGEST_BATCH:
        raise UsageError(f"batch sizes must be from 1 to {LARGEST_BATCH}, got {text.strip()[:40]!r}")
    if len(sizes) > MOST_BATCHES:
        raise UsageError(f"the page answers at most {MOST_BATCHES} batch sizes at a time, got {len(sizes)}")
    return sizes


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
    start, steps = perf_counter(), question.steps
    with reported() as log:
        trace = offer.trace(question.trace, candidates=bool(question.search.policies))
        if isinstance(steps, Device):
            plan, too_large = _predicted(question.search, steps, trace, offer)
        else:
            plan, too_large = search(trace, offer.profile(steps), settings=question.search), ()
    return Answer(
        question=question,
        trace=trace,
        files=(offer.traces[question.trace], *([] if isinstance(steps, Device) else [offer.profiles[steps]])),
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
        return answer(question_of(controls, offer), offer)
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


def _predicted(settings: SearchSettings, device: Device, trace: Trace, offer: Offer) -> tuple[Plan, tuple[int, ...]]:
    """Return the plan for a device, and the batch sizes that do not fit its memory."""
    same = {name: getattr(settings, name) for name in ("batch", "max_nodes", "max_depth", "engine")}
    asked = WhatIf.prepare(
        trace,
        WhatIfSettings(
            hardware=(device.hardware,),
            target=offer.target(device.target),
            drafter=offer.drafter,
            context=(device.context,),
            **same,
        ),
    )
    search = asked.search.changed(objective=settings.objective, max_tpot_s=settings.max_tpot_s)
    found = replace(asked, search=search).answer()
    warn(asked.warnings)
    (plan,) = found.plans().values()
    return plan, tuple(scenario.batch for scenario in found.scenarios if scenario.fits is False)


PLAN_FILE, REPORT_FILE = "plan.json", "report.html"


def plan_text(answer: Answer) -> str:
    """Return the content of the plan's file."""
    return to_json(answer.plan) + "\n"


def report_text(answer: Answer) -> str:
    """Return the report of the plan, its trace and its profile, as `treeopt report` writes it."""
    from treeopt.report.html_page import as_html

    with TemporaryDirectory() as folder:
        plan = Path(folder) / PLAN_FILE
        plan.write_text(plan_text(answer), "utf-8")
        return as_html(report_page((plan, *answer.files), title="treeopt explore"))


def attempt_export(
    answer: Answer, *, method: str | None = None, model: str = "", batch: int | None = None
) -> Export | TreeoptError:
    """Return the plan for the engine of the question, as `treeopt export` writes it; or the error.

    Args:
        answer: of a question with an engine that has an exporter.
        method: how the engine drafts; None: by the plan's drafter.
        model: the drafter's checkpoint; empty: not named.
        batch: one of the plan's batch sizes; None: all of them.
    """
    engine = ENGINES[str(answer.question.search.engine)]
    try:
        method = method if "method" in engine.takes else None
        return engine.export(answer.plan, method=method, model=model or None, batch=batch)
    except TreeoptError as error:
        return error


def export_file(export: Export, engine: str) -> str:
    """Return the name of an export's file.

    >>> export_file(Export("{}", ".json", "", ()), "vllm")
    'treeopt_vllm.json'
    """
    return export.file or f"treeopt_{engine.replace('.', '_').replace('-', '_')}{export.suffix}"
