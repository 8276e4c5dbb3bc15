"""The program for CUDA machines loses nothing that a part had found, however the part ended."""

import json
import subprocess
import sys

import pytest

from tests.benchmarks import gpu


def test_a_part_that_fails_leaves_what_it_had_found(tmp_path, monkeypatch):
    def failing(options, keep):
        keep({"cells": [1]})
        keep({"cells": [1, 2]})
        raise RuntimeError("planted")

    monkeypatch.setitem(gpu.PARTS, "correctness", failing)
    monkeypatch.setattr(sys, "argv", ["gpu", "--output", str(tmp_path), "--device", "cpu", "--part", "correctness"])
    with pytest.raises(SystemExit) as ended:
        gpu.main()
    assert ended.value.code == 1
    found = json.loads((tmp_path / "gpu.json").read_text())["correctness"]
    assert found["cells"] == [1, 2]
    assert "planted" in found["failed"]
    assert "in failing" in found["failed"]  # where
    assert "under_way" not in found
    assert found["provenance"]


def test_parts_that_are_stopped_leave_what_they_had_found(tmp_path, monkeypatch):
    """Of several parts each has a process, which is stopped here after it wrote its first piece."""

    def stopped(words, **how):
        options = gpu.argparse.Namespace(output=tmp_path)
        gpu._keep(options, words[-1], {"cells": [1], "under_way": True})
        raise subprocess.TimeoutExpired(words, how["timeout"])

    monkeypatch.setattr(gpu.subprocess, "run", stopped)
    words = ["gpu", "--output", str(tmp_path), "--device", "cpu", "--limit-s", "5"]
    monkeypatch.setattr(sys, "argv", [*words, "--part", "step_times", "--part", "attention"])
    monkeypatch.setattr(gpu, "__spec__", type("Spec", (), {"name": "tests.benchmarks.gpu"}))
    gpu.main()
    found = json.loads((tmp_path / "gpu.json").read_text())
    for part in ("step_times", "attention"):
        assert found[part] == {"failed": "not done in 5 s", "cells": [1], "under_way": True}
