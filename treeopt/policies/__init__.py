"""Policies: trees that are drawn anew at each step, each kind in its file, and how they are stored."""

from treeopt.policies.base import GROWTHS, Chosen, Policy, named, settings
from treeopt.policies.cost_aware import CostAware
from treeopt.policies.dynamic import DynamicTree
from treeopt.policies.opt_tree import OptTree

__all__ = ["GROWTHS", "Chosen", "CostAware", "DynamicTree", "OptTree", "Policy", "named", "settings"]
