"""What `treeopt validate` predicts, and of what: a plan, a trace with step times, or a file of predictions."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from treeopt.cli.options import general, models_and_prompts
from treeopt.cli.options.matching_files import profile_for
from treeopt.cli.options.prompt_lengths import FEW
from treeopt.cost_model import StepShape, far
from treeopt.errors import CostError, UsageError
from treeopt.planning.held_out_split import hold_out
from treeopt.planning.search_pipeline import search
from treeopt.planning.trees_of_size import USUAL, parse_sizes, sized_trees
from treeopt.plans.plan import Plan
from treeopt.plans.plan_json import load_plan
from treeopt.storage.atomic_files import checksum
from treeopt.storage.provenance import look, this_run
from treeopt.traces.trace import DRAWN, Trace, load_trace
from treeopt.tree import Tree

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulate.profiles.profile import Profile
    from simulate.validation.end_to_end import Runs
    from simulate.validation.predictions import Predictions
    from treeopt.statistics.clustered_estimate import Estimate

BATCHES = (1, 2, 4, 8)
REPLAY = "replay:"


@dataclass(frozen=True)
class Sources:
    """What the predictions are made of: a plan, or a trace and step times; none of them where a file holds them."""

    plan_file: Path | None
    trace_file: Path | None
    profile_file: Path | None
    batch: tuple[int, ...] | None
    sizes: str | None
    predictions_file: Path | None
    acceptance: str

    @property
    def replay_file(self) -> Path | None:
        """The trace whose acceptance is imposed; None decides live.

        Raises:
            UsageError: neither of the two.
        """
        if self.acceptance == "live":
            return None
        if not self.acceptance.startswith(REPLAY) or self.acceptance == REPLAY:
            raise UsageError(f"--acceptance must be live or {REPLAY}TRACE.npz, got {self.acceptance}")
        return Path(self.acceptance.removeprefix(REPLAY))

    @property
    def same(self) -> bool:
        """What is replayed is of the trace that predictions are made of."""
        files = self.trace_file, self.replay_file
        return None not in files and len({checksum(path) for path in files if path is not None}) == 1

    @property
    def written(self) -> bool:
        """The predictions are a file's, made before."""
        return self.predictions_file is not None and self.plan_file is None and self.trace_file is None

    def check(self) -> None:
        """Refuse options that do not go together.

        Raises:
            UsageError: names them.
        """
        if not self.written and (self.plan_file is None) == (self.trace_file is None):
            raise UsageError("give either --plan or --trace, or a --predictions file that was written before")
        if self.sizes is not None:
            parse_sizes(self.sizes)
        if self.trace_file is None and (self.batch, self.profile_file, self.sizes) != (None, None, None):
            raise UsageError("--batch, --profile and --shapes are for a search: give --trace")
        if self.trace_file is not None and self.replay_file is not None and self.profile_file is None:
            raise UsageError("with --acceptance replay step times are the models' own: name them with --profile")


sources_asked = general.bundle(
    "sources",
    Sources,
    click.option("--plan", "plan_file", type=general.FILE, help="The plan to check; or --trace to make one."),
    click.option("--trace", "trace_file", type=general.FILE, help="Search this trace for the plan to check."),
    click.option("--profile", "profile_file", type=general.FILE, help="Step times for the search."),
    click.option("--batch", type=general.Numbers(), help="Batch sizes to search for; default 1,2,4,8."),
    click.option(
        "--shapes",
        "sizes",
        help="Also measure these trees, chosen on the trace; default chain:2,chain:4,best:7,best:15,best:31,best:63.",
    ),
    click.option(
        "--predictions",
        "predictions_file",
        type=general.FILE,
        help="Write the predictions here before anything is measured, default beside --output; without --plan and "
        "--trace read them, if nobody has changed them.",
    ),
    click.option(
        "--acceptance",
        default="live",
        show_default=True,
        help="live: the models decide; replay:TRACE.npz: accepted lengths are those of the trace's requests.",
    ),
)


@dataclass(frozen=True, eq=False)
class Opened:
    """What the files hold.

    Attributes:
        sources: where from.
        replayed: requests whose acceptance is imposed, None for live.
        plan: to be checked, where a file holds it.
        trace: to search, without what is replayed of it.
        cost: step times for the search.
        fixed: predictions of a file.
        first: the first of the trace's requests that are replayed.
    """

    sources: Sources
    replayed: Trace | None
    plan: Plan | None = None
    trace: Trace | None = None
    cost: "Profile | None" = None
    fixed: "Predictions | None" = None
    first: int = 0

    def predictions(
        self, context: int, runs: "Callable[[Plan], Runs]", *, weights: tuple[int, int] | None, seed: int
    ) -> "Predictions":
        """Those of a file; else a plan, with closed forms, whole runs and the hashes of what all was made of.

        Args:
            context: tokens a sequence in the cache while measuring, the mean.
            runs: what will be decoded to check a plan.
            weights: read by a drafter forward and by a plain step of the target, see `closed_forms`.
            seed: of the search.

        Raises:
            CostError: the step times cover no tree.
        """
        self._warn_of_context(context)
        if self.fixed is not None:
            return self._still_whole(self.fixed, runs(self.fixed.plan))
        from simulate.validation.predictions import Predictions, closed_forms

        plan, judged = self.plan, None
        if plan is None:
            assert self.trace is not None
            assert self.cost is not None
            cost, batches = self.cost, self.sources.batch or BATCHES
            fit, judged = hold_out(self.trace, seed=seed)
            sizes = USUAL if self.sources.sizes is None else parse_sizes(self.sources.sizes)

            def covered(tree: Tree) -> bool:
                return all(_covers(cost, StepShape.of(tree, batch=batch, context=context)) for batch in batches)

            trees = sized_trees(sizes, fit, covered=covered)
            plan = search(
                self.trace,
                cost,
                batch=batches,
                compare=trees,
                context=context,
                seed=seed,
            )
        due = runs(plan)
        whole = {} if judged is None else self._whole(plan, judged, due)
        forms = closed_forms(plan, trace=judged, cost=self.cost, weights=weights, context=context)
        files = {
            "plan": self.sources.plan_file,
            "trace": self.sources.trace_file,
            "profile": self.sources.profile_file,
            "replayed": self.sources.replay_file,
        }
        hashes = {name: None if path is None else checksum(path) for name, path in files.items()}
        counts = None if weights is None else list(weights)
        part = None if self.replayed is None else [self.first, self.replayed.requests]
        settings: dict[str, Any] = {"replayed_requests": part, "weights_read": counts, "context": context, "seed": seed}
        settings["runs"] = due.record if whole else None
        meta = {**hashes, **settings, "provenance": this_run()}
        return Predictions(plan, forms, meta, whole)

    def _whole(self, plan: Plan, judged: Trace, runs: "Runs") -> "dict[tuple[int, str], Estimate]":
        """Whole runs, where trace and profile cover them; else stderr says why not.

        A few prompts shorter than the profile knows the prefill of are taken to be as long as the shortest of these.
        """
        from simulate.validation.end_to_end import whole_runs

        assert self.cost is not None
        limit = look(judged.meta, "new_tokens")
        limit = limit if type(limit) is int else int(judged.lengths.max())
        if self.cost.prefill is None:
            why = "the profile does not know what prompts take"
        elif limit != runs.new_tokens:
            why = f"the trace's requests are of up to {limit} tokens, those to be decoded of {runs.new_tokens}"
        else:
            least = self.cost.prefill.reach[0]
            short = sum(tokens < least for tokens in runs.prompts)
            if 0 < short <= FEW * len(runs.prompts):
                _say(f"whole runs: {short} prompts are taken to be as long as the shortest profiled, {least} tokens")
                runs = replace(runs, prompts=tuple(max(tokens, least) for tokens in runs.prompts))
            try:
                return whole_runs(plan, judged, self.cost, runs)
            except CostError as error:
                why = str(error)
        _say(f"whole runs are not predicted: {why}")
        return {}

    def _still_whole(self, fixed: "Predictions", runs: "Runs") -> "Predictions":
        """A file's predictions, without those of whole runs if others will be made."""
        if not fixed.whole or look(fixed.meta, "runs") == runs.record:
            return fixed
        _say("whole runs are not compared: other prompts, blocks or numbers of tokens were predicted")
        return replace(fixed, whole={})

    def _warn_of_context(self, context: int) -> None:
        """Warn on stderr if the plan's steps are priced at another context than that of the requests."""
        plan = self.plan if self.fixed is None else self.fixed.plan
        priced = None if plan is None else look(plan.meta, "search", "context")
        if type(priced) is int and far(context, priced):
            said = f"the plan's steps are priced at {priced} tokens a sequence in the cache"
            _say(f"Warning: {said}, these requests come to {context} in the mean")

    def warn_of_texts(self) -> None:
        """Warn on stderr if what is replayed are the very texts that a plan was chosen on."""
        texts = None if self.replayed is None else look(self.replayed.meta, "text_sha256")
        if self.plan is not None and texts is not None and texts == look(self.plan.meta, "trace", "text_sha256"):
            click.echo(
                f"Warning: the plan was chosen on the texts that are replayed ({self.sources.acceptance}): its "
                "predictions have seen them; replay another trace, or give --trace and --requests",
                err=True,
            )


def opened(sources: Sources, *, skip: int, requests: int | None) -> Opened:
    """Read the files; `skip` and `requests` choose what is replayed, which no prediction of the same trace sees.

    Raises:
        TreeoptError: as the readers do, or options that do not go together.
    """
    sources.check()
    replayed = _replayed(sources, skip, requests)
    if sources.plan_file is not None:
        found = Opened(sources, replayed, plan=load_plan(sources.plan_file), first=skip)
        found.warn_of_texts()
        return found
    if sources.trace_file is None:
        return _fixed(sources, replayed, skip)
    trace = load_trace(sources.trace_file)
    cost = profile_for(trace, sources.trace_file, sources.profile_file)
    if sources.same and requests is not None:
        numbers = np.arange(trace.requests)
        trace = trace.select(numbers[(numbers < skip) | (numbers >= skip + requests)])
    return Opened(sources, replayed, trace=trace, cost=cost, first=skip)


def _replayed(sources: Sources, skip: int, requests: int | None) -> Trace | None:
    path = sources.replay_file
    if path is None:
        return None
    trace = load_trace(path)
    rule = look(trace.meta, "verification")
    if rule in DRAWN:
        raise UsageError(f"{path}: rule {rule} draws its candidates, so ranks do not say what steps keep")
    if skip + (requests or 1) > trace.requests:
        raise UsageError(
            f"{path}: {requests or 1} requests wanted after skipping {skip}, the trace has {trace.requests}"
        )
    if requests is None and sources.same:
        raise UsageError("--trace and --acceptance name the same trace: say with --requests how much of it is replayed")
    return trace.select(np.arange(skip, trace.requests if requests is None else skip + requests))


def _fixed(sources: Sources, replayed: Trace | None, skip: int) -> Opened:
    """The predictions of a file, made for this kind of acceptance, and not of the requests that are replayed."""
    from simulate.validation.predictions import load_predictions

    assert sources.predictions_file is not None
    found = load_predictions(sources.predictions_file)
    wanted, path = look(found.meta, "replayed"), sources.replay_file
    if wanted != (None if path is None else checksum(path)):
        made = "live acceptance" if wanted is None else f"the replay of a trace of sha256 {wanted:.16}"
        raise UsageError(f"{sources.predictions_file}: predicts {made}, --acceptance is {sources.acceptance}")
    part = look(found.meta, "replayed_requests")
    if replayed is not None and part is not None and look(found.meta, "trace") == wanted:
        first, count = part
        if skip < first or skip + replayed.requests > first + count:
            raise UsageError(
                f"{sources.predictions_file}: was made of all requests of this trace but {count} after the first "
                f"{first}; give --skip {first} --requests {count} to replay those"
            )
    return Opened(sources, replayed, fixed=found, first=skip)


def _say(sentence: str) -> None:
    """On stderr, once."""
    if models_and_prompts.is_main_rank():
        click.echo(sentence, err=True)


def _covers(cost: "Profile", shape: StepShape) -> bool:
    try:
        cost.step_s([shape])
    except CostError:
        return False
    return True
