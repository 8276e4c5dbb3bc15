"""A profile of an engine: step times by batch size (requests in flight) and draft length, measured in shuffled rounds.

A shared machine changes its speed. Each round measures every draft length of a batch size in random order, and the
ratio of each to plain decoding of the same round is what enters the profile.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from executor.engines.engine import Engine, EngineRequest
from executor.engines.step_times import Waves, decode_wave, warm_up
from simulate.profiles.calibration import chain_cell, chain_profile
from simulate.profiles.measured_cells import Cell
from simulate.profiles.profile import Profile
from treeopt.errors import UsageError
from treeopt.storage.provenance import this_run

Key = tuple[int, int, int | None]  # batch size, draft length, context


@dataclass(frozen=True)
class EngineProfiling:
    """The configurations that are measured, and how often.

    Attributes:
        batches: requests in flight.
        lengths: draft lengths; 0, plain decoding, and 1 are always measured.
        contexts: prompt lengths in tokens that prompts are cut to; empty: prompts as they are.
        new_tokens: tokens decoded after each prompt.
        rounds: times that each configuration is measured.
        waves: runs of a full batch per configuration and round.
        seed: of the order.
    """

    batches: tuple[int, ...]
    lengths: tuple[int, ...]
    contexts: tuple[int, ...] = ()
    new_tokens: int = 64
    rounds: int = 4
    waves: int = 4
    seed: int = 0

    @property
    def drafts(self) -> tuple[int, ...]:
        """The draft lengths, 0 and 1 among them."""
        return tuple(sorted({0, 1, *self.lengths}))

    @property
    def runs(self) -> int:
        """Runs of one configuration in one round, over all."""
        return self.rounds * len(self.batches) * len(self.drafts) * max(1, len(self.contexts))


def measure_engine(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    settings: EngineProfiling,
    *,
    meta: Mapping[str, Any],
    progress: Callable[[int], None] = lambda runs: None,
) -> Profile:
    """Measure an engine's step times and return the profile that they make.

    Args:
        engine: a driver, entered.
        prompts: token ids; a configuration's requests are the next prompts in turn.
        settings: what is measured.
        meta: names and hashes of the models, for provenance.
        progress: called with 1 after every configuration of a round.

    Raises:
        UsageError: fewer prompts than the largest batch, prompts shorter than a context, or fewer than two rounds.
        EngineError: the engine fails.
    """
    _check(prompts, settings)
    rng, waves = np.random.default_rng(settings.seed), dict[Key, list[Waves]]()
    for number in range(settings.rounds):
        for draft in rng.permutation(settings.drafts).tolist():  # servers are launched by draft length
            warm_up(engine, prompts[: max(settings.batches)], draft=draft)
            for context in rng.permutation(settings.contexts).tolist() or [None]:
                for batch in rng.permutation(settings.batches).tolist():
                    run = Waves()
                    for wave in range(settings.waves):
                        first = (number * settings.waves + wave) * batch
                        some = [prompts[(first + i) % len(prompts)][slice(context)] for i in range(batch)]
                        requests = [EngineRequest(tuple(p), settings.new_tokens, ignore_stop=True) for p in some]
                        steps, again = decode_wave(engine, requests, draft=draft)
                        run.repeated += again
                        run.add(steps, {i: len(prompt) for i, prompt in enumerate(some)})
                    waves.setdefault((batch, draft, context), []).append(run)
                    progress(1)
    shortest = min(map(len, prompts)) if not settings.contexts else min(settings.contexts)
    longest = max(map(len, prompts)) if not settings.contexts else max(settings.contexts)
    return chain_profile(
        _cells(waves),
        context=(shortest, longest + settings.new_tokens),
        meta={
            **meta,
            "engine": dict(engine.meta),
            "rounds": settings.rounds,
            "new_tokens": settings.new_tokens,
            "seed": settings.seed,
            "spread": _spread(waves),
            "repeated_waves": sum(run.repeated for runs in waves.values() for run in runs),
            "provenance": this_run(),
        },
    )


def _check(prompts: Sequence[Sequence[int]], settings: EngineProfiling) -> None:
    if len(prompts) < max(settings.batches):
        raise UsageError(f"batch {max(settings.batches)} needs as many prompts, got {len(prompts)}")
    if settings.rounds < 2:
        raise UsageError(f"rounds must be at least 2, got {settings.rounds}")
    for context in settings.contexts:
        short = next((i for i, prompt in enumerate(prompts) if len(prompt) < context), None)
        if short is not None:
            raise UsageError(
                f"prompt {short} has {len(prompts[short])} tokens: it cannot be measured at a context of {context}"
            )


def _seconds(runs: Sequence[Waves]) -> list[float]:
    """Return the seconds per step of each round."""
    return [run.mean_step_s for run in runs]


def _cells(waves: Mapping[Key, Sequence[Waves]]) -> list[Cell]:
    """Return one cell per configuration: the median plain step, times the median ratio to it over the rounds."""
    cells = []
    for (batch, draft, context), runs in sorted(waves.items(), key=lambda item: str(item[0])):
        plain = _seconds(waves[batch, 0, context])
        ratios = np.array(_seconds(runs)) / plain
        logs = np.log(ratios if draft else plain)
        place = float(np.mean([length for run in waves[batch, 0, context] for length in run.context]))
        steps, tokens = (
            sum(sum(by.values()) for by in values)
            for values in zip(*((r.steps, r.committed) for r in runs), strict=True)
        )
        cells.append(
            chain_cell(
                batch,
                draft,
                float(np.median(plain) * (np.median(ratios) if draft else 1.0)),
                context=place,
                error=float(np.std(logs, ddof=1)) / len(logs) ** 0.5,
                committed=tokens / steps if draft else 1.0,
            )
        )
    return cells


def _spread(waves: Mapping[Key, Sequence[Waves]]) -> list[dict[str, Any]]:
    """Return the lowest, middle and highest seconds per step of each configuration over its rounds, as measured."""
    rows = []
    for (batch, draft, context), runs in sorted(waves.items(), key=lambda item: str(item[0])):
        low, middle, high = np.quantile(_seconds(runs), [0, 0.5, 1]).tolist()
        rows.append({"batch": batch, "drafted": draft, "context": context, "step_s": [low, middle, high]})
    return rows
