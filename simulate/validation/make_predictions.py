"""Make the predictions of a validation before anything is measured: a plan, closed forms and whole runs.

They are made from a plan, from a trace with step times, or read from a file of predictions. Requests whose acceptance
is replayed are kept apart from those that a prediction may see.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from simulate.profiles.profile import Profile, load_profile, profile_of_trace
from simulate.runs.run_costs import FEW
from simulate.validation.predictions import Predictions, Runs, closed_forms, load_predictions, whole_runs
from treeopt.acceptance_rule_entries import draws_candidates
from treeopt.comparison.trees_of_size import USUAL, Size, parse_sizes, sized_trees
from treeopt.constraints import Constraint, broken
from treeopt.cost_model import StepShape, far
from treeopt.defaults import VALIDATED_BATCHES
from treeopt.errors import CostError, UsageError, counted
from treeopt.planning.held_out_split import hold_out
from treeopt.planning.search_pipeline import search
from treeopt.plans import Plan, load_plan
from treeopt.settings import Settings, setting
from treeopt.statistics import Estimate
from treeopt.storage.provenance import look, this_run
from treeopt.storage.user_files import checksum
from treeopt.traces.trace import Trace
from treeopt.traces.trace_files import load_trace
from treeopt.tree import Tree

WholeRuns = dict[tuple[int, str], Estimate]


@dataclass(frozen=True, kw_only=True)
class Sources(Settings):
    """Files, or their contents, that predictions are made from."""

    plan: Plan | Path | str | None = setting(None, help="The plan to check; or --trace to make one.")
    trace: Trace | Path | str | None = setting(None, help="Search this trace for the plan to check.")
    profile: Profile | Path | str | None = setting(
        None, help="Step times for the search; default the profile of the trace's models."
    )
    batch: tuple[int, ...] = setting(
        (),
        least=1,
        help=f"Batch sizes to search for; default {','.join(map(str, VALIDATED_BATCHES))}.",
    )
    sizes: str | None = setting(
        None,
        option="--shapes",
        help="Also measure trees of these sizes, chosen on the trace, such as chain:2,best:15; default "
        f"{','.join(f'{size.kind}:{size.nodes}' for size in USUAL)}.",
    )
    predictions: Path | None = setting(
        None,
        help="Write the predictions to this file before anything is measured; default beside --output. Without --plan "
        "and --trace, read the predictions from it; a file that was changed is an error.",
    )
    replay: Path | None = setting(
        None,
        option="--acceptance",
        help="live: the models decide; replay:TRACE.npz: accepted lengths are those of the trace's requests. Default: "
        "live.",
    )

    @property
    def written(self) -> bool:
        """The predictions are read from a file."""
        return self.predictions is not None and self.plan is None and self.trace is None

    @property
    def acceptance(self) -> str:
        """The value of `--acceptance`."""
        return "live" if self.replay is None else f"replay:{self.replay}"

    @property
    def replays_own_trace(self) -> bool:
        """The replayed trace is the one that predictions are made from."""
        if self.replay is None or not isinstance(self.trace, Path | str):
            return False
        return checksum(Path(self.trace)) == checksum(self.replay)

    def check(self) -> None:
        """Raise UsageError where settings do not go together, or sizes are none."""
        if self.sizes is not None:
            parse_sizes(self.sizes)
        if not self.written and (self.plan is None) == (self.trace is None):
            raise UsageError("give either --plan or --trace, or a --predictions file that was written before")
        if self.trace is None and (self.batch, self.profile, self.sizes) != ((), None, None):
            raise UsageError("--batch, --profile and --shapes are for a search: give --trace")
        if self.trace is not None and self.replay is not None and self.profile is None:
            raise UsageError("with --acceptance replay step times are the models' own: name them with --profile")


@dataclass(frozen=True, eq=False)
class Material:
    """The contents of the sources.

    Attributes:
        replayed: requests whose acceptance is imposed; None: the models decide.
        first: the first of the trace's requests that are replayed.
        plan: to be checked, where a file holds it.
        trace: to search, without the requests that are replayed.
        profile: step times of the search.
        fixed: predictions read from a file.
        batches: batch sizes of the search.
        sizes: of further trees to measure.
        checksums: SHA-256 of the files of plan, trace, profile and replayed trace; None where there is no file.
        warnings: sentences without a full stop.
        notes: lines for the user that are no warnings.
    """

    replayed: Trace | None
    first: int
    plan: Plan | None = None
    trace: Trace | None = None
    profile: Profile | None = None
    fixed: Predictions | None = None
    batches: tuple[int, ...] = VALIDATED_BATCHES
    sizes: tuple[Size, ...] = USUAL
    checksums: dict[str, str | None] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def read_sources(sources: Sources, *, skip: int = 0, requests: int | None = None) -> Material:
    """Read the sources; `skip` and `requests` choose the replayed requests, which no prediction of the trace sees.

    Raises:
        TreeoptError: as the readers do.
    """
    replayed = _replayed(sources, skip, requests)
    if sources.written:
        return _fixed(sources, replayed, skip)
    names = {"plan": sources.plan, "trace": sources.trace, "profile": sources.profile, "replayed": sources.replay}
    sums = {name: checksum(Path(file)) if isinstance(file, Path | str) else None for name, file in names.items()}
    if sources.plan is not None:
        plan = load_plan(Path(sources.plan)) if isinstance(sources.plan, Path | str) else sources.plan
        return Material(
            replayed, skip, plan=plan, checksums=sums, warnings=_seen_texts(plan, replayed, sources.acceptance)
        )
    assert sources.trace is not None
    trace_file = Path(sources.trace) if isinstance(sources.trace, Path | str) else None
    trace = load_trace(Path(sources.trace)) if isinstance(sources.trace, Path | str) else sources.trace
    notes: tuple[str, ...] = ()
    if sources.profile is None:
        profile, note = profile_of_trace(trace.meta, trace_file)
        notes = (note,)
    else:
        profile = load_profile(Path(sources.profile)) if isinstance(sources.profile, Path | str) else sources.profile
    if sources.replays_own_trace and requests is not None:
        numbers = np.arange(trace.requests)
        trace = trace.select(numbers[(numbers < skip) | (numbers >= skip + requests)])
    material = Material(replayed, skip, trace=trace, profile=profile, checksums=sums, notes=notes)
    sizes = USUAL if sources.sizes is None else parse_sizes(sources.sizes)
    return replace(material, batches=sources.batch or VALIDATED_BATCHES, sizes=sizes)


def _replayed(sources: Sources, skip: int, requests: int | None) -> Trace | None:
    """Return the requests whose acceptance is imposed.

    Raises:
        UsageError: ranks do not record what the rule accepts, there are too few requests, or none is left to predict.
    """
    path = sources.replay
    if path is None:
        return None
    trace = load_trace(path)
    rule = look(trace.meta, "verification")
    if draws_candidates(rule):
        raise UsageError(f"{path}: rule {rule} draws its candidates, so ranks do not say what steps accept")
    if skip + (requests or 1) > trace.requests:
        raise UsageError(
            f"{path}: {counted(requests or 1, 'request')} wanted after skipping {skip}, the trace has {trace.requests}"
        )
    if requests is None and sources.replays_own_trace:
        raise UsageError(
            "--trace and --acceptance name the same trace: give the number of requests to replay as --requests"
        )
    return trace.select(np.arange(skip, trace.requests if requests is None else skip + requests))


def _fixed(sources: Sources, replayed: Trace | None, skip: int) -> Material:
    """Return the predictions of a file, made for this kind of acceptance and from other requests than the replayed."""
    path = sources.predictions
    assert path is not None
    fixed = load_predictions(path)
    predicted = look(fixed.meta, "replayed")
    if predicted != (None if sources.replay is None else checksum(sources.replay)):
        made = "live acceptance" if predicted is None else f"the replay of a trace of sha256 {predicted:.16}"
        raise UsageError(f"{path}: predicts {made}, --acceptance is {sources.acceptance}")
    part = look(fixed.meta, "replayed_requests")
    if replayed is not None and part is not None and look(fixed.meta, "trace") == predicted:
        first, count = part
        if skip < first or skip + replayed.requests > first + count:
            raise UsageError(
                f"{path}: was made from all requests of this trace but {count} after the first {first}; give "
                f"--skip {first} --requests {count} to replay those"
            )
    return Material(replayed, skip, fixed=fixed)


def _seen_texts(plan: Plan, replayed: Trace | None, acceptance: str) -> tuple[str, ...]:
    """Warn if the replayed texts are those that the plan was chosen on."""
    texts = None if replayed is None else look(replayed.meta, "text_sha256")
    if texts is None or texts != look(plan.meta, "trace", "text_sha256"):
        return ()
    return (
        f"the plan was chosen on the texts that are replayed ({acceptance}): its predictions have seen them; replay "
        "another trace, or give --trace and --requests",
    )


def predict(
    material: Material,
    context: int,
    runs_of: Callable[[Plan], Runs],
    *,
    weights: tuple[int, int] | None = None,
    rules: Sequence[Constraint] = (),
    seed: int = 0,
) -> tuple[Predictions, tuple[str, ...], tuple[str, ...]]:
    """Return the predictions of the file if there is one; otherwise make plan, closed forms, whole runs and hashes.

    Also return warnings, without a full stop, and notes.

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
    warnings, notes = tuple[str, ...](), tuple[str, ...]()
    if material.fixed is not None:
        fixed, runs = material.fixed, runs_of(material.fixed.plan)
        if fixed.whole and look(fixed.meta, "runs") != runs.record:
            notes = ("whole runs are not compared: other prompts, blocks or numbers of tokens were predicted",)
            fixed = replace(fixed, whole={})
        return fixed, (*_context_warnings(fixed.plan, context), *_length_warnings(fixed.plan, runs)), notes
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
    return Predictions(plan, forms, meta, whole), (*warnings, *_length_warnings(plan, runs)), notes


def _searched(material: Material, context: int, rules: Sequence[Constraint], seed: int) -> tuple[Plan, Trace]:
    """Return the plan of the trace, compared with trees of given sizes, and the requests that it is judged on."""
    assert material.trace is not None
    assert material.profile is not None
    profile = material.profile
    outside = profile.outside(material.batches)
    batches = tuple(batch for batch in material.batches if batch not in outside)
    fit, judged = hold_out(material.trace, seed=seed)

    def covered(tree: Tree) -> bool:
        try:
            profile.step_s([StepShape.of(tree, batch=batch, context=context) for batch in batches])
        except CostError:
            return False
        return True

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
