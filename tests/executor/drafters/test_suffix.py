"""Suffix decoding: equal to Arctic's own code, and before a model; texts, recordings and replay as for other lookups.

`arctic_suffix.json` holds what `SuffixTree` of arctic-inference 0.1.1 (csrc/suffix_decoding, depth 24, factor 1, least
probability 0.1) proposes after each token of random, repetitive and real texts; `arctic_suffix_cache.json` what its
`SuffixDecodingCache` proposes after each token of requests, one after the other, of which it keeps the last `kept`.
"""

import json
from pathlib import Path

import pytest
import torch

from executor.checkpoints import load_drafter
from executor.decoding.decoder import Decoder
from executor.drafters.combined.drafter import Combined
from executor.drafters.prompt_lookup.engine_rules import NOTHING
from executor.drafters.suffix.drafter import DEPTH, EarlierOutputs, SuffixTrie
from executor.prompts.prompt_files import Prompt
from executor.recording.collect_trace import collect, recorder
from tests.helpers.models import generated, random_heads, random_prompts, small_target
from treeopt.errors import UsageError
from treeopt.replay.static_tree import replay_tree
from treeopt.tree import Tree

CASES = json.loads((Path(__file__).parent / "arctic_suffix.json").read_text())
LENGTHS = (40, 25, 31)


def repetitive():
    return [[*prompt, *prompt[:20]] for prompt in random_prompts(LENGTHS, seed=4)]


def test_it_proposes_what_arctic_s_own_code_does():
    steps = drafted = 0
    for case in CASES:
        trie = SuffixTrie()
        for token, due in zip(case["text"], case["drafts"], strict=True):
            trie.extend([token])
            assert trie.propose(trie.texts[0][-DEPTH:], case["most"])[0] == due
            steps, drafted = steps + 1, drafted + bool(due)
    assert (steps, drafted > 1500) == (2450, True)


def test_with_earlier_outputs_it_proposes_what_arctic_s_own_cache_does():
    """The text alone would propose something else at every fourth token."""
    target, steps, others = small_target(), 0, 0
    for case in json.loads((Path(__file__).parent / "arctic_suffix_cache.json").read_text()):
        drafter = load_drafter(f"suffix:{case['most']}:{case['kept']}", target)
        for request in case["requests"]:
            prompt, output = request["prompt"], request["output"]
            alone, text = SuffixTrie(), list(prompt)
            alone.extend(prompt)
            drafter._start(0, len(prompt))
            for token, due in zip(output, request["drafts"], strict=True):
                alone.extend([token])
                text.append(token)
                found = drafter._proposed(0, text, case["most"])
                assert [each for each in found if each != NOTHING] == due
                others += alone.propose(alone.texts[0][-DEPTH:], case["most"])[0] != due
                steps += 1
        assert len(drafter.history.trie.texts) == min(case["kept"], len(case["requests"]))
    assert (steps, others > steps / 5) == (2103, True)


def test_what_is_forgotten_leaves_nothing():
    outputs = repetitive()
    earlier = EarlierOutputs(kept=2)
    earlier.remember(outputs)
    for number in (2, 3):
        earlier.trie.remove(number)
    assert not earlier.trie.texts
    assert earlier.trie.propose(outputs[2][-DEPTH:], 8)[0] == []


def test_outputs_of_earlier_requests_replay_to_what_the_loop_accepts():
    """One request at a time, of which the later ones repeat the first; shards in any order, and the same."""
    target = small_target()
    drafter = load_drafter("suffix:4:7", target)
    prompts = [prompt[:9] for prompt in random_prompts((12, 12, 12), seed=4)] * 3
    tree = Tree.chain(3)
    found = Decoder(target, drafter, tree=tree).generate(prompts, new_tokens=9)
    assert [list(text.tokens) for text in found] == [generated(target.model, prompt, 9) for prompt in prompts]
    asked = target, drafter, [Prompt("")] * len(prompts), prompts
    settings = {"new_tokens": 9, "depth": 3, "width": 1, "batch": 1}
    trace = collect(*asked, **settings)
    live = sum(len(text.tokens) for text in found) / sum(len(text.accepted) for text in found)
    assert replay_tree(tree, trace).tau == pytest.approx(live)
    alone = collect(target, load_drafter("suffix:4", target), *asked[2:], **settings)
    assert live > replay_tree(tree, alone).tau
    assert (trace.meta["drafter"]["cached_requests"], "cached_requests" in alone.meta["drafter"]) == (7, False)
    head, record = recorder(*asked, **settings)
    assert head.size == 8
    assert (record(8).rank == trace.rank[trace.request == 8]).all()
    assert (record(0).rank == trace.rank[trace.request < 8]).all()
    for refused in (
        lambda: Decoder(target, drafter, tree=tree, batch=2),
        lambda: collect(*asked, **settings | {"batch": 2}),
    ):
        with pytest.raises(UsageError, match="take one request at a time, batch 1"):
            refused()


@pytest.mark.parametrize("name", ["suffix:4", "combined"])
def test_recorded_ranks_replay_to_what_the_loop_accepts(name):
    target = small_target()
    drafter = load_drafter("suffix:4", target)
    if name == "combined":
        drafter = Combined(drafter, random_heads(heads=4))
    prompts = repetitive()
    tree = Tree.chain(3)
    decoder = Decoder(target, drafter, tree=tree, batch=3)
    found = decoder.generate(prompts, new_tokens=24)
    assert [list(text.tokens) for text in found] == [generated(target.model, prompt, 24) for prompt in prompts]
    trace = collect(target, drafter, [Prompt("")] * 3, prompts, new_tokens=24, depth=3, width=1)
    replayed = replay_tree(tree, trace)
    live = sum(len(text.tokens) for text in found) / sum(len(text.accepted) for text in found)
    assert replayed.tau == pytest.approx(live)
    assert live > 1


def test_a_combination_drafts_by_its_model_where_the_lookup_has_nothing():
    target, heads = small_target(), random_heads(heads=4)
    both = Combined(load_drafter("suffix:4", target), heads)
    text = torch.tensor(repetitive()[:1])
    features = target.features(text).features
    for k in range(3):
        forced, alone, looked = (
            list(each.teacher_forced(target, text, features, 3))[k].scores[0] for each in (both, heads, both.first)
        )
        first = next(iter(both.first.teacher_forced(target, text, features, 1))).scores[0]
        proposes = (first > -torch.inf).any(-1)
        assert 0 < int(proposes.sum()) < len(proposes)
        torch.testing.assert_close(forced, torch.where(proposes[:, None], looked, alone))


def test_names_without_meaning_are_refused(tmp_path):
    target = small_target()
    for name in ("suffix:99", "suffix:8+", "suffix:8:9:1", "suffix:8:x"):
        with pytest.raises(UsageError, match=r"must be suffix, suffix:K with K in 1\.\.24, or suffix:K:N"):
            load_drafter(name, target)
    with pytest.raises(UsageError, match=r"prompt-lookup always drafts: needed is suffix"):
        load_drafter(f"prompt-lookup+{tmp_path}", target)
