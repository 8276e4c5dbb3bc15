"""Ray: parts of two workers equal one process's, also when one is killed; refusals take one line; nothing stays.

Each test that starts Ray runs the command in a process of its own, as people do.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from tests.helpers.command_line import refused, run
from tests.helpers.command_line import tiny as tiny
from treeopt.api import ray_workers
from treeopt.api.ray_workers import RaySetup, on_ray
from treeopt.api.search_trace import _blocks
from treeopt.errors import UsageError
from treeopt.traces.resumable_shards import Shards, note
from treeopt.traces.trace import RANKS
from treeopt.traces.trace_files import load_trace

ROOT = Path(__file__).parent.parent.parent.parent
MAIN = "from treeopt.cli import main; main()"
TARGET, DRAFTER = ROOT / "data/models/stdlib-llama", ROOT / "data/models/stdlib-medusa"
PROMPTS = ROOT / "data/prompts/stdlib.jsonl"
COLLECT = ("trace", "collect", "--target", TARGET, "--drafter", DRAFTER, "--prompts", PROMPTS)
COLLECT += ("--requests", "64", "--new-tokens", "6", "--batch", "2", "--temperature", "1")
TRAIN = ("train", "--recipe", "medusa1", "--target", TARGET, "--self-distill")
TRAIN += ("--distill-tokens", "6", "--length", "32", "--steps", "1", "--batch", "1")
PROFILE = ("profile", "--target", TARGET, "--drafter", DRAFTER, "--prompts", PROMPTS, "--requests", "4", "--batch", "1")
PROFILE += ("--max-nodes", "2", "--max-depth", "1", "--rounds", "2", "--steps", "2", "--new-tokens", "4")
LOCAL = ("--ray", "local")
PATIENCE_S = 400


@contextmanager
def started(*words):
    """A command as a process; at its end nothing that it started may run any more."""
    # Ray gives its workers the lowest priority, which takes minutes on a busy machine.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "RAY_worker_niceness": "0"}
    command = [sys.executable, "-c", MAIN, *map(str, words)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    known = {}
    try:
        yield process, known
        known |= descendants(process)
        process.out, process.err = process.communicate(timeout=PATIENCE_S)
        psutil.wait_procs(known.values(), timeout=150)  # agents of Ray outlive a killed command by a minute
        assert [found.name() for found in known.values() if found.is_running()] == []
    finally:
        process.kill()
        for found in known.values():
            with suppress(psutil.NoSuchProcess):
                found.kill()


def descendants(process):
    try:
        return {found.pid: found for found in psutil.Process(process.pid).children(recursive=True)}
    except psutil.NoSuchProcess:
        return {}


def worker_of(process, known):
    """A worker that works."""
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s and process.poll() is None:
        known |= descendants(process)
        for found in known.values():
            with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                if "ray::_Worker" in " ".join((found.name(), *found.cmdline())):
                    return found
        time.sleep(0.2)
    raise AssertionError("no worker")


def wait_for(process, path):
    deadline_s = time.monotonic() + PATIENCE_S
    while not path.exists() and process.poll() is None and time.monotonic() < deadline_s:
        time.sleep(0.05)


def arrays(path):
    with np.load(path) as archive:
        return {name: archive[name].tobytes() for name in archive if name != "meta"}


@pytest.fixture(scope="module")
def _ray():
    pytest.importorskip("ray", reason="ray is not installed: pip install 'treeopt[ray]'")


@pytest.mark.slow
@pytest.mark.usefixtures("_ray")
def test_a_collection_whose_worker_is_killed_equals_that_of_one_process(tmp_path):
    with started(*COLLECT, "--output", tmp_path / "one.npz") as (process, _):
        pass
    assert process.returncode == 0, process.err
    with started(*COLLECT, "--output", tmp_path / "two.npz", *LOCAL) as (process, known):
        wait_for(process, tmp_path / "two.npz.work" / "shard-00000.npz")
        worker_of(process, known).kill()
    assert process.returncode == 0, process.err
    assert "killed" not in process.out + process.err
    assert arrays(tmp_path / "two.npz") == arrays(tmp_path / "one.npz")
    assert sorted(os.listdir(tmp_path)) == ["one.npz", "two.npz"]


@pytest.mark.slow
@pytest.mark.usefixtures("_ray")
def test_self_distilled_texts_of_workers_one_of_which_is_killed_equal_those_of_one_process(tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(PROMPTS.read_text("utf-8").splitlines(keepends=True)[:100]))
    texts = []
    for name, more in (("one", ()), ("two", LOCAL)):
        output = tmp_path / name
        with started(*TRAIN, "--data", prompts, "--output", output, *more) as (process, known):
            if more:
                wait_for(process, output / "self-distilled-1-of-1.jsonl.work")
                worker_of(process, known).kill()
        assert process.returncode == 0, process.err
        texts.append((output / "self-distilled-1-of-1.jsonl").read_bytes())
        assert not (output / "self-distilled-1-of-1.jsonl.work").exists()
    assert texts[0] == texts[1]
    assert len(texts[0].splitlines()) > 32


@pytest.mark.slow
@pytest.mark.usefixtures("_ray")
def test_a_search_of_shards_whose_worker_is_killed_equals_that_of_one_process(tmp_path):
    whole, folder = load_trace(ROOT / "data/traces/medusa-t0.npz", arrays=RANKS), tmp_path / "shards"
    shards = Shards.begin(folder, {**whole.meta, "repeated_4grams": {}}, {}, whole.requests)
    for start in range(0, whole.requests, 50):
        part = whole.select(np.arange(start, start + 50))
        shards.add(replace(part, meta=note(["text"], 1, 0)))
    plans = []
    for more in ((), LOCAL):
        words = ("search", "--trace", folder, "--batch", "1,4,16", "--objective", "latency", "--json", *more)
        with started(*words) as (process, known):
            if more:
                worker_of(process, known).kill()
        assert process.returncode == 0, process.err
        plans.append(json.loads(process.out))
        assert plans[-1]["meta"].pop("provenance")
    assert plans[0] == plans[1]
    assert plans[0]["meta"]["trace"]["text_sha256"]


@pytest.mark.slow
@pytest.mark.usefixtures("_ray")
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_an_end_of_the_command_ends_all_and_it_resumes(tmp_path, sent):
    words = (*COLLECT, "--output", tmp_path / "t.npz")
    with started(*words, *LOCAL) as (process, known):
        wait_for(process, tmp_path / "t.npz.work" / "shard-00000.npz")
        known |= descendants(process)
        process.send_signal(sent)
    assert process.returncode in (1, -sent)
    assert not (tmp_path / "t.npz").exists()
    if sent == signal.SIGINT:
        assert process.err.splitlines()[-1] == "Error: interrupted"
    with started(*words) as (process, _):
        pass
    assert process.returncode == 0, process.err
    with started(*COLLECT, "--output", tmp_path / "one.npz") as (process, _):
        pass
    assert arrays(tmp_path / "t.npz") == arrays(tmp_path / "one.npz")


@pytest.mark.slow
@pytest.mark.usefixtures("_ray")
def test_a_profile_is_measured_by_a_worker(tmp_path):
    with started(*PROFILE, "--output", tmp_path / "p.json", *LOCAL) as (process, _):
        pass
    assert process.returncode == 0, process.err
    assert (tmp_path / "p.json").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("_ray")
@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--ray-needs", "memory=1e15"), ["no node holds a worker of memory=1e15", "1 node: CPU"]),
        (("--ray-needs", "disk=ssd"), ["no node holds a worker of disk=ssd"]),
        (("--depth", "9"), ["depth must be in 1..5"]),  # the worker's own error
    ],
)
def test_what_cannot_run_takes_one_line(tmp_path, more, words):
    with started(*COLLECT, "--output", tmp_path / "t.npz", *LOCAL, *more) as (process, _):
        pass
    lines = [line for line in process.err.splitlines() if not line.startswith("collecting")]
    assert len(lines) == 1, process.err
    assert lines[0].startswith("Error: ")
    assert all(word in lines[0] for word in words), lines[0]
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
@pytest.mark.usefixtures("_ray")
def test_an_address_where_nothing_answers(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with started(*COLLECT, "--output", tmp_path / "t.npz", "--ray", address) as (process, _):
            pass
    assert process.err == f"Error: --ray {address}: cannot connect: [Errno 111] Connection refused\n"


@pytest.mark.slow
@pytest.mark.usefixtures("_ray")
def test_files_that_a_worker_lacks_are_sent(tmp_path, monkeypatch):
    """A target and a file of prompts that are not there are written from references to their content."""
    import ray

    monkeypatch.setattr(ray, "put", lambda value: value)
    monkeypatch.setattr(ray, "get", lambda value: value)
    gone = tmp_path / "gone" / "llama"
    files = {gone: ray_workers._stored(TARGET), gone / "p.jsonl": ray_workers._stored(PROMPTS)}
    assert ray_workers._placed(TARGET, files, str(tmp_path)) == TARGET  # it is there
    found = ray_workers._placed(gone, files, str(tmp_path))
    assert found.name == "llama"
    for path in TARGET.rglob("*"):
        assert path.is_dir() or (found / path.relative_to(TARGET)).read_bytes() == path.read_bytes()
    assert ray_workers._placed(gone / "p.jsonl", files, str(tmp_path)).read_bytes() == PROMPTS.read_bytes()


def test_setups_that_mean_nothing():
    for words, message in (
        ({"ray": "ray.example"}, "must be local or HOST:PORT"),
        ({"ray": "user:secret@host:1"}, "must be local or HOST:PORT"),
        ({"ray_needs": ("gpus=1",)}, "applies only to --ray"),
        ({"ray": "local", "ray_needs": ("gpus",)}, "must be NAME=VALUE"),
        ({"ray": "local", "ray_needs": ("memory=16G",)}, "must be NAME=VALUE"),
    ):
        with pytest.raises(UsageError, match=message):
            RaySetup(**words)


@pytest.mark.parametrize("more", [(), ("--policy", "eagle2")])
def test_a_search_on_ray_of_anything_but_ranks_in_shards_is_refused(tmp_path, more):
    Shards.begin(tmp_path, {}, {}, 1)
    trace = tmp_path if more else ROOT / "data/traces/medusa-t0.npz"
    result = run("search", "--trace", trace, "--batch", "1", *more, *LOCAL)
    refused(result, "--ray searches a folder of shards (`trace collect --parts`) for static trees", code=2)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            "Version mismatch: The cluster was started with:\n  Python: 3.12",
            "The cluster was started with: Python: 3.12",
        ),
        ("Failed to connect to Ray cluster at 10.0.0.1:1", "a cluster that asks for a token needs RAY_AUTH_MODE=token"),
    ],
)
def test_another_python_and_a_missing_token(monkeypatch, capfd, error, words):
    def init(*_, **__):
        os.write(2, b"remarks of Ray\n")
        raise RuntimeError(error)

    ray = SimpleNamespace(init=init, shutdown=lambda: None, exceptions=SimpleNamespace(RayError=KeyError))
    monkeypatch.setitem(sys.modules, "ray", ray)
    setup, match = RaySetup(ray="local"), rf"--ray local: cannot connect: {error[:10]}.*{words}"
    with pytest.raises(UsageError, match=match), on_ray(setup, None, setup):
        raise AssertionError("connected")
    assert capfd.readouterr().err == ""


def test_a_worker_that_does_not_see_the_shards(tmp_path):
    with pytest.raises(UsageError, match=r"gone is not on .*: --ray reads shards by their path, on all nodes"):
        _blocks(tmp_path / "gone")


def test_without_ray_one_line_says_how_to_install_it(tiny, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    words = ("--target", tiny / "target", "--drafter", tiny / "drafter", "--prompts", tiny / "prompts.jsonl")
    result = run("trace", "collect", *words, "--output", tmp_path / "t.npz", *LOCAL)
    refused(result, "this command needs ray: pip install 'treeopt[ray]'")
    assert os.listdir(tmp_path) == []
