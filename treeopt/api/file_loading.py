"""Load or import traces, profiles, plans and trees by path, and find the profile that belongs to a trace."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from treeopt.api.messages import note
from treeopt.cost_model import CostModel
from treeopt.errors import UsageError
from treeopt.plans import Plan
from treeopt.plans import load_plan as read_plan
from treeopt.settings import typed
from treeopt.traces.resumable_shards import load_file_or_shards
from treeopt.traces.trace import Trace
from treeopt.tree import Tree
from treeopt.tree_files.choice_lists import read_tree

if TYPE_CHECKING:
    from simulate.profiles.profile import Profile

Cost = TypeVar("Cost", bound=CostModel)
FILE = "the path of a file"


def path_of(value: object, wanted: str) -> Path:
    """Return a value as a path.

    Raises:
        UsageError: it is none; says what is wanted.

    >>> path_of("plan.json", "a plan").name
    'plan.json'
    """
    if not isinstance(value, str | os.PathLike):
        raise UsageError(f"{wanted} is wanted, got a value of type {type(value).__name__}")
    return Path(value)


def load_trace(path: Path | str, *, ranks_only: bool = False) -> Trace:
    """Read and check a trace: a .npz file, or the folder of `treeopt trace collect --parts`.

    Args:
        path: file or folder.
        ranks_only: leave the probabilities and candidates of a folder unread.

    Raises:
        TraceError: names file, field and index of what is missing or wrong.

    Examples:
        >>> import treeopt
        >>> trace = treeopt.load_trace("data/traces/medusa-t0.npz")
        >>> trace.requests, trace.anchors, trace.depth
        (1000, 32000, 5)
    """
    return load_file_or_shards(path_of(path, FILE), ranks_only=ranks_only)


@typed
def import_trace(path: Path | str, *, kind: str = "engine", seed: int = 0, **settings: Any) -> Trace:
    """Turn acceptance figures that another program measured into a trace; what they leave open is logged as a note.

    Args:
        path: the file, such as the saved `/metrics` page of a server.
        kind: its format; "engine" recognises the output of an engine by its content.
        seed: of the texts, which are made up.
        settings: of the format, as `treeopt trace import` has them: `requests`, `depth`, `before`, `column`, ...

    Raises:
        UsageError: no such format, or a setting that it does not take.
        TraceError: names the file and what is wrong in it.

    Examples:
        >>> import treeopt
        >>> trace = treeopt.import_trace("docs/examples/vllm_metrics.txt")
        >>> trace.depth, trace.meta["imported"]["engine"]
        (5, 'vllm')
    """
    if seed < 0:
        raise UsageError(f"seed must be at least 0, got {seed}")
    trace = imported(path_of(path, FILE), kind, seed, settings)
    note(f"assumed: {sentence}" for sentence in trace.meta["assumed"])
    return trace


def imported(path: Path, kind: str, seed: int, settings: Mapping[str, Any]) -> Trace:
    """Return the trace of figures that another program measured; see `import_trace`."""
    from treeopt.traces.importers import trace_source

    given = {name: value for name, value in settings.items() if value is not None}
    trace_source.check_settings(kind, given)
    made_up = {name: given.pop(name) for name in ("requests", "length") if name in given}
    if "before" in given:
        given["before"] = Path(given["before"])
    return trace_source.import_trace(trace_source.ImportedFile(path, kind, _saved, seed=seed, **made_up), given)


def _saved(path: Path) -> Any:
    """Return the plain values of a file of `torch.save`."""
    from executor.checkpoints.tensors.find_tensor_files import read_saved

    return read_saved(path)


def load_profile(path: Path | str) -> "Profile":
    """Read and check a profile: measured or predicted step times.

    Raises:
        CostError: names file and field of what is missing or wrong.

    Examples:
        >>> import treeopt
        >>> profile = treeopt.load_profile("data/profiles/medusa-cpu.json")
        >>> profile.meta["device"]
        'cpu, 1 threads'
    """
    from simulate.profiles.profile import load_profile as read_profile

    return read_profile(path_of(path, FILE))


def load_plan(path: Path | str) -> Plan:
    """Read and check a plan that `treeopt.search` made and `save_plan` wrote.

    Raises:
        PlanError: names file and field of what is missing or wrong.

    Examples:
        >>> import tempfile, treeopt
        >>> plan = treeopt.search("data/traces/medusa-t0.npz", batch=4, max_nodes=4, solver_work=0)
        >>> with tempfile.NamedTemporaryFile(suffix=".json") as file:
        ...     treeopt.save_plan(plan, file.name)
        ...     treeopt.load_plan(file.name).entry(4).choice.nodes
        2
    """
    return read_plan(path_of(path, FILE))


def load_tree(path: Path | str, *, name: str | None = None) -> Tree:
    """Read the tree of a growmap or choice list, files of `torch.save` too; a note says if prefixes were implied.

    Args:
        path: the file.
        name: of the tree, in a file with several.

    Raises:
        TreeError: see `treeopt.tree_files.choice_lists.read_tree`.
        ExecutorError: a `.pt` file that holds other than plain values.

    Examples:
        >>> import tempfile, treeopt
        >>> with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        ...     print("[[0], [1], [0, 0]]", file=file, flush=True)
        ...     treeopt.load_tree(file.name).paths
        ((0,), (1,), (0, 0))
    """
    tree_file = read_tree(path_of(path, FILE), name=name, saved=_saved)
    if tree_file.reading == "leaves only":
        note([f"{path}: read as a list of leaves, which implies {tree_file.tree.nodes} nodes"])
    return tree_file.tree


def as_trace(
    trace: Trace | Path | str, *, ranks_only: bool = False, to_split: bool = False
) -> tuple[Trace, Path | None]:
    """Return a trace and its file, if it was given by path."""
    if isinstance(trace, Trace):
        return trace, None
    file = path_of(trace, "a trace, or the path of one,")
    return load_file_or_shards(file, ranks_only=ranks_only, to_split=to_split), file


def as_profile(
    profile: "Cost | Path | str | None", trace: Trace, trace_file: Path | None, *, engine: str | None = None
) -> "Cost | Profile":
    """Return the profile, loaded from its path; None finds the one of the trace's models and notes its name.

    Raises:
        CostError: it cannot be read, or none was found.
    """
    from simulate.profiles.profile import profile_of_trace

    if profile is None:
        found, name = profile_of_trace(trace.meta, trace_file, engine=engine)
        note([name])
        return found
    if isinstance(profile, Path | str) or not hasattr(profile, "plain_s"):
        return load_profile(path_of(profile, "a profile, another cost model, or the path of a profile"))
    return profile


def as_plan(plan: Plan | Path | str | None) -> Plan | None:
    """Return the plan, loaded from its path."""
    return plan if plan is None or isinstance(plan, Plan) else load_plan(plan)
