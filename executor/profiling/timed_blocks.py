"""Time the loop for a profile: short blocks of steps behind real prompts, what they should take, prefill, drift.

A run passes through its whole texts, a block sees one place of them. So with real prompts the blocks of a round
continue texts that the target has begun, another part of them in each round: in the mean over rounds they are half
written, a little less where steps are so slow that blocks end early.

A shared machine changes its speed within seconds and within minutes. A change that lasts is the same for all
configurations, which follow one another in random order, and is removed; a short one averages out over rounds.
"""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from executor.decoding.decoder import Decoder, NewTokens
from executor.decoding.request_queue import Step
from executor.device import no_collection
from executor.drafters.base.drafter import usual_depth
from executor.models import clock_mhz
from executor.profiling.configurations import Configuration, first_rank_depth, ranked_configurations
from executor.profiling.measurement_rounds import Rounds, Timing
from executor.profiling.profile_settings import Measuring
from executor.runners.loop_runner import LoopRunner, run_of
from executor.runners.runner import Run, Tokens, Visit
from executor.target.architectures import check_chain
from executor.target.target_model import Target
from executor.target.tensor_parallel import processes
from executor.verification.acceptance_rules import rule_meta
from executor.verification.replayed_acceptance import Imposed
from simulate.model_sizes.layer_weights_and_kv import Experts
from simulate.model_sizes.model_shape import Shape
from simulate.profiles.measured_cells import Cell
from simulate.profiles.profile import Profile
from simulate.profiles.profile_from_cells import profile_of
from simulate.profiles.step_tables import Prefill, ladder
from treeopt.defaults import ROUNDS
from treeopt.errors import ExecutorError, TreeoptError, UsageError, counted
from treeopt.policies import DynamicTree
from treeopt.statistics import TRIMMED_ERROR, trimmed_mean
from treeopt.traces.trace import Trace
from treeopt.tree import EMPTY, Tree

WARM_UP = 1  # steps at the beginning of a block that do not count
GOLDEN = (5**0.5 - 1) / 2  # multiples of it, without their whole parts, lie evenly whatever their number
TOGETHER = 4  # blocks of trees after each block of plain steps
DYNAMIC = 1.2  # seconds of a step with a dynamic tree over those with a static one; EAGLE's took 1.06 to 1.39
LONG_S = 0.3  # a block ends after this time: its steps share the machine's drift, so more blocks say more
IMPOSED = 3  # steps of a block whose acceptance is imposed, always, so that all reach one context
PASSES = 6  # over all sizes of prompts, the first of which warms up
ENOUGH = 2048  # tokens read at once: from here on the time grows in proportion
TREES = {"plain": EMPTY, "drafted": Tree.chain(1)}

Prompts = tuple[list[Tokens], list[int]]  # token ids, and the new tokens after each


class LoopBlocks(Timing):
    """Blocks of the loop's steps, as a context; in a round all configurations of a place begin at the same prompts.

    Attributes:
        settings: with the depth filled in.
    """

    def __init__(self, runner: LoopRunner, prompts: Sequence[Tokens], settings: Measuring) -> None:
        """Check that the settings can be measured, with no text written yet.

        Raises:
            UsageError: settings that do not go together, or too few prompts.
        """
        drafter, depth = runner.drafter, settings.max_depth
        assert drafter is not None, "a profile is of a drafter, too"
        if depth is not None and not 1 <= depth <= drafter.max_depth:
            raise UsageError(f"max-depth must be in 1..{drafter.max_depth} (the drafter's), got {depth}")
        if not settings.context and len(prompts) < settings.batch[-1]:
            raise UsageError(f"batch {settings.batch[-1]} needs at least that many prompts, got {len(prompts)}")
        if settings.policies and runner.rule.sampled_candidates:
            name = rule_meta(runner.rule)["verification"]
            raise UsageError(f"rule {name} draws its candidates, which policies would bias: measure without policies")
        if settings.budget_s is not None and processes() > 1:
            raise UsageError("several processes cannot share a time budget: omit it")
        self.runner, self._prompts = runner, prompts
        depth = usual_depth(drafter) if depth is None else depth
        self.settings = replace(settings, max_depth=depth, rounds=settings.rounds or ROUNDS)
        self._begun: dict[tuple[int, int], Prompts] = {}  # the last batch size and round, with its prompts
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Keep prompts in the target's cache."""
        self._stack.enter_context(self.runner.target.keeping_prompts())
        return self

    def __exit__(self, *_: object) -> None:
        """Forget them."""
        self._stack.close()

    @property
    def ranked(self) -> list[tuple[int, Configuration]]:
        """All configurations with their importance, the most important first; with CUDA graphs those that never ask."""
        settings = self.settings
        assert settings.max_depth is not None
        found = ranked_configurations(
            settings.batch,
            settings.context or (None,),
            max_nodes=settings.max_nodes,
            max_depth=settings.max_depth,
            policies=settings.policies,
            verified=self._verified_tokens,
        )
        return [one for one in found if not self.runner.graphs or isinstance(one[1].tree, Tree | DynamicTree)]

    def _verified_tokens(self, tree: Tree) -> bool:
        try:
            check_chain(self.runner.target.model.config, tree)
            self.runner.rule.check(tree)
        except ExecutorError:
            return False
        return True

    def order(self, configurations: Sequence[Configuration], number: int) -> list[list[Visit]]:
        """Return the blocks of a round, place by place in random order: index, round, and which of its blocks there.

        Within a place its trees come in random order, with a plain block before every few: all are compared with it.
        Trees whose acceptance is imposed come last, since their prompts have lengths of their own.
        """
        rng = np.random.default_rng([self.settings.seed, number])
        groups, places = list[list[Visit]](), places_of(configurations)
        for indices in [places[i] for i in rng.permutation(len(places)).tolist()]:
            plain = next(i for i in indices if not configurations[i].tree.nodes)
            trees = rng.permutation([i for i in indices if i != plain]).tolist()
            trees.sort(key=lambda i: configurations[i].imposed is not None)
            visits: list[Visit] = []
            for turn, first in enumerate(range(0, len(trees), TOGETHER)):
                visits += [(plain, number, turn), *((i, number, 0) for i in trees[first : first + TOGETHER])]
            groups.append(visits)
        return groups

    def block(self, configuration: Configuration, number: int, *, steps: int | None = None) -> Run:
        """Time one block after the prompts of its round, which all configurations of a place share."""
        runner, started = self.runner, time.perf_counter()
        steps = self.settings.steps if steps is None else steps
        steps = steps if configuration.imposed is None else min(steps, IMPOSED)
        prompts, new_tokens = self.prompts_of(configuration, number, steps)
        # Several processes must all take the same number of steps, whatever their clocks say.
        tree, rule, long_s = configuration.tree, runner.rule, LONG_S if processes() == 1 else math.inf
        if configuration.imposed is not None:
            assert isinstance(tree, Tree)
            trace = imposed_trace(configuration.imposed, tree, len(prompts), max(new_tokens))
            rule, long_s = Imposed(trace, tree, rule=rule), math.inf
        decoder = Decoder(
            runner.target,
            runner.drafter,
            tree=tree,
            batch=configuration.batch,
            rule=rule,
            graphs=runner.graphs,
            trim=False,
        )
        timed = run_block(decoder, prompts, steps=steps, new_tokens=new_tokens, long_s=long_s)
        run = run_of(timed, context=0.0, wall_s=time.perf_counter() - started)
        context = min(map(len, prompts)) - 1 + run.committed * (WARM_UP + (len(timed) - 1) / 2)
        return replace(run, context=context)

    # --- prompts

    @property
    def spare(self) -> int:
        """Most tokens of a text that are written before a block of plain steps."""
        settings = self.settings
        enough = 2 * max(settings.batch)  # a request that ends early must be followed by another
        if settings.context or len(self._prompts) < enough:
            return 0
        return max(0, settings.new_tokens - (settings.steps + WARM_UP))

    @property
    def context(self) -> float:
        """Tokens per sequence in the cache during plain steps after real prompts, the mean over blocks."""
        settings = self.settings
        written = min(settings.new_tokens, self.spare + settings.steps + WARM_UP) / 2
        return float(np.mean([len(prompt) for prompt in self._prompts])) + written

    @cached_property
    def _stream(self) -> NDArray[np.int64]:
        """All prompts, one after the other."""
        return np.concatenate([np.array(prompt) for prompt in self._prompts])

    def prompts_of(self, configuration: Configuration, number: int, steps: int) -> Prompts:
        """Return the prompts of a block of `steps` steps in round `number`."""
        batch, tree = configuration.batch, configuration.tree
        rng = np.random.default_rng([self.settings.seed, number, batch, configuration.context or 0])
        if configuration.context is None and configuration.imposed is None:
            return self._within_texts(batch, number, rng)
        median = max(2, int(np.median([len(prompt) for prompt in self._prompts])))
        length = median if configuration.context is None else configuration.context
        if configuration.imposed is not None:  # the fewer are accepted the longer the prompts: all reach one context
            assert isinstance(tree, Tree)
            length += round((first_rank_depth(tree) - configuration.imposed) * (WARM_UP + (steps - 1) / 2))
        starts = rng.integers(0, len(self._stream), batch)
        prompts = [np.take(self._stream, np.arange(s, s + length), mode="wrap").tolist() for s in starts]
        return prompts, [(steps + WARM_UP) * (tree.depth + 1)] * batch

    def _within_texts(self, batch: int, number: int, rng: np.random.Generator) -> Prompts:
        """Return the given prompts, the first ones with a part of their texts, which the target writes."""
        if (batch, number) not in self._begun:
            prompts = [self._prompts[i] for i in rng.permutation(len(self._prompts)).tolist()]
            limits = [self.settings.new_tokens] * len(prompts)
            ahead = int((number + 1) * GOLDEN % 1 * (self.spare + 1))
            if ahead:
                loop = Decoder(self.runner.target, batch=batch, rule=self.runner.rule)
                texts = loop.generate(prompts[:batch], new_tokens=ahead)
                prompts[:batch] = [[*prompt, *text.tokens] for prompt, text in zip(prompts, texts, strict=False)]
                limits[:batch] = [self.settings.new_tokens - ahead] * batch
            self._begun = {(batch, number): (prompts, limits)}
        return self._begun[batch, number]

    # --- what blocks take, and the profile

    def expected(self, every: Sequence[Configuration]) -> tuple[Callable[[Configuration], float], float]:
        """Look at each place; return what gives the seconds that a block is expected to take, and those of looking."""
        looks, looked_s = dict[tuple[int, int | None], Look](), 0.0
        for indices in places_of(every):
            place = [every[i] for i in indices]
            free = [configuration for configuration in place if configuration.imposed is None]
            largest = max((c for c in free if c.growth is None), key=lambda configuration: configuration.tree.nodes)
            plain, *two = (self.block(configuration, 0, steps=1) for configuration in (free[0], largest, largest))
            looked_s += sum(block.wall_s for block in (plain, *two))
            # Prompts are filled in twice, without and with features; the third time only the drafter reads them.
            once_s, always_s = (max(0.0, block.wall_s - (1 + WARM_UP) * block.step_s) for block in two)
            opening_s = always_s + 2 * once_s / len(free)  # which share their prompts in a round
            look = Look(opening_s, always_s + once_s, plain.step_s, two[1].step_s, largest.tree.nodes)
            looks[place[0].batch, place[0].context] = look

        def block_s(configuration: Configuration) -> float:
            look = looks[configuration.batch, configuration.context]
            return look.block_s(configuration, steps=self.settings.steps, spare=self.spare)

        return block_s, looked_s

    def prefill(self, limit_s: float) -> Prefill:
        """Measure the seconds of reading prompts, from the shortest to the longest; medians over shuffled passes.

        No pass is begun that would take the total beyond `limit_s` seconds; the first is always made.
        """
        runner, settings, stream = self.runner, self.settings, self._stream
        lengths = settings.context or [max(2, len(prompt)) for prompt in self._prompts]
        longest, rng = max(lengths), np.random.default_rng(settings.seed)
        sizes = [(1, tokens) for tokens in ladder(min(lengths), longest)]
        sizes += [(batch, longest) for batch in ladder(1, max(settings.batch))[1:] if batch * longest <= ENOUGH]
        places = [(name, batch, tokens) for name in TREES for batch, tokens in sizes]
        seconds = defaultdict[tuple[str, int, int], list[float]](list)
        started = last = time.perf_counter()
        for _ in range(PASSES):
            for i in rng.permutation(len(places)).tolist():
                name, batch, tokens = places[i]
                starts = rng.integers(len(stream), size=batch)
                prompts = [np.take(stream, start + np.arange(tokens), mode="wrap").tolist() for start in starts]
                runner.target.forget_prompts(range(batch))  # inside `keeping_prompts` the same one may come twice
                decoder = Decoder(runner.target, runner.drafter, tree=TREES[name], batch=batch, rule=runner.rule)
                seconds[places[i]].append(next(decoder.steps(prompts, new_tokens=1)).admit_s)
            now = time.perf_counter()
            # Several processes must all make the same number of passes, whatever their clocks say.
            if processes() == 1 and now - started + (now - last) > limit_s:
                break
            last = now
        medians = {place: float(np.median(passes[1:] or passes)) for place, passes in seconds.items()}
        return Prefill(*(tuple((batch * n, medians[name, batch, n]) for batch, n in sizes) for name in TREES))

    def profile(
        self, configurations: Sequence[Configuration], rounds: Rounds, *, prefill: Prefill | None, meta: dict[str, Any]
    ) -> Profile:
        """Fit the profile; groups are places."""
        lengths = [len(prompt) for prompt in self._prompts]
        low, high = min(lengths), max(lengths) + self.settings.new_tokens
        cells, longest = self._cells(configurations, rounds)
        if self.settings.context:
            low, high = self.settings.context[0], longest
        meta = {**meta, "prompts": len(self._prompts), "clock_mhz": clock_mhz(self.runner.target.device)}
        profile = profile_of(cells, context=(low, high), experts=_experts(self.runner.target), meta=meta)
        return replace(profile, prefill=prefill)

    def _cells(self, configurations: Sequence[Configuration], rounds: Rounds) -> tuple[list[Cell], int]:
        """Return a cell per configuration, and the longest length of a sequence."""
        cells, longest = list[Cell](), 0.0
        for place in places_of(configurations):
            blocks, spread = remove_drift([next(p for p in places if p[0][0] in place) for places in rounds])
            measured = {configurations[index]: same for index, same in blocks.items()}
            lengths = [run.context for c, same in measured.items() if c.imposed is None for run in same]
            at_context = self.context if self.settings.context == () else float(np.mean(lengths))
            cells += [cell_of(c, same, context=at_context, spread=spread) for c, same in measured.items()]
            longest = max(longest, *(run.context for same in measured.values() for run in same))
        return cells, round(longest)


def places_of(configurations: Sequence[Configuration]) -> list[list[int]]:
    """Return the configurations of each batch size and context, by index."""
    places: dict[tuple[int, int | None], list[int]] = {}
    for index, configuration in enumerate(configurations):
        places.setdefault((configuration.batch, configuration.context), []).append(index)
    return list(places.values())


def _experts(target: Target) -> Experts | None:
    try:
        return Shape.from_config(target.model.config.to_dict()).experts
    except TreeoptError:  # of a family whose sizes are not known here
        return None


def run_block(
    decoder: Decoder, prompts: Sequence[Tokens], *, steps: int, new_tokens: NewTokens, long_s: float = math.inf
) -> list[Step]:
    """Return `steps` steps with every row busy, after one that warms up.

    There are fewer if prompts run out, or once they have taken more than `long_s`.
    """
    full = (step for step in decoder.steps(prompts, new_tokens=new_tokens) if step.full)
    timed, took_s = list[Step](), 0.0
    with no_collection():
        for number, step in enumerate(islice(full, steps + WARM_UP)):
            if number >= WARM_UP:
                timed.append(step)
                took_s += step.draft_s + step.rest_s
            if took_s > long_s:
                break
    if not timed:
        longest = new_tokens if isinstance(new_tokens, int) else max(new_tokens)
        raise UsageError(
            f"{counted(len(prompts), 'prompt')} and new-tokens {longest} make fewer than 2 steps of a full batch"
        )
    return timed


def imposed_trace(accepted: int, tree: Tree, requests: int, length: int) -> Trace:
    """Return a trace in which the first ranks are right for exactly `accepted` levels, except at ends of requests."""
    depth, width = tree.depth, 1 + max(tree.ranks)
    rank = np.full((requests, length, depth), -1, dtype=np.int16)
    rank[..., :accepted] = 0
    beyond = np.arange(length)[:, None] + np.arange(depth) >= length
    rank[:, beyond] = -2
    position = np.tile(np.arange(length, dtype=np.int32), requests)
    request = np.repeat(np.arange(requests, dtype=np.int32), length)
    return Trace(request, position, rank.reshape(-1, depth), width)


@dataclass(frozen=True)
class Look:
    """A first look at one batch size and context.

    Attributes:
        opening_s: seconds before the first step of a block, prompts included.
        own_prompts_s: the same after prompts that only this block has.
        plain_s: seconds of a plain step.
        widest_s: seconds of a step of the largest tree.
        nodes: of the largest tree.
    """

    opening_s: float
    own_prompts_s: float
    plain_s: float
    widest_s: float
    nodes: int

    def block_s(self, configuration: Configuration, *, steps: int, spare: int) -> float:
        """Return the seconds that a block of `steps` steps here is expected to take; `spare`: see `LoopBlocks`."""
        nodes = configuration.tree.nodes
        if configuration.imposed is not None:  # after prompts of its own length
            return self.own_prompts_s + (WARM_UP + min(steps, IMPOSED)) * self.widest_s

        def steps_s(step_s: float) -> float:
            return WARM_UP * step_s + min(steps * step_s, LONG_S + step_s)

        share = max(nodes, sum(configuration.widths)) / self.nodes
        step_s = self.plain_s + max(0.0, self.widest_s - self.plain_s) * share
        step_s *= 1.0 if configuration.growth is None else DYNAMIC
        opening_s = self.opening_s
        if not nodes:
            opening_s += spare / 2 * self.plain_s  # the part of the texts that is written first
        return opening_s + steps_s(step_s) + (opening_s + steps_s(self.plain_s)) / TOGETHER * bool(nodes)


FEWEST = 8  # configurations
NEIGHBOURS = 15  # blocks, some 5 seconds
POLISHED = 6  # passes, after one with all blocks of a round for neighbours


def remove_drift(rounds: Sequence[Sequence[tuple[int, Run]]]) -> tuple[dict[int, list[Run]], float]:
    """Return the blocks of each configuration without drift, and their remaining relative standard deviation.

    The drift at a block is the running median, over its neighbours, of each one's time over the trimmed mean of its
    configuration: rows and columns of a two-way table, their effects by Tukey's median polish (1977), with neighbours
    for columns. With few configurations drift cannot be separated from their noise, and is not removed.

    Args:
        rounds: of one place, as they were measured: index of a configuration, and its block.
    """
    configurations = [np.array([index for index, _ in blocks]) for blocks in rounds]
    logs = [np.log([block.step_s for _, block in blocks]) for blocks in rounds]
    drift = _drift(configurations, logs)
    usual = float(np.mean(np.concatenate(drift)))
    steady: dict[int, list[Run]] = {}
    for blocks, excess in zip(rounds, drift, strict=True):
        for (index, block), factor in zip(blocks, np.exp(usual - excess).tolist(), strict=True):
            steady.setdefault(index, []).append(block.scaled(factor))
    return steady, _spread(list(steady.values()))


def _drift(configurations: list[NDArray[np.int64]], logs: list[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
    """Return the logarithm of the drift at each block of each round; see `remove_drift`."""
    from scipy.ndimage import median_filter

    every, drift = np.concatenate(configurations), [np.zeros(len(values)) for values in logs]
    if len(np.unique(every)) < FEWEST:
        return drift
    for neighbours in (max(map(len, logs)), *[NEIGHBOURS] * POLISHED):
        steady = np.concatenate([values - excess for values, excess in zip(logs, drift, strict=True)])
        level = {index: trimmed_mean(steady[every == index].tolist()) for index in np.unique(every).tolist()}
        drift = [
            median_filter(values - [level[i] for i in indices.tolist()], min(neighbours, len(values)), mode="reflect")
            for values, indices in zip(logs, configurations, strict=True)
        ]
    return drift


def _spread(steady: Sequence[Sequence[Run]]) -> float:
    """Return the standard deviation of the logarithms of one configuration's blocks, from the median over all."""
    from scipy.stats import chi2

    freedom = np.array([len(same) - 1 for same in steady])
    variance = np.array([np.var(np.log([b.step_s for b in same]), ddof=1) for same in steady])
    return float(np.sqrt(np.median(variance * freedom / chi2.median(freedom))))


def cell_of(configuration: Configuration, blocks: Sequence[Run], *, context: float, spread: float) -> Cell:
    """Return the trimmed mean of step times, of blocks with drift removed, and the mean of committed tokens.

    The context is in tokens per sequence in the cache, the spread from `remove_drift`.
    """
    draft_s, rest_s = (
        trimmed_mean([float(np.median(getattr(block, name))) for block in blocks]) for name in ("draft_s", "rest_s")
    )
    return Cell(
        configuration.batch,
        context,
        configuration.tree.nodes + 1,
        configuration.widths,
        draft_s,
        rest_s,
        committed=float(np.mean([block.committed for block in blocks])),
        error=TRIMMED_ERROR * spread / len(blocks) ** 0.5,
        forced=configuration.imposed is not None,
        growth=configuration.growth,
    )
