"""Policies as files hold them: what is written is read again; what is wrong is named."""

import json

import pytest

from tests.helpers.slow_growth import CALIBRATED, POLICIES
from treeopt.errors import CostError
from treeopt.plans import PolicyRecord
from treeopt.policies.beam import Drafting
from treeopt.policies.opt_tree import THRESHOLDS, sweep_thresholds
from treeopt.policies.policy_kinds import Sweep, policy_of, to_record
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


def test_a_sweep_varies_depth_and_nodes_again_once_it_stops_early():
    """Without a stop shallow trees are the fastest, with one deeper and larger ones; what cannot run is left out."""

    def rate(policy):
        if policy.depth == 3:
            raise CostError("not calibrated")
        stops = policy.threshold == THRESHOLDS[1]
        depth, nodes = (4, 16) if stops else (2, 12)
        return 100 - abs(policy.depth - depth) - abs(policy.nodes - nodes) + 50 * stops

    sweep = Sweep(None, Drafting(4, 4, 4), 40, rate, lambda *lists: None)
    sweep_thresholds(sweep)
    best = max(sweep.rates, key=sweep.rates.get)
    assert (best.nodes, best.depth, best.threshold) == (16, 4, THRESHOLDS[1])
    assert {type(error) for error in sweep.refused.values()} == {CostError}
