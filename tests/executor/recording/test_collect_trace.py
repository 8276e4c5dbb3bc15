from dataclasses import replace

import numpy as np
import pytest
import torch

from executor.decoding.decoder import Decoder
from executor.drafters.language_model.drafter import LanguageModel
from executor.models import weights_hash
from executor.prompts.prompt_files import Prompt
from executor.recording import collect_trace
from executor.recording.collect_trace import ForcedText, collect, repeated_share
from executor.verification.acceptance_rules import make_rule
from executor.verification.temperature_top_k_top_p import Warp
from tests.helpers.drafters import DRAFTERS
from tests.helpers.expected_replay import expected_replay
from tests.helpers.models import random_heads, random_prompts, small_model, small_target
from tests.helpers.slow_params import slow_unless
from tests.helpers.strategies import assert_equal_traces
from treeopt.errors import ExecutorError, TraceError, UsageError
from treeopt.planning.search_warnings import advice
from treeopt.policies import DynamicTree
from treeopt.replay.sampled_rules import drawn_ranks
from treeopt.replay.static_tree import accepted_lengths, replay_tree, visit
from treeopt.traces.trace import PAST_END
from treeopt.traces.trace_files import load_trace, save_trace
from treeopt.tree import EMPTY, Tree
from treeopt.tree_files.choice_lists import EAGLE, MEDUSA, published_trees

WIDTH = 12
TREES = [
    Tree.chain(5),
    published_trees()[MEDUSA],
    published_trees()[EAGLE],
    Tree.from_paths([(11,), (3, 3, 3), (0, 7)]),
]


def prompts_for(tokens: list[list[int]]) -> list[Prompt]:
    return [Prompt("x", domain="even" if i % 2 == 0 else "odd") for i in range(len(tokens))]


@pytest.fixture(scope="module")
def recorded():
    """A greedy trace whose requests end by limit or stop token."""
    target, heads = small_target(), random_heads()
    tokens = random_prompts((9, 4, 17, 2, 6, 12, 3), seed=8)
    trace = collect(target, heads, prompts_for(tokens), tokens, new_tokens=40, width=WIDTH, stop=[7], batch=3)
    return target, heads, tokens, trace


def test_the_trace_accepts_something(recorded):
    *_, trace = recorded
    assert (visit(TREES[1], trace).accepted > 0).mean() > 0.2
    assert trace.lengths.min() < 40
    assert trace.lengths.max() == 40


def test_ranks_match_an_uncached_recursion(recorded):
    """Each anchor on its own: run the model on the text so far, ask the heads, count better tokens."""
    target, heads, tokens, trace = recorded
    text = Decoder(target).generate([tokens[2]], new_tokens=40, stop=[7])[0].tokens
    whole = [*tokens[2], *text]
    start = int(trace.starts[2])
    for t in range(0, len(text), 5):
        seen = torch.tensor([whole[: len(tokens[2]) - 1 + t]])
        feature = target.features(seen).features[:, -1]
        for k, scores in enumerate(heads(target, feature, 5)[:, 0]):
            if t + k >= len(text):
                assert trace.rank[start + t, k] == PAST_END
                continue
            rank = int((scores > scores[text[t + k]]).sum())
            assert trace.rank[start + t, k] == (rank if rank < WIDTH else -1)


def by_position(target, heads, prompt, text, t):
    """The heads' scores after the token before text[t], (5, vocabulary), and the target's logits of that token."""
    outputs = target.features(torch.tensor([[*prompt, *text[:t]]]))
    return heads(target, outputs.features[:, -2], 5)[:, 0], outputs.logits[0, -1]


def test_probabilities_and_entropies_match_an_uncached_recursion(recorded):
    target, heads, tokens, _ = recorded
    ask = {"new_tokens": 12, "width": 4, "batch": 3, "probabilities": True}
    trace = collect(target, heads, prompts_for(tokens), tokens, **ask)
    assert trace.accept is None
    for request in (0, 3, 6):
        text = Decoder(target).generate([tokens[request]], new_tokens=12)[0].tokens
        for t in range(12):
            anchor = int(trace.starts[request]) + t
            scores, logits = by_position(target, heads, tokens[request], text, t)
            for k, q in enumerate(scores.softmax(-1)[: 12 - t]):
                best, entropy = q.sort(descending=True).values[:4], -(q * q.log()).sum()
                np.testing.assert_allclose(trace.draft_prob[anchor, k], best, rtol=2e-3, atol=1e-4)
                assert trace.draft_entropy[anchor, k] == pytest.approx(float(entropy), rel=2e-3)
            assert not trace.draft_prob[anchor, 12 - t :].any()
            p = logits.softmax(-1)
            assert trace.target_entropy[anchor] == pytest.approx(float(-(p * p.log()).sum()), rel=2e-3)


@pytest.mark.parametrize("rule", ["sample-and-match", "point-mass", "leviathan", "block", "specinfer", "sequoia"])
def test_acceptance_is_that_of_the_warped_laws(recorded, rule, monkeypatch):
    """A trace holds no text: what was written is looked at on its way."""
    target, heads, tokens, _ = recorded
    warp, seen = Warp(0.7, top_k=20, top_p=0.9), {}
    ask = {"new_tokens": 6, "width": 3, "rule": rule, "temperature": 0.7, "top_k": 20, "top_p": 0.9, "draws": 400}
    write = collect_trace._Shard.write

    def keep(shard):
        seen["texts"] = write(shard)
        return seen["texts"]

    monkeypatch.setattr(collect_trace._Shard, "write", keep)
    trace = collect(target, heads, prompts_for(tokens), tokens, **ask, probabilities=True)
    assert trace.meta["verification"] == rule
    for t in range(6):
        anchor = int(trace.starts[2]) + t
        text, ratios = seen["texts"][2], []
        for k in range(min(5, 6 - t)):
            q = by_position(target, heads, tokens[2], text, t)[0][k]
            logits = by_position(target, heads, tokens[2], text, t + k)[1]
            p = warp.log_probabilities(logits).exp()
            best, warped = q.topk(3).indices, warp.log_probabilities(q).exp()
            drawn = rule in ("leviathan", "block", "specinfer", "sequoia")
            if rule != "block":
                due = torch.minimum(p, warped).sum()[None] if drawn else p[best]
                np.testing.assert_allclose(trace.accept[anchor, k, : len(due)], due, rtol=2e-3, atol=1e-3)
            if drawn:
                ratios.append(float(warped[text[t + k]] / p[text[t + k]]))
                least = np.minimum.accumulate([1, *np.cumprod(ratios)])
                own = min(1, ratios[-1]) if rule != "block" else least[-1] / least[-2] if least[-2] else 0
                assert trace.kept[anchor, k, 0] == pytest.approx(own, rel=2e-3, abs=1e-3)
            law = warped if drawn else q.softmax(-1)
            np.testing.assert_allclose(trace.draft_prob[anchor, k], law[best], rtol=2e-3, atol=1e-3)
            if rule == "leviathan":
                assert not trace.accept[anchor, k, 1:].any()


TYPICAL = {"rule": "typical", "temperature": 0.7, "width": 4, "depth": 3, "stop": [7]}
RECORDED = Tree.from_paths([(0, 0, 0), (0, 1), (1, 0, 1), (1, 2), (2,), (3,)])


@pytest.mark.parametrize("batch", slow_unless(lambda batch: batch == 3, [1, 3]))
@pytest.mark.parametrize("kind", slow_unless(lambda kind: kind in {"medusa", "eagle3"}, DRAFTERS))
def test_typical_texts_are_those_of_the_recorded_tree(kind, batch):
    """Replayed, the recorded tree takes the live steps; a step of any other tree on that text is a live one, too."""
    target, drafter = DRAFTERS[kind]()
    tokens = random_prompts((9, 4, 17, 2, 6), seed=8)
    more = {"probabilities": kind == "medusa"}
    trace = collect(
        target, drafter, prompts_for(tokens), tokens, new_tokens=24, tree=RECORDED, batch=batch, **TYPICAL, **more
    )
    assert trace.tree == RECORDED
    assert trace.accept is None
    assert trace.tree_kept.any(0).sum() > 3
    rule = make_rule("typical", warp=Warp(0.7))
    live = Decoder(target, drafter, tree=RECORDED, batch=2, rule=rule).generate(tokens, new_tokens=24, stop=[7])
    steps = visit(RECORDED, trace)
    for request, generation in enumerate(live):
        assert steps.accepted[steps.request == request].tolist() == list(generation.accepted)
    other = Tree.from_paths([(0, 1), (1,), (3,)])
    for request in range(len(tokens)):
        for t in range(0, len(live[request].tokens), 8):
            so_far, left = [*tokens[request], *live[request].tokens[:t]], len(live[request].tokens) - t
            step = next(Decoder(target, drafter, tree=other, rule=rule).steps([so_far], new_tokens=left))
            assert accepted_lengths(other, trace)[trace.starts[request] + t] == step.accepted[0]


def test_texts_are_followed_however_late_the_host_reads():
    target, drafter = DRAFTERS["medusa"]()
    tokens, texts = random_prompts((9, 4), seed=3), [[5, 6, 7], [8]]
    forced = ForcedText(make_rule("typical", warp=Warp(0.7)), torch.tensor([[5, 6, 7], [8, 0, 0]]))
    loop = Decoder(target, drafter, tree=RECORDED, batch=2, rule=forced, late=2)
    assert [list(each.tokens) for each in loop.generate(tokens, new_tokens=[3, 1])] == texts
    assert len(forced.accepted) > 3


def test_typical_is_recorded_with_a_tree_and_no_other_rule_is(recorded):
    target, heads, tokens, _ = recorded
    chain = Tree.chain(2)
    for change, words in (
        ({"rule": "typical", "temperature": 1.0}, "rule typical needs a tree"),
        ({"tree": chain}, "other rules do not take one"),
        ({**TYPICAL, "tree": chain, "candidates": DynamicTree(nodes=1, depth=2)}, "candidates record one accepted sib"),
        ({**TYPICAL, "tree": Tree.chain(4)}, "the tree has depth 4, depth 3 is recorded"),
        ({**TYPICAL, "tree": Tree.from_paths([(4,)])}, "the tree uses rank 4, width 4 is recorded"),
    ):
        with pytest.raises((UsageError, ExecutorError), match=words):
            collect(target, heads, prompts_for(tokens), tokens, **{"new_tokens": 4, "width": 4} | change)


def test_an_interrupted_typical_collection_goes_on(recorded, tmp_path):
    target, heads, _, _ = recorded
    tokens = random_prompts([3 + i % 4 for i in range(20)], seed=2)
    settings = {"new_tokens": 6, "tree": RECORDED, "batch": 1, **TYPICAL}
    whole = collect(target, heads, prompts_for(tokens), tokens, **settings)
    told: list[int] = []

    def stop(requests: int) -> None:
        told.append(requests)
        if sum(told) > 22:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collect(target, heads, prompts_for(tokens), tokens, folder=tmp_path / "parts", progress=stop, **settings)
    again = collect(target, heads, prompts_for(tokens), tokens, folder=tmp_path / "parts", **settings)
    assert_equal_traces(again, replace(whole, meta=again.meta))
    assert again.meta["tree"] == [list(path) for path in RECORDED.paths]
    assert again.meta["assumed"] == whole.meta["assumed"] != []


def test_domains_and_provenance(recorded, tmp_path):
    _, _, tokens, trace = recorded
    assert trace.domain_names == ("even", "odd")
    assert trace.domain.tolist() == [i % 2 for i in range(len(tokens))]
    assert trace.prompt_tokens.tolist() == [len(prompt) for prompt in tokens]
    assert trace.meta["target"]["weights"] == weights_hash(small_model())
    assert trace.meta["verification"] == "greedy"
    assert 0 <= trace.meta["repeated_4grams"]["written"] <= 1
    save_trace(trace, tmp_path / "t.npz")
    again = load_trace(tmp_path / "t.npz")
    assert np.array_equal(again.rank, trace.rank)
    assert again.meta == trace.meta


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["leviathan", "block", "specinfer", "sequoia"])
def test_traces_of_drawn_candidates_predict_live_decoding(rule):
    """As above, for rules that draw their candidates: the mean over their coins, along the texts of a trace."""
    target, heads = small_target(), random_heads()
    tokens = random_prompts([6] * 400, seed=9)
    how = {"new_tokens": 24, "width": 3, "rule": rule, "temperature": 1.0}
    trace = collect(target, heads, prompts_for(tokens), tokens, **how, seed=1)
    tree = Tree.chain(3) if rule in ("leviathan", "block") else Tree.from_paths([(0, 0), (0, 1), (1, 0), (2,)])
    expected = expected_replay(tree, trace).steps
    live_rule = make_rule(rule, warp=Warp(), generator=torch.Generator().manual_seed(77))
    live = Decoder(target, heads, tree=tree, batch=16, rule=live_rule).generate(tokens, new_tokens=24)
    measured = np.array([len(g.accepted) for g in live])
    error = np.sqrt(expected.var() / 400 + measured.var() / 400)
    assert abs(expected.mean() - measured.mean()) < 4.5 * error
    assert error < 0.5
    assert measured.mean() < 23  # something is kept


def test_a_drafter_s_context_is_a_limit_too(recorded):
    target, _, tokens, _ = recorded
    small = small_target(seed=1)
    small.model.config.max_position_embeddings = 8
    told = r"prompt 0 has \d+ tokens: with 4 new ones it exceeds the drafter's context of 8"
    with pytest.raises(ExecutorError, match=told):
        collect(target, LanguageModel(small), prompts_for(tokens), tokens, new_tokens=4, width=4)


def test_repeated_prompts_are_told(recorded):
    """Of a recording, and of what is merged: two of the same prompts with other random numbers."""
    target, heads, tokens, once = recorded
    assert "repeated_prompts" not in once.meta
    assert not any("repeat others" in each for each in advice(once, 4))
    again = tokens + tokens[:3]
    trace = collect(target, heads, prompts_for(again), again, new_tokens=8, width=4)
    assert trace.meta["repeated_prompts"] == 3
    assert any(each.startswith("3 prompts of the recording repeat others") for each in advice(trace, 4))


def test_ranks_of_drawn_candidates_are_not_replayed(recorded):
    """The drafter's best are not what such a rule has kept; ranks that are drawn are."""
    target, heads, tokens, _ = recorded
    trace = collect(
        target, heads, prompts_for(tokens), tokens, new_tokens=12, width=4, temperature=1.0, rule="leviathan"
    )
    with pytest.raises(TraceError, match="rule leviathan draws its candidates, so ranks do not determine what it"):
        replay_tree(Tree.chain(2), trace)
    assert replay_tree(Tree.chain(2), drawn_ranks(trace, np.random.default_rng(0))).tau >= 1
    assert replay_tree(EMPTY, trace).tau == 1


def test_repeated_share():
    assert repeated_share([[1, 2, 3, 4, 5]]) == 0
    assert repeated_share([[1, 1, 1, 1, 1, 1]]) == pytest.approx(2 / 3)
    assert repeated_share([[1, 2]]) == 0
