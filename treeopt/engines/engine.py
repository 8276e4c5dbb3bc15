"""An inference engine as one value: the trees that it runs, how it drafts, how a plan is written for it, its driver."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from treeopt.constraints import Constraint
from treeopt.engines.driver import Driver, DriverSettings
from treeopt.engines.dynamic_trees import DynamicTrees, Triple, asked_for, describe, dynamic_tree
from treeopt.engines.export import (
    TARGET,
    Export,
    Fit,
    Nearest,
    batch_sizes,
    coverage_note,
    drafter_notes,
    entries_of,
    fit,
    imposed_notes,
    kept_rates,
    origin_note,
)
from treeopt.errors import EngineError, UsageError
from treeopt.plans import Plan, PlanEntry
from treeopt.registry import load
from treeopt.searchers.choose_policy import CannotRun
from treeopt.storage.provenance import look
from treeopt.traces.importers.sources.prometheus_counters import CounterNames
from treeopt.traces.trace import Trace
from treeopt.tree import Tree

SHARED = ("method", "model", "target", "batch", "nearest")  # settings of an export that most engines take


@dataclass(frozen=True)
class Method:
    """A way in which an engine drafts.

    Attributes:
        kinds: the kinds of treeopt's drafters that it runs.
        model: whether an export must name the drafter's checkpoint.
        trees: True if it also drafts the engine's dynamic trees.
        rules: further rules of its trees.
    """

    kinds: frozenset[str]
    model: Literal["required", "optional", "none"] = "optional"
    trees: bool = False
    rules: tuple[Constraint, ...] = ()

    @classmethod
    def of(cls, *kinds: str, **settings: Any) -> "Method":
        """Return the method that runs these kinds of drafters."""
        return cls(frozenset(kinds), **settings)


@dataclass(frozen=True)
class Option:
    """A setting that only one engine's export takes.

    Attributes:
        name: as Python writes it.
        help: a sentence.
        choices: the allowed texts; empty: a whole number of at least 1.
    """

    name: str
    help: str
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Engine:
    """An inference engine; an entry of `treeopt.engines.ENGINES`.

    Attributes:
        name: as users write it.
        title: name and version that was checked, for messages.
        rules: rules, all of which a static tree must keep; None: nobody knows which trees it runs.
        rules_of_trace: returns the further rules for trees of one trace.
        trees: how it takes dynamic trees; None: it runs none.
        methods: its methods of drafting by their own names.
        default_method: "drafter": the first method that runs the plan's drafter; "required": exports must be told;
            "optional": exports write what they know without a method.
        removed: methods that the engine no longer has, and why.
        write: returns the plan for the engine, without notes that every export has; None: there is no export.
        checked: what the exported text was checked against.
        takes: settings of its export.
        options: settings of its export that other engines lack.
        file: file that its launch line reads the exported text from; empty: the line holds the text.
        devices: option of its launch line, the number of devices that share every layer; empty: it has none.
        sequences: sequences that it decodes at once when it speculates; None: any number.
        driver: `module:Class` that makes its driver from `DriverSettings`; empty: treeopt does not run it.
        launched: True if treeopt starts it; False: a server that runs already, known by its address.
        metrics: names of the counters that it reports.
        never_ran: True if nothing of it ever ran here: what is known of it was read in its code.
    """

    name: str
    title: str
    rules: tuple[Constraint, ...] | None = None
    rules_of_trace: Callable[[Trace], tuple[Constraint, ...]] = lambda trace: ()
    trees: DynamicTrees | None = None
    methods: Mapping[str, Method] = field(default_factory=dict)
    default_method: Literal["drafter", "required", "optional"] = "drafter"
    removed: Mapping[str, str] = field(default_factory=dict)
    write: Callable[["ExportJob"], Export] | None = None
    checked: str = ""
    takes: tuple[str, ...] = SHARED
    options: tuple[Option, ...] = ()
    file: str = ""
    devices: str = ""
    sequences: int | None = None
    driver: str = ""
    launched: bool = True
    metrics: CounterNames | None = None
    never_ran: bool = False

    @property
    def cannot_run(self) -> CannotRun | None:
        """What returns why the engine cannot run a dynamic policy, None if it can; None: it runs none."""
        return None if self.trees is None else self.trees.cannot_run

    @property
    def choices(self) -> tuple[str, ...]:
        """The methods that an export lets users choose from."""
        return tuple(self.methods) if "method" in self.takes else ()

    def needs_model(self, method: str | None) -> bool:
        """Return whether an export must name the drafter's checkpoint, with a method or, unless it is known, with some.

        >>> from treeopt.engines import ENGINES
        >>> [ENGINES["vllm"].needs_model(method) for method in ("eagle", "ngram", "METHOD")]
        [True, False, True]
        """
        known = self.methods.get(method or "")
        return any(each.model == "required" for each in ([known] if known else self.methods.values()))

    def fitting(self, kind: Any) -> tuple[str, ...]:
        """Return the methods that run a kind of drafter, the one of the same name first.

        >>> from treeopt.engines import ENGINES
        >>> [ENGINES["vllm"].fitting(kind) for kind in ("eagle", "medusa", "ngram")]
        [('eagle', 'eagle3'), (), ()]
        """
        named = kind if isinstance(kind, str) else None  # a file may hold anything
        fitting = [name for name, method in self.methods.items() if named in method.kinds]
        return tuple(sorted(fitting, key=lambda name: name.lower() != kind))

    def start(self, settings: DriverSettings) -> Driver:
        """Return the driver; nothing is started yet.

        Raises:
            UsageError: settings that the engine does not take, or that are missing.
            EngineError: the engine is not there.
        """
        if not self.driver:
            raise UsageError(f"treeopt writes plans for {self.name}, but does not run it")
        if (settings.urls is None) != self.launched:
            raise UsageError(
                f"--url is for --engine openai: {self.name} is started here"
                if self.launched
                else f"--engine {self.name} needs --url, the address of a server that runs"
            )
        driver: Driver = load(self.driver)(settings)
        return driver

    def export(
        self,
        plan: Plan,
        *,
        method: str | None = None,
        model: str | None = None,
        target: str | None = None,
        batch: int | None = None,
        nearest: Nearest | None = None,
        replay: Trace | None = None,
        file: str | None = None,
        **options: Any,
    ) -> Export:
        """Return a plan as the engine reads it.

        Args:
            plan: what to export.
            method: how the engine drafts, by its own name; `default_method` says what stands for None.
            model: the drafter's checkpoint, as the engine reads it.
            target: the target's checkpoint, for the launch line.
            batch: one of the plan's batch sizes; None: all of them, which an engine with one topology refuses where
                they differ.
            nearest: replacement of a tree that the engine cannot run: the plan's best "chain", or the "triple" of a
                dynamic tree of the same depth, width and size, which the plan does not predict.
            replay: a trace whose acceptance is imposed.
            file: path of the exported text, for a launch line that reads it.
            options: settings of this engine alone.

        Raises:
            UsageError: no such batch size, or a setting that is missing or does not apply.
            EngineError: a method that the engine lacks, a tree that it cannot run, chains of several lengths where it
                runs one, or a plan without speculation.
            TraceError: a chain that the replayed trace does not cover.
        """
        if self.write is None:
            raise UsageError(f"there is no export to {self.name}")
        shared = {"method": method, "model": model, "target": target, "batch": batch, "nearest": nearest}
        for name, value in {**shared, "replay": replay, **options}.items():
            if value is not None:
                self.check_option(name)
        if nearest == "triple" and self.trees is None:
            raise UsageError(f"{self.title} has no dynamic tree: nearest must be chain")
        chosen = self._method(method, plan, model)
        job = ExportJob(
            engine=self,
            plan=plan,
            entries=entries_of(plan, batch=batch),
            method=chosen,
            model=model,
            target=target or TARGET,
            nearest=nearest,
            replay=replay,
            file=file or self.file,
            options=options,
        )
        written = self.write(job)
        methods = self.methods.values() if job.method is None else [self.methods[job.method]]
        kinds = frozenset().union(*(each.kinds for each in methods))
        drafter = drafter_notes(plan, engine=job.label, kinds=kinds)
        written = self._on_devices(str(look(plan.meta, "cost", "device")), written, job.notes)
        holds = look(plan.meta, "holds")
        if isinstance(holds, Mapping) and len(job.entries) > 1 and job.entries[-1].batch > holds["batch"]:
            said = "{device} holds {batch} sequences of {context} tokens with the longest draft of this plan"
            job.notes.append(f"{said.format_map(holds)}, not {job.entries[-1].batch}: export one size with --batch")
        checked = f"format checked against {self.checked}"
        closing = [coverage_note(job.fits)] if job.fits and self.sequences is None else []
        closing += [origin_note(job.fits)] if job.fits else []
        return replace(written, notes=(*job.replaced, *drafter, *job.notes, checked, *closing))

    def _on_devices(self, device: str, written: Export, notes: list[str]) -> Export:
        """Return an export whose launch line takes as many devices as were priced; else a note says so."""
        several = re.match(r"(\d+) x (?!.* tp\d+ep\d+$)", device)
        if several and self.devices:
            return replace(written, launch=f"{written.launch} {self.devices} {several[1]}")
        if re.match(r"\d+ x ", device):
            notes.append(f"step times are those of {device}: launch {self.title} on these devices in the same way")
        return written

    def check_option(self, name: str) -> None:
        """Raise an error if the export does not take a setting.

        Raises:
            UsageError: names the settings that it takes.
        """
        if name not in (taken := (*self.takes, *(option.name for option in self.options))):
            words = ", ".join(f"--{word}".replace("_", "-") for word in taken)
            raise UsageError(
                f"--{name.replace('_', '-')} does not apply to --format {self.name}: omit it; it takes {words}"
            )

    def _method(self, method: str | None, plan: Plan, model: str | None) -> str | None:
        """Return the drafting method of an export, by default the first one for the drafter that the plan names."""
        if "method" not in self.takes:
            return None
        known, fitting = ", ".join(self.methods), self.fitting(look(plan.meta, "trace", "drafter", "kind"))
        if method is None and self.default_method == "drafter":
            method = next((name for name in self.methods if name in fitting), None)
        if method is None:
            if self.default_method == "optional":
                return None
            raise UsageError(f"{self.title} needs a method, one of {', '.join(fitting) or known}: give --method")
        name = next((name for name in self.methods if name.lower() == method.lower()), None)
        if name is None:
            why = self.removed.get(method, "is not one of its methods")
            raise EngineError(f"{self.title} cannot run method {method}: it {why}; nearest: {known}")
        if model is None and self.methods[name].model == "required":
            raise UsageError(f"{self.title}: method {name} needs a model, the drafter's checkpoint: give --model")
        if model is not None and self.methods[name].model == "none":
            raise UsageError(f"{self.title}: method {name} reads no drafter, so it takes no model: omit --model")
        return name


@dataclass
class ExportJob:
    """An export under way: what `Engine.write` reads, and the notes that it leaves.

    Attributes:
        engine: the engine.
        plan: what is exported.
        entries: its entries to export, by rising batch size.
        method: the engine's method; None: not named.
        model: the drafter's checkpoint; None: not named.
        target: the target's checkpoint, or a word in its place.
        nearest: replacement of a tree that the engine cannot run.
        replay: a trace whose acceptance is imposed.
        file: path of the exported text; empty where no launch line reads it.
        options: settings of this engine alone.
        notes: notes of this engine, in order.
        replaced: notes on the trees that were replaced.
        fits: the trees that the engine runs, where they are static.
    """

    engine: Engine
    plan: Plan
    entries: tuple[PlanEntry, ...]
    method: str | None
    model: str | None
    target: str
    nearest: Nearest | None
    replay: Trace | None
    file: str
    options: Mapping[str, Any]
    notes: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    fits: list[Fit] = field(default_factory=list)

    @property
    def label(self) -> str:
        """The engine and its method, for messages."""
        return f"{self.engine.title} {self.method}" if self.method else self.engine.title

    @property
    def kind(self) -> Any:
        """The kind of drafter that the plan was made for, if it names one."""
        return look(self.plan.meta, "trace", "drafter", "kind")

    def note_block(self, longest: int) -> None:
        """Note that the trace's DFlash drafts blocks of another length than the engine for a chain."""
        slots = look(self.plan.meta, "trace", "drafter", "slots")
        if slots not in (None, longest + 1):
            self.notes.append(
                f"{self.engine.title} drafts blocks of {longest + 1} slots for K = {longest}, the trace has blocks of "
                f"{slots}: record dflash:{longest + 1}:DIR"
            )

    def dynamic(self) -> Triple | None:
        """Return the dynamic tree to export; None: the plan's trees are static, or replaced by chains.

        Raises:
            EngineError: the method drafts no trees, acceptance is imposed, or as `dynamic_tree` does.
        """
        engine = self.engine
        if engine.trees is None or not asked_for(self.entries, self.nearest):
            return None
        if not self._drafts_trees:
            able = " or ".join(name for name, method in engine.methods.items() if method.trees)
            raise EngineError(
                f"{engine.title} drafts dynamic trees only with method {able}, not {self.method}; nearest: `chain`"
            )
        if self.replay is not None:
            raise EngineError(f"{engine.title} imposes acceptance only on chains; nearest: `chain`")
        triple, self.replaced = dynamic_tree(self.entries, engine.trees, nearest=self.nearest)
        return triple

    @property
    def _drafts_trees(self) -> bool:
        return self.engine.trees is not None and (self.method is None or self.engine.methods[self.method].trees)

    def static(self, rules: tuple[Constraint, ...] | None = None) -> list[Fit]:
        """Return the planned tree of each batch size, or its replacement.

        Args:
            rules: rules of the trees; None: those of the engine and its method.

        Raises:
            EngineError: a tree that breaks a rule, or a plan without speculation.
        """
        engine = self.engine
        if rules is None:
            rules = (*(engine.rules or ()), *(engine.methods[self.method].rules if self.method else ()))
        trees = engine.trees if self._drafts_trees and self.replay is None else None
        self.fits = [
            fit(
                entry,
                engine=engine.title,
                rules=rules,
                nearest=self.nearest,
                others=[] if trees is None else describe(entry, trees),
            )
            for entry in self.entries
        ]
        self.replaced = [at.note for at in self.fits if at.note]
        if not any(at.tree for at in self.fits):
            raise EngineError(
                f"{engine.title}: the plan says not to speculate at batch {batch_sizes(self.fits)}; nearest: leave "
                "speculative decoding off"
            )
        return self.fits

    def length(self) -> int:
        """Return the length of the chain that all batch sizes share.

        Raises:
            EngineError: as `static` does, or chains of several lengths.
        """
        fits = self.static()
        if len({at.depth for at in fits}) > 1:
            held = ", ".join(f"{at.depth} at batch {at.batch}" for at in fits)
            raise EngineError(
                f"{self.engine.title} drafts one length at all batch sizes, but the plan has {held}; nearest: one "
                f"batch size of {batch_sizes(at for at in fits if at.tree)} (`--batch`)"
            )
        return fits[0].depth

    def imposed_rates(self, length: int) -> list[float]:
        """Return the acceptance rates of a chain along the replayed trace, and note what to measure with them."""
        assert self.replay is not None
        rates = kept_rates(Tree.chain(length), self.replay)
        self.notes += imposed_notes(self.entries, self.fits, self.replay, rates)
        return rates
