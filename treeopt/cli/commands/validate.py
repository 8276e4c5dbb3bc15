"""`treeopt validate`: predicted against measured."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from treeopt.cli.options import general, models_and_prompts
from treeopt.cli.options.matching_files import warn_of_another_rule, warn_of_others
from treeopt.cli.options.prediction_sources import Sources, opened, sources_asked
from treeopt.cli.options.verification_rule import Sampling, sampling
from treeopt.storage.atomic_files import write_text
from treeopt.storage.provenance import this_run

if TYPE_CHECKING:
    from simulate.validation.predictions import Predictions
    from treeopt.plans.plan import Plan, PlanEntry


@click.command()
@models_and_prompts.models_or_shapes
@models_and_prompts.prompts_or_random
@models_and_prompts.new_tokens
@sources_asked
@click.option("--blocks", type=click.IntRange(min=2), default=6, show_default=True, help="Parts of the prompts.")
@sampling
@general.graphs
@click.option("--output", type=general.FILE, help="Write the comparison here (.json).")
@general.as_json
def validate(
    models: models_and_prompts.Models,
    prompts: models_and_prompts.Prompts,
    new_tokens: int,
    sources: Sources,
    blocks: int,
    sampling: Sampling,
    graphs: bool,
    output: Path | None,
    as_json: bool,
) -> None:
    """Run trees in the real loop and print predicted beside measured, for each batch size.

    Use prompts that are not in the trace (--skip), and the trace's rule and temperature; rules that draw their
    candidates need a --plan of trees that they verify. With a --trace of requests as long as these and a --profile that
    knows what prompts take, whole runs are predicted, too. With --acceptance replay:TRACE.npz request i of the prompts
    keeps what request i of that trace keeps, --skip and --requests choosing from both; such requests are left out
    of predictions from the same trace. What is decoded then has no meaning, so weights may be random, and --rule
    says only what work each step does.
    """
    reads = {"acceptance": sources.replay_file, "predictions": sources.predictions_file if sources.written else None}
    general.check_output(output, reads=reads)
    sampling.check()
    if not sources.written:
        general.check_output(sources.predictions_file, "--predictions", reads=reads)
    files = opened(sources, skip=prompts.skip, requests=prompts.requests)
    replayed = files.replayed
    if replayed is not None:
        prompts = replace(prompts, requests=replayed.requests)
    model, heads = models_and_prompts.load_models(models)
    tokens, stop = models_and_prompts.load_tokens(models, model, prompts)
    from executor.models.fingerprint import device_name, identity
    from executor.validation.compare_live import Requests, blocks_of, check_run, compare, runs_of
    from executor.validation.weight_reads import weights_read
    from executor.verification.acceptance_rules import told
    from simulate.validation.agreement import SCHEMA, comparison_record

    here = identity(model, heads)
    rule = sampling.made(model)
    asked = Requests(tokens, new_tokens, stop if replayed is None else (), replayed, graphs, rule)
    runs = partial(runs_of, model, requests=asked, blocks=blocks)
    predictions = files.predictions(asked.context, runs, weights=weights_read(model, heads), seed=sampling.seed)
    plan = predictions.plan
    warn_of_others(plan, here, source="trace" if replayed is None else "cost", graphs=graphs)
    warn_of_another_rule(plan, told(rule) if replayed is None else replayed.meta)
    check_run(model, heads, plan, asked, blocks=blocks)
    skipped = {str(entry.batch): _skipped(entry, replayed=replayed is not None) for entry in plan.entries}
    if sources.plan_file is None:  # search told of it
        _tell(plan)
    if not sources.written and models_and_prompts.is_main_rank():
        _write(predictions, sources.predictions_file, output)
    with general.progress("decoding", blocks_of(plan, blocks, replayed=replayed is not None)) as advance:
        fixed: dict[str, Any] = {"forms": predictions.forms, "whole": predictions.whole}
        found = compare(model, heads, plan, asked, blocks=blocks, seed=sampling.seed, **fixed, progress=advance)
    meta: dict[str, Any] = {
        **here,
        "device": device_name(model.device),
        "acceptance": "live" if replayed is None else "replay",
        **told(rule),
        "predictions": {"sha256": predictions.sha256, **predictions.meta},
        "prompts": len(tokens),
        "prompt_tokens": [min(map(len, tokens)), max(map(len, tokens))],
        "new_tokens": new_tokens,
        "blocks": blocks,
        "graphs": graphs,
        "seed": sampling.seed,
        "skipped": {batch: reasons for batch, reasons in skipped.items() if reasons},
        "provenance": this_run(),
    }
    if not models_and_prompts.is_main_rank():
        return
    record = {"schema": SCHEMA, "meta": meta, **comparison_record(found)}
    if output:
        write_text(output, json.dumps(record, indent=1) + "\n")
    if as_json:
        general.print_json(record)
    else:
        from treeopt.report.validate_tables import show_validation

        show_validation(record)


def _skipped(entry: "PlanEntry", *, replayed: bool) -> dict[str, str]:
    """Why ways of an entry are not measured, by name."""
    grown = [c for c in (entry.choice, *entry.compared) if replayed and c.grown is not None and c.grown.policy]
    reason = "a trace's acceptance is replayed in trees that are the same in every step"
    return {**entry.skipped, **{choice.name: reason for choice in grown}}


def _tell(plan: "Plan") -> None:
    """Tell the plan's warnings, and what was asked for and will not be measured; the report says why."""
    for warning in plan.warnings if models_and_prompts.is_main_rank() else ():
        click.echo(f"Warning: {warning}.", err=True)
    for entry in plan.entries:
        if entry.skipped and models_and_prompts.is_main_rank():
            names = ", ".join(entry.skipped)
            click.echo(f"batch {entry.batch}: not measured, trace or profile do not cover them: {names}", err=True)


def _write(predictions: "Predictions", path: Path | None, output: Path | None) -> None:
    """To the file that was named, else beside the output, else nowhere."""
    from simulate.validation.predictions import save_predictions

    path = path or (output and output.with_suffix(".predictions.json"))
    if path is not None:
        save_predictions(predictions, path)
        click.echo(f"predictions {predictions.sha256[:16]} written to {path}; now they are measured", err=True)
