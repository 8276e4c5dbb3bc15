"""Acceptance before the draws, against all draws one by one; where steps end, given the text, against the joint law."""

import itertools
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from executor.recording.teacher_forced import KeptOdds, accept_odds, in_rounds
from executor.verification.multi_round_rejection import BlockVerification, Leviathan, Sequoia, SpecInfer, rounds
from executor.verification.sampling_rules import Siblings
from tests.executor.verification.test_lossless import FORK, SIX, WIDE, Tables, continued, rule_of, stops_of
from tests.helpers.expected_replay import accepted_odds, expected_replay, survival, visit_odds
from tests.helpers.slow_params import slow_unless
from tests.helpers.strategies import traces, trees, with_lengths
from treeopt.errors import TraceError
from treeopt.replay.sampled_rules import drawn_ranks, evidence
from treeopt.replay.static_tree import accepted_lengths, replay_tree
from treeopt.tree import Tree

VOCABULARY = 3
CHAINS = [Tree.chain(1), Tree.chain(2), Tree.chain(3)]
CASES = [(kind, tree) for kind in (Leviathan, BlockVerification, SpecInfer, Sequoia) for tree in CHAINS]
CASES += [(kind, tree) for kind in (SpecInfer, Sequoia) for tree in (WIDE, FORK, Tree.cartesian((2, 2)))]
IDS = [f"{kind.__name__}-{tree.level_widths}" for kind, tree in CASES]


def tables(depth, seed, *, zeros=0.0):
    return Tables.random(VOCABULARY, depth, seed), Tables.random(VOCABULARY, depth, seed + 100, zeros=zeros)


def joint(rule, tree, target, drafter):
    """P(text of depth + 1 tokens, its first step keeps 0, 1, ...), float64 (texts, depth + 1)."""
    found = []
    for kept, law in enumerate(stops_of(rule, tree, target, drafter)):
        for depth in range(kept + 1, tree.depth + 1):
            law = continued(law, target, depth, rule)
        found.append(law)
    return torch.stack(found, 1).numpy()


def along_all_texts(rule, tree, target, drafter, *, draws=1):
    """What a trace of every text would say: `kept` and `accept`, float64 (texts, depth, width)."""
    width = max(tree.ranks) + 1
    code = torch.arange(VOCABULARY ** (tree.depth + 1))
    texts = torch.stack(torch.unravel_index(code, [VOCABULARY] * (tree.depth + 1)), 1)
    kept, prefix, levels, accept = KeptOdds(rule, width, draws=draws), torch.zeros_like(code), [], []
    for depth in range(tree.depth):
        logits, scores = target.levels[depth][prefix], drafter.levels[depth][prefix]
        levels.append(kept.level(logits, scores, texts[:, depth]))
        accept.append(accept_odds(rule, logits, scores, width, draws=draws))
        prefix = prefix * VOCABULARY + texts[:, depth]
    return torch.stack(levels, 1).numpy(), torch.stack(accept, 1).numpy()


@pytest.mark.parametrize(
    ("zeros", "seed"), slow_unless(lambda zeros, seed: zeros > 0 and seed == 0, product([0.0, 0.4], range(3)))
)
@pytest.mark.parametrize(("kind", "tree"), CASES, ids=IDS)
def test_odds_given_the_text_are_the_rules_own(kind, tree, seed, zeros):
    """Every text of a vocabulary of 3, in float64.

    Draws without replacement are simulated: 20 000 of them put a share, whose spread is at most 1/2, within 5 standard
    errors, which is 0.018; two levels within twice that.
    """
    rule = rule_of(kind)
    target, drafter = tables(tree.depth, seed, zeros=zeros)
    both = joint(rule, tree, target, drafter)
    simulated = kind is Sequoia and not tree.is_chain
    kept, _ = along_all_texts(rule, tree, target, drafter, draws=20_000 if simulated else 1)
    at_least = both[:, ::-1].cumsum(1)[:, ::-1][:, 1:] / both.sum(1, keepdims=True)
    np.testing.assert_allclose(survival(tree, kept), at_least, rtol=0, atol=0.036 if simulated else 1e-9)
    # And the text has the target's law, so that averages over recorded texts are averages over the rule's.
    np.testing.assert_allclose(both.sum(1), target.text(lambda s: SIX.log_probabilities(s).exp()).numpy(), atol=1e-12)


# --- traces


def drawn_rule(trace, rule="specinfer"):
    """The trace as one of a rule that draws its candidates; whatever `kept` it has not is made up."""
    rng = np.random.default_rng(trace.anchors)
    kept = rng.dirichlet(np.ones(trace.width + 1), (trace.anchors, trace.depth))[..., :-1].astype(np.float16)
    kept[trace.rank == -2] = 0
    return replace(trace, meta={"verification": rule}, kept=kept)


@st.composite
def cases(draw):
    trace = drawn_rule(draw(traces()))
    widths = draw(st.lists(st.integers(1, trace.width), min_size=1, max_size=trace.depth))
    return Tree.cartesian(widths), trace


def slow_odds(tree, trace, anchor):
    """P(a step keeps 0, 1, ... | the text), by walking down from the root."""
    found = [0.0] * (tree.depth + 1)
    children = {}
    for node, (parent, rank) in enumerate(zip(tree.parents, tree.ranks, strict=True)):
        children.setdefault(parent, []).append((node, rank))

    def walk(node, depth, chance):
        shares = [(child, float(trace.kept[anchor, depth, rank])) for child, rank in children.get(node, [])]
        found[depth] += chance * (1 - sum(share for _, share in shares))
        for child, share in shares:
            walk(child, depth + 1, chance * share)

    walk(-1, 0, 1.0)
    return found


@given(cases())
def test_odds_and_expected_counts_equal_the_slow_ones(case):
    tree, trace = case
    odds = accepted_odds(tree, trace)
    due = np.array([slow_odds(tree, trace, anchor) for anchor in range(trace.anchors)])
    # Half precision lets siblings sum to 1 + 2e-3, which is cut.
    np.testing.assert_allclose(odds, due, atol=3e-3)
    visits = np.zeros(trace.anchors)
    for start, stop in zip(trace.starts, trace.stops, strict=True):
        visits[start] = 1
        for anchor in range(start, stop):
            for kept in range(tree.depth + 1):
                if anchor + kept + 1 < stop:
                    visits[anchor + kept + 1] += visits[anchor] * odds[anchor, kept]
    np.testing.assert_allclose(visit_odds(odds, trace), visits, atol=1e-12)
    found = expected_replay(tree, trace)
    np.testing.assert_allclose(found.steps, np.bincount(trace.request_index, visits))
    np.testing.assert_allclose(found.accepted_counts, visits @ odds)
    assert found.committed.sum() == trace.anchors
    assert found.accepted_counts.sum() == pytest.approx(found.steps.sum())
    assert 1 <= found.tau <= tree.depth + 1


@given(traces(), st.data())
def test_ranks_of_other_rules_are_certain(trace, data):
    tree = data.draw(trees(width=trace.width, depth=trace.depth))
    odds = accepted_odds(tree, trace)
    assert odds.argmax(1).tolist() == accepted_lengths(tree, trace).tolist()
    assert odds.sum(1).tolist() == [1.0] * trace.anchors
    counts, found = replay_tree(tree, trace), expected_replay(tree, trace)
    assert found.steps.tolist() == counts.steps.tolist()
    assert found.accepted_counts.tolist() == counts.accepted_counts.tolist()
    assert found.tau == counts.tau


def test_drawn_ranks_walk_as_expected_in_the_mean():
    """400 drawn walks of 30 requests: the mean of each count within 5 standard errors of it; false alarm 6e-7 each."""
    trace = drawn_rule(with_lengths(np.zeros((900, 3)), [30] * 30, width=3))
    tree = Tree.from_paths([(0, 0, 0), (0, 1), (1, 0), (2,)])
    rng = np.random.default_rng(0)
    drawn = [replay_tree(tree, drawn_ranks(trace, rng)) for _ in range(400)]
    expected = expected_replay(tree, trace)
    for values, due in (
        (np.array([counts.steps.sum() for counts in drawn])[:, None], expected.steps.sum()),
        (np.array([counts.accepted_counts for counts in drawn]), expected.accepted_counts),
    ):
        assert (abs(values.mean(0) - due) <= 5 * values.std(0) / 20 + 1e-9).all()
    again = drawn_ranks(trace, np.random.default_rng(1)).rank
    assert again.tolist() == drawn_ranks(trace, np.random.default_rng(1)).rank.tolist()
    assert ((again == -2) == (trace.rank == -2)).all()


def test_what_cannot_be_judged_is_refused():
    trace = drawn_rule(with_lengths(np.zeros((4, 2)), [4], width=3))
    accept = replace(trace, kept=None, accept=trace.kept)
    nothing = replace(trace, kept=None)
    assert (evidence(trace), evidence(accept)) == ("kept", "accept")
    one = Tree.chain(1)
    with pytest.raises(TraceError, match="needs the array `kept`, which the trace does not have"):
        accepted_odds(one, nothing)
    with pytest.raises(TraceError, match="`kept`, which the trace does not have"):
        drawn_ranks(accept, np.random.default_rng(0))
    with pytest.raises(TraceError, match=r"path \[1\] skips rank 0, .*\(rule specinfer\)"):
        accepted_odds(Tree.from_paths([(1,)]), trace)
    with pytest.raises(TraceError, match=r"path \[1, 1\] skips rank 0"):
        accepted_odds(Tree.from_paths([(0,), (1, 1)]), trace)
    for rule in ("leviathan", "block"):
        with pytest.raises(TraceError, match=rf"path \[1\] takes candidate 1, .*\(rule {rule}\)"):
            accepted_odds(Tree.cartesian((2,)), drawn_rule(trace, rule))
    with pytest.raises(TraceError, match="the tree has depth 3, the trace records depth 2"):
        accepted_odds(Tree.chain(3), trace)


TOKENS, WIDTH = 4, 3


def laws(seed: int, *, sparse: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """p and q, float64 (vocabulary,); sparse ones have zeros."""
    generator = torch.Generator().manual_seed(seed)
    p, q = torch.rand(2, TOKENS, generator=generator, dtype=torch.float64).pow(3)
    if sparse:
        p[seed % TOKENS], q[(seed + 1 + seed % 2) % TOKENS] = 0, 0
    return p / p.sum(), q / q.sum()


def by_enumeration(p: torch.Tensor, q: torch.Tensor, *, replacement: bool) -> torch.Tensor:
    """Expected shares over every sequence of draws."""
    total = torch.zeros(WIDTH, dtype=torch.float64)
    for drawn in itertools.product(range(TOKENS), repeat=WIDTH):
        chance, left = 1.0, q.clone()
        for token in drawn:
            chance *= float(left[token] / left.sum()) if left.sum() > 0 else 1 / TOKENS  # whatever comes then
            if not replacement:
                left[token] = 0
        tokens = torch.tensor(drawn)[None, None]
        siblings = Siblings(tokens + 1, tokens, torch.ones_like(tokens, dtype=torch.bool))
        shares, _ = rounds(p[None, None], q[None, None], siblings, replacement=replacement)
        total += chance * shares[0, 0]
    return total


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_rounds_with_replacement_have_a_closed_form(seed, sparse):
    p, q = laws(seed, sparse=sparse)
    torch.testing.assert_close(in_rounds(p, q, WIDTH), by_enumeration(p, q, replacement=True), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("sparse", [False, True])
def test_rounds_without_replacement_are_met_on_average(sparse):
    """20 000 independent draws each; 5 standard errors of 24 x 2 means: false alarm below 3e-5, and seeds are fixed."""
    for seed in range(12):
        p, q = laws(seed, sparse=sparse)
        due = by_enumeration(p, q, replacement=False)
        many = (20_000, TOKENS)
        found = in_rounds(p.expand(many), q.expand(many), WIDTH, torch.Generator().manual_seed(seed))
        error = found.std(0) / many[0] ** 0.5
        assert ((found.mean(0) - due).abs() <= 5 * error + 1e-9).all()
        assert float((found[:, 0] - due[0]).abs().max()) < 1e-9


def test_equal_laws_keep_the_first_draw():
    p, _ = laws(0)
    for generator in (None, torch.Generator()):
        assert in_rounds(p, p, WIDTH, generator).tolist() == pytest.approx([1, 0, 0])
