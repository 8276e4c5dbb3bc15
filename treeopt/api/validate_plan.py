"""`treeopt.validate`: trees in treeopt's loop or in an engine, predicted beside measured."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from treeopt.api.messages import Progress, note, silent, warn
from treeopt.api.run_models import Models, is_main_rank
from treeopt.api.run_prompts import Prompts, load_tokens
from treeopt.api.runners import EngineChoice, open_runner
from treeopt.api.token_sampling import Sampling
from treeopt.comparison.mismatch_warnings import plan_model_warnings, plan_rule_warnings
from treeopt.comparison.trees_of_size import parse_sizes
from treeopt.constraints import ChainOnly, Constraint
from treeopt.defaults import BLOCKS, ENGINE_LENGTH, NEW_TOKENS
from treeopt.engines import ENGINE_RULES
from treeopt.engines.rules_for_trace import engine_constraints
from treeopt.plans.plan import Plan
from treeopt.results.kinds import Validation
from treeopt.storage.provenance import this_run
from treeopt.traces.trace import Trace

if TYPE_CHECKING:
    from executor.runners.runner import Requests, Runner
    from simulate.profiles.profile import Profile
    from simulate.validation.prediction_sources import Material, Sources
    from simulate.validation.predictions import Predictions

Value = TypeVar("Value")
CHAINS = ChainOnly(source="drivers of engines run chains")
ENGINE_SIZES = parse_sizes(",".join(f"chain:{k + 1}" for k in range(ENGINE_LENGTH)))


def validate(
    target: Path | str,
    drafter: Path | str,
    prompts: Path | str | None = None,
    *,
    plan: Plan | Path | str | None = None,
    trace: Trace | Path | str | None = None,
    profile: "Profile | Path | str | None" = None,
    batch: int | Sequence[int] | None = None,
    sizes: str | None = None,
    predictions: Path | str | None = None,
    replay: Path | str | None = None,
    requests: int | None = None,
    skip: int = 0,
    chat: bool = False,
    prompt_tokens: int | None = None,
    leave_out: Collection[str] = (),
    new_tokens: int = NEW_TOKENS,
    blocks: int = BLOCKS,
    rule: str | None = None,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    graphs: bool = False,
    device: str = "auto",
    dtype: str = "auto",
    quantize: str | None = None,
    tensor_parallel: bool = False,
    threads: int | None = None,
    random_weights: bool = False,
    assume_same_tokens: bool = False,
    seed: int = 0,
    progress: Progress = silent,
) -> Validation:
    """Run trees in the real loop and return predicted beside measured figures, for each batch size; needs torch.

    Args:
        target: folder of the target, a Hugging Face model.
        drafter: folder of the drafter.
        prompts: JSON lines with texts or conversations; use prompts that are not in the trace.
        plan: the plan to check; or `trace`, to make one.
        trace: searched for the plan to check.
        profile: step times for the search; None finds the profile of the trace's models.
        batch: batch sizes of the search; default 1, 2, 4 and 8.
        sizes: also measure these trees, chosen on the trace, such as "chain:2,best:15".
        predictions: write the predictions to this file before anything is measured; without plan and trace read them.
        replay: a trace whose acceptance is imposed on the models; default: the models decide.
        requests: prompts to take; default all.
        skip: prompts to leave out first.
        chat: put texts through the target's chat template as a user's turn.
        prompt_tokens: length of random prompts, in place of `prompts`.
        leave_out: parts of records that are left out: tools, thoughts, system, unreadable.
        new_tokens: tokens decoded after each prompt.
        blocks: number of blocks that the prompts are split into.
        rule: of verification; default greedy, or sample-and-match at a temperature above 0.
        temperature: 0 is greedy.
        top_k: sample from the K most likely tokens.
        top_p: sample from the smallest set of tokens whose probabilities sum to at least P.
        graphs: replay steps from CUDA graphs.
        device: such as "cpu" or "cuda"; "auto": cuda where there is one, else cpu.
        dtype: type of weights and cache; "auto": float32 on a CPU, elsewhere the type of the checkpoint.
        quantize: "int8" or "int4" linear layers of the target.
        tensor_parallel: share the target among the processes of torchrun.
        threads: CPU threads.
        random_weights: draw the weights: `target` is then a shape such as "toy", `drafter` such as "medusa:3".
        assume_same_tokens: do not compare the tokens of a language model as drafter with the target's.
        seed: of every random choice.
        progress: shows how many blocks are decoded.

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
    from simulate.validation.prediction_sources import Sources

    sources = Sources(
        plan=_path(plan),
        trace=_path(trace),
        profile=_path(profile),
        batch=(batch,) if isinstance(batch, int) else None if batch is None else tuple(batch),
        sizes=None if sizes is None else parse_sizes(sizes),
        predictions=_path(predictions),
        replay=_path(replay),
    )
    models = Models(
        Path(target),
        Path(drafter),
        device,
        dtype,
        quantize,
        tensor_parallel,
        threads,
        random_weights,
        assume_same_tokens,
    )
    return validate_with(
        models,
        Prompts(_path(prompts), requests, skip, chat, (), prompt_tokens, frozenset(leave_out)),
        sources,
        sampling=Sampling(rule, temperature, top_k, top_p, seed),
        new_tokens=new_tokens,
        blocks=blocks,
        graphs=graphs,
        progress=progress,
    )


def _path(source: Value | str) -> Value | Path:
    """Return a path for a string, and anything else as it is."""
    return Path(source) if isinstance(source, str) else source


def validate_with(
    models: Models,
    prompts: Prompts,
    sources: "Sources",
    *,
    sampling: Sampling,
    engine: EngineChoice | None = None,
    new_tokens: int = NEW_TOKENS,
    blocks: int = BLOCKS,
    graphs: bool = False,
    work: Path | None = None,
    progress: Progress = silent,
) -> Validation:
    """Predict, write the predictions to their file, then measure, in the loop or in an engine; see `validate`.

    Args:
        models: target and drafter.
        prompts: what is decoded.
        sources: what predictions are made from.
        sampling: rule and temperature.
        engine: what decodes; None: treeopt's own loop.
        new_tokens: tokens decoded after each prompt.
        blocks: number of blocks that the prompts are split into.
        graphs: replay steps from CUDA graphs.
        work: file that finished runs are kept in, so that the same validation resumes; None: nowhere.
        progress: shows how many runs are made.
    """
    from simulate.validation.prediction_sources import read_sources

    engine = engine or EngineChoice()
    sampling.check()
    if engine.engine is not None and sources.sizes is None and sources.trace is not None:
        sources = replace(sources, sizes=ENGINE_SIZES)
    engine.refuse({"--acceptance replay": sources.replay})
    material = read_sources(sources, skip=prompts.skip, requests=prompts.requests)
    note(material.notes)
    warn(material.warnings)
    if material.replayed is not None:
        prompts = replace(prompts, requests=material.replayed.requests)
    runner = open_runner(models, engine, sampling=sampling, graphs=graphs)
    tokens, stop = load_tokens(models, runner.target, prompts)
    from executor.runners.runner import Requests

    stop = stop if material.replayed is None else []
    requests = Requests(tokens, new_tokens, stop, material.replayed)
    run = _Run(runner, requests, material, engine, blocks, sampling.seed)
    return run.record(run.predictions(sources), work, progress)


@dataclass(frozen=True, eq=False)
class _Run:
    """A validation whose models are loaded, or whose engine is named."""

    runner: "Runner"
    requests: "Requests"
    material: "Material"
    engine: EngineChoice
    blocks: int
    seed: int

    def predictions(self, sources: "Sources") -> "Predictions":
        """Make the predictions, check that they can be measured, log warnings, and write them to their file."""
        from executor.validation.compare_live import check_comparison, not_measured, runs_of
        from simulate.validation.make_predictions import predict

        runner, requests = self.runner, self.requests
        made = predict(
            self.material,
            requests.context,
            partial(runs_of, runner=runner, requests=requests, blocks=self.blocks),
            weights=runner.weights_read,
            rules=self._rules(),
            seed=self.seed,
        )
        note(made.notes)
        warn(made.warnings)
        plan = made.predictions.plan
        runner.concurrency = max(entry.batch for entry in plan.entries)
        self._warn_of_mismatches(plan)
        check_comparison(runner, plan, requests, blocks=self.blocks)
        if sources.plan is None:
            warn(plan.warnings)
            note(_not_covered(plan))
        note(not_measured(plan, runner, requests))
        if sources.predictions is not None and not sources.written and is_main_rank():
            _write(made.predictions, sources.predictions)
        return made.predictions

    def _rules(self) -> tuple[Constraint, ...]:
        """Return the rules that trees of a search must keep to be run."""
        trace, name = self.material.trace, self.engine.engine
        if name is None:
            return ()
        return (CHAINS, *(() if trace is None or name not in ENGINE_RULES else engine_constraints(name, trace)))

    def _warn_of_mismatches(self, plan: Plan) -> None:
        """Warn of a plan that was made for other models or another rule."""
        record, replayed = self.runner.record, self.material.replayed
        if "engine" in record:
            return  # it loads files of its own
        source: Literal["trace", "cost"] = "trace" if replayed is None else "cost"
        warn(plan_model_warnings(plan, record, source=source, graphs=record["graphs"]))
        warn(plan_rule_warnings(plan, record if replayed is None else replayed.meta))

    def record(self, predictions: "Predictions", work: Path | None, progress: Progress) -> Validation:
        """Measure every tree of the predictions, and return predicted beside measured figures."""
        from executor.validation.compare_live import compare, left_out, runs_in
        from simulate.validation.predicted_vs_measured import SCHEMA, comparison_record

        plan, prompts = predictions.plan, self.requests.prompts
        total = runs_in(plan, self.runner, self.requests, blocks=self.blocks)
        with progress("decoding", total) as advance:
            comparisons = compare(
                self.runner,
                plan,
                self.requests,
                blocks=self.blocks,
                seed=self.seed,
                forms=predictions.forms,
                whole=predictions.whole,
                work=work,
                progress=advance,
            )
        skipped = {str(entry.batch): left_out(entry, self.runner, self.requests) for entry in plan.entries}
        meta = {
            **self.runner.record,
            "acceptance": "live" if self.requests.replayed is None else "replay",
            "predictions": {"sha256": predictions.sha256, **predictions.meta},
            "prompts": len(prompts),
            "prompt_tokens": [min(map(len, prompts)), max(map(len, prompts))],
            "new_tokens": self.requests.new_tokens,
            "blocks": self.blocks,
            "seed": self.seed,
            "skipped": {batch: reasons for batch, reasons in skipped.items() if reasons},
            "provenance": this_run(),
        }
        return Validation({"schema": SCHEMA, "meta": meta, **comparison_record(comparisons)})


def _not_covered(plan: Plan) -> list[str]:
    """Return a note for each batch size at which trees that were asked for are not covered."""
    return [
        f"batch {entry.batch}: not measured, trace or profile do not cover them: {', '.join(entry.skipped)}"
        for entry in plan.entries
        if entry.skipped
    ]


def _write(predictions: "Predictions", path: Path) -> None:
    """Write the predictions before anything is measured."""
    from simulate.validation.predictions import save_predictions

    save_predictions(predictions, path)
    note([f"predictions {predictions.sha256[:16]} written to {path}; measuring begins"])
