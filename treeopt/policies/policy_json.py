"""Policies as JSON objects, with everything that was fitted, so that the decoding loop drafts the same trees."""

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
    """Return the policy's kind and fields."""
    (kind,) = (name for name, cls in KINDS.items() if isinstance(policy, cls))
    return {"kind": kind, **asdict(policy)}  # type: ignore[call-overload]


def identity(policy: Policy) -> dict[str, Any]:
    """Return the policy's kind and settings, and a hash of its whole record (`to_record`)."""
    record = to_record(policy)
    sha256 = hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
    return {"kind": record["kind"], **settings(policy), "sha256": sha256}
