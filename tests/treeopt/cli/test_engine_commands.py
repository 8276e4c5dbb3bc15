"""Commands with --engine, against servers that run here and count tokens up."""

import json
from contextlib import ExitStack, closing, contextmanager

import numpy as np
import pytest

from simulate.profiles.profile import load_profile
from tests.helpers import fake_engine
from tests.helpers.command_line import done, error_of, run
from treeopt.cost_model import StepShape
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
