"""`treeopt times`: step times of an inference engine, as a profile."""

from pathlib import Path

import click

from treeopt.cli.options import general
from treeopt.errors import UsageError


@click.command()
@click.argument("table", type=click.Path(path_type=Path))
@click.option("--device", required=True, help='What was measured, in words: "H100 SXM, vLLM 0.33.0, Llama 3.1 8B".')
@click.option(
    "--context", help="Fewest and most tokens a request in the cache, such as 512-2048; or a column `context`."
)
@click.option("--output", type=general.FILE, required=True, help="Write the profile here (.json).")
def times(table: Path, device: str, context: str | None, output: Path) -> None:
    """A profile of the step times in TABLE, comma-separated values that an engine was measured at.

    Columns: batch; drafted, tokens of the chain, 0 for plain decoding; step_ms, or tokens_s and committed (tokens a
    request and step) of decoding alone. Every batch size needs lines of 0 and 1. `treeopt export --replay` has the
    engine keep what a trace keeps while it is measured. The profile is one of chains: give `search` the engine's name.
    """
    general.check_output(output)
    from simulate.profiles.engine_times_csv import read_times
    from simulate.profiles.profile import save_profile

    found = read_times(table, device=device, context=_range(context))
    save_profile(found, output)
    sizes = ", ".join(dict.fromkeys(str(times.batch) for times in found.batches))
    click.echo(
        f"profile of chains at batch {sizes} written to {output}; a step over a plain step is taken to be known "
        f"within {found.relative_error:.1%}",
        err=True,
    )


def _range(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    low, _, high = text.partition("-")
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in (low, high)):
        raise UsageError(f"--context must be like 512-2048, got {text!r:.40}")
    found = int(low), int(high)
    if found[0] > found[1]:
        raise UsageError(f"--context must go from fewest to most, got {text}")
    return found
