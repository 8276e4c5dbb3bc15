"""`treeopt compare`: drafters side by side on the same prompts."""

import json
from pathlib import Path
from typing import Any

import click
import numpy as np

from treeopt.cli.commands.search import drawn, load
from treeopt.cli.options import general
from treeopt.cli.options.matching_files import profile_for, warn_unless_same
from treeopt.constraints import Constraint
from treeopt.cost_model import CostModel
from treeopt.errors import UsageError
from treeopt.planning.compare_drafters import SIZES
from treeopt.planning.compare_drafters import compare as find
from treeopt.planning.trees_of_size import parse_sizes
from treeopt.storage.atomic_files import write_text
from treeopt.traces.trace import Trace


@click.command()
@click.argument("traces", type=general.FOLDER, nargs=-1, required=True)
@click.option("--batch", type=general.Numbers(), help="Also at these batch sizes, each drafter with its own best tree.")
@click.option(
    "--profile",
    "profiles",
    type=general.FILE,
    multiple=True,
    help="Step times of each trace, in their order; default the traces' own, if found.",
)
@click.option(
    "--shapes",
    "sizes",
    help=f"Trees that all are judged with; default {','.join(f'{size.kind}:{size.nodes}' for size in SIZES)}.",
)
@click.option("--requests", type=click.IntRange(min=4), help="The first so many of each trace; default all.")
@click.option(
    "--same-prompts", is_flag=True, help="Request i of each trace is of one prompt, even if the traces do not say so."
)
@click.option(
    "--context",
    type=click.IntRange(min=0),
    help="Tokens a sequence in the cache; default as profiled, of several contexts the shortest.",
)
@general.max_nodes
@general.max_depth
@general.seed
@click.option("--output", type=general.FILE, help="Write the result here (.json).")
@general.as_json
def compare(
    traces: tuple[Path, ...],
    batch: tuple[int, ...] | None,
    profiles: tuple[Path, ...],
    sizes: str | None,
    requests: int | None,
    output: Path | None,
    as_json: bool,
    seed: int,
    **settings: Any,
) -> None:
    """Compare drafters by their TRACES, with the first: tau with trees of one size, speedups at batch sizes.

    Differences are paired by request where the traces are of the same prompts.
    """
    general.check_output(output)
    if profiles and batch is None:
        raise UsageError("--profile is for batch sizes: give --batch")
    if profiles and len(profiles) != len(traces):
        raise UsageError(f"--profile must be given once for each trace, {len(traces)} times, got {len(profiles)}")
    settings["sizes"] = SIZES if sizes is None else parse_sizes(sizes)
    found: dict[str, Trace] = {}
    rules: dict[str, tuple[Constraint, ...]] = {}
    costs: dict[str, CostModel] = {}
    for name, path, profile_file in zip(_names(traces), traces, profiles or [None] * len(traces), strict=True):
        trace = _first(load(path, whole=False), requests, path)
        if batch is not None:
            profile = profile_for(trace, path, profile_file)
            warn_unless_same(f"trace {name} and its profile", trace.meta, profile.meta)
            costs[name] = profile
        found[name], rules[name] = drawn(trace, seed)
    result = find(found, costs, batch=batch or (), rules=rules, seed=seed, **settings)
    from treeopt.report.compare_tables import comparison_record, show_comparison

    record = comparison_record(result)
    if output:
        write_text(output, json.dumps(record, indent=1) + "\n")
    if as_json:
        general.print_json(record)
        return
    show_comparison(record)


def _names(paths: tuple[Path, ...]) -> list[str]:
    """What the files are called: their names without ending, with as many folders as it takes to tell them apart."""
    parts = [path.resolve().with_suffix("").parts for path in paths]
    for many in range(1, max(map(len, parts)) + 1):
        names = ["/".join(each[-many:]) for each in parts]
        if len(set(names)) == len(names):
            return names
    twice = next(path for path, each in zip(paths, parts, strict=True) if parts.count(each) > 1)
    raise UsageError(f"{twice} is given twice")


def _first(trace: Trace, requests: int | None, path: Path) -> Trace:
    """The first so many requests.

    Raises:
        UsageError: there are fewer.
    """
    if requests is None:
        return trace
    if requests > trace.requests:
        raise UsageError(f"--requests {requests}: {path} has {trace.requests}")
    return trace.select(np.arange(requests))
