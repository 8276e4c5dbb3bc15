"""`treeopt trace`: what `collect` records with every drafter and refuses, and what `info` prints."""

import json
import os
import shutil
from dataclasses import replace

import numpy as np
import pytest

from executor.checkpoints import save_drafter
from executor.drafters.medusa.drafter import MEDUSA_FILE
from executor.drafters.ngram.drafter import NGram
from executor.target.tokenizer import load_tokenizer
from tests.helpers.command_line import (
    COLLECT,
    HEADS,
    TEXTS,
    VOCABULARY,
    collect,
    done,
    inputs,
    read_json,
    refused,
    run,
    write_target,
)
from tests.helpers.policy_replay import replay_policy
from tests.helpers.strategies import drawn_trace
from treeopt.planning.learning_curve import learning_curves
from treeopt.planning.search_warnings import advice
from treeopt.policies import DynamicTree
from treeopt.replay.sampled_rules import drawn_ranks
from treeopt.storage.user_files import shipped
from treeopt.traces.resumable_shards import Shards, note
from treeopt.traces.trace_files import load_trace, save_trace


@pytest.fixture(scope="module")
def models(tiny):
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
def test_every_drafter_is_recorded(models, tmp_path, drafter):
    more = ("--probabilities", "--candidates", "depth=2,beam=3,width=4", "--requests", "3")
    trace = collected(models, tmp_path / "t.npz", *more, drafter=drafter)
    assert trace.draft_prob.shape == (trace.anchors, 2, 4)
    assert (trace.draft_prob.sum(2)[trace.rank >= -1] > 0).all()
    assert (trace.draft_entropy[trace.rank >= -1] >= 0).all()
    assert trace.target_entropy.max() > 0
    assert trace.accept is None
    assert len(trace.candidates.parent) == trace.anchors * 16
    assert replay_policy(DynamicTree(nodes=5, depth=2, beam=3, width=4), trace).committed.sum() == trace.anchors


def test_rules_above_temperature_0(models, tmp_path):
    sampled = ("--temperature", "0.8", "--top-k", "30", "--seed", "2", "--requests", "3")
    plain = collected(models, tmp_path / "t.npz", *sampled)
    assert (plain.accept, plain.draft_prob, plain.meta["verification"]) == (None, None, "sample-and-match")
    drawn = collected(models, tmp_path / "t.npz", *sampled, "--rule", "sequoia", "--draws", "3")
    assert drawn.meta["accept"] == "first in closed form, others means of 3 draws"
    assert (drawn.meta["top_k"], drawn.meta["text_sha256"]) == (30, plain.meta["text_sha256"])
    assert drawn.draft_prob is None
    assert (drawn.accept[..., 0][drawn.rank >= -1] > 0).any()


@pytest.mark.parametrize("rule", ["specinfer", "leviathan"])
def test_of_rules_that_draw_candidates_what_is_kept_is_told(models, tmp_path, rule):
    """Curves are of ranks that the rule might have kept, not of the drafter's; chains have none."""
    trace = collected(models, tmp_path / "t.npz", "--rule", rule, "--temperature", "1")
    told = run("trace", "info", tmp_path / "t.npz", "--nodes", "4").stdout
    assert "the ranks shown are the drafter's, not what steps accept" in told
    curve = run("trace", "info", tmp_path / "t.npz", "--learning-curve", "--nodes", "4", "--json")
    if rule == "leviathan":
        refused(curve, "holds chains alone")
        return
    (found,) = json.loads(curve.stdout)["learning_curves"]
    due = learning_curves(drawn_ranks(trace, np.random.default_rng(0)), nodes=(4,), depth=trace.depth, seed=0)
    assert found["points"][-1]["held_out"]["value"] == due[0].points[-1].held_out.value


def test_typical_acceptance_is_recorded_described_and_searched(models, profile_file, tmp_path):
    more = ("--rule", "typical", "--temperature", "0.7", "--tree", "[[0,0],[0,1],[1,0],[2]]")
    trace = collected(models, tmp_path / "t.npz", *more)
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


def test_parts_are_kept_gone_on_with_and_joined(models, tmp_path):
    """The small batch makes shards of 8 requests in all; the provenance names the command, so it is the same."""
    parts = ("--parts", tmp_path / "parts")
    collected(models, tmp_path / "t.npz", *parts)
    first = (tmp_path / "t.npz").read_bytes()
    (tmp_path / "t.npz").unlink()
    collected(models, tmp_path / "t.npz", *parts)
    assert (tmp_path / "t.npz").read_bytes() == first
    result = run("trace", "merge", tmp_path / "parts", "--output", tmp_path / "joined.npz")
    assert result.exit_code == 0, result.stderr
    assert result.stderr == f"48 anchors of 8 requests written to {tmp_path / 'joined.npz'}\n"
    assert (tmp_path / "joined.npz").read_bytes() == first
    more = collected(models, tmp_path / "t.npz", *parts, "--requests", "8")
    assert more.requests == 8
    words = ("trace", "collect", *inputs(models), *COLLECT, "--depth", "2", "--output", tmp_path / "t.npz", *parts)
    refused(run(*words, "--seed", "1"), "parts", "seed", code=2)


def test_collect_records_what_was_asked_for(made, tiny, tmp_path):
    trace = load_trace(made / "trace.npz")
    assert (trace.requests, trace.anchors, trace.depth, trace.width) == (8, 48, HEADS, 4)
    assert trace.domain_names == ("letters",)
    assert trace.meta["target"]["name"] == "target"
    assert trace.meta["drafter"]["heads"] == HEADS
    words = ("--depth", "2", "--requests", "3", "--skip", "2", "--temperature", "0.7", "--dtype", "float64")
    assert collect(tiny, tmp_path / "trace.npz", *words).exit_code == 0
    other = load_trace(tmp_path / "trace.npz")
    assert (other.requests, other.depth, other.meta["temperature"]) == (3, 2, 0.7)
    assert other.meta["target"]["dtype"] == "float64"
    assert os.listdir(tmp_path) == ["trace.npz"]


def test_collect_repeats_itself_whatever_the_batch(made, tiny, tmp_path):
    again = tmp_path / "trace.npz"
    assert collect(tiny, again, "--batch", "3").exit_code == 0
    first, second = load_trace(made / "trace.npz"), load_trace(again)
    np.testing.assert_array_equal(first.rank, second.rank)
    assert first.meta["text_sha256"] == second.meta["text_sha256"]


def test_a_drafter_that_was_made_for_another_target_is_warned_of(tiny, tmp_path):
    """By name, which is all that it says of it: random weights of the same shapes, or a target that lies below it."""
    shutil.copytree(tiny / "target", tmp_path / "other")
    shutil.copytree(tiny / "drafter", tmp_path / "drafter")
    shutil.copytree(tiny / "target", tmp_path / "drafter" / "own")
    for target, warned in (("other", True), ("drafter/own", False)):
        for drafter in (tmp_path / "drafter", tmp_path / "drafter" / MEDUSA_FILE):
            result = collect(tiny, tmp_path / "trace.npz", target=tmp_path / target, drafter=drafter)
            assert result.exit_code == 0, result.stderr
            lines = [line for line in result.stderr.splitlines() if line.startswith("Warning: ")]
            assert lines == [f"Warning: {drafter} was made for the target target, this one is other."] * warned
    assert "Warning" not in collect(tiny, tmp_path / "trace.npz").stderr


ENGINES = "vLLM stops drafting or crashes (vllm#48894, vllm#57964), SGLang drafts with positions that may be untrained"


def test_texts_beyond_the_drafters_positions_are_warned_of(tmp_path):
    models, prompts = shipped("models"), shipped("prompts") / "stdlib.jsonl"
    shutil.copytree(models / "stdlib-eagle3", tmp_path / "drafter")
    config = json.loads((tmp_path / "drafter" / "config.json").read_text())
    (tmp_path / "drafter" / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 56}))
    run = ["--target", models / "stdlib-llama", "--drafter", tmp_path / "drafter", "--prompts", prompts]
    trace = tmp_path / "t.npz"
    collected = done("trace", "collect", *run, "--requests", "4", "--new-tokens", "8", "--output", trace)
    recorded = load_trace(trace)
    lengths = recorded.prompt_tokens + recorded.lengths
    said = f"{(lengths > 56).sum()} of 4 texts, of up to {lengths.max()} tokens, {{}} the drafter's 56 positions"
    assert said.format("may pass") in collected.stderr
    assert ENGINES in collected.stderr
    assert recorded.meta["drafter"]["positions"] == 56
    decoded = done("decode", *run, "--requests", "4", "--new-tokens", "8", "--tree", "2")
    assert said.format("may pass") in decoded.stderr
    asked = ["--trace", trace, "--target", models / "stdlib-llama", "--hardware", "h100", "--batch", "1"]
    priced = done("whatif", *asked, "--max-nodes", "2", "--context", "128", "--plans", tmp_path / "plans", "--verbose")
    assert "context 128: the drafter is built for 56 tokens" in priced.output
    (plan,) = (tmp_path / "plans").iterdir()
    exported = done("export", plan, "--format", "vllm", "--nearest", "chain", "--method", "eagle3", "--model", "m")
    assert said.format("pass") in exported.stderr
    few = ["--skip", "500", "--requests", "4", "--new-tokens", "4", "--blocks", "2"]
    assert "56 positions" in done("validate", *run, *few, "--plan", plan).stderr


@pytest.fixture
def trace_file(tmp_path):
    """Forty requests of two kinds."""
    path = tmp_path / "trace.npz"
    laws = [[0.6, 0.2, 0.1], [0.3, 0.4, 0.1]]
    save_trace(drawn_trace(laws, [25] * 40, depth=3, rng=np.random.default_rng(3)), path)
    return path


def test_curves_are_the_library_s(trace_file):
    """Printed numbers are compared with the JSON elsewhere, for all commands."""
    words = ("trace", "info", trace_file, "--learning-curve", "--nodes", "2,5", "--seed", "4")
    record = read_json(done(*words, "--json").stdout)
    curves = learning_curves(load_trace(trace_file), nodes=(2, 5), depth=3, seed=4)
    assert [told["nodes"] for told in record["learning_curves"]] == [2, 5]
    for curve, told in zip(curves, record["learning_curves"], strict=True):
        assert told["flat_from"] == (curve.flat and curve.flat.requests)
        for point, values in zip(curve.points, told["points"], strict=True):
            assert (values["requests"], values["anchors"]) == (point.requests, point.anchors)
            assert [tuple(path) for path in values["tree"]] == list(point.tree.paths)
            assert values["fitted"] == point.fitted
            for name in ("held_out", "loss"):
                estimate = getattr(point, name)
                assert list(values[name].values()) == [estimate.value, estimate.low, estimate.high]


def test_advice_is_printed_and_told(trace_file, tmp_path):
    trace = load_trace(trace_file)
    due = advice(trace, 63)
    assert len(due) == 1
    assert f"Warning: {due[0]}." in done("trace", "info", trace_file).stdout
    assert read_json(done("trace", "info", trace_file, "--json").stdout)["advice"] == list(due)
    assert "Warning" not in done("trace", "info", trace_file, "--nodes", "20").stdout
    save_trace(trace.select(np.arange(2)), tmp_path / "few.npz")
    few = done("trace", "info", tmp_path / "few.npz").stdout
    assert "Warning: a trace needs at least 4 requests" in few
    refused(run("trace", "info", tmp_path / "few.npz", "--learning-curve"), "at least 4 requests")
    refused(run("trace", "info", trace_file, "--nodes", "4,x"), "tree sizes", "'4,x'", code=2)
    refused(run("trace", "info", trace_file, "--nodes", "0"), "tree sizes, whole numbers in 1..", "'0'", code=2)


def test_a_folder_of_shards_is_a_trace(trace_file, tmp_path):
    trace = load_trace(trace_file)
    shards = Shards.begin(tmp_path / "parts", {"repeated_4grams": {"prompts": 0.0}}, {}, trace.requests)
    for number, part in enumerate(np.split(np.arange(trace.requests), [7, 20])):
        piece = trace.select(part)
        entropy = np.zeros(piece.anchors, dtype=np.float16)
        shards.add(replace(piece, meta=note([str(number)], 10, 1), target_entropy=entropy))
    one = read_json(done("trace", "info", trace_file, "--json", "--learning-curve").stdout)
    parts = read_json(done("trace", "info", tmp_path / "parts", "--json", "--learning-curve").stdout)
    assert parts["meta"]["repeated_4grams"] == {"written": 0.1, "prompts": 0.0}
    assert parts["optional"] == ["target_entropy"]
    assert one | {"meta": {}} == parts | {"meta": {}, "optional": []}


def test_a_search_that_would_be_refused_is_not_the_next_command(tmp_path):
    for requests, command in ((3, False), (4, True)):
        file = tmp_path / f"{requests}.npz"
        save_trace(drawn_trace([[0.6]], [90] * requests, depth=2, rng=np.random.default_rng(0)), file)
        assert ("treeopt search" in done("trace", "info", file).stdout) == command
    shown = done("trace", "info", tmp_path / "3.npz", "--nodes", "1").stdout
    assert "at least 4 requests" in shown
