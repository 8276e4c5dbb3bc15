"""`treeopt validate`: predicted against measured."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from treeopt.cli import inputs, options
from treeopt.cli.search import own_profile
from treeopt.errors import UsageError
from treeopt.files import write_text
from treeopt.optimize import search
from treeopt.plan import load_plan
from treeopt.provenance import this_run
from treeopt.trace import load_trace

BATCHES = (1, 2, 4, 8)

if TYPE_CHECKING:
    from treeopt.plan import Plan


@click.command()
@inputs.models
@inputs.prompts
@inputs.new_tokens
@click.option("--plan", "plan_file", type=options.FILE, help="The plan to check; or --trace to make one.")
@click.option("--trace", "trace_file", type=options.FILE, help="Search this trace for the plan to check.")
@click.option("--profile", "profile_file", type=options.FILE, help="Step times for the search.")
@click.option("--batch", type=options.Batches(), help="Batch sizes to search for; default 1,2,4,8.")
@click.option("--blocks", type=click.IntRange(min=2), default=6, show_default=True, help="Parts of the prompts.")
@options.seed
@click.option("--output", type=options.FILE, help="Write the comparison here (.json).")
@options.as_json
def validate(
    models: inputs.Models,
    prompts: inputs.Prompts,
    new_tokens: int,
    plan_file: Path | None,
    trace_file: Path | None,
    profile_file: Path | None,
    batch: tuple[int, ...] | None,
    blocks: int,
    seed: int,
    output: Path | None,
    as_json: bool,
) -> None:
    """Run a plan's trees in the real loop and print predicted beside measured, for each batch size.

    Use prompts that are not in the trace (--skip).
    """
    options.check_output(output)
    plan = _plan(plan_file, trace_file, profile_file, batch, seed)
    model, heads = inputs.load_models(models)
    asked = inputs.load_prompts(models, model, prompts)
    from executor.fingerprint import device_name, identity
    from executor.validate import TREES, compare, comparison_record

    here = identity(model, heads)
    inputs.warn_of_others(plan, here)
    with options.progress("decoding", len(plan.entries) * blocks * (TREES + 1)) as advance:
        found = compare(
            model,
            heads,
            plan,
            asked.tokens,
            new_tokens=new_tokens,
            stop=asked.stop,
            blocks=blocks,
            seed=seed,
            progress=advance,
        )
    meta: dict[str, Any] = {
        **here,
        "device": device_name(model.device),
        "prompts": len(asked.tokens),
        "new_tokens": new_tokens,
        "blocks": blocks,
        "seed": seed,
        "provenance": this_run(),
    }
    if not inputs.is_main_rank():
        return
    record = {"schema": "treeopt.validation/1", "meta": meta, **comparison_record(found)}
    if output:
        write_text(output, json.dumps(record, indent=1) + "\n")
    if as_json:
        options.print_json(record)
    else:
        from treeopt.report.tables import show_validation

        show_validation(record)


def _plan(
    plan_file: Path | None,
    trace_file: Path | None,
    profile_file: Path | None,
    batch: tuple[int, ...] | None,
    seed: int,
) -> "Plan":
    if (plan_file is None) == (trace_file is None):
        raise UsageError("give either --plan or --trace")
    if plan_file is not None:
        if batch is not None or profile_file is not None:
            raise UsageError("--batch and --profile are for a search; with --plan they mean nothing")
        return load_plan(plan_file)
    assert trace_file is not None
    from simulate.profile import load_profile

    trace = load_trace(trace_file)
    cost = load_profile(profile_file) if profile_file else own_profile(trace, trace_file)
    return search(trace, cost, batch=batch or BATCHES, seed=seed)
