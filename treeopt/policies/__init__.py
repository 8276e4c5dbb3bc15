"""Policies: rules that draft a new, dynamic tree at each step, one kind per file, and their JSON form.

* `policy`: the Policy protocol, its settings, and the checks that all kinds share.
* `policy_kinds`: the registry of kinds; policies as JSON objects.
* `eagle2`: expand and re-rank (EAGLE-2), with a confidence stop or a calibration.
* `opt_tree`: draft levels while another one adds enough (OPT-Tree).
* `reranking`: the re-ranking itself: shortlists of the best candidates after each level, and calibration.
* `beam`: the recorded candidates that a beam of a given depth and width would draft.
"""

from treeopt.policies.eagle2 import DynamicTree
from treeopt.policies.opt_tree import OptTree
from treeopt.policies.policy import Chosen, Policy, policy_text, settings
from treeopt.policies.policy_kinds import POLICIES, growths

__all__ = ["POLICIES", "Chosen", "DynamicTree", "OptTree", "Policy", "growths", "policy_text", "settings"]
