"""`treeopt.tune`: the best draft length of an engine for each batch size, found by measuring it in a few launches."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treeopt import defaults
from treeopt.api.messages import Progress, silent, warn
from treeopt.api.run_models import Models, Prompts, load_tokens, quiet_libraries
from treeopt.api.runners import EngineSetup, open_runner
from treeopt.api.search_trace import search
from treeopt.engines import ENGINES
from treeopt.engines.export import Export
from treeopt.errors import EngineError, TreeoptError, UsageError
from treeopt.planning.tuner import FIRST, LOSS, MOST, NEAR, Tuner, Verdict
from treeopt.plans import Choice, Plan, PlanEntry, Proof
from treeopt.results.kinds import Record
from treeopt.settings import Settings, group, setting, takes
from treeopt.statistics import Estimate
from treeopt.storage.provenance import look
from treeopt.storage.work_file import WorkFile
from treeopt.traces.trace import Trace
from treeopt.tree import Tree

if TYPE_CHECKING:
    from executor.profiling.tuned_settings import TunedRuns
    from executor.runners.engine_runner import EngineRunner
    from simulate.profiles.profile import Profile

SCHEMA = "treeopt.tuning/1"
BUDGET_S, LENGTH, LAUNCHES = 900.0, 6, 3


@dataclass(frozen=True, kw_only=True)
class TuneSettings(Settings):
    """The settings of `tune`."""

    models: Models = group(Models)
    source: Prompts = group(Prompts)
    new_tokens: int = defaults.new_tokens()
    batch: tuple[int, ...] = setting((1, 2, 4, 8), least=1, help="Requests in flight; 1-16 doubles from 1 to 16.")
    max_depth: int = setting(LENGTH, least=1, most=64, help="Longest draft.")
    max_tpot_s: float | None = defaults.max_tpot()
    launches: int = setting(LAUNCHES, least=2, help="Most launches of an engine that runs one draft length per launch.")
    budget_s: float = setting(
        BUDGET_S,
        above=0,
        option="--budget",
        form="duration",
        help="Time after which nothing more is begun, such as 15m.",
    )
    seed: int = defaults.seed()
    engine: EngineSetup = group(EngineSetup)

    def check(self) -> None:
        """Raise UsageError without an engine, or where a server's lengths do not allow a comparison."""
        if self.engine.engine is None:
            raise UsageError("tune needs --engine, or --setup with a file that names one")
        if len(set(self.batch)) < len(self.batch) or not self.batch:
            raise UsageError("batch sizes must be given, and differ")

    @property
    def drafts(self) -> tuple[int, ...]:
        """The draft lengths that may be measured."""
        given = tuple(sorted({length for length, _ in self.engine.urls}))
        return given or tuple(range(self.max_depth + 1))


@dataclass(frozen=True)
class Tuned:
    """The result of `tune`.

    Attributes:
        record: the table, as JSON values.
        plan: the choices, with what was measured of them.
        profile: the step times.
        trace: acceptance, as the steps of the longest draft show it.
        exports: the engine's configuration, by batch size; None for one that serves all of them.
    """

    record: Record
    plan: Plan
    profile: "Profile"
    trace: Trace
    exports: Mapping[int | None, Export]


@takes(TuneSettings, "target", "drafter", "prompts")
def tune(*, settings: TuneSettings, work: Path | None = None, progress: Progress = silent) -> Tuned:
    """Launch an engine, measure draft lengths in alternation until the best one is known, and return it with its plan.

    See `treeopt.planning.tuner` for what is measured and when it ends; its `Tuner` is the same loop for a program
    that measures by itself.

    Args:
        work: file that finished settings are kept in, so that the same command resumes; None: nowhere.
        progress: shows how many settings are measured.

    Raises:
        UsageError: settings that do not go together, too few prompts, or a budget too small for a comparison.
        EngineError: the engine does not start, or fails; in its own words.
    """
    runner, tuner, tokens = _prepared(settings)
    from executor.models import tokens_hash
    from executor.profiling.tuned_settings import TunedRuns
    from executor.runners.runner import resumable

    head = {
        **resumable(runner.record),
        "prompts": tokens_hash(tokens),
        "new_tokens": settings.new_tokens,
        "batch": settings.batch,
        "drafts": settings.drafts,
        "launches": settings.launches,
        "seed": settings.seed,
    }
    with WorkFile(work, head) as kept:
        runs = TunedRuns(runner, tuner, tokens, settings.new_tokens, settings.budget_s, kept)
        with runner, progress("measuring", FIRST * len(settings.batch) * len(settings.drafts)) as advance:
            runs.measure(advance)
        launched = len({runner.driver.launch(s.draft) for s in runs.runs})
    return _tuned(settings, runner, runs, getattr(runner.driver, "launches", launched))


def dry_run(settings: TuneSettings) -> list[str]:
    """Return what `tune` would launch and measure, a sentence each; nothing is started."""
    runner, tuner, _ = _prepared(settings)
    from executor.profiling.tuned_settings import count_of

    driver, drafts = runner.driver, settings.drafts
    first = len({driver.launch(draft) for draft in drafts}) if tuner.one_launch else 2
    most = first if tuner.one_launch else settings.launches
    tokens = settings.new_tokens * sum(map(count_of, settings.batch)) * len(drafts if tuner.one_launch else drafts[:2])
    return [
        f"launches: {first} of {runner.name}"
        + (f", then up to {most - first} more" if most > first else "")
        + (", which take turns" if driver.alive >= first else ", one after the other"),
        f"measured: lengths {', '.join(map(str, drafts))} at batch {', '.join(map(str, settings.batch))}; a round "
        f"decodes {tokens} tokens at first and less later; {FIRST} to {MOST} rounds",
        f"ends: when no other length may be {NEAR:.0%} faster, or leads by {LOSS:.0%} on average, or after "
        f"{settings.budget_s:.0f} s",
    ]


def _prepared(settings: TuneSettings) -> "tuple[EngineRunner, Tuner, list[list[int]]]":
    """Return the runner, not entered, the tuner, and the prompts."""
    quiet_libraries()
    from executor.profiling.tuned_settings import count_of
    from executor.runners.engine_runner import EngineRunner

    if 0 not in settings.drafts or len(settings.drafts) < 2:
        raise UsageError(
            "--url: a comparison needs a server without speculation (0=URL) and one with a draft (3=URL); one server "
            "alone tells its own acceptance and step time: `treeopt trace collect` and `treeopt profile`"
        )
    engine = settings.engine
    runner = open_runner(settings.models, engine)
    assert isinstance(runner, EngineRunner)
    if engine.servers is None and runner.driver.alive == 1 and runner.driver.launch(1) != runner.driver.launch(2):
        runner = open_runner(settings.models, engine.changed(servers=2))  # plain decoding stays beside each length
        assert isinstance(runner, EngineRunner)
    tokens, _ = load_tokens(settings.models, None, settings.source)
    most = max(map(count_of, settings.batch))
    if len(tokens) < most:
        raise UsageError(f"batch {max(settings.batch)} needs at least {most} prompts, got {len(tokens)}")
    runner.concurrency = max(settings.batch)
    driver, drafts = runner.driver, [draft for draft in settings.drafts if draft]
    driver.longest = drafts[-1]
    one_launch = len({driver.launch(draft) for draft in drafts}) == 1 or driver.alive > len(drafts)
    tuner = Tuner(
        settings.batch,
        settings.drafts,
        one_launch=one_launch,
        launches=settings.launches,
        takes_turns=driver.alive > 1,
        seed=settings.seed,
    )
    return runner, tuner, tokens


def _tuned(settings: TuneSettings, runner: "EngineRunner", runs: "TunedRuns", launches: int) -> Tuned:
    """Return the result of the runs."""
    meta = {**runner.record, "new_tokens": settings.new_tokens, "provenance": runner.provenance}
    trace, verdicts = runs.trace(meta, seed=settings.seed), runs.tuner.verdicts()
    profile = runs.profile(verdicts, meta)
    predicted = _searched(settings, trace, profile)
    plan = _measured(settings, predicted, verdicts)
    decided = runs.tuner.decided
    record = Record(
        schema=SCHEMA,
        meta={**meta, "launches": launches, "took_s": runs.took_s, "settings": len(runs.runs)},
        decided=decided,
        near=NEAR,
        best=plan.best,
        max_tpot_s=settings.max_tpot_s,
        cells=[_cell(verdict, predicted) for verdict in verdicts],
    )
    driver = runner.driver
    stated = look(driver.meta, "speculation", "method") or look(driver.meta, "method")
    method = getattr(driver, "method", None) or stated
    return Tuned(record, plan, profile, trace, _exports(settings, plan, method))


def _searched(settings: TuneSettings, trace: Trace, profile: "Profile") -> Plan:
    """Return the plan that replay and the profile predict, with every chain in it."""
    name = settings.engine.engine
    chains = {_name(draft): Tree.chain(draft) for draft in settings.drafts if 0 < draft <= trace.depth}
    return search(
        trace,
        profile,
        batch=settings.batch,
        engine=name if name in ENGINES.limiting() else None,
        compare=chains,
        solver_work=0,
        seed=settings.seed,
    )


def _name(draft: int) -> str:
    return f"chain of {draft}" if draft else "no speculation"


def _choices(entry: PlanEntry) -> dict[int, Choice]:
    """Return the chains of an entry by length."""
    every = (entry.choice, *entry.compared)
    chains = {c.tree.nodes: c for c in every if c.tree is not None and c.tree == Tree.chain(c.tree.nodes)}
    return chains | dict.fromkeys((0,), next(choice for choice in every if choice.plain))


def _measured(settings: TuneSettings, predicted: Plan, verdicts: Sequence[Verdict]) -> Plan:
    """Return the plan whose choices are those of the measurement, with its figures."""
    entries = []
    for entry in predicted.entries:
        known = {verdict.draft: verdict for verdict in verdicts if verdict.batch == entry.batch}
        chains = {
            draft: replace(
                choice,
                name=_name(draft) if draft else choice.name,
                tau=known[draft].tau,
                step_s=known[draft].step_s,
                speedup=known[draft].speedup,
                behind=None if known[draft].chosen else _lost(known[draft].behind),
            )
            for draft, choice in _choices(entry).items()
            if draft in known
        }
        chosen = next(draft for draft, verdict in known.items() if verdict.chosen)
        statement = f"chosen by measuring; {'' if known[chosen].rounds else 'not '}measured itself"
        entries.append(
            replace(
                entry,
                choice=chains.pop(chosen),
                gain=None,
                compared=tuple(chains[draft] for draft in sorted(chains)),
                proof=Proof("tokens per second", optimal=False, statement=statement),
                prices=(),
            )
        )
    limit = settings.max_tpot_s
    kept = [entry for entry in entries if limit is not None and entry.choice.step_s / entry.choice.tau.value <= limit]
    best = max(kept, key=lambda entry: entry.choice.tokens_s(entry.batch), default=None)
    return replace(
        predicted, entries=tuple(entries), switches=(), best=None if best is None else best.batch, warnings=()
    )


def _lost(over: Estimate) -> Estimate:
    """Return the share of tokens per second that is lost, from their ratio to the choice's."""
    return Estimate(1 - over.value, 1 - over.high, 1 - over.low)


def _cell(verdict: Verdict, predicted: Plan) -> dict[str, Any]:
    """Return a row of the table."""
    choice = _choices(predicted.entry(verdict.batch)).get(verdict.draft)
    known = "slower" if verdict.behind.high <= 1 + NEAR else "near" if verdict.decided else "undecided"
    return {
        "batch": verdict.batch,
        "drafted": verdict.draft,
        "tau": asdict(verdict.tau),
        "step_s": verdict.step_s,
        "predicted": None if choice is None else asdict(choice.speedup),
        "speedup": asdict(verdict.speedup) if verdict.rounds else None,
        "rounds": verdict.rounds,
        "state": "chosen" if verdict.chosen else known,
    }


def _exports(settings: TuneSettings, plan: Plan, method: str | None) -> dict[int | None, Export]:
    """Return the engine's configuration for all batch sizes, or for each where the engine holds one."""
    engine = ENGINES[str(settings.engine.engine)]
    if engine.write is None or all(entry.choice.plain for entry in plan.entries):
        return {}
    words = _export_words(settings, method)
    exports: dict[int | None, Export] = {}
    with suppress(UsageError, EngineError):
        exports[None] = engine.export(plan, **words)
    for entry in plan.entries if not exports else ():
        if not entry.choice.plain:
            try:
                exports[entry.batch] = engine.export(plan, batch=entry.batch, **words)
            except TreeoptError as error:
                warn([f"no configuration for batch {entry.batch}: {error}"])
    if engine.name == "openvino" or not settings.engine.engine_args:  # a program, whose properties it does not hold
        return exports
    return {
        batch: replace(export, launch=f"{export.launch} {settings.engine.engine_args}")
        for batch, export in exports.items()
    }


def _export_words(settings: TuneSettings, known: str | None) -> dict[str, Any]:
    """Return how the engine drafts and what it loads, as its export takes them."""
    engine, setup, models = ENGINES[str(settings.engine.engine)], settings.engine, settings.models
    method = setup.method or known
    if method is not None:
        method = str(json.loads(method)["method"]) if method.lstrip().startswith("{") else method.partition(":")[0]
    drafter = str(models.drafter) if models.drafter is not None and models.drafter.exists() else None
    words = {"target": setup.engine_target or str(models.target), "method": method}
    if method is not None and method in engine.methods and engine.methods[method].model != "none":
        words["model"] = setup.engine_drafter or drafter
    return {name: value for name, value in words.items() if value is not None and name in engine.takes}
