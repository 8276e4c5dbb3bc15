"""The doctor on sound and unsound machines; treeopt outside its checkout: shipped files, bounds, packages."""

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata, util
from pathlib import Path

import treeopt
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


ROOT = Path(__file__).resolve().parents[3]
ROOMS = ("treeopt", "simulate", "executor")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def test_shipped_files_are_found_by_name_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trace = treeopt.load_trace("data/traces/medusa-t0.npz")
    plan = treeopt.search(trace, treeopt.load_profile("data/profiles/medusa-cpu.json"), batch=(1, 4), solver_work=0)
    assert len(plan.entries) == 2
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "hardware.json").write_text("{}")
    assert treeopt.storage.user_files.found("data/hardware.json") == Path("data/hardware.json")  # one's own comes first


def test_the_wheel_ships_what_the_first_steps_need():
    """A small trace and profile, and every file in data/ that the packages or the help of a command name."""
    target = PROJECT["tool"]["hatch"]["build"]["targets"]
    first = {"data/traces/medusa-t0.npz", "data/profiles/medusa-cpu.json"}
    assert {f"!{name}" for name in first} <= set(target["sdist"]["exclude"])
    sources = {path: path.read_text("utf-8") for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    words = {word for text in sources.values() for word in re.findall(r'"([\w./-]+\.json)"', text)}
    helps = "".join(text for path, text in sources.items() if path.parent.name == "commands")
    words |= set(re.findall(r"data/((?:traces|profiles)/[\w.-]+)", helps))
    named = {f"data/{word}" for word in words if (ROOT / "data" / word).is_file()}
    assert "data/engine_overheads.json" in named
    shipped = target["wheel"]["force-include"]
    assert {name: shipped.get(name) for name in first | named} == {name: f"treeopt/{name}" for name in first | named}


def test_another_distribution_of_our_name_is_said_in_one_line(tmp_path):
    for name in ("simulate", "executor"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    for words in (["search", "--trace", str(ROOT / "data/traces/medusa-t0.npz"), "--batch", "1"], ["doctor"]):
        done = subprocess.run(
            [sys.executable, "-c", "from treeopt.cli import main; main()", *words],
            env=os.environ | {"PYTHONPATH": path}, cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 1
        assert re.fullmatch(r"Error: \S+__init__\.py is of another distribution than treeopt, .*\n", done.stderr), words


def test_transformers_has_an_upper_bound_that_is_tested():
    (limits,) = (
        word for word in PROJECT["project"]["optional-dependencies"]["executor"] if word.startswith("transformers")
    )
    below = [int(number) for number in re.search(r"<([\d.]+)", limits)[1].split(".")]
    tested = [int(number) for number in metadata.version("transformers").split(".")[:2]]
    assert below == [tested[0], tested[1] + 1]


def test_the_doctor_is_sound_without_packages_that_no_command_needs(monkeypatch):
    needs = ["click>=8.5", "transformers<5.24,>=5.17; extra == 'executor'", "playwright>=1.50; extra == 'browser'"]
    monkeypatch.setattr(doctor.metadata, "requires", lambda name: [*needs, "absent>=1; extra == 'browser'"])
    found = {package["name"]: package for package in doctor.installed_versions()}
    assert list(found) == ["click", "transformers"]
    assert not any(package["trouble"] for package in found.values())
