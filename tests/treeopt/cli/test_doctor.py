"""The doctor: right on a sound machine, and it says so where packages are old or the loop is wrong."""

import json
import re
from importlib import metadata, util

from executor.decoding.self_test import LEAST, trials
from executor.target.kv_cache import TreeCache
from tests.helpers.command_line import done, run
from treeopt.cli.commands import doctor


def test_a_sound_machine():
    record = json.loads(done("doctor", "--json").stdout)
    assert record["sound"]
    names = {package["name"] for package in record["packages"]}
    assert {"numpy", "ortools", "torch", "transformers", "altair", "peft"} <= names
    assert not names & {"pytest", "ruff"}
    assert [trial["holds"] for trial in record["trials"]] == [True, True]
    assert record["device"]["name"].startswith("cpu")
    assert all(float(trial["detail"].split("tau ")[1]) > LEAST for trial in record["trials"])


def test_a_wrong_loop_is_told(monkeypatch):
    """Keys and values of kept nodes are left where they were."""
    monkeypatch.setattr(TreeCache, "compact", lambda *_, **__: None)
    result = run("doctor")
    assert result.exit_code == 1
    assert "Warning: wrong: fp32: the loop writes what generate does" in result.stdout


def test_what_breaks_is_told_and_the_rest_is_tried(monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("no kernel image\n  for this device")

    monkeypatch.setattr("executor.decoding.self_test.audit_text", broken)
    first, second = trials("cpu")
    assert (first.holds, second.holds) == (True, False)
    assert second.detail == "RuntimeError: no kernel image for this device"


def test_packages_that_are_old_or_absent(monkeypatch):
    real = metadata.version

    def version(name):
        if name in ("scipy", "peft"):
            raise metadata.PackageNotFoundError(name)
        return "1.9" if name == "numpy" else real(name)

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(doctor, "_device", lambda _: {"device": SOUND, "trials": []})
    result = run("doctor", "--json")
    assert result.exit_code == 1
    found = {package["name"]: package["trouble"] for package in json.loads(result.stdout)["packages"]}
    assert (found["numpy"], found["scipy"], found["peft"], found["click"]) == ("older than 2.0", "missing", None, None)
    shown = run("doctor").stdout
    assert shown.startswith("Not sound: numpy, scipy.")
    assert re.search(r"Not installed, needed for some commands only: .*\bpeft\b", shown)
    assert "pip install 'treeopt[train]'" in run("doctor", "--verbose").stdout


SOUND = {"name": "cpu, 1 threads", "free_bytes": None, "bf16_products": False}


def test_without_the_executor(monkeypatch):
    real = util.find_spec
    monkeypatch.setattr(util, "find_spec", lambda name, *more: None if name == "torch" else real(name, *more))
    shown = done("doctor").stdout
    assert shown.startswith("Sound for search and prediction; the decoding loop is not installed.")
    assert "\n  pip install 'treeopt[executor]'\n" in shown


def test_a_device_that_is_not_there():
    result = run("doctor", "--device", "nothing")
    assert result.exit_code == 1
    assert result.stdout.startswith("Not sound: ")
    assert "Warning: wrong: the device nothing can be used: UsageError: device nothing" in result.stdout
