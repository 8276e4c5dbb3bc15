"""`treeopt.verdict`: which draft lengths pay, by the number of running requests."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulate.runs.simulate_settings import VerdictSettings
from treeopt.api.file_loading import as_profile, as_trace
from treeopt.api.messages import warn
from treeopt.comparison.mismatch_warnings import model_warnings
from treeopt.errors import UsageError
from treeopt.results.kinds import Record
from treeopt.settings import takes
from treeopt.storage.provenance import assumption, this_run
from treeopt.traces.trace import Trace

if TYPE_CHECKING:
    from simulate.profiles.profile import Profile


@takes(VerdictSettings)
def verdict(
    trace: Trace | Path | str, profile: "Profile | Path | str | None" = None, *, settings: VerdictSettings
) -> Record:
    """Compare no speculation, a fixed length, a schedule and adaptive verification at each number of running requests.

    Args:
        trace: the requests, and what the drafter got right; best with its confidences.
        profile: step times; None finds the profile of the trace's target and drafter.

    Returns:
        The record that `treeopt verdict --json` prints.

    Raises:
        UsageError: settings that contradict each other.
        TraceError: a trace of fewer than four requests.
        CostError: steps that the profile does not cover.

    Examples:
        >>> import treeopt
        >>> record = treeopt.verdict("data/traces/eagle3-t0.npz", batch=(4,))
        >>> record["loads"][0]["verdict"]
        'fixed'
    """
    from simulate.profiles.sglang_cost_table import profile_of_arms, write_cost_table
    from simulate.runs.server_load import read_running
    from simulate.runs.verdict_record import compare_lengths

    trace, trace_file = as_trace(trace)
    known, fixed = list[str](), dict[str, Any]()
    if settings.arms is not None:
        if profile is not None:
            raise UsageError("give one of --profile and --arms")
        profile, known = profile_of_arms(settings.arms, trace)
        fixed = {"fixed": profile.batches[0].deepest}
    profile = as_profile(profile, trace, trace_file)
    if settings.cost_table is not None:
        write_cost_table(profile, settings.cost_table)
    warn(model_warnings("trace and profile", trace.meta, profile.meta))
    sizes = sorted({*settings.batch} or {times.batch for times in profile.batches})
    loads = dict.fromkeys(sizes) if settings.running is None else read_running(settings.running)
    record = compare_lengths(trace, profile, loads, settings, **fixed)
    caveats = profile.caveats(trace=trace.meta, batches=tuple(loads))
    record["warnings"] = list(dict.fromkeys([*record["warnings"], *known, *assumption(trace.meta), *caveats]))
    running = None if settings.running is None else settings.running.name
    how = {name: getattr(settings, name) for name in ("pad", "adaptive_s", "seed")}
    record["meta"] = {
        "settings": settings.prompts.settings | {"batch": list(loads), "running": running} | how | fixed,
        "trace": dict(trace.meta),
        "cost": dict(profile.meta),
        "provenance": this_run(),
    }
    return Record(record)
