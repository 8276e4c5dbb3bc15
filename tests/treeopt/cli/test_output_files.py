"""Output files: nothing that is read is written over."""

import json
import os
from threading import Thread

from tests.helpers.command_line import done, read_json, refused, run


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
