"""Predicted against measured: the same trees in the real loop, on prompts that the plan has not seen."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from executor.decode import Decoder
from executor.drafters.base import Drafter
from executor.steps import Step
from executor.target import Target
from treeopt.errors import UsageError
from treeopt.estimate import Estimate, ratio
from treeopt.plan import Choice, Plan, PlanEntry
from treeopt.tree import Tree

PLAIN = Tree((), ())
TREES = 3  # trees measured at each batch size, the chosen one first


@dataclass(frozen=True)
class Figures:
    """tau (tokens a step and sequence), seconds of a step, speedup over plain decoding."""

    tau: Estimate
    step_s: float
    speedup: Estimate


@dataclass(frozen=True)
class Comparison:
    """One tree at one batch size.

    Attributes:
        batch: sequences.
        name: what the plan calls it.
        tree: the topology.
        predicted: from the plan: requests held out, profiled times.
        measured: live. The speedup is tau times the median over blocks of (plain step / step), both medians over
            steps with all rows busy.
        end_to_end: measured tokens a second over plain decoding's, prefill and draining included.
    """

    batch: int
    name: str
    tree: Tree
    predicted: Figures
    measured: Figures
    end_to_end: float

    @property
    def error(self) -> float:
        """Predicted speedup over measured, minus 1."""
        return self.predicted.speedup.value / self.measured.speedup.value - 1


@dataclass
class _Run:
    """What the blocks of one way to decode added up to."""

    steps_of: dict[int, int]
    committed_of: dict[int, int]
    step_s: list[list[float]]
    wall_s: float = 0.0

    def add(self, steps: Sequence[Step], first: int) -> None:
        for step in steps:
            self.wall_s += step.draft_s + step.rest_s + step.admit_s
            for request, committed in zip(step.requests, step.committed, strict=True):
                if request >= 0:
                    number = first + request
                    self.steps_of[number] = self.steps_of.get(number, 0) + 1
                    self.committed_of[number] = self.committed_of.get(number, 0) + len(committed)
        self.step_s.append([step.draft_s + step.rest_s for step in steps if step.full])

    @property
    def tau(self) -> Estimate:
        return ratio(np.array(list(self.committed_of.values())), np.array(list(self.steps_of.values())))

    @property
    def tokens(self) -> int:
        return sum(self.committed_of.values())


def compare(
    target: Target,
    drafter: Drafter,
    plan: Plan,
    prompts: Sequence[Sequence[int]],
    *,
    new_tokens: int = 64,
    stop: Sequence[int] = (),
    blocks: int = 6,
    seed: int = 0,
    progress: Callable[[int], None] = lambda blocks: None,
) -> list[Comparison]:
    """Decode `prompts` plainly and with three trees of each entry of the plan, in shuffled blocks.

    Args:
        target: the model that the plan's trace was recorded with.
        drafter: its drafter.
        plan: what is to be checked.
        prompts: token ids of requests that are not in the trace; every one is decoded once by every way.
        new_tokens: tokens decoded after each prompt.
        stop: tokens that end a request.
        blocks: parts that the prompts are cut into; every part is decoded by all ways before the next.
        seed: of the order.
        progress: told every finished block of one way.

    Raises:
        UsageError: a plan without trees, too few prompts to fill the largest batch in every block.
    """
    if not any(checked(entry) for entry in plan.entries):
        raise UsageError("the plan holds no tree: there is nothing to validate")
    for entry in plan.entries:  # a tree that cannot run is refused before the others are measured
        for tree in checked(entry):
            Decoder(target, drafter, tree=tree, batch=entry.batch)
    largest = max(entry.batch for entry in plan.entries)
    if len(prompts) < 2 * blocks * largest:
        raise UsageError(
            f"{blocks} blocks at batch {largest} need at least {2 * blocks * largest} prompts, got {len(prompts)}"
        )
    rng = np.random.default_rng(seed)
    found = []
    for entry in plan.entries:
        choices = checked(entry)
        decoders = {tree: Decoder(target, drafter, tree=tree, batch=entry.batch, timed=True) for tree in choices}
        decoders[PLAIN] = Decoder(target, batch=entry.batch, timed=True)
        runs = {tree: _Run({}, {}, []) for tree in decoders}
        for part in np.array_split(np.arange(len(prompts)), blocks):
            for index in rng.permutation(len(decoders)).tolist():
                tree = list(decoders)[index]
                drawn = [prompts[i] for i in part.tolist()]
                runs[tree].add(list(decoders[tree].steps(drawn, new_tokens=new_tokens, stop=stop)), int(part[0]))
                progress(1)
        plain = runs[PLAIN]
        for tree, choice in choices.items():
            predicted = Figures(choice.tau, choice.step_s, choice.speedup)
            end_to_end = runs[tree].tokens / runs[tree].wall_s * plain.wall_s / plain.tokens
            found.append(
                Comparison(entry.batch, choice.name, tree, predicted, _measured(runs[tree], plain), end_to_end)
            )
    return found


def checked(entry: PlanEntry) -> dict[Tree, Choice]:
    """The trees that are measured at a batch size: the chosen one and others of the plan, three in all."""
    trees: dict[Tree, Choice] = {}
    for choice in (entry.choice, *entry.compared):
        if choice.tree is not None and choice.tree not in trees and len(trees) < TREES:
            trees[choice.tree] = choice
    return trees


def _measured(run: _Run, plain: _Run) -> Figures:
    """Step times are compared block by block, since a block's runs follow one another on a machine that drifts."""
    step_s = float(np.median(np.concatenate(run.step_s)))
    quotients = np.array([np.median(p) / np.median(s) for p, s in zip(plain.step_s, run.step_s, strict=True)])
    spread = ratio(quotients, np.ones(len(quotients)))
    return Figures(run.tau, step_s, run.tau.times(float(np.median(quotients)), relative_error=spread.relative))


def comparison_record(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """The figures as JSON values: `cells`, and mean and largest |predicted / measured − 1| of their speedups."""
    errors = [abs(c.error) for c in comparisons]
    cells = [
        {
            "batch": c.batch,
            "name": c.name,
            "tree": {"id": c.tree.id, "paths": [list(path) for path in c.tree.paths]},
            "predicted": asdict(c.predicted),
            "measured": asdict(c.measured),
            "end_to_end": c.end_to_end,
            "error": c.error,
        }
        for c in comparisons
    ]
    return {"mean_error": math.fsum(errors) / len(errors), "max_error": max(errors), "cells": cells}
