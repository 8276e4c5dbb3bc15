"""Choose, predict and run token trees for speculative decoding: topology, traces, search, plans."""

from treeopt.errors import TreeoptError
from treeopt.planning.search_pipeline import search
from treeopt.plans.plan import Plan
from treeopt.plans.plan_json import load_plan, save_plan
from treeopt.replay.static_tree import replay_tree
from treeopt.traces.trace import Trace, load_trace, save_trace
from treeopt.tree import Tree

__all__ = [
    "Plan",
    "Trace",
    "Tree",
    "TreeoptError",
    "load_plan",
    "load_trace",
    "replay_tree",
    "save_plan",
    "save_trace",
    "search",
]
