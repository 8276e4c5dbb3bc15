"""`treeopt validate`: predicted against measured, and what it refuses."""

import json
import shutil
from dataclasses import asdict, replace

import numpy as np
import pytest

from executor.verification.acceptance_rules import Greedy
from simulate.profiles.profile import load_profile, save_profile
from simulate.validation.predictions import Runs, load_predictions, whole_runs
from tests.helpers.command_line import (
    CHECK,
    RANDOM,
    done,
    inputs,
    read_json,
    refused,
    run,
    small_profile,
    validate,
    whole,
)
from tests.helpers.strategies import drawn_trace
from treeopt.planning.held_out_split import hold_out
from treeopt.plans import load_plan, save_plan
from treeopt.replay.static_tree import replay_tree
from treeopt.storage.user_files import checksum
from treeopt.traces.trace_files import load_trace, save_trace
from treeopt.tree import Tree


def test_the_whole_way(made, tiny, tmp_path):
    """Recorded, measured, searched, validated: every file names the same models, so nothing is warned of."""
    for name in ("trace.npz", "profile.json"):
        shutil.copy(made / name, tmp_path)
    found = done(
        *("search", "--trace", tmp_path / "trace.npz", "--batch", "1", "--max-nodes", "4"),
        *("--output", tmp_path / "plan.json"),
    )
    assert found.stderr.splitlines()[0] == "profile: profile.json"
    assert "Warning" not in found.stderr
    shown = validate(tiny, tmp_path / "plan.json")
    assert shown.exit_code == 0
    assert "predicted" in shown.stdout
    assert "Warning" not in shown.stderr
    # These are the very prompts that the trace was made of; nothing may say otherwise.
    assert "does not hold" not in shown.stdout
    output = tmp_path / "validation.json"
    told = validate(tiny, tmp_path / "plan.json", "--json", "--output", output)
    assert told.exit_code == 0
    record = read_json(told.stdout)
    assert record == read_json(output.read_text())
    assert record["schema"] == "treeopt.validation/2"
    (entry,) = load_plan(tmp_path / "plan.json").entries
    fixed = load_predictions(tmp_path / "validation.predictions.json")
    assert fixed.plan.entries == (entry,)
    assert record["meta"]["predictions"]["sha256"] == fixed.sha256
    assert fixed.meta["plan"] == checksum(tmp_path / "plan.json")
    assert record["cells"][0]["batch"] == 1
    assert record["cells"][0]["tree"]["id"] in {c.tree.id for c in (entry.choice, *entry.compared) if c.tree}
    assert record["max_error"] == max(abs(cell["error"]) for cell in record["cells"])


def test_validate_predicts_whole_runs(made, tiny, tmp_path):
    """Replay the requests that trees were not chosen on, as the library does."""
    record, told = whole(tiny, made, tmp_path, *CHECK)
    assert "whole runs" not in told
    fixed = load_predictions(tmp_path / "fixed.json")
    cells = {(cell["batch"], cell["tree"]["id"]): cell["end_to_end_predicted"] for cell in record["cells"]}
    assert cells == {place: asdict(due) for place, due in fixed.whole.items()}
    assert record["end_to_end"]["cells"] == len(cells) >= 2
    trace = load_trace(made / "trace.npz")
    runs = Runs({1: (2, 2, 2, 2), 2: (4, 4)}, tuple(trace.prompt_tokens.tolist()), 6)
    assert fixed.meta["runs"] == runs.record
    assert fixed.whole == whole_runs(
        fixed.plan, hold_out(trace, seed=0)[1], load_profile(tmp_path / "profile.json"), runs
    )


def test_validate_measures_trees_of_given_sizes(made, tiny, tmp_path):
    """Sizes that trace or profile do not cover are named and left out."""
    save_profile(small_profile(batches=(1, 2)), tmp_path / "profile.json")
    words = ("--trace", made / "trace.npz", "--profile", tmp_path / "profile.json", "--batch", "1,2", "--json")
    shapes = ("--shapes", "chain:1,chain:2,chain:99,best:4")
    record = read_json(done("validate", *inputs(tiny), *CHECK, *words, *shapes).stdout)
    for batch in (1, 2):
        names = {name for c in record["cells"] if c["batch"] == batch for name in c["name"].split(", ")}
        assert {"chain of 1", "chain of 2", "best tree of 4"} <= names
        assert list(record["meta"]["skipped"][str(batch)]) == ["chain of 99"]
    cells = {tree["id"]: (c, c["closed_forms"]) for c in record["cells"] if (tree := c["tree"]) and c["batch"] == 1}
    assert all(forms["leviathan"] > 0 and forms["coral"] > 0 for _, forms in cells.values())
    refused(run("validate", *inputs(tiny), *CHECK, *words[:-1], "--shapes", "tree:4"), "chain:N", "tree:4", code=2)


def replaying(trace, profile, *more):
    """A validation of random weights that keep what 8 requests of a trace keep."""
    words = (*RANDOM, "--profile", profile, "--acceptance", f"replay:{trace}", "--blocks", "2", "--json")
    return run("validate", *words, "--trace", trace, "--batch", "2", *more)


@pytest.fixture
def sources(tmp_path):
    """A trace of 16 requests and a profile that covers the usual small trees."""
    rng = np.random.default_rng(0)
    trace = drawn_trace([[0.5, 0.2, 0.1, 0.05]], [12] * 16, depth=3, rng=rng)
    save_trace(trace, tmp_path / "t.npz")
    save_profile(small_profile(batches=(1, 2), depth=3), tmp_path / "p.json")
    return trace, tmp_path / "t.npz", tmp_path / "p.json"


@pytest.mark.slow
def test_random_weights_replay_a_trace_by_predictions_that_are_read_again(sources, tmp_path):
    """tau is the replay's of just those requests, no prediction has seen them; predictions must not be changed."""
    trace, path, profile = sources
    fixed = tmp_path / "fixed.json"
    result = replaying(path, profile, "--requests", "8", "--skip", "4", "--predictions", fixed)
    assert result.exit_code == 0, result.stderr
    assert "predictions" in result.stderr
    record = read_json(result.stdout)
    part = trace.select(np.arange(4, 12))
    for cell in record["cells"]:
        tree = Tree.from_paths(tuple(map(tuple, cell["tree"]["paths"])))
        assert cell["measured"]["tau"]["value"] == pytest.approx(replay_tree(tree, part).tau)
    meta = record["meta"]
    assert (meta["acceptance"], meta["prompts"], meta["prompt_tokens"]) == ("replay", 8, [5, 5])
    assert meta["target"]["name"] == "random-toy"
    assert meta["predictions"]["replayed"] == checksum(path)
    assert meta["predictions"]["replayed_requests"] == [4, 8]
    search = load_predictions(fixed).plan.meta["search"]
    assert search["requests_chosen_on"] + search["requests_judged_on"] == 16 - 8
    words = (*RANDOM, "--blocks", "2", "--requests", "8", "--skip", "4", "--predictions", fixed)
    kept = fixed.read_bytes()
    other = read_json(done("validate", *words, "--acceptance", f"replay:{path}", "--json").stdout)
    assert fixed.read_bytes() == kept
    assert record["meta"]["predictions"] == other["meta"]["predictions"]
    assert [c["predicted"] for c in record["cells"]] == [c["predicted"] for c in other["cells"]]
    assert [c["closed_forms"] for c in record["cells"]] == [c["closed_forms"] for c in other["cells"]]
    refused(run("validate", *words), "fixed.json", "replay of a trace", "live", code=2)
    seen = run("validate", *words, "--acceptance", f"replay:{path}", "--skip", "1")
    refused(seen, "fixed.json", "--skip 4 --requests 8", code=2)
    fixed.write_text(fixed.read_text().replace('"seed": 0', '"seed": 1', 1))
    refused(run("validate", *words, "--acceptance", f"replay:{path}"), "fixed.json", "was changed")


@pytest.mark.slow
def test_a_replay_does_the_work_of_a_rule(sources, tmp_path, monkeypatch):
    """Steps accept what the trace says and compute what the rule computes."""
    trace, path, profile = sources

    def unwanted(*_: object) -> None:
        raise AssertionError("judged greedily")

    monkeypatch.setattr(Greedy, "accept", unwanted)
    result = replaying(path, profile, "--requests", "8", "--temperature", "1", "--rule", "point-mass")
    assert result.exit_code == 0, result.stderr
    record = read_json(result.stdout)
    assert (record["meta"]["verification"], record["meta"]["temperature"]) == ("point-mass", 1.0)
    part = trace.select(np.arange(8))
    for cell in record["cells"]:
        tree = Tree.from_paths(tuple(map(tuple, cell["tree"]["paths"])))
        assert cell["measured"]["tau"]["value"] == pytest.approx(replay_tree(tree, part).tau)


@pytest.mark.parametrize("longer", [pytest.param(0, marks=pytest.mark.slow), 16])
def test_texts_of_another_length_than_the_trace_s_are_warned_of(sources, tmp_path, longer):
    trace, path, profile = sources
    recorded = 8 + longer
    save_trace(replace(trace, meta={"new_tokens": recorded}), path)
    words = ("--trace", path, "--profile", profile, "--batch", "1", "--requests", "4", "--blocks", "2")
    live = ("--acceptance", "live", "--requests", "4", "--blocks", "2")
    for more in (words, live) if longer else (words,):
        result = run("validate", *RANDOM, "--new-tokens", "8", *more, "--predictions", tmp_path / "fixed.json")
        assert result.exit_code == 0, result.stderr
        assert (f"Warning: the trace's requests have {recorded} new tokens" in result.stderr) == bool(longer)


def test_validate_decodes_by_the_rule_of_the_plan_s_trace(plan_file, tiny, tmp_path):
    plan, told = load_plan(plan_file), {"verification": "sample-and-match", "temperature": 0.7, "top_p": 0.9}
    save_plan(replace(plan, meta={**plan.meta, "trace": plan.meta["trace"] | told}), tmp_path / "plan.json")
    asked = ("--temperature", "0.7", "--top-p", "0.9", "--output", tmp_path / "v.json")
    said = validate(tiny, tmp_path / "plan.json", *asked)
    assert said.exit_code == 0, said.stderr
    assert "this is with" not in said.stderr
    assert "new tokens each by sample-and-match at temperature 0.7, top-p 0.9, in" in said.stdout
    record = json.loads((tmp_path / "v.json").read_text("utf-8"))
    assert {name: record["meta"][name] for name in told} == told
    other = validate(tiny, tmp_path / "plan.json", "--temperature", "0.7")
    assert "recorded with top_p 0.9, this run uses 1.0" in other.stderr
