"""`treeopt.validate`: trees in treeopt's loop or in an engine, predicted beside measured."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from simulate.validation.make_predictions import Material, Sources, predict, read_sources
from treeopt import defaults
from treeopt.api.messages import Progress, note, silent, warn
from treeopt.api.run_models import Models, Prompts, Sampling, load_tokens
from treeopt.api.runners import EngineSetup, open_runner
from treeopt.comparison.mismatch_warnings import plan_model_warnings, plan_rule_warnings
from treeopt.constraints import chains_only
from treeopt.defaults import BLOCKS, ENGINE_LENGTH
from treeopt.engines import ENGINES, engine_rules
from treeopt.planning.search_warnings import position_warnings
from treeopt.plans import Plan
from treeopt.policies import DynamicTree
from treeopt.results.kinds import Validation
from treeopt.settings import Settings, group, setting, takes
from treeopt.storage.provenance import look, this_run
from treeopt.tree import Tree

if TYPE_CHECKING:
    from executor.runners.runner import Requests, Runner
    from executor.validation import LiveComparison
    from simulate.validation.predictions import Predictions

CHAINS = chains_only(source="drivers of engines run chains")
ENGINE_SIZES = ",".join(f"chain:{k + 1}" for k in range(ENGINE_LENGTH))


@dataclass(frozen=True, kw_only=True)
class ValidateSettings(Settings):
    """The settings of `validate`."""

    models: Models = group(Models)
    source: Prompts = group(Prompts)
    new_tokens: int = defaults.new_tokens()
    sources: Sources = group(Sources)
    blocks: int = setting(BLOCKS, least=2, help="Number of blocks that the prompts are split into.")
    sampling: Sampling = group(Sampling)
    graphs: str = defaults.graphs()
    engine: EngineSetup = group(EngineSetup)

    def check(self) -> None:
        """Raise UsageError where settings do not go together."""
        self.engine.refuse({"--acceptance replay": self.sources.replay})


@takes(ValidateSettings, "target", "drafter", "prompts")
def validate(*, settings: ValidateSettings, work: Path | None = None, progress: Progress = silent) -> Validation:
    """Run trees in the loop or in an engine and return predicted beside measured figures, for each batch size.

    Predictions are made, and written to their file, before anything is measured. Needs torch; use prompts that are not
    in the trace.

    Args:
        work: file that finished runs are kept in, so that the same validation resumes; None: nowhere.
        progress: shows how many runs are made.

    Returns:
        The record that `treeopt validate --json` prints.

    Raises:
        UsageError: settings that contradict each other, or too few prompts.
        ExecutorError: models that cannot be loaded, or cannot draft a tree of the plan.
        TreeoptError: what `search` raises, and the readers of the files.

    Examples:
        >>> import treeopt
        >>> plan = treeopt.search("data/traces/medusa-t0.npz", max_nodes=3, solver_work=0, compare={})
        >>> models = ("data/models/stdlib-llama", "data/models/stdlib-medusa")
        >>> prompts = {"prompts": "data/prompts/stdlib.jsonl", "skip": 1000, "requests": 4}
        >>> record = treeopt.validate(*models, **prompts, plan=plan, new_tokens=4, blocks=2)
        >>> record.frame()[["batch", "name"]].to_dict("records")
        [{'batch': 1, 'name': 'chosen tree'}, {'batch': 1, 'name': 'best chain'}]
    """
    from simulate.validation.predictions import ways_of

    models, prompts, sources = settings.models, settings.source, settings.sources
    if sources.sizes is None and settings.engine.engine is not None and sources.trace is not None:
        sources = sources.changed(sizes=ENGINE_SIZES)
    material = read_sources(sources, skip=prompts.skip, requests=prompts.requests)
    note(material.notes)
    warn(material.warnings)
    if material.replayed is not None:
        prompts = prompts.changed(requests=material.replayed.requests)
    plan, static = (material.fixed or material).plan, sources.replay is not None
    shapes = [shape for entry in (plan.entries if plan else ()) for shape in ways_of(entry, static=static)]
    asks = not all(isinstance(shape, Tree | DynamicTree) for shape in shapes)
    runner = open_runner(models, settings.engine, sampling=settings.sampling, graphs=settings.graphs, asks=asks)
    tokens, stop = load_tokens(models, runner.target, prompts)
    from executor.runners.runner import Requests

    stop = stop if material.replayed is None else []
    requests = Requests(tokens, settings.new_tokens, stop, material.replayed)
    run = _Run(runner, requests, material, settings)
    return run.record(run.predictions(sources), work, progress)


@dataclass(frozen=True, eq=False)
class _Run:
    """A validation whose models are loaded, or whose engine is named."""

    runner: "Runner"
    requests: "Requests"
    material: Material
    settings: ValidateSettings

    def predictions(self, sources: Sources) -> "Predictions":
        """Make the predictions, check that they can be measured, log warnings, and write them to their file."""
        from executor.target.tensor_parallel import is_main_rank
        from simulate.validation.predictions import save_predictions

        runner, requests, name, trace = self.runner, self.requests, self.settings.engine.engine, self.material.trace
        own = () if trace is None or name not in ENGINES.limiting() else engine_rules(name, trace)
        predictions, warnings, notes = predict(
            self.material,
            requests.context,
            lambda plan: self._live(plan).sizes,
            weights=runner.weights_read,
            rules=() if name is None else (CHAINS, *own),
            seed=self.settings.sampling.seed,
        )
        note(notes)
        warn(warnings)
        plan = predictions.plan
        runner.concurrency = max(entry.batch for entry in plan.entries)
        self._warn_of_mismatches(plan)
        live = self._live(plan)
        live.check()
        if sources.plan is None:
            warn(plan.warnings)
            note(
                f"batch {entry.batch}: not measured, trace or profile do not cover them: {', '.join(entry.skipped)}"
                for entry in plan.entries
                if entry.skipped
            )
        note(live.not_measured)
        if sources.predictions is not None and not sources.written and is_main_rank():
            save_predictions(predictions, sources.predictions)
            note([f"predictions {predictions.sha256[:16]} written to {sources.predictions}; measuring begins"])
        return predictions

    def _live(self, plan: Plan) -> "LiveComparison":
        """Return the measurement of a plan."""
        from executor.validation import LiveComparison

        return LiveComparison(self.runner, plan, self.requests, self.settings.blocks, self.settings.sampling.seed)

    def _warn_of_mismatches(self, plan: Plan) -> None:
        """Warn of a plan that was made for other models or another rule."""
        record, replayed = self.runner.record, self.material.replayed
        if "engine" in record:
            return  # it loads files of its own
        requests = zip(self.requests.prompts, self.requests.limits, strict=True)
        longest = [len(prompt) + limit for prompt, limit in requests]
        warn(position_warnings(look(record, "drafter", "positions"), longest, "may pass"))
        source: Literal["trace", "cost"] = "trace" if replayed is None else "cost"
        warn(plan_model_warnings(plan, record, source=source, graphs=record["graphs"]))
        warn(plan_rule_warnings(plan, record if replayed is None else replayed.meta))

    def record(self, predictions: "Predictions", work: Path | None, progress: Progress) -> Validation:
        """Measure every tree of the predictions, and return predicted beside measured figures."""
        from simulate.validation.predicted_vs_measured import SCHEMA, comparison_record

        plan, prompts = predictions.plan, self.requests.prompts
        live = self._live(plan)
        with progress("decoding", live.runs) as advance:
            comparisons = live.run(forms=predictions.forms, whole=predictions.whole, work=work, progress=advance)
        skipped = {str(entry.batch): live.left_out(entry) for entry in plan.entries}
        meta = {
            **self.runner.record,
            "acceptance": "live" if self.requests.replayed is None else "replay",
            "predictions": {"sha256": predictions.sha256, **predictions.meta},
            "prompts": len(prompts),
            "prompt_tokens": [min(map(len, prompts)), max(map(len, prompts))],
            "new_tokens": self.requests.new_tokens,
            "blocks": self.settings.blocks,
            "seed": self.settings.sampling.seed,
            "skipped": {batch: reasons for batch, reasons in skipped.items() if reasons},
            "provenance": this_run(),
        }
        return Validation({"schema": SCHEMA, "meta": meta, **comparison_record(comparisons)})
