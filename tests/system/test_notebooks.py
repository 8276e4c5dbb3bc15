"""Notebooks run, and their stored outputs are what a run yields, numbers within a tolerance."""

from copy import deepcopy

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from tests.helpers.notebooks import differences, executed_in_one_kernel, notebooks, pictures

LEAST = 2  # pictures in a notebook


# Warnings of a library of the notebook runner.
quiet = pytest.mark.filterwarnings("ignore::DeprecationWarning:jupyter_client")


@pytest.fixture(scope="module")
def fresh():
    """All notebooks with the outputs of a run."""
    return executed_in_one_kernel(notebooks())


@quiet
@pytest.mark.slow
@pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.stem)
def test_stored_outputs_are_those_of_a_run(fresh, path):
    stored = nbformat.read(path, as_version=4)
    assert differences(stored, fresh[path]) == []
    assert pictures(stored) >= LEAST


@quiet
def test_notebooks_in_one_kernel_know_nothing_of_each_other(tmp_path):
    paths = [tmp_path / "first.ipynb", tmp_path / "second.ipynb"]
    for path in paths:
        nbformat.write(new_notebook(cells=[new_code_cell(f"{path.stem} = 1"), new_code_cell("first")]), path)
    one, other = executed_in_one_kernel(paths).values()
    assert [output["data"]["text/plain"] for output in one.cells[1].outputs] == ["1"]
    assert differences(one, other) == ["cell 2: fails: NameError: name 'first' is not defined"]


def test_there_are_the_five_notebooks():
    names = ["batch_size", "published_baselines", "two_drafters", "vllm_counters", "which_gpu"]
    assert [path.stem for path in notebooks()] == names


@pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.stem)
def test_stored_notebooks_hold_no_error_no_path_and_no_import_but_the_public_one(path):
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(output.output_type != "error" for cell in code for output in cell.outputs)
    assert not {"/work", "/tmp", "/home"} & set(path.read_text("utf-8").replace("/", " /").split())
    lines = [line for cell in code for line in cell.source.splitlines()]
    imported = {line for line in lines if line.startswith(("import ", "from "))}
    public = {"import treeopt", "import pandas as pd", "import matplotlib.pyplot as plt"}
    if path.stem == "published_baselines":  # formulas of papers are a benchmark of the checkout
        public |= {"import sys", "from tests.benchmarks.published_speedups import reproduction_frame, reproductions"}
    assert imported <= public


def notebook_of(*outputs):
    return new_notebook(cells=[new_code_cell("1", outputs=list(outputs))])


def text(value):
    return new_output("execute_result", {"text/plain": value}, execution_count=1)


@pytest.mark.parametrize(
    ("stored", "fresh", "found"),
    [
        (text("tau 1.31 [1.29, 1.33]"), text("tau 1.32 [1.29, 1.33]"), []),
        (text("tau 1.31"), text("tau 1.41"), ["cell 1: number 1.31 is stored, 1.41 is new"]),
        (text("a   1\n-----\nb  20"), text("a 1\n---\nb 20"), []),
        (text("chain of 2"), text("tree of 2"), ["cell 1: text 'chain of ' is stored, 'tree of ' is new"]),
        (text("5f6338eb8a29"), text("5f6338eb8a28"), None),
        (text("nodes 5"), text("nodes 6"), ["cell 1: number 5 is stored, 6 is new"]),
        (new_output("stream", name="stdout", text="1.0"), new_output("stream", name="stdout", text="2.0"), None),
        (new_output("display_data", {"image/png": "AA=="}), text("<Figure>"), None),
    ],
)
def test_differences_are_found_and_rounding_is_not_one(stored, fresh, found):
    lines = differences(notebook_of(stored), notebook_of(fresh))
    assert lines == found if found is not None else len(lines) == 1


def test_a_missing_or_additional_output_is_found():
    whole = notebook_of(text("1"), text("2"))
    part = deepcopy(whole)
    del part.cells[0].outputs[1]
    assert len(differences(whole, part)) == len(differences(part, whole)) == 1
    assert differences(whole, whole) == []
