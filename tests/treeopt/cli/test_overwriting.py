"""Existing files: recordings and measurements are replaced only with --force or when the user says so."""

import pytest

from tests.helpers.command_line import done, refused, run
from treeopt.cli.options import output_files

TABLE = "batch,drafted,step_ms\n1,0,10\n1,1,12\n1,3,14\n"


@pytest.fixture
def writing(trace_file, tmp_path):
    """Commands without their output, by what they write."""
    (tmp_path / "t.csv").write_text(TABLE)
    (tmp_path / "ranks.csv").write_text("0.62,0.12\n")
    return {
        "merged.npz": ("trace", "merge", trace_file),
        "imported.npz": ("trace", "import", tmp_path / "ranks.csv", "--format", "table", "--column", "rank"),
        "times.json": ("times", tmp_path / "t.csv", "--device", "x", "--context", "8k"),
        "page.html": ("report", trace_file, "--no-plots"),
    }


def test_files_are_replaced_only_with_force(writing, tmp_path):
    for name, words in writing.items():
        output = tmp_path / name
        output.write_text("precious")
        refused(run(*words, "--output", output), f"--output {output}: exists: give --force", code=2)
        assert output.read_text() == "precious"
        done(*words, "--output", output, "--force")
        assert output.read_bytes() != b"precious"


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 2)])
def test_a_terminal_is_asked(writing, tmp_path, monkeypatch, answer, code):
    monkeypatch.setattr(output_files, "on_terminal", lambda: True)
    output = tmp_path / "times.json"
    output.write_text("precious")
    result = run(*writing["times.json"], "--output", output, stdin=answer)
    assert result.exit_code == code
    assert f"{output} exists. Overwrite it?" in result.stderr
    assert (output.read_text() == "precious") == (code == 2)
