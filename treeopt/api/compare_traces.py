"""`treeopt.compare`: drafters side by side on the same prompts."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from treeopt.api.file_loading import as_profile, as_trace, path_of
from treeopt.api.messages import warn
from treeopt.comparison import compare_drafters
from treeopt.comparison.compare_drafters import CompareSettings, Comparison
from treeopt.comparison.mismatch_warnings import model_warnings
from treeopt.constraints import Constraint
from treeopt.cost_model import CostModel
from treeopt.errors import UsageError
from treeopt.replay.sampled_rules import ranks_and_rules
from treeopt.settings import takes
from treeopt.storage.provenance import from_figure
from treeopt.storage.user_files import real_path
from treeopt.traces.trace import Trace

if TYPE_CHECKING:
    from simulate.profiles.profile import Profile

NAMED = "a trace by name, {'a': trace, 'b': trace}, or the path of one"


@takes(CompareSettings)
def compare(
    traces: Mapping[str, Trace | Path | str] | Sequence[Path | str],
    profiles: "Sequence[Profile | CostModel | Path | str] | None" = None,
    *,
    settings: CompareSettings,
) -> Comparison:
    """Compare drafters by their traces: tau with trees of one size, and speedups at batch sizes.

    The first drafter is the one that the others are compared with. Differences are paired by request where the traces
    were recorded on the same prompts.

    Args:
        traces: what each drafter got right: traces or files by name, or files alone, which are named after their paths.
        profiles: step times of each trace, in their order; default found for each trace where `batch` is given.

    Raises:
        UsageError: fewer than two traces, profiles without batch sizes, or prompts that are not the same.
        TraceError: too few requests.
        CostError: a profile that is missing or does not cover a batch size.

    Examples:
        >>> import treeopt
        >>> found = treeopt.compare(["data/traces/medusa-t0.npz", "data/traces/eagle-t0.npz"], sizes="chain:2")
        >>> found.frame()[["drafter", "tau"]].round(2).to_dict("records")
        [{'drafter': 'medusa-t0', 'tau': 1.35}, {'drafter': 'eagle-t0', 'tau': 2.15}]
    """
    if isinstance(traces, str) or not isinstance(traces, Collection):
        raise UsageError("several traces are wanted, got one: a list of paths, or {'a': trace, 'b': trace}")
    if profiles is not None and not settings.batch:
        raise UsageError("--profile is for batch sizes: give --batch")
    given = len(profiles) if isinstance(profiles, Sequence) else 1
    if profiles is not None and given != len(traces):
        raise UsageError(f"--profile must be given once for each trace, {len(traces)} times, got {given}")
    settings = settings.changed(sizes=settings.shapes)  # refuses a text that is none before any file is read
    named = traces if isinstance(traces, Mapping) else names_of_files([path_of(path, NAMED) for path in traces])
    ranked: dict[str, Trace] = {}
    rules: dict[str, tuple[Constraint, ...]] = {}
    costs: dict[str, CostModel] = {}
    for number, (name, source) in enumerate(named.items()):
        trace, file = as_trace(source, ranks_only=True)
        if settings.requests is not None:
            if settings.requests > trace.requests:
                raise UsageError(f"--requests {settings.requests}: {file or name} has {trace.requests}: give fewer")
            trace = trace.select(np.arange(settings.requests))
        if settings.batch:
            costs[name] = as_profile(None if profiles is None else profiles[number], trace, file)
            warn(model_warnings(f"trace {name} and its profile", trace.meta, costs[name].meta))
        ranked[name], rules[name] = ranks_and_rules(trace, settings.seed)
    return compare_drafters.compare(ranked, costs, settings=settings, rules=rules)


def names_of_files(paths: Sequence[Path]) -> dict[str, Path]:
    """Return the files by name: without ending, with as many folders as it takes to distinguish them.

    Raises:
        UsageError: a file is given twice.

    Examples:
        >>> list(names_of_files([Path("/a/medusa.npz"), Path("/b/medusa.npz")]))
        ['a/medusa', 'b/medusa']
    """
    parts = [real_path(path).with_suffix("").parts for path in paths]
    for count in range(1, max(map(len, parts), default=0) + 1):
        names = ["/".join(words[-count:]) for words in parts]
        if len(set(names)) == len(names):
            return dict(zip(names, paths, strict=True))
    if not paths:
        return {}
    twice = next(path for path, words in zip(paths, parts, strict=True) if parts.count(words) > 1)
    raise UsageError(f"{twice} is given twice: a drafter is compared with others")


def names_of_figures(figures: Sequence[Trace]) -> dict[str, Trace]:
    """Return traces of figures of acceptance, each named after its figure.

    Raises:
        UsageError: a figure is given twice.
    """
    named = {from_figure(trace.meta).removeprefix("--"): trace for trace in figures}
    if len(named) < len(figures):
        raise UsageError(f"a figure is given twice among {', '.join(named)}")
    return named
