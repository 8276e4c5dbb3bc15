"""The profile that belongs to a trace: of the same target and drafter, beside the trace or shipped with treeopt."""

from pathlib import Path
from typing import Any

from simulate.profiles.profile import Profile, load_profile
from treeopt.comparison.mismatch_warnings import differing_models, names_weights
from treeopt.errors import CostError
from treeopt.storage.provenance import GREEDY, look, same_choosing
from treeopt.storage.user_files import shipped


def profile_of_trace(meta: Any, trace_file: Path | None = None, *, engine: str | None = None) -> tuple[Profile, str]:
    """Return the profile of the trace's target and drafter, and a sentence that names its file.

    Among several profiles, the first whose steps chose tokens by the trace's rule comes before the first of all.

    Args:
        meta: the provenance of the trace.
        trace_file: its file, whose folder is searched before the shipped profiles; None searches only those.
        engine: the engine that steps are wanted for, named in the error.

    Raises:
        CostError: there is no such profile.
    """
    profiles: dict[str, Profile] = {}
    beside = [] if trace_file is None else sorted(trace_file.parent.glob("*.json"))
    for path in (*beside, *sorted(shipped("profiles").glob("*.json"))):
        try:
            profile = load_profile(path)
        except CostError:
            continue  # a plan, a training log, ...
        if names_weights(meta) and not differing_models(profile.meta, meta):
            profiles.setdefault(path.name, profile)
    if not profiles:
        where = "" if trace_file is None else f"{trace_file}: "
        raise CostError(
            f"{where}no profile of this target and drafter was found; name one with --profile: measured by `treeopt "
            f"profile --engine {engine or 'ENGINE'}` or, in treeopt's own loop, `treeopt profile`; made by `treeopt "
            "times` from an engine's step times; or predicted from data sheets by `treeopt whatif --profiles`"
        )
    name = min(profiles, key=lambda name: not same_choosing(GREEDY | dict(profiles[name].meta), meta))
    graphs = ", measured with CUDA graphs" if look(profiles[name].meta, "graphs") else ""
    return profiles[name], f"profile: {name}{graphs}"
