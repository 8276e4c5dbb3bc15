"""`treeopt whatif`: the best tree on devices, batch sizes and contexts that were not measured."""

import math
from functools import partial
from pathlib import Path

import click

from simulate.profiles.profile import SCHEMA as PROFILE
from simulate.profiles.profile import save_profile
from simulate.whatif.whatif_settings import WhatIfSettings
from treeopt.api.whatif_devices import WhatIf
from treeopt.cli.options import general, output_files, printing
from treeopt.cli.options.help_sections import Command, examples
from treeopt.cli.options.output_files import ResultFiles
from treeopt.cli.options.settings_options import options_of
from treeopt.cli.options.trace_or_figure import trace_source
from treeopt.cli.options.value_types import DEVICE, DEVICES, EngineName, Model, Text
from treeopt.engines import ENGINES
from treeopt.errors import UsageError
from treeopt.plans import SCHEMA as PLAN
from treeopt.plans import save_plan
from treeopt.storage.json_records import RecordError, parse
from treeopt.storage.provenance import look
from treeopt.storage.user_files import read_text
from treeopt.traces.trace import Trace

SECTIONS = {
    "Input": "trace_file acceptance target drafter kind",
    "Devices": "hardware prices",
    "Question": "batch context engine",
    "Output": "plans output",
}
EXAMPLES = examples(
    "treeopt whatif --trace data/traces/medusa-t0.npz --hardware h100,l40s --target 8b --batch 1-4 --max-nodes 15",
    "treeopt whatif --trace data/traces/medusa-t0.npz --hardware h100 --target 8b --batch 1 "
    "--max-nodes 15 --price h100=2.5 --plans plans",
)
FOLDER = click.Path(path_type=Path, file_okay=False)


def _named_numbers(text: str, example: str) -> dict[str, float]:
    """Return numbers by name.

    >>> _named_numbers("params=8e9, kv_bytes=131072", "params=8e9")
    {'params': 8000000000.0, 'kv_bytes': 131072.0}
    """
    numbers: dict[str, float] = {}
    for part in text.split(","):
        name, _, number = (word.strip() for word in part.partition("="))
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if not name or not math.isfinite(value) or name in numbers:
            form = "is not NAME=NUMBER with a name of its own, such as"
            raise ValueError(f"{part.strip()!r:.80} {form} {example}")
        numbers[name] = value
    return numbers


def _pair(text: str) -> tuple[float, ...]:
    """Return the two numbers of such as `20,25`."""
    try:
        return tuple(map(float, text.split(",")))
    except ValueError:
        raise ValueError(f"{text!r:.80} is not two numbers such as 20,25") from None


TYPES = {
    **dict.fromkeys(("target", "drafter"), Model()),
    **dict.fromkeys(("measured_on", "like"), DEVICE),
    "hardware": DEVICES,
    "profile": general.FILE,
    "prices": Text("text", partial(_named_numbers, example="h100=2.5"), dict),
    "sizes": Text("text", partial(_named_numbers, example="params=8e9"), dict),
    **dict.fromkeys(("link", "data_sheet"), Text("text", _pair, tuple, whole=True)),
    "engine": EngineName(ENGINES.limiting, versions=True),
}


@click.command(cls=Command, sections=SECTIONS, epilog=EXAMPLES, renamed={"--engine": "--for"})
@trace_source(general.FILE, "The recorded acceptance (.npz).")
@options_of(WhatIfSettings, types=TYPES)
@click.option(
    "--plans", type=FOLDER, help="Write a plan of each device and context to this folder, for `treeopt export`."
)
@click.option(
    "--profiles",
    "tables",
    type=FOLDER,
    help="Write the step times of each device to this folder, for --profile of search, compare and simulate.",
)
@output_files.result_options()
def whatif(
    trace_file: Path | Trace,
    settings: WhatIfSettings,
    plans: Path | None,
    tables: Path | None,
    files: ResultFiles,
) -> None:
    """Choose a tree for each device, context and batch size, and say where speculation stops paying.

    Step times come from the models' sizes and the devices' data sheets; with --profile, from times measured on
    another device, scaled to each. Acceptance is the trace's everywhere. With --price per hour, in any currency, also
    the price of a million tokens, and the cheapest configuration.
    """
    files.check()
    for folder, option in ((plans, "--plans"), (tables, "--profiles")):
        if folder is not None:
            output_files.check_output(folder / "x" if folder.is_dir() else folder, option)
    question = WhatIf.prepare(trace_file, settings)
    plan_names, table_names = question.file_names()
    _check_files(plans, plan_names, PLAN, "--plans")
    _check_files(tables, table_names, PROFILE, "--profiles")
    record = question.answer(printing.progress)
    if plans is not None:
        plans.mkdir(exist_ok=True)
        for name, plan in record.plans().items():
            save_plan(plan, plans / name)
            printing.say(f"plan written to {plans / name}")
    if tables is not None:
        tables.mkdir(exist_ok=True)
        for name, times in record.profiles().items():
            save_profile(times, tables / name)
            printing.say(f"step times written to {tables / name}")
    if files.as_json:
        printing.warn(record["warnings"])
    named = [str((plans or Path("plans")) / name) for name in plan_names]
    files.give("whatif", record, plans=named, written=plans is not None)


def _check_files(folder: Path | None, names: list[str], schema: str, option: str) -> None:
    """Raise UsageError before any work where a file could not be written, or holds what whatif did not write."""
    if folder is None or not folder.is_dir():
        return
    for path in (folder / name for name in names):
        output_files.check_output(path, option, force=True)
        if not path.exists():
            continue
        try:
            record = parse(read_text(path), schema)
        except (OSError, UnicodeDecodeError, RecordError):
            record = {}
        meta = record.get("meta")
        if not record or (schema != PLAN and look(meta, "predicted") is None and look(meta, "transfer") is None):
            raise UsageError(f"{option}: {path} exists and was not written by `treeopt whatif`: name another folder")
