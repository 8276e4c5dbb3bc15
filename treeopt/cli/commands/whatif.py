"""`treeopt whatif`: the best tree on devices, batch sizes and contexts that were not measured."""

import json
from pathlib import Path
from typing import Any

import click

from simulate.model_sizes.drafter_kinds import DRAFTERS
from simulate.profiles.profile import SCHEMA as PROFILE
from simulate.profiles.profile import save_profile
from simulate.whatif.whatif_settings import LINKS, PRICES
from treeopt.api.whatif_devices import WhatIf
from treeopt.cli.commands.search import engine_rules
from treeopt.cli.options import general, output_files, printing
from treeopt.cli.options.completed_names import Devices, Model
from treeopt.cli.options.help_sections import Command, examples
from treeopt.cli.options.value_types import Numbers, Real
from treeopt.defaults import BYTES, WHATIF_BATCHES, WHATIF_CONTEXT
from treeopt.errors import UsageError
from treeopt.plans.plan_json import SCHEMA as PLAN
from treeopt.plans.plan_json import save_plan
from treeopt.storage.atomic_files import write_text
from treeopt.storage.json_records import RecordError, parse
from treeopt.storage.provenance import look
from treeopt.storage.user_files import read_text

SECTIONS = {
    "Input": "trace_file target drafter",
    "Devices": "hardware price",
    "Question": "batch context max_tpot_ms",
    "Output": "plans output as_json",
}
EXAMPLES = examples(
    "treeopt whatif --trace data/traces/medusa-t0.npz --hardware h100,l40s --target data/models/stdlib-llama "
    "--batch 1-4 --max-nodes 15",
    "treeopt whatif --trace data/traces/eagle-t0.npz --hardware h100 --target data/models/stdlib-llama --batch 1 "
    "--max-nodes 15 --price h100=2.5 --plans plans",
)
FOLDER = click.Path(path_type=Path, file_okay=False)
POSITIVE = Real(min=0, min_open=True)
MODEL = Model()


@click.command(cls=Command, sections=SECTIONS, epilog=EXAMPLES)
@click.option("--trace", "trace_file", type=general.FILE, required=True, help="The recorded acceptance (.npz).")
@click.option(
    "--hardware",
    type=Devices(several=True),
    required=True,
    help="Devices, such as h100,4xh100,l40s: names of data/hardware.json; 4x: four devices of a node share every "
    "layer.",
)
@click.option(
    "--target",
    type=MODEL,
    required=True,
    help="The target's folder or config.json, or a shape (1b, 8b, 14b, 70b): its sizes.",
)
@click.option(
    "--drafter",
    type=MODEL,
    help="The drafter's folder or config.json, or a shape; default sizes as the target's.",
)
@click.option(
    "--kind",
    type=click.Choice(list(DRAFTERS)),
    help="Kind of drafter; default as its configuration states, else as recorded in the trace.",
)
@click.option(
    "--batch",
    type=Numbers(),
    default=f"{WHATIF_BATCHES[0]}-{WHATIF_BATCHES[-1]}",
    show_default=True,
    help="Batch sizes; 1-64 doubles from 1 to 64.",
)
@click.option(
    "--context",
    type=Numbers("context lengths"),
    default=str(WHATIF_CONTEXT),
    show_default=True,
    help="Tokens in the cache; 8k is 8192.",
)
@click.option("--profile", "profile_file", type=general.FILE, help="Step times measured on another device.")
@click.option("--measured-on", type=Devices(), help="The device that --profile was measured on.")
@click.option("--bandwidth", type=POSITIVE, help="Memory bandwidth of a custom device in GB/s.")
@click.option("--flops", type=POSITIVE, help="Dense bf16 TFLOP/s of the custom device.")
@click.option(
    "--link",
    help="GB/s that each of several devices sends, and the minimum microseconds of an exchange, such as 20,25; for "
    "devices whose exchange is not known.",
)
@click.option(
    "--memory",
    type=Real(0, 1e9, min_open=True),
    help="Memory of the custom device in GB; not checked by default.",
)
@click.option("--like", type=Devices(), help="A known device whose constants to use for a device whose class has none.")
@click.option(
    "--weight-bytes",
    type=POSITIVE,
    help="Bytes per target weight, as stored; default 2. The LM head counts at least 2.",
)
@click.option(
    "--draft-bytes", type=POSITIVE, help="Bytes per drafter weight; default 2, or the target's if that is more."
)
@click.option("--kv-bytes", type=POSITIVE, default=BYTES, show_default=True, help="Bytes per number in the K/V cache.")
@click.option("--price", help="Price of one device per hour, such as h100=2.5,l40s=0.9; also prices tokens.")
@click.option(
    "--max-tpot-ms",
    type=POSITIVE,
    help="With --price: name the cheapest configuration that takes at most this many milliseconds per token.",
)
@engine_rules
@general.max_nodes
@general.max_depth
@general.seed
@click.option(
    "--plans", type=FOLDER, help="Write a plan of each device and context to this folder, for `treeopt export`."
)
@click.option(
    "--profiles",
    "tables",
    type=FOLDER,
    help="Write the step times of each device to this folder, for --profile of search, compare and simulate.",
)
@click.option("--output", type=general.FILE, help="Write the result to this file (.json).")
@general.table
@general.as_json
@general.verbose
@general.quiet
def whatif(
    trace_file: Path,
    hardware: str,
    profile_file: Path | None,
    plans: Path | None,
    tables: Path | None,
    output: Path | None,
    table_file: Path | None,
    as_json: bool,
    price: str | None,
    link: str | None,
    max_tpot_ms: float | None,
    **settings: Any,
) -> None:
    """Choose a tree for each device, context and batch size, and say where speculation stops paying.

    Step times come from the models' sizes and the devices' data sheets; with --profile, from times measured on
    another device, scaled to each. Acceptance is the trace's everywhere. With --price per hour, in any currency, also
    the price of a million tokens, and the cheapest configuration.
    """
    printing.hold_warnings()
    output_files.check_output(output)
    output_files.check_output(table_file, "--table")
    for folder, option in ((plans, "--plans"), (tables, "--profiles")):
        if folder is not None:
            output_files.check_output(folder / "x" if folder.is_dir() else folder, option)
    question = WhatIf.prepare(
        trace_file,
        hardware=hardware.split(","),
        profile=profile_file,
        prices=None if price is None else _prices(price),
        link=None if link is None else _link(link),
        max_tpot_s=None if max_tpot_ms is None else max_tpot_ms / 1e3,
        **settings,
    )
    _check_files(plans, question.plan_files(), PLAN, "--plans")
    _check_files(tables, question.profile_files(), PROFILE, "--profiles")
    answer = question.answer(printing.progress)
    record = answer.record
    if plans is not None:
        plans.mkdir(exist_ok=True)
        for name, plan in answer.plans().items():
            save_plan(plan, plans / name)
            printing.say(f"plan written to {plans / name}")
    if tables is not None:
        tables.mkdir(exist_ok=True)
        for name, times in answer.profiles().items():
            save_profile(times, tables / name)
            printing.say(f"step times written to {tables / name}")
    if output:
        write_text(output, json.dumps(record, indent=1) + "\n")
    output_files.write_table(table_file, record.frame)
    if as_json:
        printing.warn(record["warnings"])
        printing.print_json(record)
        return
    from treeopt.results.whatif import scenario_blocks

    written = () if plans is None else [str(plans / name) for name in question.plan_files()]
    printing.show(scenario_blocks(record, plans=written))


def _prices(text: str) -> dict[str, float]:
    """Return the prices of such as `h100=2.5,l40s=0.9`, by name.

    >>> _prices("h100=2.5,l40s=0.9")
    {'h100': 2.5, 'l40s': 0.9}
    """
    prices: dict[str, float] = {}
    for part in text.split(","):
        name, equals, number = (word.strip() for word in part.partition("="))
        price = _float(number) if equals else None
        if not name or price is None or not PRICES[0] <= price <= PRICES[1]:
            bounds = f"a number from {PRICES[0]:g} to {PRICES[1]:g}"
            raise UsageError(f"--price takes NAME=PRICE, {bounds}, such as h100=2.5,l40s=0.9, not {part.strip()!r}")
        if name in prices:
            raise UsageError(f"--price names {name} twice")
        prices[name] = price
    return prices


def _link(text: str) -> tuple[float, ...]:
    """Return the two numbers of such as `20,25`."""
    numbers = [_float(word) for word in text.split(",")]
    if len(numbers) != 2 or not all(number and LINKS[0] <= number <= LINKS[1] for number in numbers):
        bounds = f"numbers from {LINKS[0]:g} to {LINKS[1]:g}"
        raise UsageError(f"--link takes GB/s and microseconds, {bounds}, such as 20,25, not {text!r}")
    return tuple(number for number in numbers if number)


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _check_files(folder: Path | None, names: list[str], schema: str, option: str) -> None:
    """Raise UsageError before any work where a file could not be written, or holds what whatif did not write."""
    if folder is not None and folder.is_dir():
        for name in names:
            output_files.check_output(folder / name, option, force=True)
            _check_own(folder / name, schema, option)


def _check_own(path: Path, schema: str, option: str) -> None:
    """Raise UsageError if a file exists that `treeopt whatif` did not write, such as a measured profile."""
    if not path.exists():
        return
    try:
        record = parse(read_text(path), schema)
    except (OSError, UnicodeDecodeError, RecordError):
        record = {}
    meta = record.get("meta")
    if not record or (schema != PLAN and look(meta, "predicted") is None and look(meta, "transfer") is None):
        raise UsageError(f"{option}: {path} exists and was not written by `treeopt whatif`: name another folder")
