"""Policies as files hold them: what is written is read again; what is wrong is named."""

import json

import pytest

from tests.helpers.slow_growth import CALIBRATED, POLICIES
from treeopt.plans import PolicyRecord
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
    record = json.loads(json.dumps(to_record(CALIBRATED)))
    at = record
    for key in path:
        at = at[key]
    at[last] = value
    return record


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ([], "policy: Expected `object`, found []"),
        ({"kind": "opt-tree", "nodes": 3}, "policy: Object missing required field `depth`"),
        (changed("nodes", MAX_NODES + 1), f"policy: nodes: Expected `int` <= {MAX_NODES}"),
        (changed("min_probability", 1.0), "policy: min_probability: Expected `float` < 1"),
        (changed("calibration", 0, 1, {}), "policy: calibration[0][1]: Object missing required field `x`"),
        (changed("calibration", []), "policy: the calibration must have curves for 2 depths and 3 ranks"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_is_wrong_is_named(record, message):
    with pytest.raises(RecordError) as refused:
        from_record(record, "policy")
    assert message in str(refused.value)
