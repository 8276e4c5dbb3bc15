"""`treeopt profile`: measure step times."""

from pathlib import Path
from typing import Any

import click

from treeopt.cli import options


@click.command()
@options.models
@options.prompts_options
@click.option("--batch", type=options.Batches(), default="1,2,4,8", show_default=True, help="Batch sizes.")
@click.option("--output", type=options.FILE, required=True, help="Write the profile here (.json).")
@click.option("--max-nodes", type=click.IntRange(1, 63), default=63, show_default=True, help="Largest tree.")
@click.option(
    "--rounds",
    type=click.IntRange(min=2),
    default=5,
    show_default=True,
    help="Blocks of each tree and batch.",
)
@click.option("--steps", type=click.IntRange(min=1), default=16, show_default=True, help="Steps of a block.")
@options.seed
def profile(
    models: options.Models,
    prompts_file: Path,
    requests: int | None,
    skip: int,
    batch: tuple[int, ...],
    output: Path,
    rounds: int,
    max_nodes: int,
    **settings: Any,
) -> None:
    """Measure plain and speculative steps in the real loop, over batch sizes, tree sizes and depths."""
    options.check_output(output)
    model, heads = options.load_models(models)
    _, tokens, _ = options.load_prompts(models, model, prompts_file, requests=requests, skip=skip)
    from executor.measure import grid, measure_profile
    from simulate.profile import save_profile

    blocks = rounds * len(set(batch)) * (1 + len(grid(max_nodes, heads.max_depth)))
    with options.progress("measuring", blocks) as advance:
        found = measure_profile(
            model,
            heads,
            tokens,
            batches=batch,
            rounds=rounds,
            max_nodes=max_nodes,
            progress=advance,
            **settings,
        )
    if not options.is_main_rank():
        return
    save_profile(found, output)
    click.echo(
        f"profile of batch {', '.join(map(str, batch))} written to {output}; a left-out size is predicted "
        f"within {found.relative_error:.1%} in 95 % of cases",
        err=True,
    )
