from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parent.parent.parent / "notebooks"
PLOTS = {"published_baselines": 1, "what_if_batch": 3, "what_if_hardware": 2}


@pytest.mark.filterwarnings("ignore::DeprecationWarning:jupyter_client")  # of a library of the notebook runner
@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebook_runs(path):
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(NOTEBOOKS)}}).execute()
    outputs = [out for cell in notebook.cells if cell.cell_type == "code" for out in cell.outputs]
    assert sum("image/png" in out.get("data", {}) for out in outputs) == PLOTS[path.stem]
    assert not any(out.output_type == "error" for out in outputs)
