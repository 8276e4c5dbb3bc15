"""Existing files: recordings and measurements are replaced only with --force or when the user says so."""

import pytest

from tests.helpers.command_line import done, refused, run
from tests.treeopt.cli.test_import_sources import COUNTERS
from treeopt.cli.options import output_files
from treeopt.traces.trace import load_trace

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


def test_what_was_imported_from_a_file_can_be_imported_again(writing, trace_file, tmp_path):
    words = (*writing["imported.npz"], "--output")
    for seed in ("1", "2"):
        done(*words, tmp_path / "t.npz", "--seed", seed)
    assert load_trace(tmp_path / "t.npz").meta["seed"] == 2
    scrape = COUNTERS.read_text("utf-8")
    piped = ("trace", "import", "-", "--output", tmp_path / "piped.npz")
    assert run(*piped, stdin=scrape).exit_code == 0
    refused(run(*piped, stdin=scrape), "piped.npz: exists: give --force", code=2)
    recorded = tmp_path / "recorded.npz"
    recorded.write_bytes(trace_file.read_bytes())
    refused(run(*words, recorded), "recorded.npz: exists: give --force", code=2)
    assert recorded.read_bytes() == trace_file.read_bytes()


def test_an_empty_file_is_no_result(writing, tmp_path):
    (tmp_path / "new.npz").touch()
    done(*writing["merged.npz"], "--output", tmp_path / "new.npz")


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 2)])
def test_a_terminal_is_asked(writing, tmp_path, monkeypatch, answer, code):
    monkeypatch.setattr(output_files, "on_terminal", lambda: True)
    output = tmp_path / "times.json"
    output.write_text("precious")
    result = run(*writing["times.json"], "--output", output, stdin=answer)
    assert result.exit_code == code
    assert f"{output} exists. Overwrite it?" in result.stderr
    assert (output.read_text() == "precious") == (code == 2)


def test_what_takes_seconds_is_replaced_but_never_a_measurement(trace_file, profile_file, tmp_path):
    words = ("search", "--trace", trace_file, "--profile", profile_file, "--batch", "1", "--output")
    for _ in range(2):
        done(*words, tmp_path / "plan.json")
    other = tmp_path / "other.npz"
    other.write_bytes(trace_file.read_bytes())
    refused(run(*words, other), f"--output {other}: holds a trace", "name another file", code=2)
    assert other.read_bytes() == trace_file.read_bytes()
    for schema, kind in (("profile/2", "a profile"), ("validation/1", "a validation"), ("decode/1", "decoded texts")):
        (tmp_path / "r.json").write_text(f'{{\n "schema": "treeopt.{schema}"}}')
        refused(run(*words, tmp_path / "r.json"), f"holds {kind}", code=2)
