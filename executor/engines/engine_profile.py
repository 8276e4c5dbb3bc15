"""A profile of an engine: step times by batch size (requests in flight) and draft, measured in shuffled rounds.

A draft is a chain of some length, or a dynamic tree. A shared machine changes its speed. Each round measures every
draft of a batch size in random order, and the ratio of each to plain decoding of the same round is what enters the
profile.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from executor.engines.step_times import Waves, decode_wave, warm_up
from simulate.profiles.calibration import engine_cell, engine_profile
from simulate.profiles.measured_cells import Cell
from simulate.profiles.profile import Profile
from treeopt.constraints.size_rules import pool
from treeopt.engines.driver import Draft, Driver, EngineRequest
from treeopt.errors import EngineError, UsageError, counted
from treeopt.policies import DynamicTree
from treeopt.policies import settings as settings_of
from treeopt.replay.priced_walk import ALL_STEPS
from treeopt.storage.provenance import this_run

Key = tuple[int, Draft, int | None]  # batch size, draft, context
TREE_NODES = (8, 16, 32, 64)  # sizes of the dynamic trees that are measured
BEAMS = (2, 4)
RARE = 0.5  # share of a chain's tokens below which it is rarely drafted


@dataclass(frozen=True)
class EngineProfiling:
    """The configurations that are measured, and how often.

    Attributes:
        batches: requests in flight.
        lengths: draft lengths; 0, plain decoding, and 1 are always measured.
        trees: dynamic trees, see `dynamic_trees`.
        contexts: prompt lengths in tokens that prompts are cut to; empty: prompts as they are.
        new_tokens: tokens decoded after each prompt.
        rounds: times that each configuration is measured.
        waves: runs of a full batch per configuration and round.
        seed: of the order.
    """

    batches: tuple[int, ...]
    lengths: tuple[int, ...]
    trees: tuple[DynamicTree, ...] = ()
    contexts: tuple[int, ...] = ()
    new_tokens: int = 64
    rounds: int = 4
    waves: int = 4
    seed: int = 0

    @property
    def drafts(self) -> tuple[Draft, ...]:
        """The draft lengths, 0 and 1 among them, and the dynamic trees."""
        return (*sorted({0, 1, *self.lengths}), *self.trees)

    @property
    def runs(self) -> int:
        """Runs of one configuration in one round, over all."""
        return self.rounds * len(self.batches) * len(self.drafts) * max(1, len(self.contexts))


def dynamic_trees(*, max_nodes: int, max_depth: int) -> tuple[DynamicTree, ...]:
    """Return dynamic trees of several sizes, depths and beams, from which the times of others are estimated.

    All have more nodes than the longest chain, so that the steps of chains keep their own times.

    Raises:
        UsageError: no dynamic tree has more than `max_depth` and at most `max_nodes` nodes.

    >>> [(tree.nodes, tree.depth, tree.beam) for tree in dynamic_trees(max_nodes=8, max_depth=3)]
    [(4, 2, 2), (6, 2, 2), (4, 2, 4), (8, 2, 4), (4, 3, 2), (8, 3, 2), (4, 3, 4), (8, 3, 4)]
    """
    depths = sorted({max(1, max_depth // 2 + max_depth % 2), max_depth})
    sizes = [max_depth + 1, *(size for size in TREE_NODES if max_depth + 1 < size < max_nodes), max_nodes]
    trees = {
        DynamicTree(nodes, depth, beam): None
        for depth in depths
        for beam in BEAMS
        for nodes in (min(size, max_nodes, pool(depth=depth, width=beam)) for size in sizes)
        if nodes > max_depth
    }
    if not trees:
        raise UsageError(f"--policies with chains of up to {max_depth} needs --max-nodes {max_depth + 1} or more")
    return tuple(trees)


def measure_engine(
    engine: Driver,
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
        EngineError: the engine fails, or does not run dynamic trees at these batch sizes.
    """
    _check(prompts, settings)
    _check_trees(engine, settings)
    rng, waves = np.random.default_rng(settings.seed), dict[Key, list[Waves]]()
    for number in range(settings.rounds):
        for place in rng.permutation(len(settings.drafts)).tolist():  # servers are launched by draft
            draft = settings.drafts[place]
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
    return engine_profile(
        _cells(waves),
        context=(shortest, longest + settings.new_tokens),
        meta={
            **meta,
            "engine": dict(engine.meta),
            "rounds": settings.rounds,
            "new_tokens": settings.new_tokens,
            "seed": settings.seed,
            "spread": _spread(waves),
            ALL_STEPS: any(
                _mean_drafted(runs) is None for (_, draft, _), runs in waves.items() if draft in settings.lengths
            ),
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


def _check_trees(engine: Driver, settings: EngineProfiling) -> None:
    if settings.trees and max(settings.batches) > engine.tree_requests:
        name, most = engine.meta["name"], engine.tree_requests
        raise EngineError(
            f"{name} runs dynamic trees with {counted(most, 'request')} in flight: measure them with --batch {most}"
            if most
            else f"{name} runs chains, no dynamic trees: leave out --policies"
        )


def _seconds(runs: Sequence[Waves]) -> list[float]:
    """Return the seconds per step of each round."""
    return [run.mean_step_s for run in runs]


def _cells(waves: Mapping[Key, Sequence[Waves]]) -> list[Cell]:
    """Return one cell per configuration: the median plain step, times the ratio to it of a step that drafts in full.

    Raises:
        UsageError: an engine that reports what it drafts drafted nothing.
    """
    cells = []
    for (batch, draft, context), runs in sorted(waves.items(), key=lambda item: str(item[0])):
        plain = _seconds(waves[batch, 0, context])
        place = float(np.mean([length for run in waves[batch, 0, context] for length in run.context]))
        steps, tokens = (
            sum(sum(by.values()) for by in values)
            for values in zip(*((r.steps, r.committed) for r in runs), strict=True)
        )
        logs = np.log(_seconds(runs)) - np.log(plain) if draft else np.log(plain)
        error, committed = float(np.std(logs, ddof=1)) / len(logs) ** 0.5, tokens / steps if draft else 1.0
        ratio = 1.0
        if draft:
            ratio, factor = _full_draft(
                draft, {d: runs for (b, d, c), runs in waves.items() if (b, c) == (batch, context)}
            )
            error *= factor
        step_s = float(np.median(plain)) * ratio
        cells.append(engine_cell(batch, draft, step_s, context=place, error=error, committed=committed))
    return cells


def _full_draft(draft: Draft, by_draft: Mapping[Draft, Sequence[Waves]]) -> tuple[float, float]:
    """Return the ratio to a plain step of a step that drafts in full, and the factor on its relative error.

    A drafter that finds nothing in most steps, such as prompt lookup, drafts m of K tokens per step on average. What a
    step takes beyond a plain one is taken to grow with the drafted tokens, so it is K / m times what was measured.
    Where m is below half of K this multiplies noise, and all such lengths share one time per drafted token: the least
    squares of ratio - 1 over m. A length at which nothing was drafted is one of them.
    """
    plain = _seconds(by_draft[0])

    def ratio_of(other: Draft) -> float:
        return float(np.median(np.array(_seconds(by_draft[other])) / plain))

    means = {other: _mean_drafted(runs) for other, runs in by_draft.items() if isinstance(other, int) and other}
    if isinstance(draft, DynamicTree) or (mean := means[draft]) is None:
        return ratio_of(draft), 1.0
    measured = ratio_of(draft)
    if mean >= RARE * draft:
        per_token = (measured - 1) / mean
    else:
        rare = {other: m for other, m in means.items() if m is not None and 0 < m < RARE * other}
        if not rare:
            raise UsageError(
                "in no timed step did the engine draft anything: decode more tokens (--new-tokens) or other prompts"
            )
        excess = sum((ratio_of(other) - 1) * m for other, m in rare.items())
        per_token = excess / sum(m**2 for m in rare.values())
        mean = mean or min(rare.values())
    full = max(1 + per_token * draft, min(measured, 1.0))
    return full, max(1.0, measured * draft / mean / full)


def _mean_drafted(runs: Sequence[Waves]) -> float | None:
    """Return the tokens drafted per step and row over all rounds; None if the engine does not report them."""
    numbers = [run.drafted for run in runs if run.drafted is not None]
    return None if len(numbers) < len(runs) else sum(numbers) / sum(sum(run.timed) for run in runs)


def _spread(waves: Mapping[Key, Sequence[Waves]]) -> list[dict[str, Any]]:
    """Return the lowest, middle and highest seconds per step of each configuration over its rounds, as measured.

    Steps that drafted nothing count. `mean_drafted` has the tokens drafted per step and row, if the engine reports it.
    """
    rows = []
    for (batch, draft, context), runs in sorted(waves.items(), key=lambda item: str(item[0])):
        low, middle, high = np.quantile(_seconds(runs), [0, 0.5, 1]).tolist()
        mean = {} if isinstance(draft, DynamicTree) else {"mean_drafted": _mean_drafted(runs)}
        drafted = settings_of(draft) if isinstance(draft, DynamicTree) else draft
        rows.append({"batch": batch, "drafted": drafted, "context": context, "step_s": [low, middle, high], **mean})
    return rows
