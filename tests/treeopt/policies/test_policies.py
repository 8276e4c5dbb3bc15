"""Policies as files hold them: what is written is read again; what is wrong is named."""

import json

import pytest

from tests.helpers.slow_growth import AWARE, CALIBRATION, POLICIES
from treeopt.errors import TreeError
from treeopt.plans.plan_json import PolicyRecord
from treeopt.policies import DynamicTree, OptTree
from treeopt.policies.policy_kinds import policy_of, to_record
from treeopt.storage.json_records import RecordError
from treeopt.storage.typed_records import read_record
from treeopt.tree import MAX_NODES


def from_record(record, where):
    return policy_of(read_record(record, PolicyRecord, where), where)


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_policies_survive_a_file(policy):
    assert from_record(json.loads(json.dumps(to_record(policy))), "policy") == policy


def changed(*path_and_value):
    *path, last, value = path_and_value
    record = json.loads(json.dumps(to_record(AWARE)))
    at = record
    for key in path:
        at = at[key]
    at[last] = value
    return record


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ([], "`policy` must be an object, found []"),
        ({"nodes": 3}, "policy: `kind` is missing"),
        ({"kind": "beam-search"}, "policy: `kind` must be one of cost-aware, dynamic-tree, opt-tree, found 'beam-"),
        ({"kind": "opt-tree", "nodes": 3}, "policy: `depth` is missing"),
        (changed("wings", 2), "policy: `wings` is not a field of cost-aware"),
        (changed("nodes", 4.0), "policy: `nodes` must be an integer, found 4.0"),
        (changed("nodes", MAX_NODES + 1), f"policy: `nodes` must be at most {MAX_NODES}, found {MAX_NODES + 1}"),
        (changed("nodes", 0), "policy: `nodes` must be at least 1, found 0"),
        (changed("width", None), "policy: `width` must be an integer, found null"),
        (changed("shared", 1), "policy: `shared` must be true or false, found 1"),
        (changed("rate", -1.0), "policy: `rate` must be at least 0, found -1.0"),
        (changed("seconds", 1, 3, "long"), "policy.seconds[1][3] must be a finite number, found 'long'"),
        (changed("seconds", [[0.1] * 4]), "policy: seconds must have 2 levels of 4 nodes"),
        (changed("advantage", []), "policy: advantage must have 1 curves, got 0"),
        (changed("calibration", 1, 2, "x", 0, None), "policy.calibration[1][2].x[0] must be a finite number, found"),
        (changed("calibration", 0, 1, "y", [0.5, 0.25]), "policy.calibration[0][1]: a curve needs rising x and y"),
        (changed("calibration", 0, 1, {}), "policy.calibration[0][1]: `x` is missing"),
        (changed("calibration", 0, 1, "y", [0.5, 1.5]), "policy: the curves of a calibration must be probabilities"),
        (changed("calibration", 0, 1, "y", [-0.5, 0.5]), "policy: the curves of a calibration must be probabilities"),
        (changed("calibration", []), "policy: the calibration must have curves for 2 depths and 3 ranks"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_is_wrong_is_named(record, message):
    with pytest.raises(RecordError) as refused:
        from_record(record, "policy")
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OptTree(nodes=8, depth=3, threshold=-0.1), "threshold must be 0 or more"),
        (
            lambda: OptTree(nodes=8, depth=1, threshold=0.1, beam=3),
            "nodes must be at most the 3 candidates that are drafted, got 8",
        ),
        (lambda: DynamicTree(nodes=8, depth=3, beam=3, calibration=CALIBRATION), "3 depths and 3 ranks, it has"),
    ],
)
def test_settings_that_cannot_be(make, message):
    with pytest.raises(TreeError, match=message):
        make()
