"""`treeopt times`: step times of an inference engine, as a profile."""

from pathlib import Path

import click

from treeopt.cli.options import general, output_files, printing
from treeopt.cli.options.help_sections import Command, examples
from treeopt.cli.options.value_types import LARGEST, count
from treeopt.errors import UsageError

EXAMPLES = examples(
    "printf 'batch,drafted,step_ms\\n1,0,10\\n1,1,12\\n' > steps.csv",
    "treeopt times steps.csv --device 'H100 SXM, vLLM 0.33.0' --context 512-2048 --output engine.json",
    "treeopt times steps.csv --device 'my machine' --context 64-64 --output mine.json",
)


@click.command(cls=Command, epilog=EXAMPLES)
@click.argument("tables", metavar="TABLE...", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option("--device", required=True, help='The measured device, in words: "H100 SXM, vLLM 0.33.0, Llama 3.1 8B".')
@click.option(
    "--context",
    help="Cached tokens per request while measuring: a range such as 512-2048, or one number such as 8k; or give a "
    "`context` column.",
)
@click.option(
    "--columns",
    metavar="NAMES",
    help="The table's names of columns, such as batch=bs,step_us=latency; in place of committed also accepted=NAME, "
    "without the bonus, or acceptance=NAME, accepted over drafted.",
)
@click.option("--output", type=general.FILE, required=True, help="Write the profile to this file (.json).")
@general.force
def times(
    tables: tuple[Path, ...], device: str, context: str | None, columns: str | None, output: Path, *, force: bool
) -> None:
    """Turn the step times in TABLE, measured on an engine, into a profile.

    TABLE is comma-separated; several files count as one. Columns: batch; drafted, tokens of the chain, 0 for plain
    decoding; step_ms (time between a request's outputs), or committed (tokens per request and step) with tokens_s (all
    requests) or tpot_ms; times also as _us or _s. --columns names columns that are called otherwise. Every batch size
    needs lines with 0 and 1 drafted tokens. What `vllm bench serve` saves as JSON or prints, and the JSON results of
    SGLang's bench_speculative and bench_one_batch, are read as such lines. `treeopt export --replay` makes the engine
    accept what a trace accepts while it is measured. The profile covers chains only: give `search` the engine's name.
    TABLE may also be the cost table of SGLang's DSpark planner (JSON), whose steps all draft, plain ones too.
    """
    output_files.check_output(output, force=force)
    if not device.strip():
        raise UsageError("--device must name the device that was measured")
    from simulate.profiles.engine_times_csv import read_times
    from simulate.profiles.profile import save_profile
    from simulate.profiles.sglang_cost_table import read_cost_table

    named = dict(part.partition("=")[::2] for part in columns.split(",")) if columns is not None else {}
    profile = read_cost_table(tables[0], device=device) if len(tables) == 1 else None
    profile = profile or read_times(*tables, device=device, context=_range(context), columns=named)
    save_profile(profile, output)
    printing.warn(profile.doubts)
    sizes = ", ".join(dict.fromkeys(str(times.batch) for times in profile.batches))
    printing.say(
        f"profile of chains at batch {sizes} written to {output}; the ratio of a step to a plain step is assumed to be "
        f"known within {profile.relative_error:.1%}"
    )


def _range(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    low, dash, high = text.partition("-")
    try:
        bounds = count(low), count(high if dash else low)
    except ValueError as error:
        raise UsageError(f"--context must be like 8k or 512-2048, got {text!r:.40}") from error
    if bounds[1] > LARGEST:
        raise UsageError(f"--context must be at most {LARGEST} tokens, got {text:.40}")
    if bounds[0] > bounds[1]:
        raise UsageError(f"--context must give the smaller number first, got {text}")
    return bounds
