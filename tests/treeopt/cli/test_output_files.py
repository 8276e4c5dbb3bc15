"""Output files: nothing that is read is written over."""

import json
import os
import shutil
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


def test_a_plan_is_not_written_over_by_its_export(plan_file, unchanged):
    unchanged()
    words = ("export", plan_file, "--format", "medusa", "--output", plan_file)
    refused(run(*words), "is read as plan", code=2)


def test_predictions_and_a_replayed_trace_are_not_written_over(tiny, trace_file, profile_file, tmp_path, unchanged):
    (tmp_path / "predictions.json").write_text("{}")
    unchanged()
    models = ("--target", tiny / "target", "--drafter", tiny / "drafter", "--prompts", tiny / "prompts.jsonl")
    words = ("validate", *models, "--predictions", tmp_path / "predictions.json", "--output")
    refused(run(*words, tmp_path / "predictions.json"), "is read as predictions", code=2)
    words = ("validate", *models, "--trace", trace_file, "--profile", profile_file, "--output", trace_file)
    refused(run(*words), "is read as trace", code=2)
    again = tmp_path / "again.npz"
    shutil.copy(trace_file, again)
    replayed = (*words[:-4], "--profile", profile_file, "--acceptance", f"replay:{again}", "--output", again)
    refused(run(*replayed), "is read as acceptance", code=2)
    again.unlink()


def test_what_lies_in_a_folder_that_is_read_is_not_written_over(trace_file, tmp_path):
    """Nor is a file that is reached by way of a folder that is not there."""
    (tmp_path / "model").mkdir()
    config = tmp_path / "model" / "config.json"
    config.write_text("{}")
    words = ("whatif", "--trace", trace_file, "--hardware", "h100", "--target", tmp_path / "model", "--output")
    refused(run(*words, config), "is read as target", code=2)
    refused(run(*words, tmp_path / "none" / ".." / trace_file.name), "is read as trace", code=2)
    assert config.read_text() == "{}"


def test_a_split_may_be_written_again(trace_file, tmp_path):
    words = ("trace", "split", trace_file, "--output", tmp_path / "a.npz", "--rest", tmp_path / "b.npz")
    done(*words)
    refused(run(*words), "a.npz: exists: give --force", code=2)
    done(*words, "--force")
    refused(run(*words[:-1], trace_file, "--force"), f"--rest {trace_file}: is read as trace", code=2)
