"""`treeopt.validate`: trees in the real loop, predicted beside measured."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from treeopt.api.messages import Progress, note, silent, warn
from treeopt.api.run_models import Models, is_main_rank, load_models
from treeopt.api.run_prompts import Prompts, load_tokens
from treeopt.api.token_sampling import Sampling
from treeopt.comparison.mismatch_warnings import plan_model_warnings, plan_rule_warnings
from treeopt.comparison.trees_of_size import parse_sizes
from treeopt.defaults import BLOCKS, NEW_TOKENS
from treeopt.plans.plan import Plan, PlanEntry
from treeopt.results.kinds import Validation
from treeopt.storage.provenance import this_run
from treeopt.traces.trace import Trace

if TYPE_CHECKING:
    from executor.drafters.base.drafter import Drafter
    from executor.target.target_model import Target
    from executor.validation.compare_live import Requests
    from executor.verification.acceptance_rules import Rule
    from simulate.profiles.profile import Profile
    from simulate.validation.prediction_sources import Material, Sources
    from simulate.validation.predictions import Predictions

Value = TypeVar("Value")
REPLAYED_ALONE = "a trace's acceptance is replayed in static trees only"


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
    from simulate.validation.prediction_sources import Sources, read_sources

    sources = Sources(
        plan=_path(plan),
        trace=_path(trace),
        profile=_path(profile),
        batch=(batch,) if isinstance(batch, int) else None if batch is None else tuple(batch),
        sizes=None if sizes is None else parse_sizes(sizes),
        predictions=_path(predictions),
        replay=_path(replay),
    )
    sampling = Sampling(rule, temperature, top_k, top_p, seed)
    sampling.check()
    material = read_sources(sources, skip=skip, requests=requests)
    note(material.notes)
    warn(material.warnings)
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
    ).or_shape()
    chosen = Prompts(_path(prompts), requests, skip, chat, (), prompt_tokens, frozenset(leave_out))
    if material.replayed is not None:
        chosen = replace(chosen, requests=material.replayed.requests)
    target_model, drafter_model = load_models(models)
    tokens, stop = load_tokens(models, target_model, chosen)
    run = _Run(target_model, drafter_model, tokens, stop, material, sampling, new_tokens, blocks, graphs)
    return run.record(run.predictions(sources), progress)


def _path(source: Value | str) -> Value | Path:
    """Return a path for a string, and anything else as it is."""
    return Path(source) if isinstance(source, str) else source


@dataclass(frozen=True, eq=False)
class _Run:
    """A validation with its models loaded."""

    target: "Target"
    drafter: "Drafter"
    tokens: list[list[int]]
    stop: list[int]
    material: "Material"
    sampling: Sampling
    new_tokens: int
    blocks: int
    graphs: bool

    @cached_property
    def models(self) -> dict[str, Any]:
        from executor.models.fingerprint import identity

        return identity(self.target, self.drafter)

    @cached_property
    def rule(self) -> "Rule":
        return self.sampling.rule_for(self.target)

    @cached_property
    def requests(self) -> "Requests":
        from executor.validation.compare_live import Requests

        replayed = self.material.replayed
        stop = self.stop if replayed is None else ()
        return Requests(self.tokens, self.new_tokens, stop, replayed, self.graphs, self.rule)

    def predictions(self, sources: "Sources") -> "Predictions":
        """Make the predictions, check that they can be measured, log warnings, and write them to their file."""
        from executor.validation.compare_live import check_run, runs_of
        from executor.validation.weight_reads import weights_read
        from executor.verification.acceptance_rules import rule_meta
        from simulate.validation.make_predictions import predict

        runs = partial(runs_of, self.target, requests=self.requests, blocks=self.blocks)
        weights = weights_read(self.target, self.drafter)
        made = predict(self.material, self.requests.context, runs, weights=weights, seed=self.sampling.seed)
        note(made.notes)
        warn(made.warnings)
        plan, replayed = made.predictions.plan, self.material.replayed
        source: Literal["trace", "cost"] = "trace" if replayed is None else "cost"
        warn(plan_model_warnings(plan, self.models, source=source, graphs=self.graphs))
        warn(plan_rule_warnings(plan, rule_meta(self.rule) if replayed is None else replayed.meta))
        check_run(self.target, self.drafter, plan, self.requests, blocks=self.blocks)
        if sources.plan is None:
            warn(plan.warnings)
            note(_not_measured(plan))
        if sources.predictions is not None and not sources.written and is_main_rank():
            _write(made.predictions, sources.predictions)
        return made.predictions

    def record(self, predictions: "Predictions", progress: Progress) -> Validation:
        """Measure every tree of the predictions, and return predicted beside measured figures."""
        from executor.models.fingerprint import device_name
        from executor.validation.compare_live import blocks_of, compare
        from executor.verification.acceptance_rules import rule_meta
        from simulate.validation.predicted_vs_measured import SCHEMA, comparison_record

        plan, replayed, seed = predictions.plan, self.material.replayed is not None, self.sampling.seed
        with progress("decoding", blocks_of(plan, self.blocks, replayed=replayed)) as advance:
            comparisons = compare(
                self.target,
                self.drafter,
                plan,
                self.requests,
                blocks=self.blocks,
                seed=seed,
                forms=predictions.forms,
                whole=predictions.whole,
                progress=advance,
            )
        skipped = {str(entry.batch): _skipped(entry, replayed=replayed) for entry in plan.entries}
        meta = {
            **self.models,
            "device": device_name(self.target.device),
            "acceptance": "replay" if replayed else "live",
            **rule_meta(self.rule),
            "predictions": {"sha256": predictions.sha256, **predictions.meta},
            "prompts": len(self.tokens),
            "prompt_tokens": [min(map(len, self.tokens)), max(map(len, self.tokens))],
            "new_tokens": self.new_tokens,
            "blocks": self.blocks,
            "graphs": self.graphs,
            "seed": seed,
            "skipped": {batch: reasons for batch, reasons in skipped.items() if reasons},
            "provenance": this_run(),
        }
        return Validation({"schema": SCHEMA, "meta": meta, **comparison_record(comparisons)})


def _skipped(entry: PlanEntry, *, replayed: bool) -> dict[str, str]:
    """Return why configurations of an entry are not measured, by name."""
    dynamic = [c for c in (entry.choice, *entry.compared) if replayed and c.grown is not None and c.grown.policy]
    return {**entry.skipped, **{choice.name: REPLAYED_ALONE for choice in dynamic}}


def _not_measured(plan: Plan) -> list[str]:
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
