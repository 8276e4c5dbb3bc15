"""`treeopt trace collect` with every drafter and all that it can record."""

import json

import numpy as np
import pytest

from executor.checkpoints import save_drafter
from executor.drafters.ngram.drafter import NGram
from executor.target.tokenizer import load_tokenizer
from tests.helpers.command_line import COLLECT, TEXTS, VOCABULARY, inputs, refused, run, write_target
from tests.helpers.policy_replay import replay_policy
from treeopt.planning.learning_curve import learning_curves
from treeopt.policies import DynamicTree
from treeopt.replay.sampled_rules import drawn_ranks
from treeopt.traces.trace_files import load_trace


@pytest.fixture(scope="module")
def tiny(tiny):
    """The shared folder with two more drafters: `other` (a model) and `counts`."""
    folder = tiny
    write_target(folder / "other")
    tokens = load_tokenizer(folder / "target", vocabulary=VOCABULARY)(list(TEXTS))["input_ids"]
    save_drafter(
        folder / "counts", NGram.count(tokens, order=2, vocabulary=VOCABULARY), dtype="float32", meta={"target": "tiny"}
    )
    return folder


def collected(tiny, path, *more, drafter="drafter"):
    place = drafter if drafter.startswith("prompt-lookup") else tiny / drafter
    words = inputs(tiny, drafter=place)
    result = run("trace", "collect", *words, *COLLECT, "--depth", "2", "--output", path, *more)
    assert result.exit_code == 0, result.stderr
    return load_trace(path)


@pytest.mark.parametrize("drafter", ["drafter", "other", "counts", "prompt-lookup", "prompt-lookup:5"])
def test_every_drafter_is_recorded(tiny, tmp_path, drafter):
    more = ("--probabilities", "--candidates", "depth=2,beam=3,width=4", "--requests", "3")
    trace = collected(tiny, tmp_path / "t.npz", *more, drafter=drafter)
    assert trace.draft_prob.shape == (trace.anchors, 2, 4)
    assert (trace.draft_prob.sum(2)[trace.rank >= -1] > 0).all()
    assert (trace.draft_entropy[trace.rank >= -1] >= 0).all()
    assert trace.target_entropy.max() > 0
    assert trace.accept is None
    assert len(trace.candidates.parent) == trace.anchors * 16
    assert replay_policy(DynamicTree(nodes=5, depth=2, beam=3, width=4), trace).committed.sum() == trace.anchors


def test_rules_above_temperature_0(tiny, tmp_path):
    sampled = ("--temperature", "0.8", "--top-k", "30", "--seed", "2", "--requests", "3")
    plain = collected(tiny, tmp_path / "t.npz", *sampled)
    assert (plain.accept, plain.draft_prob, plain.meta["verification"]) == (None, None, "sample-and-match")
    drawn = collected(tiny, tmp_path / "t.npz", *sampled, "--rule", "sequoia", "--draws", "3")
    assert drawn.meta["accept"] == "first in closed form, others means of 3 draws"
    assert (drawn.meta["top_k"], drawn.meta["text_sha256"]) == (30, plain.meta["text_sha256"])
    assert drawn.draft_prob is None
    assert (drawn.accept[..., 0][drawn.rank >= -1] > 0).any()


@pytest.mark.parametrize("rule", ["specinfer", "leviathan"])
def test_of_rules_that_draw_candidates_what_is_kept_is_told(tiny, tmp_path, rule):
    """Curves are of ranks that the rule might have kept, not of the drafter's; chains have none."""
    trace = collected(tiny, tmp_path / "t.npz", "--rule", rule, "--temperature", "1")
    told = run("trace", "info", tmp_path / "t.npz", "--nodes", "4").stdout
    assert "the ranks shown are the drafter's, not what steps accept" in told
    curve = run("trace", "info", tmp_path / "t.npz", "--learning-curve", "--nodes", "4", "--json")
    if rule == "leviathan":
        refused(curve, "holds chains alone")
        return
    (found,) = json.loads(curve.stdout)["learning_curves"]
    due = learning_curves(drawn_ranks(trace, np.random.default_rng(0)), nodes=(4,), depth=trace.depth, seed=0)
    assert found["points"][-1]["held_out"]["value"] == due[0].points[-1].held_out.value


def test_typical_acceptance_is_recorded_described_and_searched(tiny, profile_file, tmp_path):
    more = ("--rule", "typical", "--temperature", "0.7", "--tree", "[[0,0],[0,1],[1,0],[2]]")
    trace = collected(tiny, tmp_path / "t.npz", *more)
    assert trace.tree_kept.shape == (trace.anchors, 6)
    told = run("trace", "info", tmp_path / "t.npz")
    head = " ".join(told.stdout.split("\n\n")[2].split("───")[0].split())
    assert "accepted by" in head
    assert "recorded" in head
    assert "trees are replayed on text that was written with the recorded tree" in told.stdout
    words = ("search", "--trace", tmp_path / "t.npz", "--profile", profile_file, "--batch", "1")
    assert "written with the recorded tree" in run(*words, "--json").stdout
    refused(
        run("trace", "info", tmp_path / "t.npz", "--learning-curve"), "rank paths do not determine acceptance", code=1
    )


def test_parts_are_kept_gone_on_with_and_joined(tiny, tmp_path):
    """The small batch makes shards of 8 requests in all; the provenance names the command, so it is the same."""
    parts = ("--parts", tmp_path / "parts")
    collected(tiny, tmp_path / "t.npz", *parts)
    first = (tmp_path / "t.npz").read_bytes()
    (tmp_path / "t.npz").unlink()
    collected(tiny, tmp_path / "t.npz", *parts)
    assert (tmp_path / "t.npz").read_bytes() == first
    result = run("trace", "merge", tmp_path / "parts", "--output", tmp_path / "joined.npz")
    assert result.exit_code == 0, result.stderr
    assert result.stderr == f"48 anchors of 8 requests written to {tmp_path / 'joined.npz'}\n"
    assert (tmp_path / "joined.npz").read_bytes() == first
    more = collected(tiny, tmp_path / "t.npz", *parts, "--requests", "8")
    assert more.requests == 8
    words = ("trace", "collect", *inputs(tiny), *COLLECT, "--depth", "2", "--output", tmp_path / "t.npz", *parts)
    refused(run(*words, "--seed", "1"), "parts", "seed", code=2)
