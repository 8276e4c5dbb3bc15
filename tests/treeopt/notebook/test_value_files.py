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


@pytest.mark.parametrize("name", ["plan", "profile", "validation"])
def test_a_saved_value_is_read_again(values, name, tmp_path):
    values[name].save(tmp_path / "value.json")
    assert getattr(treeopt, f"load_{name}")(tmp_path / "value.json") == values[name]


def test_a_saved_comparison_is_a_record(values, tmp_path):
    values["comparison"].save(tmp_path / "compared.json")
    record = treeopt.load_record(tmp_path / "compared.json")
    assert record["schema"] == "treeopt.comparison/2"
    pd.testing.assert_frame_equal(record.frame(), values["comparison"].frame())


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
