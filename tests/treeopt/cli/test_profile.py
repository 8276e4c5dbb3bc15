"""`treeopt profile`: what it measures, and what it refuses."""

import pytest

from simulate.profiles.profile import load_profile
from tests.helpers.command_line import HEADS, MEASURE, RANDOM, TEXTS, collect, done, measure, refused, run


def test_a_profile_covers_what_was_asked_for(made):
    profile = load_profile(made / "profile.json")
    (times,) = profile.batches
    assert (times.batch, times.draft[-1][0], times.rest[0][0], times.rest[-1][0]) == (1, HEADS, 2, 5)
    tokens = [len(text.encode()) for text in TEXTS]
    assert profile.context == (min(tokens), max(tokens) + 12)


def test_random_prompts_beyond_the_context_are_refused_before_they_are_drawn(tmp_path):
    words = ("--prompt-tokens", "9" * 9, *MEASURE, "--requests", "3", "--output", tmp_path / "profile.json")
    refused(run("profile", *RANDOM, *words), "999999999 tokens exceed the model's context of 40960")


def test_a_short_name_means_random_weights(tmp_path):
    words = ("--target", "TOY", "--drafter", "medusa:3", "--prompt-tokens", "5", *MEASURE, "--requests", "3")
    result = run("profile", *words, "--output", tmp_path / "profile.json")
    assert result.exit_code == 0, result.stderr
    profile = load_profile(tmp_path / "profile.json")
    assert profile.meta["target"]["name"] == "random-toy"
    assert profile.context == (5, 17)


def test_sampled_step_times_are_measured_and_preferred_for_sampled_traces(tiny, tmp_path):
    """A trace at temperature 1: with greedy step times only, a warning; beside sampled ones, these."""
    told = {"verification": "sample-and-match", "temperature": 1.0, "top_k": 40}
    sampled = ("--temperature", "1", "--top-k", "40")
    assert collect(tiny, tmp_path / "trace.npz", *sampled).exit_code == 0
    assert measure(tiny, tmp_path / "a-greedy.json").exit_code == 0
    words = ("search", "--trace", tmp_path / "trace.npz", "--batch", "1", "--max-nodes", "4")
    warning = "step times were measured with greedy and the trace was recorded with sample-and-match at temperature 1"
    found = done(*words)
    assert found.stderr == "profile: a-greedy.json\n"
    assert f"Warning: {warning}, top-k 40" in " ".join(found.stdout.split())
    assert measure(tiny, tmp_path / "b-sampled.json", *sampled).exit_code == 0
    profile = load_profile(tmp_path / "b-sampled.json")
    assert told.items() <= profile.meta.items()
    assert (profile.meta["seed"], load_profile(tmp_path / "a-greedy.json").meta["verification"]) == (0, "greedy")
    found = done(*words)
    assert found.stderr == "profile: b-sampled.json\n"
    assert warning not in " ".join(found.stdout.split())


def test_a_rule_of_chains_measures_chains(tiny, tmp_path):
    result = measure(tiny, tmp_path / "p.json", "--temperature", "0.8", "--rule", "leviathan")
    assert result.exit_code == 0, result.stderr
    profile = load_profile(tmp_path / "p.json")
    (times,) = profile.batches
    assert [tokens for tokens, _ in times.rest] == [2, 3, 4]
    assert profile.meta["left_out"] == []


def test_profiles_need_one_source_of_prompts(tiny, tmp_path):
    words = ("--target", tiny / "target", "--drafter", tiny / "drafter", "--output", tmp_path / "p.json")
    refused(run("profile", *words), "--prompts", "--prompt-tokens", code=2)


def test_a_profile_without_time_is_refused(tiny, tmp_path, unchanged):
    (tmp_path / "keep").write_text("so that there is a file")
    unchanged()
    refused(measure(tiny, tmp_path / "profile.json", "--budget", "1e-3"), "the smallest profile takes", code=2)


@pytest.mark.parametrize("nodes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_smallest_trees_can_be_profiled(tiny, tmp_path, nodes):
    result = measure(tiny, tmp_path / "profile.json", "--max-nodes", nodes)
    assert result.exit_code == 0, result.stderr
    assert "no size could be left out, too few for a 95 % interval: other sizes are assumed" in result.stderr
    assert load_profile(tmp_path / "profile.json").batches[0].rest[-1][0] == nodes + 1
