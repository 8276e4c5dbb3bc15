"""Policies: rules that draft a new, dynamic tree at each step, one kind per file, and their JSON form.

* `policy`: the Policy protocol, its settings, and the checks that all kinds share.
* `eagle2`: expand and re-rank (EAGLE-2), with a confidence stop, a shared budget or a calibration.
* `opt_tree`: draft levels while another one adds enough (OPT-Tree).
* `cost_aware`: draft and verify while the expected tokens pay for the time.
* `reranking`: the re-ranking itself: shortlists of the best candidates after each level, and calibration.
* `beam`: the recorded candidates that a beam of a given depth and width would draft.
* `policy_json`: policies as JSON objects.
* `policy_records`: the JSON records of policies, one for each `kind`: fields and limits, as plan files hold them.
"""

from treeopt.policies.cost_aware import CostAware
from treeopt.policies.eagle2 import DynamicTree
from treeopt.policies.opt_tree import OptTree
from treeopt.policies.policy import GROWTHS, Chosen, Policy, named, settings

__all__ = ["GROWTHS", "Chosen", "CostAware", "DynamicTree", "OptTree", "Policy", "named", "settings"]
