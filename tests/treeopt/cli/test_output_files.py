"""Output files: nothing that is read is written over; what took long to make is replaced only by --force or a yes."""

import json
import os
from threading import Thread

import pytest

from tests.helpers.command_line import done, read_json, refused, run
from treeopt.cli.options import output_files


def test_what_is_no_file_is_written_to_and_stays(trace_file, profile_file, tmp_path):
    """A pipe takes the plan; a link leads to its file; neither is replaced."""
    words = ("search", "--trace", trace_file, "--profile", profile_file, "--batch", "1", "--output")
    os.mkfifo(tmp_path / "pipe")
    read: list[str] = []
    reader = Thread(target=lambda: read.append((tmp_path / "pipe").read_text()))
    reader.start()
    done(*words, tmp_path / "pipe")
    reader.join(30)
    assert json.loads(read[0])["schema"].startswith("treeopt.plan/")
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "there").mkdir()
    (tmp_path / "link.json").symlink_to(tmp_path / "there" / "plan.json")
    for _ in range(2):  # nothing is there yet; then it is
        done(*words, tmp_path / "link.json")
        assert (tmp_path / "link.json").is_symlink()
        read_json((tmp_path / "there" / "plan.json").read_text())
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def test_what_is_read_is_not_written_over(trace_file, profile_file, tmp_path, unchanged):
    (tmp_path / "again.npz").hardlink_to(trace_file)
    unchanged()
    words = ("search", "--trace", trace_file, "--profile", profile_file, "--batch", "1", "--output")
    for path, name in ((trace_file, "trace"), (tmp_path / "again.npz", "trace"), (profile_file, "profile")):
        refused(run(*words, path), f"--output {path}: is read as {name}", code=2)
    refused(run("trace", "merge", trace_file, "--output", trace_file), "is read as", code=2)


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
