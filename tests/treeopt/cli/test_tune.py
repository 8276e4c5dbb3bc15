"""`treeopt tune` against servers that run here, which accept a known number of tokens and take the same time a step."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import treeopt
from tests.helpers.command_line import done, error_of, run
from tests.treeopt.cli.test_engine_commands import MODELS, PROMPTS, servers
from treeopt.api.run_models import Models, Prompts
from treeopt.api.runners import EngineSetup
from treeopt.api.tune_engine import TuneSettings, _exports
from treeopt.errors import EngineError
from treeopt.plans import load_plan
from treeopt.results.tuning import ENTRY
from treeopt.storage.user_files import shipped
from treeopt.traces.trace_files import load_trace

TUNE = ["tune", *MODELS, *PROMPTS, "--requests", "16", "--new-tokens", "40", "--batch", "1,2"]


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tune") / "out"
    with servers(0, 1, 3) as words:
        done(*TUNE, *words, "--output", folder)
    return folder


def test_the_length_that_commits_the_most_per_step_is_chosen(output):
    record = json.loads((output / "tuning.json").read_text("utf-8"))
    assert record["decided"]
    chosen = {cell["batch"]: cell for cell in record["cells"] if cell["state"] == "chosen"}
    assert {batch: cell["drafted"] for batch, cell in chosen.items()} == {1: 3, 2: 3}
    assert all(cell["speedup"]["low"] > 1 for cell in chosen.values())
    assert {cell["drafted"] for cell in record["cells"]} == {0, 1, 3}
    assert ENTRY.of_record(record) == record


def test_plan_trace_profile_and_page_are_written_and_fit_the_choice(output):
    names = {path.name for path in output.iterdir()}
    assert names == {"tuning.json", "plan.json", "profile.json", "trace.npz", "page.html"}  # openai has no export
    plan = load_plan(output / "plan.json")
    assert [entry.choice.tree.nodes for entry in plan.entries] == [3, 3]
    assert load_trace(output / "trace.npz").depth == 3
    assert "Which draft length is the fastest?" in (output / "page.html").read_text("utf-8")


def test_a_dry_run_starts_nothing():
    said = run(
        *TUNE, "--engine", "openai", "--url", "0=http://127.0.0.1:9", "--url", "2=http://127.0.0.1:9", "--dry-run"
    )
    assert said.exit_code == 0
    assert "launches: " in said.stdout
    assert "lengths 0, 2 at batch 1, 2" in said.stdout


@pytest.mark.parametrize(
    ("engine", "method", "kind", "way"),
    [
        ("vllm", "medusa", "eagle", "give eagle or eagle3"),
        ("vllm", "ngram", "eagle3", "give eagle3"),
        ("vllm", "eagle3", "medusa", "leave it out, or give another drafter"),
        ("llama.cpp", "draft-mtp", "eagle3", "give draft-eagle3"),
    ],
)
def test_a_method_that_does_not_run_the_drafter_is_refused_before_anything_is_started(engine, method, kind, way):
    words = ("--drafter", f"data/models/stdlib-{kind}", "--engine-python", sys.executable, "--dry-run")
    said = run(*TUNE, "--engine", engine, "--method", method, *words)
    assert said.exit_code == 2
    assert f"--method {method} does not run a drafter of kind {kind}: {way}" in error_of(said)


def test_the_drafter_s_kind_is_the_method_where_none_is_given():
    models = Models(target=shipped("models/stdlib-llama"), drafter=shipped("models/stdlib-eagle3"))
    vllm = EngineSetup(engine="vllm", engine_python=Path(sys.executable))
    assert vllm.driver(models, concurrency=1).meta["speculation"]["method"] == "eagle3"
    words = ("--drafter", str(models.drafter), "--engine-python", sys.executable, "--dry-run")
    assert run(*TUNE, "--engine", "openvino", *words).exit_code == 0


def test_methods_are_known_in_any_case():
    models = Models(target=shipped("models/stdlib-llama"), drafter=shipped("models/stdlib-eagle3"))
    sglang = EngineSetup(engine="sglang", method="eagle3", engine_python=Path(sys.executable))
    assert sglang.driver(models, concurrency=1).meta["method"] == "EAGLE3"


@pytest.mark.parametrize(
    ("engine", "title", "code"), [("vllm", "vLLM", 2), ("sglang", "SGLang", 2), ("openvino", "OpenVINO GenAI", 1)]
)
def test_an_engine_without_a_way_to_draft_is_refused_before_anything_is_started(engine, title, code):
    said = run(*TUNE, "--engine", engine, "--engine-python", sys.executable, "--dry-run")
    assert said.exit_code == code
    assert f"{title} needs a drafter for a draft of 1: give " in error_of(said)


@pytest.mark.slow
def test_an_interrupted_command_resumes(tmp_path):
    command = [sys.executable, "-m", "treeopt", *TUNE, "--output", str(tmp_path / "out")]
    work = tmp_path / "out" / "tuning.json.work"
    with servers(0, 1) as words:
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        with subprocess.Popen([*command, *words], env=environment, stderr=subprocess.DEVNULL) as process:
            deadline = time.monotonic() + 60
            while not (work.exists() and work.read_bytes().count(b"\n") > 3) and time.monotonic() < deadline:
                time.sleep(0.02)
            process.send_signal(signal.SIGINT)
        before = work.read_bytes().count(b"\n") - 1
        assert before >= 3
        done(*TUNE, *words, "--output", tmp_path / "out")
    record = json.loads((tmp_path / "out" / "tuning.json").read_text("utf-8"))
    assert record["meta"]["settings"] > before
    assert not work.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "tune needs --engine"),
        (["--budget", "soon", "--engine", "openai"], "is not a time such as 900, 15m or 1h"),
    ],
)
def test_settings_that_do_not_go_together(tmp_path, words, message):
    assert message in error_of(run(*TUNE, *words, "--output", tmp_path / "out"))


def test_an_engine_that_cannot_start_leaves_nothing_half_written(tmp_path):
    """One line, no work file without content, no empty folder, no process."""
    words = ["--engine", "vllm", "--engine-python", sys.executable, "--method", "ngram", "--engine-timeout", "30"]
    said = run(*TUNE, *words, "--output", tmp_path / "out")
    assert said.exit_code == 1
    assert "No module named 'vllm'" in error_of(said)
    assert "once more" not in said.output
    assert not (tmp_path / "out").exists()


def test_a_server_that_dies_keeps_what_was_measured(tmp_path, monkeypatch):
    from executor.runners.engine_runner import EngineRunner

    measured, run_ = [], EngineRunner.run

    def dies(self, *arguments):
        if len(measured) == 3:
            raise EngineError("the engine died")
        measured.append(arguments)
        return run_(self, *arguments)

    monkeypatch.setattr(EngineRunner, "run", dies)
    with servers(0, 1) as words:
        said = error_of(run(*TUNE, *words, "--output", tmp_path / "out", "--quiet"))
    assert "the engine died; 3 settings are kept in" in said
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["tuning.json.work"]


def test_the_launch_command_has_the_arguments_that_were_tuned_with():
    plan = treeopt.search("data/traces/eagle-t0.npz", batch=1, engine="vllm", solver_work=0)
    engine = EngineSetup(engine="vllm", engine_args="--dtype float32", engine_drafter="heads")
    models = Models(target=shipped("models/stdlib-llama"))
    (export,) = _exports(TuneSettings(models=models, source=Prompts(), engine=engine), plan, "eagle").values()
    assert '"method": "eagle", "model": "heads"' in export.launch
    assert export.launch.endswith(" --dtype float32")
