"""Make the predictions of a validation before anything is measured: a plan, closed forms and whole runs."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from simulate.profiles.profile import Profile
from simulate.runs.prompt_costs import FEW
from simulate.validation.end_to_end import Runs, whole_runs
from simulate.validation.prediction_sources import Material
from simulate.validation.predictions import Predictions, closed_forms
from treeopt.comparison.trees_of_size import sized_trees
from treeopt.constraints import Constraint, broken
from treeopt.cost_model import StepShape, far
from treeopt.errors import CostError, counted
from treeopt.planning.held_out_split import hold_out
from treeopt.planning.search_pipeline import search
from treeopt.plans.plan import Plan
from treeopt.statistics.clustered_estimate import Estimate
from treeopt.storage.provenance import look, this_run
from treeopt.traces.trace import Trace
from treeopt.tree import Tree

WholeRuns = dict[tuple[int, str], Estimate]


class Made(NamedTuple):
    """Predictions, with what the user should know about them.

    Attributes:
        predictions: of trees at batch sizes.
        warnings: sentences without a full stop.
        notes: lines for the user that are no warnings.
    """

    predictions: Predictions
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def predict(
    material: Material,
    context: int,
    runs_of: Callable[[Plan], Runs],
    *,
    weights: tuple[int, int] | None = None,
    rules: Sequence[Constraint] = (),
    seed: int = 0,
) -> Made:
    """Return the predictions of the file if there is one; otherwise make plan, closed forms, whole runs and hashes.

    Args:
        material: what predictions are made from.
        context: mean tokens in the cache while measuring.
        runs_of: returns what will be decoded to check a plan.
        weights: read by a drafter forward and by a plain step of the target, see `closed_forms`.
        rules: that trees of a search must keep.
        seed: of the search.

    Raises:
        CostError: the step times cover no tree.
    """
    if material.fixed is not None:
        runs = runs_of(material.fixed.plan)
        predictions, notes = _with_whole_runs_of(material.fixed, runs)
        warnings = _context_warnings(predictions.plan, context)
        return Made(predictions, (*warnings, *_length_warnings(predictions.plan, runs)), notes)
    warnings, notes = tuple[str, ...](), tuple[str, ...]()
    whole: WholeRuns = {}
    if material.plan is None:
        plan, judged = _searched(material, context, rules, seed)
        runs = runs_of(plan)
        assert material.profile is not None
        whole, notes = _whole_runs(plan, judged, material.profile, runs)
    else:
        plan, judged = material.plan, None
        runs = runs_of(plan)
        warnings = _context_warnings(plan, context)
    forms = closed_forms(plan, trace=judged, cost=material.profile, weights=weights, context=context)
    meta = {
        **material.checksums,
        "replayed_requests": None if material.replayed is None else [material.first, material.replayed.requests],
        "weights_read": None if weights is None else list(weights),
        "context": context,
        "seed": seed,
        "runs": runs.record if whole else None,
        "provenance": this_run(),
    }
    return Made(Predictions(plan, forms, meta, whole), (*warnings, *_length_warnings(plan, runs)), notes)


def _searched(material: Material, context: int, rules: Sequence[Constraint], seed: int) -> tuple[Plan, Trace]:
    """Return the plan of the trace, compared with trees of given sizes, and the requests that it is judged on."""
    assert material.trace is not None
    assert material.profile is not None
    profile = material.profile
    outside = profile.outside(material.batches)
    batches = tuple(batch for batch in material.batches if batch not in outside)
    fit, judged = hold_out(material.trace, seed=seed)

    def covered(tree: Tree) -> bool:
        return all(_covers(profile, StepShape.of(tree, batch=batch, context=context)) for batch in batches)

    trees = sized_trees(material.sizes, fit, covered=covered)
    trees = {name: tree for name, tree in trees.items() if broken(tree, rules) is None}
    plan = search(
        material.trace, profile, batch=material.batches, rules=rules, compare=trees, context=context, seed=seed
    )
    return plan, judged


def _whole_runs(plan: Plan, judged: Trace, profile: Profile, runs: Runs) -> tuple[WholeRuns, tuple[str, ...]]:
    """Return predictions of whole runs where trace and profile cover them, and notes; a note says why there are none.

    A few prompts that are shorter than prefill was profiled for are priced as the shortest profiled length.
    """
    limit = look(judged.meta, "new_tokens")
    limit = limit if type(limit) is int else int(judged.lengths.max())
    notes: tuple[str, ...] = ()
    if not runs.pieces:
        why = "an engine decides itself when requests join"
    elif profile.prefill is None:
        why = "the profile does not record prefill times"
    elif limit != runs.new_tokens:
        why = f"the trace's requests have up to {limit} tokens, those to be decoded {runs.new_tokens}"
    else:
        shortest = profile.prefill.reach[0]
        short = sum(tokens < shortest for tokens in runs.prompts)
        if 0 < short <= FEW * len(runs.prompts):
            length = f"the shortest profiled length, {counted(shortest, 'token')}"
            notes = (f"whole runs: {counted(short, 'prompt')} {'is' if short == 1 else 'are'} priced as {length}",)
            runs = replace(runs, prompts=tuple(max(tokens, shortest) for tokens in runs.prompts))
        try:
            return whole_runs(plan, judged, profile, runs), notes
        except CostError as error:
            why = str(error)
    return {}, (*notes, f"whole runs are not predicted: {why}")


def _with_whole_runs_of(fixed: Predictions, runs: Runs) -> tuple[Predictions, tuple[str, ...]]:
    """Return a file's predictions; those of whole runs are left out if other runs will be made."""
    if not fixed.whole or look(fixed.meta, "runs") == runs.record:
        return fixed, ()
    note = "whole runs are not compared: other prompts, blocks or numbers of tokens were predicted"
    return replace(fixed, whole={}), (note,)


def _context_warnings(plan: Plan, context: int) -> tuple[str, ...]:
    """Warn if the plan's steps are priced at another context than that of the requests."""
    priced = look(plan.meta, "search", "context")
    if type(priced) is not int or not far(context, priced):
        return ()
    return (
        f"the plan's steps are priced at {priced} tokens in the cache per sequence, these requests average {context}",
    )


def _length_warnings(plan: Plan, runs: Runs) -> tuple[str, ...]:
    """Return a warning if texts will be longer or shorter than those of the trace: tau depends on their length."""
    recorded = look(plan.meta, "trace", "new_tokens")
    if type(recorded) is not int or recorded == runs.new_tokens:
        return ()
    return (
        f"the trace's requests have {recorded} new tokens, those to be decoded {runs.new_tokens}: tau depends on the "
        f"length, so take a trace of {runs.new_tokens}, or --new-tokens {recorded}",
    )


def _covers(profile: Profile, shape: StepShape) -> bool:
    try:
        profile.step_s([shape])
    except CostError:
        return False
    return True
