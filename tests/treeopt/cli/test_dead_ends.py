"""Errors about what is missing name the way on, in one line."""

import json

import click
import pytest

from simulate.profiles.profile import load_profile
from tests.helpers.command_line import done, refused, run, small_trace
from treeopt.cli.commands.profile import profile
from treeopt.cli.options.value_types import Numbers
from treeopt.storage.atomic_files import shipped
from treeopt.traces.trace import save_trace

TRACES, MODELS = shipped("traces"), shipped("models")


@pytest.fixture
def alone(tmp_path):
    """A trace of models that no profile was measured for."""
    path = tmp_path / "alone.npz"
    models = {"target": {"name": "other", "weights": "ff"}, "drafter": {"kind": "eagle", "weights": "ee"}}
    save_trace(small_trace(meta=models | {"verification": "greedy", "temperature": 0.0}), path)
    return path


@pytest.mark.parametrize(
    ("engine", "named"), [((), "ENGINE"), (("--for", "vllm"), "vllm"), (("--for", "sglang"), "sglang")]
)
def test_a_search_without_step_times_names_who_makes_them(alone, engine, named):
    message = refused(run("search", "--trace", alone, "--batch", "1", *engine), "no profile of this target and drafter")
    for way in (f"`treeopt profile --engine {named}`", "`treeopt times`", "`treeopt whatif --profiles`", "--profile"):
        assert way in message


def test_batch_sizes_outside_a_profile_name_the_command_that_measures_them(trace_file, profile_file):
    words = ("search", "--trace", trace_file, "--profile", profile_file, "--batch", "8,16")
    message = refused(run(*words), "batch 8, 16 lie outside the profile, which measured batch 1, 4;")
    command = message.partition("`")[2].rpartition("`")[0]
    assert command.startswith("treeopt profile --target TARGET --drafter DRAFTER --prompts PROMPTS ")
    assert command.endswith("--batch 1,4,8,16 --output profile.json")
    assert_parses(command)


PROFILES = sorted(path for path in shipped("profiles").glob("*.json"))


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_the_command_that_extends_a_shipped_profile_is_one(path):
    way, command = load_profile(path).way_to([64, 128])
    assert way.startswith("batch 64, 128 lie outside the profile, which measured batch 1, ")
    assert assert_parses(command) == (*dict.fromkeys(times.batch for times in load_profile(path).batches), 64, 128)


def assert_parses(command):
    """Return the batch sizes of a command line of `treeopt profile`."""
    words = command.split()
    assert words[:2] == ["treeopt", "profile"]
    given, rest, _ = profile.make_parser(click.Context(profile)).parse_args(words[2:])
    assert rest == []
    assert all(option.name in given for option in profile.params if option.required)
    return Numbers().convert(given["batch"], None, None)


TWO_SIZES = {
    "eagle-policies-cpu": "eagle-candidates-t0",
    "medusa-cpu-t1": "medusa-t1",
    "medusa-cpu-typical": "medusa-typical",
    "smollm2-eagle-cpu": "smollm2-eagle-t0",
}


@pytest.mark.parametrize("name", TWO_SIZES)
def test_shipped_profiles_answer_the_batch_sizes_that_they_cover(name):
    words = ("search", "--trace", TRACES / f"{TWO_SIZES[name]}.npz", "--profile", shipped("profiles") / f"{name}.json")
    limits = ("--batch", "1,2,4,8", "--max-nodes", "3")
    plan = json.loads(done(*words, *limits, "--json").stdout)
    assert [entry["batch"] for entry in plan["entries"]] == [1, 2, 4]
    assert plan["meta"]["search"]["outside"]["batches"] == [8]
    printed = done(*words, *limits).stdout
    line, command = printed[printed.index("No answer: ") :].split("\n")[:2]
    assert (
        line
        == "No answer: batch 8 lies outside the profile, which measured batch 1, 4; profile again with all of them:"
    )
    assert "--batch 1,4,8 --output profile.json" in command
    assert printed.count("lies outside the profile") == 1
    assert any(command.strip() in warning for warning in plan["warnings"])


def test_other_commands_answer_the_batch_sizes_that_they_can(tmp_path):
    sampled, eagle = TRACES / "medusa-t1.npz", TRACES / "eagle-t0.npz"
    words = ("compare", sampled, eagle, "--requests", "40", "--shapes", "chain:1", "--batch", "4,8", "--max-nodes", "3")
    record = json.loads(done(*words, "--json").stdout)
    contest = record["contests"][-1]
    assert (contest["batch"], contest["skipped"]) == (8, {"medusa-t1": "outside its step times"})
    assert [standing["drafter"] for standing in contest["standings"]] == ["eagle-t0"]
    steps = ("--profile", shipped("profiles") / "medusa-cpu-t1.json")
    words = ("simulate", "--trace", sampled, *steps, "--tree", "2", "--batch", "8")
    message = refused(run(*words), "batch 5, 6, 7, 8 have no cost")
    assert "--batch 1,4,8 --output" in message


def test_a_shape_without_weights_names_the_commands_that_take_it(tiny):
    for words in (("decode", "--prompt", "a"), ("train", "--recipe", "eagle", "--data", tiny / "prompts.jsonl")):
        output = ("--output", tiny / "none") if words[0] == "train" else ()
        message = refused(
            run(*words, "--target", "8B", *output), "--target 8B: a shape has sizes but no weights", code=2
        )
        assert all(name in message for name in ("treeopt profile", "treeopt validate", "treeopt whatif"))


def test_other_ways_on(small_plan, trace_file, profile_file, tmp_path):
    refused(run("export", small_plan, "--format", "sglang", "--batch", "9"), "--batch", "search for it", code=None)
    refused(run("export", small_plan, "--format", "sglang", "--heads", "3"), "omit it; it takes", "--nearest", code=2)
    refused(run("compare", trace_file), "at least 2 traces, got 1: one trace is for `treeopt search`", code=2)
    words = ("search", "--trace", trace_file, "--profile", profile_file, "--batch", "1", "--max-depth", "9")
    refused(run(*words), "record it with `treeopt trace collect --depth 9`", code=2)
    hardware = ("whatif", "--trace", trace_file, "--target", "8b", "--batch", "1", "--hardware", "h900")
    refused(run(*hardware), "hardware must be one of", "another device needs its --bandwidth")


@pytest.mark.parametrize("batch", ["1,2,4,8", "3,16"])
@pytest.mark.parametrize("name", ["medusa", "eagle"])
def test_batch_sizes_between_profiled_ones_have_a_plan(name, batch):
    words = (
        "search",
        "--trace",
        TRACES / f"{name}-t0.npz",
        "--batch",
        batch,
        "--max-nodes",
        "4",
    )
    plan = json.loads(done(*words, "--json").stdout)
    profiled = {1, 2, 4, 8, 16} if name == "medusa" else {1, 4, 16}
    between = [int(size) for size in batch.split(",") if int(size) not in profiled]
    assert plan["meta"]["search"]["interpolated"] == between
    assert any("interpolated between" in warning for warning in plan["warnings"]) == bool(between)
    assert [entry["batch"] for entry in plan["entries"]] == [int(size) for size in batch.split(",")]


def test_simulate_and_compare_price_batch_sizes_between(tmp_path):
    eagle = TRACES / "eagle-t0.npz"
    record = json.loads(done("simulate", "--trace", eagle, "--tree", "2", "--batch", "8", "--json").stdout)
    assert record["interpolated"] == [8]
    assert any("step times of batch 8 are interpolated" in warning for warning in record["warnings"])
    words = ("compare", TRACES / "medusa-t0.npz", eagle, "--requests", "40", "--shapes", "chain:1", "--batch", "2")
    record = json.loads(done(*words, "--max-nodes", "3", "--json").stdout)
    assert any("step times of batch 2 are interpolated" in warning for warning in record["warnings"])
