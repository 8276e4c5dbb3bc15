"""Errors about what is missing name the way on, in one line."""

import json
import re

import click
import pytest

from tests.helpers.command_line import done, refused, run, small_trace
from treeopt.cli.commands.profile import profile
from treeopt.cli.options.value_types import numbers
from treeopt.traces.trace_files import save_trace


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


def assert_parses(command):
    """Return the batch sizes of a command line of `treeopt profile`."""
    words = command.split()
    assert words[:2] == ["treeopt", "profile"]
    given, rest, _ = profile.make_parser(click.Context(profile)).parse_args(words[2:])
    assert rest == []
    assert all(option.name in given for option in profile.params if option.required)
    return numbers().convert(given["batch"], None, None)


def test_other_ways_on(small_plan, trace_file, profile_file, tmp_path):
    refused(run("export", small_plan, "--format", "sglang", "--batch", "9"), "--batch", "search for it", code=None)
    refused(run("export", small_plan, "--format", "sglang", "--heads", "3"), "omit it; it takes", "--nearest", code=2)
    refused(run("compare", trace_file), "at least 2 traces, got 1: one trace is for `treeopt search`", code=2)
    words = ("search", "--trace", trace_file, "--profile", profile_file, "--batch", "1", "--max-depth", "9")
    refused(run(*words), "record it with `treeopt trace collect --depth 9`", code=2)
    refused(run("compare", trace_file, trace_file), "is given twice: a drafter is compared with others", code=2)
    words = ("search", "--profile", profile_file, "--batch", "1", "--trace")
    refused(run(*words, tmp_path), "is a folder without manifest.json, not one of `trace collect --parts`: give a .npz")
    refused(run(*words, trace_file, "--compare", "mc_sim_7b_63"), "published tree (medusa/mc_sim_7b_63, ", code=2)
    dear = ("whatif", "--trace", trace_file, "--target", "8b", "--hardware", "h100", "--price", "2.5")
    refused(run(*dear), "'2.5' is not NAME=NUMBER with a name of its own, such as h100=2.5", code=2)
    hardware = ("whatif", "--trace", trace_file, "--target", "8b", "--batch", "1", "--hardware", "h900")
    refused(run(*hardware), "hardware must be one of", "another device needs its --data-sheet")


def test_names_are_read_in_any_case_and_marks(trace_file, profile_file):
    words = ("search", "--trace", trace_file, "--profile", profile_file, "--batch", "1", "--json")
    for name, said in (("vllm", "vLLM"), ("llama.cpp", "llamacpp"), ("tensorrt-llm", "TensorRT_LLM")):
        one, other = (json.loads(done(*words, "--for", each).stdout) for each in (name, said))
        assert one["entries"] == other["entries"]
        assert other["meta"]["search"]["engine"] == name
    refused(run(*words, "--for", "trt"), "'trt' is not one of 'llama.cpp', 'lmdeploy'", code=2)


def test_a_limit_that_nothing_keeps_and_one_that_the_only_batch_size_keeps(trace_file, profile_file):
    words = (
        "whatif",
        "--acceptance",
        "0.75",
        "--target",
        "8b",
        "--kind",
        "eagle3",
        "--hardware",
        "l4",
        "--batch",
        "1,4",
    )
    found = done(*words, "--max-tpot-ms", "20", "--max-nodes", "4")
    first, least = (
        found.stdout.splitlines()[0],
        min(map(float, re.findall(r"  (\d\d\.\d\d)  +\d\.\d\d \[", found.stdout))),
    )
    said = f"Context 512: nothing takes at most 20 ms per token: the least is {least} ms, on L4 at batch 1."
    assert first == said
    words = ("search", "--trace", trace_file, "--profile", profile_file, "--batch", "1", "--max-tpot-ms", "99")
    assert "\nMost tokens per second below 99 ms per token: batch 1, " in done(*words).stdout
