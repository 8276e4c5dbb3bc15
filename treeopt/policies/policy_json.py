"""Policies as JSON objects: all that the loop needs to draw the same trees, what was fitted included."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from treeopt.policies.cost_aware import CostAware
from treeopt.policies.eagle2 import DynamicTree
from treeopt.policies.opt_tree import OptTree
from treeopt.policies.policy import Policy, settings

KINDS: Mapping[str, type[Any]] = {"dynamic-tree": DynamicTree, "opt-tree": OptTree, "cost-aware": CostAware}


def to_record(policy: Policy) -> dict[str, Any]:
    """The policy's kind and fields."""
    (kind,) = (name for name, of in KINDS.items() if isinstance(policy, of))
    return {"kind": kind, **asdict(policy)}  # type: ignore[call-overload]


def identity(policy: Policy) -> dict[str, Any]:
    """Kind and settings, and a hash of all that `to_record` says."""
    record = to_record(policy)
    sha256 = hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
    return {"kind": record["kind"], **settings(policy), "sha256": sha256}
