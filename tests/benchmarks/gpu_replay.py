"""Costs of 1B, 8B and 14B shapes with random bf16 weights: profiles over contexts, and what they predict of replays.

Acceptance is that of the shipped trace, imposed, and known to the predictions: what is compared is step time. So all
requests have the same prompt, which each row computes once: end to end most prefill is left out.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from executor.decoding.decoder import Decoder
from executor.drafters.drafter import Drafter
from executor.models.fingerprint import identity
from executor.models.random_weights import random_drafter, random_target
from executor.profiling.measure_steps import measure_profile
from executor.profiling.timed_block import WARM_UP, imposed_trace, run_block
from executor.target.target_model import Target
from executor.validation.compare_live import Requests, compare
from executor.verification.replayed_acceptance import Imposed
from simulate.profiles.profile import Profile, save_profile
from simulate.validation.predicted_vs_measured import Comparison, comparison_record
from simulate.validation.predictions import Predictions, save_predictions
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
TINY = {64: (1, 2), 128: (1,)}
Keep = Callable[[Mapping[str, Any]], None]

BLOCKS = 2
NODES = 31  # of the tree and the chain whose verification tells what a tree's mask costs


def replayed(shape: str, device: str, output: Path, keep: Keep, *, graphs: bool, tiny: bool) -> dict[str, Any]:
    """Errors of predicted speedups over all contexts and batch sizes, what a mask and a kept token take.

    `keep` is given what is found so far after each context.
    """
    trace = load_trace(shipped("traces/medusa-t0.npz"))
    places = TINY if tiny else PLACES
    target = random_target(shape, dtype=torch.bfloat16, device=device)
    heads = random_drafter(f"medusa:{trace.depth}", target)
    who = identity(target, heads)
    trees, cells = sized_trees(USUAL, trace), list[Comparison]()
    commit_s = {}
    for context, batches in places.items():
        prompts = _prompts(target, 4 * max(batches), context)
        settings = {"rounds": 2, "steps": 4} if tiny else {"rounds": 8, "steps": 12, "budget_s": 90.0}
        settings |= {"new_tokens": 32, "graphs": graphs, "who": who}
        profile = measure_profile(target, heads, prompts, batches=batches, **settings)
        save_profile(profile, output / f"profile-{shape}-{context}.json")
        commit_s[str(context)] = {times.batch: times.commit_s for times in profile.batches}
        for batch in batches:
            count = 2 * BLOCKS * max(batch, 2)
            part = trace.select(np.arange(count))
            plan = _plan(trees, part, profile, batch)
            save_predictions(Predictions(plan), output / f"predictions-{shape}-{context}-{batch}.json")
            asked = Requests(_prompts(target, 1, context) * count, 32, (), part, graphs)
            with target.keeping_prompts():
                cells += compare(target, heads, plan, asked, blocks=BLOCKS)
        record = comparison_record(cells)
        found = {name: record[name] for name in ("mean_error", "max_error", "coverage", "cells")}
        found["commit_s"] = commit_s
        keep(found)
    return {**found, "mask": _mask(target, places, graphs=graphs, tiny=tiny)}


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


def _mask(target: Target, places: dict[int, tuple[int, ...]], *, graphs: bool, tiny: bool) -> list[dict[str, Any]]:
    """Verification of a tree over that of a chain of as many tokens, both without a kept token."""
    heads = random_drafter(f"medusa:{NODES}", target)
    found = []
    for context, batches in places.items():
        for batch in dict.fromkeys((batches[0], batches[-1])):
            prompts, steps = _prompts(target, 1, context) * 2 * batch, 4 if tiny else 24
            with target.keeping_prompts():
                seconds = [
                    _verify_s(target, heads, tree, prompts, batch, graphs=graphs, steps=steps)
                    for tree in (Tree.chain(NODES), Tree.full(NODES, 1))
                ]
            found.append(
                {"context": context, "batch": batch, "tokens": NODES + 1, "over_chain": seconds[1] / seconds[0]}
            )
    return found


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
