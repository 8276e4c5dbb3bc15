"""Run an inference engine: its prompts, a profile of its step times, a trace, predicted beside measured."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treeopt.api.engine_models import EngineChoice, engine_prompts
from treeopt.api.messages import Progress, note, silent, warn
from treeopt.api.run_prompts import Prompts
from treeopt.comparison.trees_of_size import parse_sizes
from treeopt.constraints import ChainOnly, Constraint
from treeopt.defaults import ENGINE_LENGTH, RECORD_BATCH
from treeopt.engines import ENGINE_RULES
from treeopt.engines.rules_for_trace import engine_constraints
from treeopt.errors import counted
from treeopt.results.kinds import Validation
from treeopt.storage.provenance import this_run

if TYPE_CHECKING:
    from executor.engines.engine_profile import EngineProfiling
    from simulate.profiles.profile import Profile
    from simulate.validation.prediction_sources import Sources
    from treeopt.traces.trace import Trace


CHAINS = ChainOnly(source="drivers of engines run chains")


def profile_engine(
    choice: EngineChoice,
    target: Path,
    drafter: Path | None,
    prompts: Prompts,
    settings: "EngineProfiling",
    *,
    progress: Progress = silent,
) -> "Profile":
    """Measure an engine's step times and return them as a profile.

    Args:
        choice: the engine.
        target: folder of the target, for its tokenizer; the engine reads it unless `choice` names another.
        drafter: its drafter.
        prompts: what is decoded.
        settings: what is measured.
        progress: shows how many configurations are measured.

    Raises:
        UsageError, EngineError: see `measure_engine`.
    """
    from executor.engines.engine_profile import measure_engine
    from treeopt.engines.driver_settings import make_engine

    tokens = engine_prompts(target, prompts)
    names = choice.settings(target, drafter, concurrency=max(settings.batches))
    meta = {**_names(target, choice.engine_target or target, choice.engine_drafter or drafter), "device": _machine()}
    with make_engine(names) as engine, progress("measuring", settings.runs) as advance:
        return measure_engine(engine, tokens, settings, meta=meta, progress=advance)


def _names(target: Path, loaded: Path | str, drafter: Path | str | None) -> dict[str, Any]:
    """Return names and hashes of the models, which an engine loads itself."""
    from treeopt.engines.model_files import model_record

    record: dict[str, Any] = {"target": {"name": target.name}, "engine_target": model_record(loaded)}
    return record | ({} if drafter is None else {"engine_drafter": model_record(drafter)})


def _machine() -> str:
    record = this_run()
    return f"{record.get('processor', 'unknown processor')}, {counted(record.get('cores', 0), 'core')}"


def validate_engine(
    choice: EngineChoice,
    target: Path,
    drafter: Path | None,
    prompts: Prompts,
    sources: "Sources",
    *,
    new_tokens: int,
    rounds: int,
    seed: int = 0,
    progress: Progress = silent,
) -> Validation:
    """Decode a plan's chains and dynamic trees in an engine; return predicted beside measured figures by batch size.

    Predictions are made, and written to their file with a hash, before the engine is started.

    Raises:
        UsageError, EngineError: see `compare_in_engine`.
        TreeoptError: what the readers of plan, trace and profile raise.
    """
    from executor.engines.engine_validation import (
        EngineRun,
        check_engine_run,
        compare_in_engine,
        runs_in,
        validation_meta,
    )
    from simulate.validation.end_to_end import Runs
    from simulate.validation.make_predictions import predict
    from simulate.validation.predicted_vs_measured import SCHEMA, comparison_record
    from simulate.validation.prediction_sources import read_sources
    from simulate.validation.predictions import save_predictions
    from treeopt.engines.driver_settings import make_engine

    if sources.sizes is None and sources.trace is not None:
        sources = replace(sources, sizes=parse_sizes(",".join(f"chain:{k + 1}" for k in range(ENGINE_LENGTH))))
    material = read_sources(sources)
    note(material.notes)
    warn(material.warnings)
    run = EngineRun(engine_prompts(target, prompts), new_tokens, rounds, seed)
    lengths = tuple(map(len, run.prompts))
    rules: tuple[Constraint, ...] = (CHAINS,)
    if material.trace is not None and choice.engine in ENGINE_RULES:
        rules += engine_constraints(choice.engine, material.trace)
    made = predict(material, run.context, lambda plan: Runs({}, lengths, new_tokens), rules=rules, seed=seed)
    plan = made.predictions.plan
    warn(made.warnings)
    names = choice.settings(target, drafter, concurrency=max(entry.batch for entry in plan.entries))
    driver = make_engine(names)
    note(check_engine_run(plan, run, driver))
    if sources.predictions is not None and not sources.written:
        save_predictions(made.predictions, sources.predictions)
        note([f"predictions {made.predictions.sha256[:16]} written to {sources.predictions}; measuring begins"])
    with driver as engine, progress("decoding", runs_in(plan, driver, rounds)) as advance:
        comparisons = compare_in_engine(engine, plan, run, forms=made.predictions.forms, progress=advance)
        meta = validation_meta(engine, run)
    meta |= {
        **_names(target, choice.engine_target or target, choice.engine_drafter or drafter),
        "device": _machine(),
        "predictions": {"sha256": made.predictions.sha256, **made.predictions.meta},
        "verification": "greedy",
        "temperature": 0.0,
        "skipped": {},
        "provenance": this_run(),
    }
    return Validation({"schema": SCHEMA, "meta": meta, **comparison_record(comparisons)})


@dataclass(frozen=True)
class EngineCollection:
    """Settings of a recording in an engine.

    Attributes:
        new_tokens: tokens decoded after each prompt.
        depth: draft length that the engine runs.
        every_anchor: measure a step at every position of the texts.
        concurrency: requests in flight.
        resume: take up the run that `work` holds.
        work: file that finished requests are kept in.
        seed: of what is drawn where nothing was measured.
    """

    new_tokens: int
    depth: int
    every_anchor: bool = False
    concurrency: int = RECORD_BATCH
    resume: bool = False
    work: Path | None = None
    seed: int = 0


def collect_engine_steps(
    choice: EngineChoice, target: Path, prompts: Prompts, settings: EngineCollection, *, progress: Progress = silent
) -> "Trace":
    """Return the trace of an engine's own steps: those of a run, or one at every position of its texts.

    Raises:
        UsageError, EngineError: see `record_run` and `every_anchor_trace`.
    """
    from executor.engines.engine_trace import every_anchor_trace, visited_trace
    from treeopt.engines.driver_settings import make_engine

    tokens = engine_prompts(target, prompts)
    names = choice.settings(target, None, concurrency=settings.concurrency)
    with make_engine(names) as engine:
        records = _recorded(engine, tokens, settings, progress)
        meta = {
            **_names(target, choice.engine_target or target, choice.engine_drafter),
            "engine": {**engine.meta, "drafted": settings.depth},
            "device": _machine(),
            "new_tokens": settings.new_tokens,
            "verification": "greedy",
            "temperature": 0.0,
            "provenance": this_run(),
        }
        if not settings.every_anchor:
            return visited_trace(records, depth=settings.depth, meta=meta, seed=settings.seed)
        anchors = sum(sum(record.committed) - 1 for record in records)
        with progress("measuring anchors", anchors) as advance:
            return every_anchor_trace(
                engine,
                tokens,
                records,
                depth=settings.depth,
                concurrency=settings.concurrency,
                meta=meta,
                work=None if settings.work is None else settings.work.with_name(f"{settings.work.name}.anchors"),
                settings=_run_settings(tokens, settings, engine.meta),
                resume=settings.resume,
                progress=advance,
            )


def engine_texts_of(
    choice: EngineChoice,
    target: Path,
    drafter: Path | None,
    tokens: list[list[int]],
    settings: EngineCollection,
    *,
    progress: Progress = silent,
) -> list[list[int]]:
    """Return the texts that an engine writes after prompts, as token ids.

    Raises:
        EngineError: the engine fails, or does not report token ids.
    """
    from executor.engines.engine_trace import engine_texts
    from treeopt.engines.driver_settings import make_engine

    names = choice.settings(target, drafter, concurrency=settings.concurrency)
    with make_engine(names) as engine:
        return engine_texts(_recorded(engine, tokens, settings, progress))


def _recorded(engine: Any, tokens: list[list[int]], settings: EngineCollection, progress: Progress) -> list[Any]:
    from executor.engines.engine_record import record_run
    from treeopt.engines.driver import EngineRequest

    requests = [EngineRequest(tuple(prompt), settings.new_tokens) for prompt in tokens]
    with progress("decoding", len(requests)) as advance:
        return record_run(
            engine,
            requests,
            draft=settings.depth,
            concurrency=settings.concurrency,
            work=settings.work,
            settings=_run_settings(tokens, settings, engine.meta),
            resume=settings.resume,
            progress=advance,
        )


def _run_settings(tokens: list[list[int]], settings: EngineCollection, engine: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a run depends on, as JSON values."""
    from executor.models.fingerprint import tokens_hash

    return {
        "prompts": tokens_hash(tokens),
        "new_tokens": settings.new_tokens,
        "drafted": settings.depth,
        "engine": {key: engine[key] for key in engine if key not in ("version", "urls")},
    }
