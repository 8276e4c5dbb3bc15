"""The program for CUDA machines loses nothing that a call has found, however it ended, and computes nothing twice."""

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.benchmarks import gpu, gpu_drafters
from tests.benchmarks.gpu_pieces import OtherDeviceError, OutOfTimeError, Pieces, results, unpack

ROOT = Path(__file__).resolve().parent.parent.parent


def call(monkeypatch, output, *words):
    """The program as called; returns its exit code."""
    monkeypatch.setattr(sys, "argv", ["gpu", "--output", str(output), "--device", "cpu", *words])
    with pytest.raises(SystemExit) as ended:
        gpu.main()
    return ended.value.code


def part(*names, fail=None, calls=None):
    """A part of pieces, of which one may fail."""

    def run(options, pieces):
        for name in names:
            if name == fail:
                raise RuntimeError("planted")
            pieces.piece(name, lambda name=name: calls.append(name) or {"value": len(name)})

    return run


def test_a_part_that_fails_leaves_its_pieces_and_is_resumed(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setitem(gpu.PARTS, "correctness", part("one", "three", "five", fail="three", calls=calls))
    assert call(monkeypatch, tmp_path, "--part", "correctness") == 1
    found = results(tmp_path)["correctness"]
    assert found["pieces"] == {"one": {"value": 3}}
    assert "planted" in found["failed"]
    assert "in run" in found["failed"]  # where
    assert "under_way" not in found
    assert found["provenance"]
    monkeypatch.setitem(gpu.PARTS, "correctness", part("one", "three", "five", calls=calls))
    assert call(monkeypatch, tmp_path, "--part", "correctness") == 0
    found = results(tmp_path)["correctness"]
    assert found["pieces"] == {"one": {"value": 3}, "three": {"value": 5}, "five": {"value": 4}}
    assert found["done"]
    assert "failed" not in found
    assert calls == ["one", "three", "five"]


def test_no_piece_is_begun_after_the_deadline(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setitem(gpu.PARTS, "correctness", part("one", calls=calls))
    assert call(monkeypatch, tmp_path, "--part", "correctness", "--total-s", "-1") == 0
    found = results(tmp_path)["correctness"]
    assert calls == []
    assert found["stopped"] == "no time was left for one"
    assert found["under_way"]
    pieces = Pieces(tmp_path, "correctness", {"device": found["device"]}, deadline=0.0)
    with pytest.raises(OutOfTimeError, match="no time was left for one"):
        pieces.piece("one", lambda: 1)


def test_parts_that_are_stopped_leave_what_they_had_found(tmp_path, monkeypatch):
    """Each part of several has a process, stopped here after its first piece; parts that are done have none."""

    def stopped(words, **how):
        calls.append(words[words.index("--part") + 1])
        Pieces(tmp_path, calls[-1], {"device": "cpu"}).piece("one", lambda: 1)
        raise subprocess.TimeoutExpired(words, how["timeout"])

    calls = []
    Pieces(tmp_path, "host_gaps", {"device": "cpu"}).write(done=True)
    monkeypatch.setattr(gpu.subprocess, "run", stopped)
    parts = [word for name in ("step_times", "host_gaps", "kernels") for word in ("--part", name)]
    monkeypatch.setattr(sys, "argv", ["gpu", "--output", str(tmp_path), "--device", "cpu", "--limit-s", "5", *parts])
    monkeypatch.setattr(gpu, "__spec__", type("Spec", (), {"name": "tests.benchmarks.gpu"}))
    gpu.main()
    found = results(tmp_path)
    assert calls == ["step_times", "kernels"]
    for name in calls:
        assert found[name]["failed"] == "not done in 5 s"
        assert found[name]["pieces"] == {"one": 1}
        assert found[name]["under_way"]


def test_an_archive_carries_files_to_the_next_machine(tmp_path):
    """Models stay behind; a piece whose file is missing is computed again."""
    output, archive = tmp_path / "first", tmp_path / "results.zip"
    (output / "trained" / "target").mkdir(parents=True)
    for name in ("profile.json", "trained/eagle-t0.npz", "trained/target/config.json"):
        (output / name).write_text("{}")
    pieces = Pieces(output, "part", {"device": "cpu"}, archive=archive)
    pieces.piece("kept", lambda: 1, file="profile.json")
    pieces.piece("model", lambda: 2, file="trained/target/config.json")
    assert zipfile.ZipFile(archive).namelist() == ["gpu.json", "profile.json", "trained/eagle-t0.npz"]
    unpack(archive, tmp_path / "second")
    resumed = Pieces(tmp_path / "second", "part", {"device": "cpu"})
    assert resumed.piece("kept", lambda: 3, file="profile.json") == 1
    assert resumed.piece("model", lambda: 4, file="trained/target/config.json") == 4


def test_results_of_two_devices_are_not_mixed(tmp_path):
    Pieces(tmp_path, "part", {"device": "one"}).piece("a", lambda: 1)
    with pytest.raises(OtherDeviceError, match="holds results of one: name another --output"):
        Pieces(tmp_path, "part", {"device": "other"})


def test_drafters_of_a_target_that_is_gone_are_trained_anew(tmp_path, monkeypatch):
    """Archives hold no models, so another machine trains another target; what is complete is left as it is."""

    def train_drafter(name, target, output, *others, **words):
        made.append(name)
        (output / f"{gpu_drafters._folder(name)}-t0.npz").write_text("")
        return {}

    def train_target(folder, corpus, *, tiny):
        made.append("target")
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")

    made, names = [], list(gpu_drafters.RECIPE_NAMES)
    corpus = SimpleNamespace(sources=[], train=np.zeros(3))
    monkeypatch.setattr(gpu_drafters, "_corpus", lambda *, tiny: corpus)
    monkeypatch.setattr(gpu_drafters, "load_target", lambda *args, **words: None)
    monkeypatch.setattr(gpu_drafters, "_train_target", train_target)
    monkeypatch.setattr(gpu_drafters, "_train_drafter", train_drafter)
    pieces = Pieces(tmp_path, "trained_drafters", {"device": "cpu"})
    gpu_drafters.trained_drafters("cpu", pieces, tiny=True)
    assert made == ["target", *names]
    shutil.rmtree(tmp_path / "trained" / "target")
    gpu_drafters.trained_drafters("cpu", pieces, tiny=True)
    assert made == ["target", *names]
    del pieces.found[names[-1]]
    gpu_drafters.trained_drafters("cpu", pieces, tiny=True)
    assert made == ["target", *names] * 2


@pytest.mark.slow
def test_the_program_is_imported_without_triton():
    code = "import sys; sys.modules['triton'] = None; import tests.benchmarks.gpu"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)


@pytest.mark.slow
def test_every_part_runs_at_toy_size_without_ortools(tmp_path):
    """The machine need not have OR-Tools; all results fit one archive, and a second call has nothing left to do."""
    for name in ("ortools", "click_didyoumean"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('blocked')")
    words = [
        sys.executable,
        "-m",
        "tests.benchmarks.gpu",
        "--device",
        "cpu",
        "--tiny",
        "--output",
        str(tmp_path / "out"),
    ]
    words += ["--archive", str(tmp_path / "results.zip")]
    path = ":".join([str(tmp_path), *sys.path])
    first, second = (
        subprocess.run(words, env={"PYTHONPATH": path, "TRITON_INTERPRET": "1"}, capture_output=True, text=True)
        for _ in range(2)
    )
    found = json.loads(Path(tmp_path / "out" / "gpu.json").read_text())
    assert first.returncode == 0, first.stderr
    assert {name: found[name].get("failed") for name in gpu.PARTS} == dict.fromkeys(gpu.PARTS)
    assert all(found[name]["done"] for name in gpu.PARTS)
    assert second.stdout.splitlines() == [f"{name}: done before" for name in gpu.PARTS]
    assert (tmp_path / "results.zip").stat().st_size < 16 * 2**20
