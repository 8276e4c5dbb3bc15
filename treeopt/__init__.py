"""Choose, predict and run token trees for speculative decoding: topology, traces, search, plans.

`import treeopt` offers the Python API: what the commands do, as functions of values. Each name is loaded when it is
first used, so that importing treeopt takes no time. The rooms, in the order of import:

* `errors`, `defaults`, `tree`, `cost_model`: the errors, default settings, the tree, the protocol of step times.
* `storage`, `statistics`: files and provenance; estimates with intervals.
* `traces`, `tree_files`: what a drafter gets right, and importers of other programs' figures; other programs' trees.
* `policies`, `constraints`, `replay`: dynamic trees; rules of engines; which drafted tokens a tree gets accepted.
* `searchers`, `plans`, `planning`: search algorithms; the result and its JSON; from a trace and step times to a plan.
* `comparison`, `engines`: drafters side by side; exports and engine rules.
* `tables`, `charts`, `report`: results on the terminal; charts as values and their renderers; the HTML page.
* `api`, `explore`, `cli`: the Python API, one command per file; a local page; the command line, which parses, calls and
  prints.

>>> import treeopt
>>> treeopt.Tree.chain(2).paths
((0,), (0, 0))
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulate.closed_forms.errors_on_published_speedups import reproduction_frame as reproduction_frame
    from simulate.closed_forms.errors_on_published_speedups import reproductions as reproductions
    from simulate.profiles.profile import Profile as Profile
    from simulate.profiles.profile import save_profile as save_profile
    from treeopt.api.compare_traces import compare as compare
    from treeopt.api.draw_charts import draw_speedups as draw_speedups
    from treeopt.api.draw_charts import draw_tau as draw_tau
    from treeopt.api.file_loading import load_plan as load_plan
    from treeopt.api.file_loading import load_profile as load_profile
    from treeopt.api.file_loading import load_trace as load_trace
    from treeopt.api.file_loading import load_tree as load_tree
    from treeopt.api.result_record import Record as Record
    from treeopt.api.search_trace import search as search
    from treeopt.api.simulate_requests import simulate as simulate
    from treeopt.api.validate_plan import validate as validate
    from treeopt.api.whatif_devices import whatif as whatif
    from treeopt.errors import TreeoptError as TreeoptError
    from treeopt.plans.plan import Plan as Plan
    from treeopt.plans.plan_json import save_plan as save_plan
    from treeopt.replay.static_tree import replay_tree as replay_tree
    from treeopt.traces.trace import Trace as Trace
    from treeopt.traces.trace import save_trace as save_trace
    from treeopt.tree import Tree as Tree

# Name -> the module that holds it, loaded when the name is first used.
_MODULES = {
    "Plan": "treeopt.plans.plan",
    "Profile": "simulate.profiles.profile",
    "Record": "treeopt.api.result_record",
    "Trace": "treeopt.traces.trace",
    "Tree": "treeopt.tree",
    "TreeoptError": "treeopt.errors",
    "compare": "treeopt.api.compare_traces",
    "draw_speedups": "treeopt.api.draw_charts",
    "draw_tau": "treeopt.api.draw_charts",
    "load_plan": "treeopt.api.file_loading",
    "load_profile": "treeopt.api.file_loading",
    "load_trace": "treeopt.api.file_loading",
    "load_tree": "treeopt.api.file_loading",
    "replay_tree": "treeopt.replay.static_tree",
    "reproduction_frame": "simulate.closed_forms.errors_on_published_speedups",
    "reproductions": "simulate.closed_forms.errors_on_published_speedups",
    "save_plan": "treeopt.plans.plan_json",
    "save_profile": "simulate.profiles.profile",
    "save_trace": "treeopt.traces.trace",
    "search": "treeopt.api.search_trace",
    "simulate": "treeopt.api.simulate_requests",
    "validate": "treeopt.api.validate_plan",
    "whatif": "treeopt.api.whatif_devices",
}
__all__ = [
    "Plan",
    "Profile",
    "Record",
    "Trace",
    "Tree",
    "TreeoptError",
    "compare",
    "draw_speedups",
    "draw_tau",
    "load_plan",
    "load_profile",
    "load_trace",
    "load_tree",
    "replay_tree",
    "reproduction_frame",
    "reproductions",
    "save_plan",
    "save_profile",
    "save_trace",
    "search",
    "simulate",
    "validate",
    "whatif",
]


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
