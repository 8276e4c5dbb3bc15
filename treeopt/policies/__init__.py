"""Policies: trees that are drawn anew at each step, each kind in its file, and how they are stored."""

from treeopt.policies.cost_aware import CostAware
from treeopt.policies.eagle2 import DynamicTree
from treeopt.policies.opt_tree import OptTree
from treeopt.policies.policy import GROWTHS, Chosen, Policy, named, settings

__all__ = ["GROWTHS", "Chosen", "CostAware", "DynamicTree", "OptTree", "Policy", "named", "settings"]
