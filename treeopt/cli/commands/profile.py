"""`treeopt profile`: measure step times."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from treeopt.api import profile_steps
from treeopt.api.profile_steps import ProfileSettings
from treeopt.cli.options import general, output_files, printing
from treeopt.cli.options.help_sections import Command, examples
from treeopt.cli.options.settings_options import MODELS, options_of, setup_options
from treeopt.errors import counted
from treeopt.storage import work_file

SECTIONS = {
    "Models": "target drafter",
    "Prompts": "prompts requests new_tokens",
    "Measuring": "batch max_nodes budget_s engine",
    "Output": "output force",
}
EXAMPLES = examples(
    "treeopt profile --target data/models/stdlib-llama --drafter data/models/stdlib-medusa "
    "--prompts data/prompts/stdlib.jsonl --skip 1000 --requests 4 --batch 1 --max-nodes 2 --max-depth 1 "
    "--rounds 2 --steps 2 --new-tokens 4 --output profile.json",
    "treeopt profile --target toy --drafter medusa:3 --random-weights --prompt-tokens 8 --batch 1 --max-nodes 4 "
    "--rounds 2 --steps 2 --new-tokens 12 --output random.json",
)


@click.command(cls=Command, sections=SECTIONS, epilog=EXAMPLES)
@options_of(ProfileSettings, types=MODELS, without=("texts",))
@setup_options()
@click.option("--output", type=general.FILE, required=True, help="Write the profile to this file (.json).")
@general.force
def profile(settings: ProfileSettings, output: Path, *, force: bool) -> None:
    """Measure plain and speculative steps in the real loop, over batch sizes, contexts, tree sizes, depths and widths.

    With --engine an inference engine is measured instead: chains of 1 to --max-depth drafted tokens, with --policies
    also dynamic trees; batch size is the number of requests in flight.

    Steps choose their tokens by --rule, which must be the rule of the traces that the profile is for: sampling takes
    time, too.

    Finished measurements stay in OUTPUT.work until the profile is written: after an interruption the same command
    resumes there.
    """
    output_files.check_output(output, force=force)
    work = work_file.beside(output)
    measured = profile_steps.profile(settings=settings, work=work, progress=printing.progress)
    if not printing.is_main_process():
        return
    from simulate.profiles.profile import save_profile

    save_profile(measured, output)
    work.unlink(missing_ok=True)
    printing.warn(_rarely_drafted(measured.meta))
    sizes = ", ".join(dict.fromkeys(str(times.batch) for times in measured.batches))
    growths = measured.meta.get("growths", {}).items()
    policies = ", ".join(f"{growth} {record['median_error']:.1%}" for growth, record in growths)
    errors = _size_errors(measured.relative_error, **measured.meta["left_out_sizes"])
    errors += f"; median error of left-out dynamic trees: {policies}" if policies else ""
    printing.say(f"profile of batch {sizes} written to {output}; {errors}")


def _rarely_drafted(meta: Mapping[str, Any]) -> list[str]:
    """Return warnings of chains that were mostly not drafted: the times of full drafts are carried over from few."""
    from executor.profiling.engine_waves import RARE

    rare = {
        (row["batch"], row["drafted"]): row["mean_drafted"] / row["drafted"]
        for row in meta.get("spread", ())
        if row.get("mean_drafted") is not None and row["drafted"] and row["mean_drafted"] < RARE * row["drafted"]
    }
    if not rare:
        return []
    least, most = min(rare.values()), max(rare.values())
    share = f"{least:.0%}" if round(least, 2) == round(most, 2) else f"{least:.0%} to {most:.0%}"
    return [
        f"only {share} of the tokens of {counted(len(rare), 'chain')} were drafted: times of steps that draft in full "
        "are carried over from these, so predict only texts that are drafted about as often"
    ]


def _size_errors(error: float, *, cells: int, median_error: float | None) -> str:
    """Return how well a size that was not measured is predicted, in words."""
    from simulate.profiles.profile_from_cells import ENOUGH

    median = "" if median_error is None else f", the median error is {median_error:.1%}"
    if cells < ENOUGH:
        left = f"only {counted(cells, 'size')}" if cells else "no size"
        few = f"{left} could be left out, too few for a 95 % interval"
        return f"{few}{median}: other sizes are assumed to have an error of {error:.1%}"
    return f"a left-out size is predicted within {error:.1%} in 95 % of cases{median}"
