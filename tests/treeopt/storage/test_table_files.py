"""CSV and Parquet tables: read back they equal the frame, and a failure leaves no file."""

import builtins
import math

import pandas as pd
import pytest

import treeopt
from treeopt.errors import UsageError
from treeopt.storage.table_files import check_table_file, save_table

FRAMES = {
    "plan": lambda: treeopt.search("data/traces/medusa-t0.npz", batch=(1, 4), max_nodes=4, solver_work=0).frame(),
    "profile": lambda: treeopt.load_profile("data/profiles/eagle-cpu.json").frame(),
    "validation": lambda: treeopt.load_validation("data/validations/eagle-policies-cpu.json").frame(),
    "run": lambda: treeopt.simulate("data/traces/medusa-t0.npz", tree=treeopt.Tree.chain(1), batch=4).frame(),
    "comparison": lambda: treeopt.compare(
        ["data/traces/medusa-t0.npz", "data/traces/eagle-t0.npz"], sizes="chain:2"
    ).frame(),
}


@pytest.mark.parametrize("name", FRAMES)
def test_what_is_written_is_read_again(name, tmp_path):
    frame = FRAMES[name]()
    save_table(frame, tmp_path / "t.csv")
    save_table(frame, tmp_path / "t.parquet")
    parquet = pd.read_parquet(tmp_path / "t.parquet")
    pd.testing.assert_frame_equal(parquet, frame, check_exact=True)
    written = pd.read_csv(tmp_path / "t.csv").convert_dtypes()
    pd.testing.assert_frame_equal(written, frame.convert_dtypes(), check_exact=True)
    assert parquet.attrs["provenance"].keys() >= {"treeopt", "commit", "command"}
    assert frame.attrs == {}


def test_numbers_keep_every_digit_and_missing_ones_are_empty(tmp_path):
    frame = pd.DataFrame({"name": ["a, b", None], "x_s": [math.pi, math.nan]})
    save_table(frame, tmp_path / "t.csv")
    assert (tmp_path / "t.csv").read_text() == f'name,x_s\n"a, b",{math.pi!r}\n,\n'


@pytest.mark.parametrize("name", ["t.json", "t"])
def test_other_endings_are_refused(name, tmp_path):
    with pytest.raises(UsageError, match=r"a table's file ends in \.csv or \.parquet"):
        save_table(pd.DataFrame({"x": [1]}), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_no_file(tmp_path):
    with pytest.raises(TypeError):
        save_table(pd.DataFrame({"x": [1]}).astype(object).map(lambda _: Unwritable()), tmp_path / "t.csv")
    assert list(tmp_path.iterdir()) == []


class Unwritable:
    def __str__(self) -> str:
        raise TypeError("no text")


def test_csv_needs_no_pyarrow(tmp_path, monkeypatch):
    imported = builtins.__import__

    def refuse(name, *words, **more):
        if name.split(".")[0] == "pyarrow":
            raise ModuleNotFoundError("No module named 'pyarrow'", name="pyarrow")
        return imported(name, *words, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    monkeypatch.setattr("treeopt.storage.table_files.import_module", lambda name: refuse(name))
    check_table_file(tmp_path / "t.csv")
    with pytest.raises(ModuleNotFoundError, match="pyarrow"):
        check_table_file(tmp_path / "t.parquet")
