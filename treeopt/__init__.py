"""Choose, predict and run token trees for speculative decoding: topology, traces, search, plans."""

from treeopt.errors import TreeoptError
from treeopt.optimize import search
from treeopt.plan import Plan
from treeopt.planfile import load_plan, save_plan
from treeopt.trace import Trace, load_trace, save_trace
from treeopt.tree import Tree
from treeopt.walk import replay

__all__ = [
    "Plan",
    "Trace",
    "Tree",
    "TreeoptError",
    "load_plan",
    "load_trace",
    "replay",
    "save_plan",
    "save_trace",
    "search",
]
