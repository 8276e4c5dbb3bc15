"""Costs of 1B, 8B and 14B shapes with random bf16 weights: profiles over contexts, and what they predict of replays.

Acceptance is that of the shipped trace, imposed, and known to the predictions: what is compared is step time. So all
requests have the same prompt, which each row computes once: end to end most prefill is left out.
"""

from functools import cache, partial
from typing import Any

import numpy as np
import torch

from executor.decoding.decoder import Decoder
from executor.drafters.base.drafter import Drafter
from executor.models.fingerprint import identity
from executor.models.random_weights import random_drafter, random_target
from executor.profiling.loop_blocks import WARM_UP, imposed_trace, run_block
from executor.profiling.measure_steps import measure_profile
from executor.profiling.profile_settings import Measuring
from executor.runners.loop_runner import LoopRunner
from executor.runners.runner import Requests
from executor.target.target_model import Target
from executor.validation.compare_live import compare
from executor.verification.replayed_acceptance import Imposed
from simulate.profiles.profile import Profile, load_profile, save_profile
from simulate.validation.predicted_vs_measured import comparison_record
from simulate.validation.predictions import Predictions, save_predictions
from tests.benchmarks.gpu_pieces import Pieces
from treeopt.comparison.trees_of_size import USUAL, sized_trees
from treeopt.cost_model import StepShape
from treeopt.plans.plan import Choice, Plan, PlanEntry, Proof
from treeopt.replay.static_tree import replay_tree
from treeopt.statistics.clustered_estimate import Estimate, ratio
from treeopt.storage.atomic_files import shipped
from treeopt.storage.provenance import this_run
from treeopt.traces.trace import Trace, load_trace
from treeopt.tree import Tree

# Batch sizes by context: 512, 4k and 16k less what steps add, so that no block passes into another bucket of the cache.
PLACES = {400: (1, 4, 16, 64), 3984: (1, 4, 16), 16272: (1, 4)}
SHORT = {400: (1, 4, 16, 64)}  # of other shapes than 8B
TINY = {64: (1, 2), 128: (1,)}

BLOCKS = 2
NODES = 31  # of the tree and the chain whose verification tells what a tree's mask costs


def replayed(shape: str, device: str, pieces: Pieces, *, graphs: bool, tiny: bool) -> None:
    """Compare predicted with measured speedups over contexts and batch sizes; measure what a mask costs."""
    trace = load_trace(shipped("traces/medusa-t0.npz"))
    places, output = TINY if tiny else PLACES if shape == "8b" else SHORT, pieces.output
    trees = sized_trees(USUAL, trace)

    @cache
    def loaded() -> tuple[Target, Drafter, dict[str, Any]]:
        target = random_target(shape, dtype=torch.bfloat16, device=device, packed=True)
        heads = random_drafter(f"medusa:{trace.depth}", target)
        return target, heads, identity(target, heads)

    def profile(context: int, batches: tuple[int, ...]) -> dict[str, Any]:
        target, heads, who = loaded()
        settings: dict[str, Any] = (
            {"rounds": 2, "steps": 4}
            if tiny
            else {"rounds": 8, "steps": 12, "budget_s": 60.0 if context == min(places) else 30.0}
        )
        runner = LoopRunner(target, heads, graphs=graphs, models=who)
        prompts = _prompts(target, 4 * max(batches), context)
        found = measure_profile(runner, prompts, Measuring(batch=batches, new_tokens=32, **settings))
        save_profile(found, output / _profile_file(shape, context))
        return {"commit_s": {times.batch: times.commit_s for times in found.batches}}

    def compared(context: int, batch: int) -> dict[str, Any]:
        target, heads, who = loaded()
        count = 2 * BLOCKS * max(batch, 2)
        part = trace.select(np.arange(count))
        plan = _plan(trees, part, load_profile(output / _profile_file(shape, context)), batch)
        save_predictions(Predictions(plan), output / f"predictions-{shape}-{context}-{batch}.json")
        asked = Requests(_prompts(target, 1, context) * count, 32, (), part)
        runner = LoopRunner(target, heads, graphs=graphs, models=who)
        with target.keeping_prompts():
            record = comparison_record(compare(runner, plan, asked, blocks=BLOCKS))
        return {name: record[name] for name in ("mean_error", "max_error", "coverage", "cells")}

    cells = []
    for context, batches in places.items():
        pieces.piece(
            f"profile, context {context}", partial(profile, context, batches), file=_profile_file(shape, context)
        )
        for batch in batches:
            cells += pieces.piece(f"context {context}, batch {batch}", partial(compared, context, batch))["cells"]
    for context, batches in places.items():
        for batch in dict.fromkeys((batches[0], batches[-1])):
            label = f"mask, context {context}, batch {batch}"
            pieces.piece(label, lambda c=context, b=batch: _mask(loaded()[0], c, b, graphs=graphs, tiny=tiny))
    errors = np.abs([cell["error"] for cell in cells])
    pieces.piece("all", lambda: {"mean_error": errors.mean(), "max_error": errors.max(), "cells": len(cells)})


def _profile_file(shape: str, context: int) -> str:
    return f"profile-{shape}-{context}.json"


def _plan(trees: dict[str, Tree], part: Trace, profile: Profile, batch: int) -> Plan:
    """Each tree's tau on the requests that will be replayed, with the profile's step times."""
    plain_s, choices = profile.plain_s(batch=batch), []
    for name, tree in trees.items():
        counts = replay_tree(tree, part)
        shape = StepShape.of(tree, batch=batch, committed=counts.tau)
        step_s, tau = float(profile.step_s([shape])[0]), ratio(counts.committed, counts.steps)
        known = Estimate(tau.value, tau.value, tau.value)
        speedup = known.times(plain_s / step_s, relative_error=profile.error(shape))
        choices.append(Choice(name, tree, tau, step_s, speedup))
    proof = Proof("none", False, "trees of usual sizes, not chosen for this")
    return Plan((PlanEntry(batch, choices[0], None, tuple(choices[1:]), {}, proof),), {"provenance": this_run()})


def _mask(target: Target, context: int, batch: int, *, graphs: bool, tiny: bool) -> dict[str, Any]:
    """Verification of a tree over that of a chain of as many tokens, both without an accepted token."""
    heads = random_drafter(f"medusa:{NODES}", target)
    prompts, steps = _prompts(target, 1, context) * 2 * batch, 4 if tiny else 24
    with target.keeping_prompts():
        seconds = [
            _verify_s(target, heads, tree, prompts, batch, graphs=graphs, steps=steps)
            for tree in (Tree.chain(NODES), Tree.full(NODES, 1))
        ]
    return {"tokens": NODES + 1, "over_chain": seconds[1] / seconds[0]}


def _verify_s(
    target: Target, heads: Drafter, tree: Tree, prompts: list[list[int]], batch: int, *, graphs: bool, steps: int
) -> float:
    new_tokens = steps + WARM_UP + 1
    rule = Imposed(imposed_trace(0, tree, len(prompts), new_tokens), tree)
    decoder = Decoder(target, heads, tree=tree, batch=batch, rule=rule, graphs=graphs)
    found = run_block(decoder, prompts, steps=steps, new_tokens=new_tokens)
    return float(np.median([step.rest_s for step in found]))


def _prompts(target: Target, count: int, length: int) -> list[list[int]]:
    rows: list[list[int]] = np.random.default_rng(0).integers(0, target.vocabulary, (count, length)).tolist()
    return rows
