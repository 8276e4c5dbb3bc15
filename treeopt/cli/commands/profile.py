"""`treeopt profile`: measure step times."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from treeopt.cli.options import general, models_and_prompts
from treeopt.cli.options.verification_rule import Sampling, sampling

if TYPE_CHECKING:
    from executor.profiling.measure_steps import Measurement

BUDGET_S = 300.0
POLICIES_S = 150.0  # more, where these are measured too
SHOWN = 6  # ways that did not fit, in words


@click.command()
@models_and_prompts.models_or_shapes
@models_and_prompts.prompts_or_random
@models_and_prompts.new_tokens
@click.option(
    "--batch", type=general.Numbers(), default="1,2,4,8", show_default=True, help="Batch sizes; 1-32: 1, 2, 4, ... 32."
)
@click.option(
    "--context",
    "contexts",
    type=general.Numbers("context lengths"),
    default=(),
    help="Tokens of the prompts, such as 64,512: cut from those given. Default: prompts as they are.",
)
@click.option("--output", type=general.FILE, required=True, help="Write the profile here (.json).")
@click.option("--max-nodes", type=click.IntRange(1, 63), default=63, show_default=True, help="Largest tree.")
@click.option(
    "--max-depth", type=click.IntRange(min=1), help="Deepest tree; default all levels that the drafter has, at most 8."
)
@click.option(
    "--rounds",
    type=click.IntRange(min=2),
    default=12,
    show_default=True,
    help="Most blocks of each tree and batch.",
)
@click.option("--steps", type=click.IntRange(min=1), default=16, show_default=True, help="Most steps of a block.")
@click.option(
    "--budget",
    "budget_s",
    type=general.Real(min=0, min_open=True),
    help="Seconds that measuring may take: fewer rounds, then the least important sizes left out; default 300, "
    "with --policies 450, of several processes as long as it takes.",
)
@click.option(
    "--policies",
    is_flag=True,
    help="Also measure trees that are drawn anew at each step, for `search --policy` to price.",
)
@sampling
@general.graphs
def profile(
    models: models_and_prompts.Models,
    prompts: models_and_prompts.Prompts,
    batch: tuple[int, ...],
    output: Path,
    budget_s: float | None,
    sampling: Sampling,
    **settings: Any,
) -> None:
    """Measure plain and speculative steps in the real loop, over batch sizes, contexts, tree sizes, depths and widths.

    Steps choose their tokens by --rule, which is that of the traces the profile is for: sampling takes time, too.

    What is finished is kept in OUTPUT.work until the profile is written: the same command goes on after an
    interruption.
    """
    general.check_output(output)
    sampling.check()
    model, heads = models_and_prompts.load_models(models)
    tokens, _ = models_and_prompts.load_tokens(models, model, prompts)
    from executor.profiling.measure_steps import Measurement, Settings
    from executor.target.tensor_parallel import processes
    from simulate.profiles.profile import save_profile

    work = output.with_name(f"{output.name}.work")
    if budget_s is None and processes() == 1:
        budget_s = BUDGET_S + POLICIES_S * settings["policies"]
    wanted = Settings(batches=batch, budget_s=budget_s, rule=sampling.made(model), seed=sampling.seed, **settings)
    with Measurement(model, heads, tokens, wanted, work=work) as measurement:
        _tell(measurement)
        with general.progress("measuring", measurement.left) as advance:
            found = measurement.run(advance)
    if not models_and_prompts.is_main_rank():
        return
    save_profile(found, output)
    work.unlink(missing_ok=True)
    shown = ", ".join(dict.fromkeys(str(times.batch) for times in found.batches))
    said = f"{_of_sizes(found.relative_error, **found.meta['left_out_sizes'])}{_of_growths(found.meta)}"
    click.echo(f"profile of batch {shown} written to {output}; {said}", err=True)


def _of_sizes(error: float, *, cells: int, median_error: float | None) -> str:
    """How well a size that was not measured is predicted, in words."""
    from simulate.profiles.left_out_sizes import ENOUGH

    missed = "" if median_error is None else f", {median_error:.1%} off in the median"
    if cells < ENOUGH:
        few = f"only {cells} sizes could be left out, too few for a 95 % interval"
        return f"{few}{missed}: the error of others is taken to be {error:.1%}"
    return f"a left-out size is predicted within {error:.1%} in 95 % of cases{missed}"


def _of_growths(meta: Mapping[str, Any]) -> str:
    """How well steps that draw their trees anew are predicted, in words."""
    known = meta.get("growths", {}).items()
    told = ", ".join(f"{growth} {found['median_error']:.1%}" for growth, found in known)
    return f"; left-out trees that are drawn anew are off in the median by {told}" if told else ""


def _tell(measurement: "Measurement") -> None:
    """What the time budget leaves out, and what is there from before."""
    schedule, blocks = measurement.schedule, measurement.blocks
    if schedule.left_out and models_and_prompts.is_main_rank():
        some = "; ".join(map(str, schedule.left_out[:SHOWN])) + ("; ..." if len(schedule.left_out) > SHOWN else "")
        click.echo(
            f"{schedule.rounds} rounds of {len(schedule.ways)} ways to decode fit the budget; "
            f"{len(schedule.left_out)} are left out: {some}",
            err=True,
        )
    if measurement.left < blocks and models_and_prompts.is_main_rank():
        click.echo(f"going on: {blocks - measurement.left} of {blocks} blocks are there", err=True)
