"""The commands that results print behind "Next:" run as they are printed, with their words in capitals replaced."""

import os
import re
import shlex
from pathlib import Path

import pytest

from tests.helpers.command_line import done, small_trace
from treeopt.cli.commands import doctor
from treeopt.traces.trace_files import save_trace

ROOT = Path.cwd()
FILLED = {
    "TARGET": ROOT / "data/models/stdlib-llama",
    "DRAFTER": ROOT / "data/models/stdlib-medusa",
    "PROFILE": ROOT / "data/profiles/medusa-cpu.json",
    "TRACE": ROOT / "data/traces/medusa-t0.npz",
    "DEVICE": "h100",
    "ENGINE": "medusa",
    "METHOD": "eagle3",
    "KIND": "eagle3",
}
MEDUSA = ROOT / "data/traces/medusa-t0.npz"
COUNTERS = ROOT / "docs/examples/vllm_metrics.txt"


def printed(text):
    """The commands below "Next:", with their capitals replaced."""
    lines = text.splitlines()
    commands = [line.strip() for line in lines if line.startswith("  treeopt ")]
    for command in commands:
        words = [str(FILLED.get(word, word)) for word in shlex.split(command)[1:]]
        assert not [word for word in words if re.fullmatch("[A-Z]{3,}", word)], command
        yield words


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def times(tmp_path):
    (tmp_path / "times.csv").write_text("batch,drafted,step_ms\n1,0,10\n1,1,12\n1,3,14\n4,0,11\n4,1,13\n4,3,16\n")
    done("times", "times.csv", "--device", "H100", "--context", "512-512", "--output", "times.json")
    return "times.json"


def follow(*words):
    """Run a command, and those that it names."""
    commands = list(printed(done(*words).stdout))
    assert commands
    for command in commands:
        done(*command)


QUICK = ("--max-nodes", 6, "--output", "plan.json")


def test_search_leads_to_an_export():
    follow("search", "--trace", ROOT / "data/traces/eagle3-t0.npz", "--batch", 1, "--for", "vllm", *QUICK)


def test_compare_leads_to_a_search(trace_file, profile_file, tmp_path):
    shapes = ("--shapes", "chain:2")
    save_trace(small_trace(lengths=24), tmp_path / "second.npz")
    follow("compare", trace_file, tmp_path / "second.npz", *shapes)
    follow("compare", "--acceptance", "0.6", "--acceptance", "0.75", *shapes)


def test_simulate_leads_to_a_search_or_an_export(times, trace_file, profile_file):
    follow("simulate", "--trace", trace_file, "--tree", 1, "--batch", 4)
    follow("simulate", "--acceptance", "0.7", "--profile", times, "--tree", 3, "--batch", 4)


def test_whatif_leads_to_an_export():
    """One H100 does not hold the 70B: the plan of four is handed on."""
    question = ("--target", "70b", "--kind", "eagle3", "--hardware", "h100,4xh100", "--batch", 1, "--for", "vllm")
    asked = ("whatif", "--acceptance", "0.75", *question)
    (command,) = printed(done(*asked).stdout)
    assert command[1] == "plans/4-x-h100-sxm-512.json"
    done(*asked, "--plans", "plans")
    done(*command)


def test_an_imported_trace_leads_to_whatif():
    done("trace", "import", COUNTERS, "--output", "imported.npz")
    follow("trace", "info", "imported.npz")


def test_a_recorded_trace_leads_to_a_search():
    os.symlink(MEDUSA, "medusa.npz")
    follow("trace", "info", "medusa.npz")


def test_the_doctor_leads_to_a_search(monkeypatch):
    """The device was tried: see test_doctor.py."""
    sound = {"name": "cpu, 1 threads", "free_bytes": None, "bf16_products": False}
    monkeypatch.setattr(doctor, "_device", lambda _: {"device": sound, "trials": []})
    follow("doctor")


@pytest.mark.slow
def test_search_and_validate_lead_to_each_other():
    prompts = ("--prompts", ROOT / "data/prompts/stdlib.jsonl", "--requests", 8, "--new-tokens", 8, "--blocks", 2)
    found = done("search", "--trace", MEDUSA, "--batch", 1, *QUICK).stdout
    (command,) = printed(found.replace("--prompts PROMPTS", " ".join(map(str, prompts))))
    follow(*command)
