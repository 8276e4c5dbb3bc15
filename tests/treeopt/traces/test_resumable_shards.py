"""Shards: an interrupted collection goes on and equals an uninterrupted one; damaged folders are refused; merging."""

import json
import tempfile
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import treeopt
from executor.prompts.prompt_files import Prompt
from executor.recording import collect_trace
from executor.recording.collect_trace import collect
from tests.helpers.models import random_heads, random_prompts, small_target
from tests.helpers.slow_params import slow_unless
from tests.helpers.strategies import assert_equal_traces, trace_of, traces
from tests.treeopt.traces.test_trace import rows
from treeopt.errors import TraceError, UsageError
from treeopt.policies import DynamicTree
from treeopt.traces import resumable_shards
from treeopt.traces import trace as trace_module
from treeopt.traces.merge_split import concatenate_traces, halves, merge_traces
from treeopt.traces.resumable_shards import MANIFEST, Shards, load_file_or_shards, note, optional_in, ranks_of
from treeopt.traces.trace import OPTIONAL, RANKS
from treeopt.traces.trace_files import load_trace, save_trace

TOKENS = random_prompts([5, 3, 8, 2, 6, 4, 7, 3, 5, 2, 9, 4, 3, 6, 2, 5, 4, 3, 8, 2], seed=8)
PROMPTS = [Prompt("x", domain="abc"[i % 3 if i > 9 else 1]) for i in range(len(TOKENS))]
GREEDY = {"new_tokens": 6, "width": 4, "batch": 1, "probabilities": True}
SAMPLED = {"new_tokens": 6, "width": 4, "batch": 1, "temperature": 1.0, "rule": "sequoia", "draws": 2, "seed": 5}
CANDIDATES = {"candidates": DynamicTree(nodes=1, depth=2, beam=3), "stride": 2}


@pytest.fixture(scope="module")
def models():
    return small_target(), random_heads()


def interrupted(models, folder, monkeypatch, settings, *, after):
    """A collection that ends in the middle of shard `after`."""
    made, record = [], collect_trace._Shard.record

    def failing(*words):
        if len(made) == after:
            raise KeyboardInterrupt
        made.append(record(*words))
        return made[-1]

    with monkeypatch.context() as patch:
        patch.setattr(collect_trace._Shard, "record", failing)
        with pytest.raises(KeyboardInterrupt):
            collect(*models, PROMPTS, TOKENS, folder=folder, **settings)
    return len(made)


def written(trace, path):
    save_trace(trace, path)
    return path.read_bytes()


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(GREEDY, id="greedy", marks=pytest.mark.slow),
        pytest.param(SAMPLED, id="sampled", marks=pytest.mark.slow),
        pytest.param(GREEDY | CANDIDATES, id="candidates"),
    ],
)
@pytest.mark.parametrize("after", slow_unless(lambda after: after == 1, [0, 1, 2]))
def test_an_interrupted_collection_equals_an_uninterrupted_one_byte_for_byte(
    models, tmp_path, monkeypatch, settings, after
):
    whole = written(collect(*models, PROMPTS, TOKENS, **settings), tmp_path / "whole.npz")
    assert interrupted(models, tmp_path / "parts", monkeypatch, settings, after=after) == after
    manifest = json.loads((tmp_path / "parts" / MANIFEST).read_text())
    assert [len(manifest["shards"]), manifest["requests"]] == [after, len(TOKENS)]
    monkeypatch.setattr(
        "treeopt.storage.provenance.sys.argv", ["treeopt", "again"]
    )  # what differs between runs of one thing
    told = []
    found = collect(*models, PROMPTS, TOKENS, folder=tmp_path / "parts", progress=told.append, **settings)
    assert written(found, tmp_path / "resumed.npz") == whole
    assert told[0] == 16 * after
    assert sum(told) == 2 * len(TOKENS)
    assert len(json.loads((tmp_path / "parts" / MANIFEST).read_text())["shards"]) == 3
    monkeypatch.setattr(collect_trace, "_Shard", None)  # nothing is left to do
    again = collect(*models, PROMPTS, TOKENS, folder=tmp_path / "parts", **settings)
    assert written(again, tmp_path / "again.npz") == whole
    assert written(Shards.listed(tmp_path / "parts").whole(), tmp_path / "whole again.npz") == whole


def test_a_shard_that_the_manifest_does_not_name_does_not_count(models, tmp_path, monkeypatch):
    whole = written(collect(*models, PROMPTS, TOKENS, **GREEDY), tmp_path / "whole.npz")
    interrupted(models, tmp_path / "parts", monkeypatch, GREEDY, after=1)
    for name in ("shard-00001.npz", ".shard-00001.npz.x1_", f".{MANIFEST}.x1_"):
        (tmp_path / "parts" / name).write_bytes(b"half a file")
    found = collect(*models, PROMPTS, TOKENS, folder=tmp_path / "parts", **GREEDY)
    assert written(found, tmp_path / "resumed.npz") == whole
    resumable_shards.remove_parts(tmp_path / "parts")
    assert not (tmp_path / "parts").exists()


def test_other_models_prompts_and_code_do_not_go_on(models, tmp_path, monkeypatch):
    monkeypatch.setattr("treeopt.storage.provenance._commit", lambda: "none")
    interrupted(models, tmp_path, monkeypatch, GREEDY, after=1)
    target, heads = models
    for words, word in (
        ((target, random_heads(seed=1), PROMPTS, TOKENS), "drafter"),
        ((small_target(seed=1), heads, PROMPTS, TOKENS), "target"),
        ((target, heads, PROMPTS[:-1], TOKENS[:-1]), "prompts_sha256"),
    ):
        with pytest.raises(UsageError, match=f"was begun with {word}"):
            collect(*words, folder=tmp_path, **GREEDY)
    monkeypatch.setattr("treeopt.storage.provenance._commit", lambda: "another")
    with pytest.raises(UsageError, match='was begun with commit "none", not "another"'):
        collect(*models, PROMPTS, TOKENS, folder=tmp_path, **GREEDY)


def test_folders_that_hold_something_else(models, tmp_path):
    (tmp_path / "file").write_text("x")
    for folder, word in ((tmp_path, "holds files but no"), (tmp_path / "file", "cannot be"), (tmp_path / "a/b", "no")):
        with pytest.raises(UsageError, match=word):
            collect(*models, PROMPTS, TOKENS, folder=folder, **GREEDY)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_damage_is_named(models, tmp_path, monkeypatch):
    interrupted(models, tmp_path, monkeypatch, GREEDY, after=2)
    with pytest.raises(TraceError, match="holds 16 of 20 requests: resume it with the command"):
        Shards.listed(tmp_path).whole()
    manifest, shard = tmp_path / MANIFEST, tmp_path / "shard-00001.npz"
    good, record_there = shard.read_bytes(), json.loads(manifest.read_text())
    for content in (good[:-1], good[:100] + bytes([good[100] ^ 1]) + good[101:]):
        shard.write_bytes(content)
        with pytest.raises(TraceError, match=r"shard-00001\.npz: is not the file of checksum [0-9a-f]{64}"):
            collect(*models, PROMPTS, TOKENS, folder=tmp_path, **GREEDY)
    shard.unlink()
    with pytest.raises(TraceError, match=r"shard-00001\.npz: is not the file"):
        Shards.listed(tmp_path).whole()
    shard.write_bytes(good)
    for text, word in (
        ("{", "not JSON"),
        ('{"schema": "other"}', "schema must be"),
        (json.dumps(record_there | {"shards": [3]}), r"shards\[0\]: Expected `object`"),
        (json.dumps(record_there | {"requests": 3}), "the manifest records 3 requests, the shards hold 16"),
    ):
        manifest.write_text(text)
        with pytest.raises(TraceError, match=rf"manifest\.json: .*{word}"):
            Shards.listed(tmp_path).whole()
    manifest.unlink()
    with pytest.raises(TraceError, match=r"manifest\.json: cannot be read: No such file"):
        Shards.listed(tmp_path).whole()


@given(traces(requests=(1, 5), parts=True), st.data())
def test_ranks_are_streamed_without_the_rest_and_parts_joined_say_the_same(trace, data):
    cuts = sorted(data.draw(st.sets(st.integers(1, trace.requests - 1)))) if trace.requests > 1 else []
    pieces = [trace.select(part) for part in np.split(np.arange(trace.requests), cuts)]
    with tempfile.TemporaryDirectory() as folder:
        shards = Shards.begin(Path(folder) / "s", {"repeated_4grams": {}}, {}, trace.requests)
        for number, piece in enumerate(pieces):
            shards.add(replace(piece, meta=note([str(number)], 4, 1)))
        plain = dict.fromkeys(("accept", "kept", "draft_prob", "draft_entropy", "target_entropy", "candidates"))
        whole = shards.whole()
        assert_equal_traces(ranks_of(Path(folder) / "s"), replace(whole, **plain))
        held = [name for name in OPTIONAL if getattr(trace, name) is not None]
        assert optional_in(Path(folder) / "s") == held
    numbered = replace(trace, request=trace.request_index.astype(np.int32))
    assert rows(concatenate_traces(pieces, trace.meta)) == rows(numbered)


# --- joining


def test_joining_keeps_each_trace_s_labels():
    first = trace_of([[[0]], [[1]]], width=2, domain=np.int16([0, 1]), domain_names=("code", "chat"))
    second = trace_of([[[1]]], width=2, domain=np.int16([0]), domain_names=("art",))
    found = concatenate_traces([first, second], {})
    assert [found.domain_names[label] for label in found.domain] == ["code", "chat", "art"]
    assert_equal_traces(
        concatenate_traces([first], {}), replace(first, domain_names=("chat", "code"), domain=np.int16([1, 0]))
    )


def test_lengths_of_prompts_are_joined_where_all_are_known():
    one, other = (trace_of([[[0]], [[1]]], width=2, prompt_tokens=np.int32([n, 2 * n])) for n in (9, 30))
    assert concatenate_traces([one, other], {}).prompt_tokens.tolist() == [9, 18, 30, 60]
    assert concatenate_traces([one, replace(other, prompt_tokens=None)], {}).prompt_tokens is None
    assert concatenate_traces([replace(one, prompt_tokens=None), other], {}).prompt_tokens is None


@pytest.mark.parametrize(
    ("other", "word"),
    [
        (trace_of([[[0]]], width=3), "trace 1 has width 3, trace 0 2"),
        (trace_of([[[0, -2]]], width=2), "trace 1 has depth 2, trace 0 1"),
        (trace_of([[[0]]], width=2, target_entropy=np.float16([1])), "do not both hold `target_entropy`"),
        (trace_of([[[0]]], width=2, meta={"verification": "greedy"}), 'has verification "greedy", trace 0 null'),
    ],
)
def test_traces_that_do_not_fit(other, word):
    with pytest.raises(TraceError, match=word):
        merge_traces([trace_of([[[0]]], width=2), other])


def test_merging_keeps_what_traces_agree_in_and_lists_the_rest():
    metas = [{"target": {"name": "t"}, "seed": seed, "text_sha256": str(seed)} for seed in (1, 2)]
    parts = [trace_of([[[0]]], width=2, meta=meta) for meta in metas]
    found = merge_traces(parts)
    rest = [{"requests": 1, "seed": seed, "text_sha256": str(seed)} for seed in (1, 2)]
    assert dict(found.meta) == {"target": {"name": "t"}, "merged": rest}
    assert found.request.tolist() == [0, 1]
    assert dict(merge_traces(parts[:1]).meta) == metas[0]
    with pytest.raises(TraceError, match="trace 1 holds texts that stand in the list before it"):
        merge_traces([parts[0], parts[0]])


def test_settings_that_a_trace_does_not_tell_are_taken_to_be_the_others():
    old, new = {"name": "t", "weights": "1"}, {"name": "t", "weights": "1", "settings": "s"}
    first, later, other = (
        trace_of([[[rank]]], width=2, meta={"target": target, "drafter": {"weights": "2"}, "text_sha256": str(rank)})
        for rank, target in ((0, old), (1, new), (-1, new | {"settings": "t"}))
    )
    for pair in ((first, later), (later, first)):
        found = merge_traces(pair).meta
        assert found["target"] == new
        assert found["assumed"] == [
            "the settings of the target are the same in all merged traces; some do not record them"
        ]
    assert "assumed" not in merge_traces([later, replace(later, meta={**later.meta, "text_sha256": "3"})]).meta
    for three in ((later, other), (later, first, other), (first, later, other)):
        with pytest.raises(TraceError, match="has target"):
            merge_traces(three)


def test_requests_that_stand_in_two_traces_are_refused():
    rng = np.random.default_rng(0)
    ranks = rng.integers(-1, 4, (12, 40, 2))
    ranks[:, -1, 1] = -2  # past the end
    texts = ranks.tolist()
    first, later = (
        trace_of(texts[part], width=4, meta={"text_sha256": str(part)}) for part in (slice(8), slice(4, 12))
    )
    with pytest.raises(
        TraceError, match="4 requests of trace 1 from 0 on have the ranks of those of trace 0 from 4 on"
    ):
        merge_traces([first, later])
    with pytest.raises(TraceError, match=r"requests of trace 1 from \d on have the ranks of those of trace 0 from"):
        merge_traces([first, halves(later, share=0.75, seed=0)[0]])
    twice = merge_traces([first, trace_of([texts[8], texts[3], texts[9]], width=4)])  # a prompt that was given twice
    assert twice.requests == 11
    assert twice.meta["assumed"] == ["requests of merged traces with the same ranks have different texts (1 such)"]
    # Loops say nothing of whose text they are.
    loops = trace_of([[[0, 0]] * 39 + [[0, -2]], [[0, 1], [1, 0]] * 20 + [[0, -2]]], width=4)
    assert merge_traces([loops, loops]).requests == 4
    assert "assumed" not in merge_traces([loops, loops]).meta


def test_a_search_reads_many_shards_one_by_one_and_finds_the_same(tmp_path, monkeypatch):
    """In parts of few anchors, and from a folder that is never put together: the plan of the whole trace."""
    whole = load_trace(Path("data/traces/medusa-t0.npz"), arrays=RANKS).select(np.arange(300))
    shards = Shards.begin(tmp_path / "s", {"seed": 0, "repeated_4grams": {}}, {}, whole.requests)
    for start in range(0, whole.requests, 80):
        part = whole.select(np.arange(start, min(start + 80, whole.requests)))
        shards.add(replace(part, meta={**note(["text"], 1, 0)}))
    read = shards.whole()

    def found(trace):
        plan = treeopt.search(trace, "data/profiles/medusa-cpu.json", batch=(1, 16), max_nodes=8, solver_work=0)
        return replace(plan, meta={})

    expected = found(read)
    monkeypatch.setattr(resumable_shards, "MANY", 1)
    for module in (trace_module, resumable_shards):
        monkeypatch.setattr(module, "PART", 2000)
    split = load_file_or_shards(tmp_path / "s", ranks_only=True, to_split=True)
    assert isinstance(split, resumable_shards.ShardedTrace)
    assert found(tmp_path / "s") == expected
    assert len(read._view(0, read.requests).parts) == 5
    fit, held = split.split(share=0.5, rng=np.random.default_rng(3))
    for part, one in zip((fit, held), read.split(share=0.5, rng=np.random.default_rng(3)), strict=True):
        assert (part.select(np.arange(part.requests)).rank == one.rank).all()
        assert part.meta == one.meta
    assert (split.lengths == read.lengths).all()

    def call(*arguments):  # as a worker that was just started: nothing is kept from one call to the next
        return resumable_shards.Blocks(shards)(*deepcopy(arguments))

    assert found(resumable_shards.ShardedTrace(shards, partial(map, call))) == expected
