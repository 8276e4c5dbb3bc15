"""Choose, predict and run token trees for speculative decoding: topology, traces, search, plans.

`import treeopt` offers the Python API: what the commands do, as functions of values. Each name is loaded when it is
first used, so that importing treeopt takes no time. The rooms, in the order of import:

* `errors`, `registry`, `settings`, `defaults`: the errors, registries of kinds, settings of questions, their defaults.
* `acceptance_rule_entries`: the rules that decide which drafted tokens are accepted, by name.
* `tree`, `cost_model`: the tree, the protocol of step times.
* `display_methods`: methods that values share: HTML for notebooks, plots, files.
* `storage`, `statistics`: files and provenance; estimates with intervals.
* `traces`, `tree_files`: what a drafter gets right, and importers of other programs' figures; other programs' trees.
* `policies`, `constraints`, `replay`: dynamic trees; rules of engines; which drafted tokens a tree gets accepted.
* `searchers`, `plans`, `planning`: search algorithms; the result and its JSON; from a trace and step times to a plan.
* `comparison`, `engines`: drafters side by side; exports, engine rules and drivers.
* `monitoring`: running servers beside their plan.
* `results`, `terminal`: each kind of result as tables and sentences; how a terminal shows them.
* `charts`, `report`: charts as values and their renderers; the HTML page.
* `api`, `notebook`, `explore`, `cli`: the Python API, one command per file; values in notebooks and files; a local
  page; the command line, which parses, calls and prints.

>>> import treeopt
>>> treeopt.Tree.chain(2).paths
((0,), (0, 0))
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from treeopt.display_methods import provide

if TYPE_CHECKING:
    from simulate.profiles.profile import Profile as Profile
    from simulate.profiles.profile import save_profile as save_profile
    from treeopt.api.compare_traces import compare as compare
    from treeopt.api.decode_prompts import decode as decode
    from treeopt.api.file_loading import import_trace as import_trace
    from treeopt.api.file_loading import load_plan as load_plan
    from treeopt.api.file_loading import load_profile as load_profile
    from treeopt.api.file_loading import load_trace as load_trace
    from treeopt.api.file_loading import load_tree as load_tree
    from treeopt.api.profile_steps import profile as profile
    from treeopt.api.record_trace import collect as collect
    from treeopt.api.search_trace import search as search
    from treeopt.api.simulate_requests import simulate as simulate
    from treeopt.api.simulate_requests import verdict as verdict
    from treeopt.api.train_drafter import train as train
    from treeopt.api.tune_engine import tune as tune
    from treeopt.api.validate_plan import validate as validate
    from treeopt.api.watch_server import watch as watch
    from treeopt.api.whatif_devices import whatif as whatif
    from treeopt.charts.matplotlib_axes import draw_speedups as draw_speedups
    from treeopt.charts.matplotlib_axes import draw_tau as draw_tau
    from treeopt.errors import TreeoptError as TreeoptError
    from treeopt.notebook import load_record as load_record
    from treeopt.notebook import load_validation as load_validation
    from treeopt.planning.tuner import Tuner as Tuner
    from treeopt.plans import Plan as Plan
    from treeopt.plans import save_plan as save_plan
    from treeopt.replay.static_tree import replay_tree as replay_tree
    from treeopt.results.kinds import Record as Record
    from treeopt.results.kinds import Validation as Validation
    from treeopt.traces.importers.acceptance_curves import acceptance as acceptance
    from treeopt.traces.importers.acceptance_curves import published_acceptance as published_acceptance
    from treeopt.traces.trace import Trace as Trace
    from treeopt.traces.trace_files import save_trace as save_trace
    from treeopt.tree import Tree as Tree

# Module -> the names that it holds; it is loaded when one of them is first used.
_NAMES = {
    "simulate.profiles.profile": "Profile save_profile",
    "treeopt.api.compare_traces": "compare",
    "treeopt.api.decode_prompts": "decode",
    "treeopt.api.file_loading": "import_trace load_plan load_profile load_trace load_tree",
    "treeopt.api.profile_steps": "profile",
    "treeopt.api.record_trace": "collect",
    "treeopt.api.search_trace": "search",
    "treeopt.api.simulate_requests": "simulate verdict",
    "treeopt.api.train_drafter": "train",
    "treeopt.api.tune_engine": "tune",
    "treeopt.api.validate_plan": "validate",
    "treeopt.api.watch_server": "watch",
    "treeopt.api.whatif_devices": "whatif",
    "treeopt.charts.matplotlib_axes": "draw_speedups draw_tau",
    "treeopt.errors": "TreeoptError",
    "treeopt.notebook": "load_record load_validation",
    "treeopt.planning.tuner": "Tuner",
    "treeopt.plans": "Plan save_plan",
    "treeopt.replay.static_tree": "replay_tree",
    "treeopt.results.kinds": "Record Validation",
    "treeopt.traces.importers.acceptance_curves": "acceptance published_acceptance",
    "treeopt.traces.trace": "Trace",
    "treeopt.traces.trace_files": "save_trace",
    "treeopt.tree": "Tree",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_MODULES)  # noqa: PLE0605 (a list of names)

# Function that methods of values call -> the module that holds it.
_METHODS = {
    "frame_of": "treeopt.notebook",
    "html_of": "treeopt.notebook",
    "plot_value": "treeopt.notebook",
    "save_value": "treeopt.notebook",
    "text_of": "treeopt.notebook",
}
provide(tuple(_METHODS), lambda name: getattr(import_module(_METHODS[name]), name))


def __getattr__(name: str) -> Any:
    """Load a name of the API when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module 'treeopt' has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the API for completion."""
    return sorted({*globals(), *__all__})
