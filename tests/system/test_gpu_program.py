"""The program for CUDA machines loses nothing that a call has found, however it ended, and computes nothing twice."""

import json
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from tests.benchmarks import gpu
from tests.benchmarks.gpu_pieces import OtherDeviceError, OutOfTimeError, Pieces, results, unpack

ROOT = Path(__file__).resolve().parent.parent.parent


def call(monkeypatch, output, *words):
    """The program as called; returns its exit code."""
    monkeypatch.setattr(sys, "argv", ["gpu", "--output", str(output), "--device", "cpu", *words])
    with pytest.raises(SystemExit) as ended:
        gpu.main()
    return ended.value.code


def part(*names, fail=None):
    """A part of pieces, of which one may fail or last; each that is made leaves a file."""

    def run(options, pieces):
        def make(name):
            (options.output / f"{name}.made").open("a").write("x")
            if name == fail:
                raise RuntimeError("planted")
            if name == "long":
                time.sleep(60)
            return {"value": len(name)}

        for name in names:
            pieces.piece(name, lambda name=name: make(name))

    return gpu.Part(run, 30)


def made(folder):
    """The number of times that each piece was made."""
    return {file.stem: len(file.read_text()) for file in folder.glob("*.made")}


def test_a_piece_that_fails_leaves_the_others_and_is_made_again(tmp_path, monkeypatch):
    monkeypatch.setitem(gpu.PARTS, "steps", part("one", "three", "five", fail="three"))
    assert call(monkeypatch, tmp_path, "--part", "steps") == 1
    found = results(tmp_path)["steps"]
    assert found["pieces"] == {"one": {"value": 3}, "five": {"value": 4}}
    assert "planted" in found["failed"]["three"]
    assert "in make" in found["failed"]["three"]  # where
    assert "under_way" not in found
    assert "done" not in found
    assert found["provenance"]
    monkeypatch.setitem(gpu.PARTS, "steps", part("one", "three", "five"))
    assert call(monkeypatch, tmp_path, "--part", "steps") == 0
    found = results(tmp_path)["steps"]
    assert found["pieces"] == {"one": {"value": 3}, "three": {"value": 5}, "five": {"value": 4}}
    assert found["done"]
    assert "failed" not in found
    assert made(tmp_path) == {"one": 1, "three": 2, "five": 1}


def test_no_piece_is_begun_after_the_deadline(tmp_path):
    pieces = Pieces(tmp_path, "steps", {"device": "cpu"}, deadline=0.0)
    with pytest.raises(OutOfTimeError, match="no time was left for one"):
        pieces.piece("one", lambda: 1)


def test_parts_have_limits_and_the_last_are_left_out(tmp_path, monkeypatch, capfd):
    """Each part has a process, killed here within its second piece; a part that is done has none."""
    Pieces(tmp_path, "steps", {"device": "cpu"}).write(done=True)
    for name in ("rates", "kernels"):
        monkeypatch.setitem(gpu.PARTS, name, part("one", "long"))
    parts = [word for name in ("steps", "rates", "kernels") for word in ("--part", name)]
    assert call(monkeypatch, tmp_path, "--limit-s", "6", "--total-s", "8", *parts) == 1
    found = results(tmp_path)
    assert set(found) == {"steps", "rates"}
    assert found["rates"]["failed"] == "not done in 6 s"
    assert found["rates"]["pieces"] == {"one": {"value": 3}}
    assert found["rates"]["under_way"]
    said = capfd.readouterr().out.splitlines()
    assert said[0] == "steps: done before"
    assert said[-1].startswith("kernels: left out, it may take 6 s and ")


def test_an_archive_carries_files_to_the_next_machine(tmp_path):
    """Other files stay behind; a piece whose file is missing is computed again."""
    output, archive = tmp_path / "first", tmp_path / "results.zip"
    output.mkdir()
    for name in ("profile.json", "model.bin"):
        (output / name).write_text("{}")
    pieces = Pieces(output, "part", {"device": "cpu"}, archive=archive)
    pieces.piece("kept", lambda: 1, file="profile.json")
    pieces.piece("model", lambda: 2, file="model.bin")
    assert zipfile.ZipFile(archive).namelist() == ["gpu.json", "profile.json"]
    unpack(archive, tmp_path / "second")
    resumed = Pieces(tmp_path / "second", "part", {"device": "cpu"})
    assert resumed.piece("kept", lambda: 3, file="profile.json") == 1
    assert resumed.piece("model", lambda: 4, file="model.bin") == 4


def test_results_of_two_devices_are_not_mixed(tmp_path):
    Pieces(tmp_path, "part", {"device": "one"}).piece("a", lambda: 1)
    with pytest.raises(OtherDeviceError, match="holds results of one: name another --output"):
        Pieces(tmp_path, "part", {"device": "other"})


@pytest.mark.slow
def test_the_program_is_imported_without_triton():
    code = "import sys; sys.modules['triton'] = None; import tests.benchmarks.gpu"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)


@pytest.mark.slow
def test_every_part_runs_at_toy_size_without_ortools(tmp_path):
    """The machine need not have OR-Tools; all results fit one archive, and a second call has nothing left to do."""
    for name in ("ortools", "click_didyoumean"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('blocked')")
    words = [sys.executable, "-m", "tests.benchmarks.gpu", "--device", "cpu", "--tiny", "--limit-s", "600"]
    words += ["--output", str(tmp_path / "out"), "--archive", str(tmp_path / "results.zip")]
    path = ":".join([str(tmp_path), *sys.path])
    env = {"PYTHONPATH": path, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    first, second = (subprocess.run(words, env=env, capture_output=True, text=True) for _ in range(2))
    found = json.loads(Path(tmp_path / "out" / "gpu.json").read_text())
    assert first.returncode == 0, first.stdout
    assert {name: found[name].get("failed") for name in gpu.PARTS} == dict.fromkeys(gpu.PARTS)
    assert all(found[name]["done"] for name in gpu.PARTS)
    assert second.stdout.splitlines() == [f"{name}: done before" for name in gpu.PARTS]
    assert (tmp_path / "results.zip").stat().st_size < 16 * 2**20
