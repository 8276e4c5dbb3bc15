import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import treeopt
from treeopt.errors import UsageError
from treeopt.traces.trace import Trace
from treeopt.tree import EMPTY, Tree


@pytest.mark.parametrize("tree", [Tree.chain(3), Tree.from_paths([(0, 1), (2,)])])
def test_a_saved_tree_is_read_again(tree, tmp_path):
    tree.save(tmp_path / "tree.json")
    assert treeopt.load_tree(tmp_path / "tree.json") == tree


def test_a_tree_without_nodes_has_no_file(tmp_path):
    with pytest.raises(treeopt.TreeoptError, match="without nodes has no file"):
        EMPTY.save(tmp_path / "tree.json")
    assert list(tmp_path.iterdir()) == []


def test_a_saved_trace_is_read_again(tmp_path):
    trace = Trace(np.int32([0, 0]), np.int32([0, 1]), np.int16([[0], [1]]), 4, meta={"seed": 1})
    trace.save(str(tmp_path / "trace.npz"))
    found = treeopt.load_trace(tmp_path / "trace.npz")
    assert found.rank.tolist() == trace.rank.tolist()
    assert found.meta == trace.meta


def test_a_saved_plan_and_profile_are_read_again(tmp_path):
    plan = treeopt.search("data/traces/medusa-t0.npz", max_nodes=3, solver_work=0)
    plan.save(tmp_path / "plan.json")
    assert treeopt.load_plan(tmp_path / "plan.json") == plan
    profile = treeopt.load_profile("data/profiles/eagle-cpu.json")
    profile.save(tmp_path / "profile.json")
    assert treeopt.load_profile(tmp_path / "profile.json") == profile


def test_a_saved_validation_is_read_again(tmp_path):
    validation = treeopt.load_validation("data/validations/medusa-cpu.json")
    assert isinstance(validation, treeopt.Validation)
    validation.save(tmp_path / "validation.json")
    assert treeopt.load_validation(tmp_path / "validation.json") == validation
    assert treeopt.load_record(tmp_path / "validation.json") == validation


def test_a_saved_comparison_is_a_record(tmp_path):
    found = treeopt.compare(["data/traces/medusa-t0.npz", "data/traces/eagle-t0.npz"], sizes="chain:2")
    found.save(tmp_path / "compared.json")
    record = treeopt.load_record(tmp_path / "compared.json")
    assert record["schema"] == "treeopt.comparison/2"
    pd.testing.assert_frame_equal(record.frame(), found.frame())


def test_a_value_that_cannot_be_written_leaves_no_file(tmp_path):
    trace = Trace(np.int32([0]), np.int32([0]), np.int16([[0]]), 4, meta={"schema": "mine"})
    with pytest.raises(treeopt.TreeoptError, match="must not use the key `schema`"):
        trace.save(tmp_path / "trace.npz")
    record = treeopt.Record(schema="treeopt.run/2", configurations=[object()])
    with pytest.raises(TypeError):
        record.save(tmp_path / "record.json")
    assert list(tmp_path.iterdir()) == []


def test_files_that_are_no_record_are_refused_by_name(tmp_path):
    path = tmp_path / "x.json"
    with pytest.raises(UsageError, match=r"x\.json: cannot be read: No such file"):
        treeopt.load_record(path)
    path.write_text("[]")
    with pytest.raises(UsageError, match=r"x\.json: schema must be .*found 'list'"):
        treeopt.load_record(path)
    record = json.loads(Path("data/validations/medusa-cpu.json").read_text())
    del record["cells"][1]["error"]
    path.write_text(json.dumps(record))
    with pytest.raises(UsageError, match=r"x\.json: cells\[1\]: .*missing required field `error`"):
        treeopt.load_validation(path)
    with pytest.raises(UsageError, match=r"x\.json: cells\[1\]: .*missing required field `error`"):
        treeopt.load_record(path)
