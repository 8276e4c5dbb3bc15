"""Commands with --engine, and `tune`, against servers that run here; the setup file that they read."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import click
import numpy as np
import pytest

import treeopt
from simulate.profiles.profile import load_profile
from tests.helpers import fake_engine
from tests.helpers.command_line import done, error_of, refused, run
from treeopt.api.run_models import Models, Prompts
from treeopt.api.runners import EngineSetup
from treeopt.api.tune_engine import TuneSettings, _exports
from treeopt.cli.commands.profile import profile
from treeopt.cli.commands.trace import collect
from treeopt.cli.commands.validate import validate
from treeopt.cli.options.settings_options import KEYS, read_setup, setup_text
from treeopt.cost_model import StepShape
from treeopt.errors import EngineError
from treeopt.plans import load_plan
from treeopt.results.tuning import ENTRY
from treeopt.storage.user_files import shipped
from treeopt.traces.trace_files import load_trace
from treeopt.tree import Tree

MODELS = ["--target", "data/models/stdlib-llama"]
PROMPTS = ["--prompts", "data/prompts/stdlib.jsonl", "--skip", "1000"]


@contextmanager
def servers(*lengths, manner="well"):
    """Options that name a running server for each draft length."""
    with ExitStack() as stack:
        words = ["--engine", "openai", "--engine-timeout", "5"]
        for length in lengths:
            server = stack.enter_context(closing(fake_engine.serve(manner, 0, drafted=length)))
            words += ["--url", f"{length}=http://127.0.0.1:{server.server_port}"]
        yield words


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A trace and a profile of the fake engine."""
    folder = tmp_path_factory.mktemp("engine")
    collect = ["trace", "collect", *MODELS, *PROMPTS, "--requests", "16", "--new-tokens", "40", "--depth", "2"]
    with servers(0, 1, 2) as words:
        done(*collect, *words, "--output", folder / "t.npz", "--force")
        measure = ["--batch", "1,2", "--max-depth", "2", "--rounds", "2", "--new-tokens", "40"]
        done(
            "profile", *MODELS, *PROMPTS, "--requests", "8", *measure, *words, "--output", folder / "p.json", "--force"
        )
    return folder


def test_the_steps_of_an_engine_become_a_trace(recorded):
    trace = load_trace(recorded / "t.npz")
    assert trace.requests == 16
    assert trace.depth == 2
    assert trace.meta["engine"]["drafted"] == 2
    assert not list(recorded.glob("t.npz.work*"))
    told = done("trace", "info", recorded / "t.npz").stdout
    visited = trace.meta["visited"]["anchors"]
    assert visited < trace.anchors
    assert f"the run visited {visited} of the trace's {trace.anchors} anchors" in " ".join(told.split())


def test_a_profile_of_an_engine_prices_chains(recorded):
    profile = load_profile(recorded / "p.json")
    for batch in (1, 2):
        steps = profile.step_s([StepShape.of(Tree.chain(length), batch=batch) for length in (1, 2)])
        assert np.all(steps > fake_engine.STEP_S)
        assert profile.plain_s(batch=batch) > fake_engine.STEP_S
    assert {row["drafted"] for row in profile.meta["spread"]} == {0, 1, 2}
    assert all(row["step_s"] == sorted(row["step_s"]) for row in profile.meta["spread"])


def test_predictions_are_checked_in_the_engine(recorded):
    files = ["--trace", recorded / "t.npz", "--profile", recorded / "p.json", "--batch", "1,2"]
    with servers(0, 1, 2) as words:
        command = ["validate", *MODELS, *PROMPTS, "--requests", "8", "--new-tokens", "40", "--blocks", "2", *files]
        record = json.loads(done(*command, *words, "--json", "--output", recorded / "v.json", "--force").stdout)
    assert {(cell["batch"], cell["tree"]["id"]) for cell in record["cells"]} == {
        (batch, Tree.chain(length).id) for batch in (1, 2) for length in (1, 2)
    }
    by_length = {len(cell["tree"]["paths"]): cell["measured"]["tau"]["value"] for cell in record["cells"]}
    assert by_length[1] == pytest.approx(1.5, abs=0.1)
    assert by_length[2] == pytest.approx(2.0, abs=0.1)
    assert record["meta"]["engine"]["name"] == "openai"
    predictions = json.loads((recorded / "v.predictions.json").read_text())
    assert predictions["sha256"] == record["meta"]["predictions"]["sha256"]


def test_a_server_that_dies_leaves_what_was_recorded(tmp_path):
    collect = ["trace", "collect", *MODELS, *PROMPTS, "--requests", "6", "--new-tokens", "20", "--depth", "2"]
    collect += ["--batch", "1", "--output", tmp_path / "t.npz", "--force"]
    with servers(2, manner="closes after 3") as words:
        broken = run(*collect, *words)
    assert broken.exit_code == 1
    assert "3 of 6 requests are kept in" in error_of(broken)
    assert "the same command resumes" in error_of(broken)
    assert not (tmp_path / "t.npz").exists()
    with servers(2) as words:
        done(*collect, *words)
        assert load_trace(tmp_path / "t.npz").requests == 6
        done(*collect[:-2], tmp_path / "whole.npz", *words)
    whole, resumed = (load_trace(tmp_path / name) for name in ("whole.npz", "t.npz"))
    assert np.array_equal(whole.rank, resumed.rank)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--engine", "openai"], "--engine openai needs --url"),
        (["--engine", "vllm"], "--engine vllm needs --engine-python"),
        (
            ["--engine", "openai", "--url", "2=http://127.0.0.1:9", "--temperature", "1"],
            "--engine does not take --temperature",
        ),
        (["--every-anchor"], "--every-anchor is for --engine"),
        ([], "give --drafter"),
    ],
)
def test_options_that_do_not_go_together(tmp_path, words, message):
    collect = ["trace", "collect", *MODELS, *PROMPTS, "--requests", "2", "--output", tmp_path / "t.npz", "--force"]
    assert message in error_of(run(*collect, *words))


def test_a_server_that_drafts_less_than_stated_is_noticed(tmp_path):
    measure = ["profile", *MODELS, *PROMPTS, "--requests", "8", "--batch", "1", "--rounds", "2", "--new-tokens", "40"]
    with servers(0, 1) as words, servers(1) as short:
        url = f"3={short[-1].partition('=')[2]}"
        said = done(*measure, *words, "--url", url, "--output", tmp_path / "p.json").stderr
    assert "accepted more than 1: does the engine draft as many as stated?" in " ".join(said.split())


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


def test_the_drafter_s_kind_is_the_method_where_none_is_given_and_methods_are_known_in_any_case():
    models = Models(target=shipped("models/stdlib-llama"), drafter=shipped("models/stdlib-eagle3"))
    vllm = EngineSetup(engine="vllm", engine_python=Path(sys.executable))
    assert vllm.driver(models, concurrency=1).meta["speculation"]["method"] == "eagle3"
    words = ("--drafter", str(models.drafter), "--engine-python", sys.executable, "--dry-run")
    assert run(*TUNE, "--engine", "openvino", *words).exit_code == 0
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


SETUP = """engine = "vllm"
engine-python = "vllm/bin/python"
method = "eagle3"
target = "T"
drafter = "D"
servers = 2
"""


@pytest.fixture
def setup(tmp_path):
    path = tmp_path / "vllm.toml"
    path.write_text(SETUP)
    return path


@pytest.mark.parametrize("command", [collect, profile, validate])
def test_commands_read_a_setup_and_an_option_beside_it_wins(setup, command, monkeypatch):
    seen = []
    monkeypatch.setattr(command, "callback", lambda **values: seen.append(click.get_current_context().params))
    words = ["--setup", str(setup), "--prompts", "p.jsonl", "--output", "o", "--target", "other"]
    command.main([*words, "--url", "1=http://a"], standalone_mode=False)
    (values,) = seen
    named = {name: str(values[name]) for name in ("engine", "method", "target", "drafter", "servers", "engine_python")}
    due = {"engine": "vllm", "method": "eagle3", "target": "other", "drafter": "D", "servers": "2"}
    assert named == due | {"engine_python": "vllm/bin/python"}


def test_what_is_written_is_read_again(tmp_path):
    values = {"engine": "openai", "urls": ((3, "http://a"), (0, "http://b")), "servers": 2, "random_weights": True}
    (tmp_path / "s.toml").write_text(setup_text({**values, "method": None, "engine_args": ""}))
    read = read_setup(tmp_path / "s.toml")
    assert read == {**values, "urls": ["3=http://a", "0=http://b"]}
    assert read.keys() <= KEYS.keys()


def test_a_command_writes_the_setup_that_it_was_given(tmp_path):
    out, setup = tmp_path / "trace.json", tmp_path / "s.toml"
    words = ["--target", "toy", "--drafter", "medusa:3", "--random-weights", "--threads", "1", "--write-setup", setup]
    sizes = ["--prompt-tokens", "8", "--batch", "1", "--max-nodes", "2", "--max-depth", "1", "--rounds", "2", "--steps"]
    done("profile", *words, *sizes, "2", "--new-tokens", "12", "--output", out)
    assert json.loads(out.read_text())["schema"].startswith("treeopt.profile/")
    assert read_setup(setup) == {"target": "toy", "drafter": "medusa:3", "random_weights": True, "threads": 1}


@pytest.mark.parametrize(
    ("text", "words"),
    [("foo = 1\n", "`foo` is no option of a setup"), ("a b\n", "is not TOML"), (None, "No such file")],
)
def test_other_files_are_refused_with_file_and_key(tmp_path, text, words):
    path = tmp_path / "bad.toml"
    if text is not None:
        path.write_text(text)
    refused(run("profile", "--setup", path, "--output", tmp_path / "o"), f"--setup {path}", words, code=2)


def test_a_value_of_the_wrong_type_is_refused_with_file_and_key(setup):
    setup.write_text('engine = "vllm"\nservers = "two"\n')
    refused(run("profile", "--setup", setup, "--output", "p.json"), f"--setup {setup}: `servers`: 'two' is not", code=2)
