"""A command that is killed by SIGKILL resumes when it is given again, with equal results."""

import os
import signal

import numpy as np
import pytest

from executor.recording import collect_trace
from executor.target.target_model import Target
from simulate.profiles.profile import load_profile
from tests.helpers.command_line import CHECK, COLLECT, MEASURE, done, inputs, read_json, run
from treeopt.traces.trace_files import load_trace

VERIFY = Target.verify


def killed(words, monkeypatch, *, after):
    """Run a command in a process that is killed at a forward of the target; return what it had kept."""
    child = os.fork()
    if child == 0:
        calls = []

        def kill(*args, **more):
            calls.append(1)
            if len(calls) == after:
                os.kill(os.getpid(), signal.SIGKILL)
            return VERIFY(*args, **more)

        monkeypatch.setattr(Target, "verify", kill)
        try:
            run(*words)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL


def arrays(path):
    if path.suffix == ".npz":
        trace = load_trace(path)
        return trace.rank.tolist(), trace.meta["text_sha256"]
    if "profile" in path.name:
        return [(times.batch, [n for n, _ in times.rest]) for times in load_profile(path).batches]
    cells = read_json(path.read_text())["cells"]
    return [(cell["batch"], cell["tree"]["id"], cell["measured"]["tau"]) for cell in cells]


@pytest.mark.parametrize(("command", "after"), [("collect", 50), ("profile", 60), ("validate", 120)])
def test_a_killed_command_resumes(tiny, plan_file, tmp_path, monkeypatch, command, after):
    words = {
        "collect": ("trace", "collect", *inputs(tiny), *COLLECT, "--batch", "1", "--new-tokens", "12"),
        "profile": ("profile", *inputs(tiny), *MEASURE),
        "validate": ("validate", *inputs(tiny), *CHECK, "--plan", plan_file),
    }[command]
    monkeypatch.setattr(collect_trace, "SHARD", 2)
    name = "t.npz" if command == "collect" else f"{command}.json"
    whole, output = tmp_path / f"whole-{name}", tmp_path / name
    calls = []
    monkeypatch.setattr(Target, "verify", lambda *args, **more: calls.append(1) or VERIFY(*args, **more))
    done(*words, "--output", whole)
    made = len(calls)
    killed((*words, "--output", output), monkeypatch, after=after)
    work = tmp_path / f"{name}.work"
    assert work.exists()
    assert not output.exists()
    kept = len(list(work.iterdir())) if work.is_dir() else len(work.read_text("utf-8").splitlines())
    assert kept > 1
    monkeypatch.setattr(Target, "verify", lambda *args, **more: calls.append(1) or VERIFY(*args, **more))
    done(*words, "--output", output)
    assert 0 < len(calls) - made < made
    np.testing.assert_equal(arrays(output), arrays(whole))
    assert not work.exists()
