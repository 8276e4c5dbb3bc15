"""`treeopt search`: what it prints and writes, and what it refuses."""

import errno
import json
import os
import re
import subprocess
from dataclasses import replace

import numpy as np
import pytest

from simulate.profiles.profile import save_profile
from tests.helpers.command_line import MODELS, TREEOPT, done, read_json, refused, run, small_profile, small_trace
from tests.helpers.strategies import drawn_trace
from treeopt.plans import load_plan, to_json
from treeopt.traces.trace_files import save_trace


def test_search_prints_a_table(trace_file, profile_file):
    words = ("search", "--trace", trace_file, "--profile", profile_file, "--batch", "4,1")
    result = done(*words, "--verbose")
    assert result.stderr == ""
    assert re.findall(r"(?m)^batch (\d+)", result.stdout) == ["4", "1"]
    for text in ("chosen tree", "no speculation", "best chain", "Not proved: ", "4 requests held out", "seed 0"):
        assert text in result.stdout, text
    shown = done(*words).stdout
    assert shown.startswith("Batch 4: a tree of ")
    assert "Not proved" not in shown
    assert "\n  treeopt validate --plan plan.json --target TARGET " in shown


def test_search_prints_json_alone_and_keeps_the_plan(trace_file, profile_file, tmp_path):
    words = ("search", "--trace", trace_file, "--batch", "1,4", "--json", "--output", tmp_path / "plan.json")
    result = done(*words)
    assert result.stderr == "profile: profile.json\n"
    record = read_json(result.stdout)
    assert [entry["batch"] for entry in record["entries"]] == [1, 4]
    plan = load_plan(tmp_path / "plan.json")
    assert to_json(plan) + "\n" == (tmp_path / "plan.json").read_text() == result.stdout
    assert plan.meta["trace"] == json.loads(json.dumps(small_trace().meta))
    assert plan.meta["cost"]["device"] == "made up"
    assert plan.meta["provenance"]["treeopt"]


def test_trees_that_the_rule_of_the_trace_does_not_take_are_not_judged(profile_file, tmp_path):
    kept = np.full((400, 2, 2), 0.4, dtype=np.float16)
    trace = drawn_trace([[0.6, 0.2]], [10] * 40, depth=2, rng=np.random.default_rng(0))
    save_trace(replace(trace, kept=kept, meta={"verification": "leviathan"}), tmp_path / "t.npz")
    words = ("search", "--trace", tmp_path / "t.npz", "--profile", profile_file, "--batch", "1")
    result = done(*words, "--compare", "[[0],[1]]", "--compare", "[[0],[0,0]]", "--json")
    (entry,) = read_json(result.stdout)["entries"]
    assert "[[0],[1]]" not in {*entry["skipped"], *(choice["name"] for choice in entry["compared"])}
    assert "[[0],[0,0]]" in {choice["name"] for choice in entry["compared"]}
    assert "not judged: [[0],[1]]: " in result.stderr


def test_search_says_how_many_requests_are_missing(trace_file, profile_file):
    words = ("search", "--trace", trace_file, "--profile", profile_file, "--batch", "1")
    (line,) = [line for line in done(*words, "--target-interval", "0.01").stdout.splitlines() if "tau is known" in line]
    assert re.fullmatch(r"batch 1: tau is known to [\d.]+%; \d+ more requests would make it 1.0%", line)
    record = read_json(done(*words, "--target-interval", "0.01", "--json").stdout)
    assert record["meta"]["missing"] == [line]
    assert "that is enough" in done(*words, "--target-interval", "9").stdout
    done(*words, "--target-interval", "1e-6")
    refused(run(*words, "--target-interval", "1e-308"), "must be at least 1e-06, got 1e-308", code=2)


def test_search_says_at_which_context_steps_are_priced(trace_file, profile_file, tmp_path):
    words = ("search", "--trace", trace_file, "--profile", profile_file, "--batch", "1,4")
    words += ("--output", tmp_path / "plan")
    save_profile(replace(small_profile(), context=(4, 1000)), profile_file)
    asked = done(*words, "--context", "90")
    assert "; priced at 90 tokens of context.\n" in asked.stdout
    said = "step times were measured at mixed contexts of 4 to 1000 tokens (mean 502), not at each context: at 90 they"
    assert f"Warning: {said}" in asked.stdout
    assert said in load_plan(tmp_path / "plan").warnings[-1]
    near, far = small_profile().batches, small_profile(tokens=40).batches
    told = [replace(t, context=c) for pair in zip(near, far, strict=True) for t, c in zip(pair, (64, 90), strict=True)]
    save_profile(replace(small_profile(), batches=tuple(told)), profile_file)
    for more, due, notes in (((), 64, "context: 64 tokens per sequence, the shortest"), (("--context", "90"), 90, "")):
        found = done(*words, "--max-nodes", "8", *more)
        assert f"; priced at {due} tokens of context.\n" in found.stdout
        assert found.stderr.startswith(notes)
        assert load_plan(tmp_path / "plan").meta["search"]["context"] == due
        assert "mixed contexts" not in found.stdout


def test_search_takes_the_profile_of_its_models_beside_the_trace(trace_file, tmp_path):
    (tmp_path / "a.json").write_text("not a profile")
    (tmp_path / "b.json").write_text("[]")
    others = {**MODELS, "drafter": {**MODELS["drafter"], "weights": "another"}}
    save_profile(small_profile(meta=others), tmp_path / "c.json")
    save_profile(small_profile(), tmp_path / "d.json")
    result = done("search", "--trace", trace_file, "--batch", "1")
    assert result.stderr == "profile: d.json\n"


@pytest.mark.parametrize("meta", [{}, {"target": "tiny", "drafter": "heads"}, {"target": None, "drafter": []}])
def test_no_profile_is_taken_for_one_of_models_without_hashes(tmp_path, meta, unchanged):
    """Two files that say nothing of their models do not therefore belong together."""
    save_trace(small_trace(meta={}), tmp_path / "trace.npz")
    save_profile(small_profile(meta=meta), tmp_path / "profile.json")
    unchanged()
    refused(run("search", "--trace", tmp_path / "trace.npz", "--batch", "1"), "no profile", "treeopt profile")


@pytest.mark.parametrize("part", ["target", "drafter"])
def test_search_warns_when_the_models_differ(trace_file, tmp_path, part):
    other = {**MODELS, part: {**MODELS[part], "weights": "another", "name": "Other", "kind": "eagle"}}
    save_profile(small_profile(meta=other), tmp_path / "other.json")
    result = done("search", "--trace", trace_file, "--profile", tmp_path / "other.json", "--batch", "1", "--json")
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("Warning: ")
    assert "tiny" in result.stderr
    assert ("Other" if part == "target" else "eagle") in result.stderr
    read_json(result.stdout)


def test_trees_beyond_any_profile_are_refused_by_option(trace_file, profile_file, tmp_path):
    """However many nodes are asked for, the pool that they are chosen from stays a tree."""
    words = ("search", "--trace", trace_file, "--batch", "1")
    larger = run(*words, "--profile", profile_file, "--max-nodes", 4096)
    refused(larger, "the profile measured tokens 2 to", "search: --max-nodes")
    save_profile(small_profile(tokens=4097), tmp_path / "wide.json")
    found = read_json(done(*words, "--profile", tmp_path / "wide.json", "--max-nodes", "4096", "--json").stdout)
    assert found["meta"]["search"]["max_nodes"] == 4096
    refused(run(*words, "--max-nodes", "4097"), "4097", "1<=x<=4096", code=2)


def test_a_plan_names_no_absolute_path(trace_file, profile_file, tmp_path):
    """Provenance promises so; a word such as `--trace=/home/me/t.npz` holds one too."""
    words = ["search", f"--trace={trace_file}", "--profile", str(profile_file), "--batch=1", "--json"]
    ran = subprocess.run([TREEOPT, *words], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert str(tmp_path) not in ran.stdout
    assert "trace.npz" in read_json(ran.stdout)["meta"]["provenance"]["command"]


OUTPUTS = {
    "search": ("search", "--trace", "no.npz", "--batch", "1"),
    "collect": ("trace", "collect", "--target", "no", "--drafter", "no", "--prompts", "no"),
    "profile": ("profile", "--target", "no", "--drafter", "no", "--prompts", "no"),
    "validate": ("validate", "--target", "no", "--drafter", "no", "--prompts", "no", "--plan", "no"),
}


@pytest.mark.parametrize("words", OUTPUTS.values(), ids=OUTPUTS)
def test_an_output_that_cannot_be_written_is_refused_before_any_work(tmp_path, unchanged, monkeypatch, words):
    (tmp_path / "file").write_text("a file")
    unchanged()
    refused(run(*words, "--output", tmp_path / "none" / "o"), "output", str(tmp_path / "none"), code=2)
    refused(run(*words, "--output", tmp_path / "file" / "o"), "output", str(tmp_path / "file"), code=2)
    refused(run(*words, "--output", tmp_path), "output", str(tmp_path), "directory", code=2)

    # Root may write anywhere, so the system's refusal is played.
    def denied(*args, **kwargs):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    for made in ("TemporaryFile", "mkstemp", "NamedTemporaryFile"):
        monkeypatch.setattr(f"tempfile.{made}", denied)
    refused(run(*words, "--output", tmp_path / "o"), "output", str(tmp_path), "Permission denied", code=2)
