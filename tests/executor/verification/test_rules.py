"""Every rule against a loop over rows in float64, with the same coins; what rules refuse; no host reads."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.verification.acceptance_rules import Greedy, Rule, follow, make_rule, rows, rule_meta
from executor.verification.multi_round_rejection import BlockVerification, Leviathan, Sequoia, SpecInfer
from executor.verification.sampling_rules import CoinRule, PointMass, SampleAndMatch, toss
from executor.verification.temperature_top_k_top_p import Warp
from executor.verification.tree_tensors import Draft, Topology
from executor.verification.typical_acceptance import Typical
from tests.executor.verification.test_lossless import fed_places
from tests.helpers.strategies import trees
from treeopt.acceptance_rule_entries import RULES
from treeopt.errors import ExecutorError, UsageError
from treeopt.tree import Tree

CPU = torch.device("cpu")
COIN_RULES: list[type[CoinRule]] = [SampleAndMatch, PointMass, Leviathan, SpecInfer, Sequoia, BlockVerification]
FORK = Tree.from_paths([(0, 0), (0, 1), (1, 0), (2,)])


def tree_for(rule: Rule, tree: Tree) -> Tree:
    """The tree, or one of its depth or width that the rule can verify."""
    if isinstance(rule, Leviathan):
        return Tree.chain(tree.depth)
    if rule.sampled_candidates:  # close the gaps between ranks
        ranks = [sum(p == parent for p in tree.parents[:node]) for node, parent in enumerate(tree.parents)]
        return Tree(tree.parents, tuple(ranks))
    return tree


def random_draft(rule: Rule, tree: Tree, seed: int, *, vocabulary: int = 7, batch: int = 3) -> tuple:
    """Logits and a draft whose siblings the rule drew itself, in float64; some scores are -inf."""
    rng = torch.Generator().manual_seed(seed)
    fed = fed_places(tree)
    scores = torch.randn(batch, int(fed.max()) + 1, vocabulary, generator=rng, dtype=torch.float64)
    logits = torch.randn(batch, tree.nodes + 1, vocabulary, generator=rng, dtype=torch.float64)
    logits[..., :4] += torch.randn(1, generator=rng)  # the two laws may be close or far apart
    scores = torch.where(torch.rand(scores.shape, generator=rng) < 0.2, -torch.inf, scores)
    scores[..., 0] = 0
    drawn = rule.candidates(scores, vocabulary)
    tokens = torch.randint(0, vocabulary, (batch, tree.nodes + 1), generator=rng)
    for node, (parent, rank) in enumerate(zip(tree.parents, tree.ranks, strict=True), 1):
        tokens[:, node] = drawn[:, int(fed[0, parent + 1]), rank]
    return logits, Draft(tokens, Topology.of(tree, CPU), fed, scores)


def test_rules_tell_how_they_choose():
    """As `make_rule` takes it, so that provenance makes the rule again."""
    generator = torch.Generator()
    assert rule_meta(make_rule("greedy")) == {"verification": "greedy", "temperature": 0.0}
    for name in RULES.keys() - {"greedy"}:
        for warp in (Warp(0.7), Warp(1.0, top_k=40), Warp(1.0, None, 0.9)):
            found = rule_meta(make_rule(name, warp=warp, generator=generator))
            assert found.pop("verification") == name
            assert Warp(**found) == warp


def children_of(tree: Tree, node: int) -> list[int]:
    return [child + 1 for child, parent in enumerate(tree.parents) if parent == node - 1]


# --- slow references, one row at a time


def slow_follow(tree: Tree, tokens: list[int], emitted: list[int]) -> tuple[list[int], list[int]]:
    """Walk from the root to the child that holds what its parent emitted, while there is one."""
    here, path = 0, [0]
    while True:
        matches = [child for child in children_of(tree, here) if tokens[child] == emitted[here]]
        if not matches:
            return path, [emitted[node] for node in path]
        here = matches[0]
        path.append(here)


def slow_match(p, q, tokens):
    """Sample-and-match: shares are p; the rest of p is left."""
    left = p.clone()
    left[list(tokens)] = 0
    return [float(p[token]) for token in tokens], left


def slow_point_mass(p, q, tokens):
    """EAGLE: accept with p, else strike the token and renormalise."""
    shares, missed, p = [], 1.0, p.clone()
    for token in tokens:
        shares.append(missed * float(p[token]))
        missed *= 1 - float(p[token])
        p[token] = 0
        p = p / p.sum() if p.sum() > 0 else p
    return shares, p


def slow_rounds(p, q, tokens, *, replacement):
    """The published loop: accept with p/q, else p <- norm(max(0, p - q)) and, without replacement, strike from q."""
    shares, missed = [], 1.0
    for token in tokens:
        if q[token] == 0:
            shares.append(0.0)
            continue
        kept = min(1.0, float(p[token] / q[token]))
        shares.append(missed * kept)
        missed *= 1 - kept
        p = (p - q).clamp(min=0)
        p = p / p.sum() if p.sum() > 0 else p
        if not replacement:
            q = q.clone()
            q[token] = 0
            q = q / q.sum() if q.sum() > 0 else q
    return shares, p


SLOW = {
    SampleAndMatch: slow_match,
    PointMass: slow_point_mass,
    Leviathan: lambda p, q, tokens: slow_rounds(p, q, tokens, replacement=True),
    SpecInfer: lambda p, q, tokens: slow_rounds(p, q, tokens, replacement=True),
    Sequoia: lambda p, q, tokens: slow_rounds(p, q, tokens, replacement=False),
}


def slow_block(p, q, tokens):
    """Sun et al., algorithm 2: P(exactly i kept) and the residual for each i; p has one row more than q."""
    gamma, prefix = len(tokens), [1.0]
    for i, token in enumerate(tokens):
        prefix.append(min(1.0, prefix[-1] * float(p[i][token] / q[i][token])) if q[i][token] > 0 else 0.0)
    passes = [1.0]
    for i in range(1, gamma + 1):
        over = float((prefix[i] * p[i] - q[i]).clamp(min=0).sum()) if i < gamma else 0.0
        passes.append(prefix[i] if i == gamma else over / (over + 1 - prefix[i]) if over > 0 else 0.0)
    exactly = [0.0] * (gamma + 1)
    missed = 1.0
    for i in range(gamma, -1, -1):
        exactly[i] = missed * passes[i]
        missed *= 1 - passes[i]
    left = [(prefix[i] * p[i] - q[i]).clamp(min=0) for i in range(gamma)] + [p[gamma]]
    return exactly, left


# --- the tests


@settings(max_examples=25)
@given(tree=trees(), data=st.data())
def test_follow_walks_like_a_loop(tree, data):
    batch = data.draw(st.integers(1, 3))
    rng = torch.Generator().manual_seed(data.draw(st.integers(0, 2**20)))
    tokens = torch.zeros(batch, tree.nodes + 1, dtype=torch.long)
    for row in range(batch):  # siblings hold distinct tokens
        for parent in range(tree.nodes + 1):
            children = children_of(tree, parent)
            tokens[row, children] = torch.randperm(max(3, len(children)), generator=rng)[: len(children)]
    emitted = torch.randint(0, 3, tokens.shape, generator=rng)
    found = follow(Draft(tokens, Topology.of(tree, CPU), fed_places(tree)), emitted)
    for row in range(batch):
        path, text = slow_follow(tree, tokens[row].tolist(), emitted[row].tolist())
        count = int(found.count[row])
        assert count == len(path) - 1
        assert found.path[row, : count + 1].tolist() == path
        assert found.emitted[row, : count + 1].tolist() == text
        assert found.last[row] == path[-1]


@pytest.mark.parametrize("kind", SLOW)
@settings(max_examples=25)
@given(tree=trees(), seed=st.integers(0, 2**20))
def test_odds_are_those_of_the_loop(kind, tree, seed):
    rule = kind(Warp(temperature=0.8), torch.Generator().manual_seed(seed))
    tree = tree_for(rule, tree)
    rule.check(tree)
    logits, draft = random_draft(rule, tree, seed)
    p, q = rule.warp.log_probabilities(logits).exp(), rule.warp.log_probabilities(draft.scores).exp()
    shares = rule.shares(logits, draft)
    for place, node in enumerate(draft.topology.inner[0].tolist()):
        rests = rule.residual(logits, draft, torch.full((len(logits),), node))
        for row in range(len(logits)):
            children = children_of(tree, node)
            tokens = draft.tokens[row, children].tolist()
            due, left = SLOW[kind](p[row, node], q[row, int(draft.fed[0, node])], tokens)
            got = shares[row, place]
            torch.testing.assert_close(got[: len(children)], torch.tensor(due, dtype=p.dtype), rtol=1e-9, atol=1e-12)
            assert (got[len(children) :] == 0).all()
            if 1 - sum(due) > 1e-9:
                rest = rests[row]
                torch.testing.assert_close(rest / rest.sum(), left / left.sum(), rtol=1e-7, atol=1e-10)


@settings(max_examples=25)
@given(length=st.integers(0, 5), seed=st.integers(0, 2**20))
def test_block_verification_has_the_odds_of_the_loop(length, seed):
    rule = BlockVerification(Warp(temperature=0.8), torch.Generator().manual_seed(seed))
    logits, draft = random_draft(rule, Tree.chain(length), seed)
    p, q = rule.warp.log_probabilities(logits).exp(), rule.warp.log_probabilities(draft.scores).exp()
    shares = rule.shares(logits, draft)[..., 0]
    for row in range(len(logits)):
        exactly, left = slow_block(p[row], q[row], draft.tokens[row, 1:].tolist())
        reached = 1.0
        for node in range(length + 1):
            goes_on = float(shares[row, node]) if node < length else 0.0
            assert reached * (1 - goes_on) == pytest.approx(exactly[node], abs=1e-12)
            reached *= goes_on
            if exactly[node] > 1e-9:
                rest = rule.residual(logits, draft, torch.full((len(logits),), node))[row]
                torch.testing.assert_close(rest / rest.sum(), left[node] / left[node].sum(), rtol=1e-7, atol=1e-10)


@settings(max_examples=25)
@given(tree=trees(), seed=st.integers(0, 2**20))
def test_the_walk_lays_shares_side_by_side(tree, seed):
    """With the coins given, against a loop that subtracts one child's share after the other."""
    rng = torch.Generator().manual_seed(seed)
    rule = SampleAndMatch(Warp(), rng)
    logits, draft = random_draft(rule, tree, seed)
    shares = rule.shares(logits, draft)
    coins = torch.rand(shares.shape[:2], generator=rng, dtype=torch.float64)
    count, path = toss(draft, shares, coins)
    inner = draft.topology.inner[0].tolist()
    for row in range(len(logits)):
        walked = [0]
        while walked[-1] in inner:
            place = inner.index(walked[-1])
            coin, chosen = float(coins[row, place]), 0
            for rank, child in enumerate(children_of(tree, walked[-1])):
                coin -= float(shares[row, place, rank])
                if coin < 0:
                    chosen = child
                    break
            if not chosen:
                break
            walked.append(chosen)
        assert path[row, : count[row] + 1].tolist() == walked


def shuffled(tree: Tree, draft: Draft, logits: torch.Tensor, seed: int) -> tuple:
    """The same trees, one each, with absent entries in between; and where each entry went, (batch, count)."""
    rng = torch.Generator().manual_seed(seed)
    batch, count = draft.tokens.shape
    more = count + 3
    nodes = torch.rand(batch, more - 1, generator=rng).argsort(dim=1)[:, : count - 1].sort(dim=1).values
    places = torch.cat([torch.zeros(batch, 1, dtype=torch.long), nodes + 1], 1)
    present = torch.zeros(batch, more, dtype=torch.bool).scatter(1, places, True)
    parent = torch.zeros(batch, more, dtype=torch.long)
    parent.scatter_(1, places, places.gather(1, draft.topology.parent.expand(batch, -1)))
    tokens = torch.randint(0, logits.shape[-1], (batch, more), generator=rng).scatter(1, places, draft.tokens)
    fed = torch.full((batch, more), -1).scatter(1, places, draft.fed.expand(batch, -1))
    wide = torch.randn(batch, more, logits.shape[-1], dtype=logits.dtype, generator=rng)
    wide.scatter_(1, places[..., None].expand_as(logits), logits)
    topology = Topology.from_parents(parent, tree.depth, present)
    return wide, Draft(tokens, topology, fed, draft.scores), places


@pytest.mark.parametrize("kind", [*COIN_RULES, Typical, Greedy])
@settings(max_examples=25)
@given(tree=trees(), seed=st.integers(0, 2**20))
def test_absent_entries_and_trees_of_each_sequence_change_nothing(kind, tree, seed):
    rule = kind() if kind is Greedy else Typical(Warp()) if kind is Typical else kind(Warp(), torch.Generator())
    tree = tree_for(rule, tree)
    logits, draft = random_draft(rule, tree, seed)
    if isinstance(rule, Leviathan):  # a chain is its entries in order: fillers come last
        fill = torch.randn(len(logits), 2, logits.shape[-1], dtype=logits.dtype)
        wide = torch.cat([logits, fill], 1)
        batch, count = draft.tokens.shape
        places = torch.arange(count).expand(batch, -1)
        present = (torch.arange(count + 2) < count).expand(batch, -1)
        parent = (torch.arange(count + 2) - 1).clamp(min=0).expand(batch, -1)
        tokens = torch.cat([draft.tokens, draft.tokens[:, :1], draft.tokens[:, :1]], 1)
        fed = torch.cat([draft.fed.expand(batch, -1), torch.full((batch, 2), -1)], 1)
        other = Draft(tokens, Topology.from_parents(parent, count + 1, present), fed, draft.scores)
    else:
        wide, other, places = shuffled(tree, draft, logits, seed)
    if not isinstance(rule, CoinRule):
        first, second = rule.accept(logits, draft), rule.accept(wide, other)
        assert torch.equal(first.count, second.count)
        for row, count in enumerate(first.count.tolist()):
            assert torch.equal(first.emitted[row, : count + 1], second.emitted[row, : count + 1])
            assert torch.equal(places[row, first.path[row, : count + 1]], second.path[row, : count + 1])
        return

    def by_entry(shares: torch.Tensor, draft: Draft) -> torch.Tensor:
        topology = draft.topology.expand(len(shares))
        entries = rows(topology.children, topology.inner)
        table = torch.zeros(draft.tokens.shape, dtype=shares.dtype)
        return table.scatter(1, entries.flatten(1), shares.flatten(1))[:, 1:]

    first, second = by_entry(rule.shares(logits, draft), draft), by_entry(rule.shares(wide, other), other)
    torch.testing.assert_close(second.gather(1, places[:, 1:] - 1), first, rtol=1e-12, atol=1e-14)
    assert torch.allclose(second.sum(-1), first.sum(-1))  # nothing for the absent
    for node in range(tree.nodes + 1):
        rest = rule.residual(logits, draft, torch.full((len(logits),), node))
        torch.testing.assert_close(rule.residual(wide, other, places[:, node]), rest, rtol=1e-9, atol=1e-12)


def test_static_bounds_change_nothing():
    """Topologies of parents alone, with and without bounds, against that of the tree."""
    rule = Sequoia(Warp(), torch.Generator().manual_seed(0))
    tree = Tree.from_paths([(0, 0), (0, 1), (1, 0), (1, 1), (2,)])
    logits, draft = random_draft(rule, tree, 3)
    loose = replace(draft, topology=Topology.from_parents(draft.topology.parent, 2))
    close = replace(draft, topology=Topology.from_parents(draft.topology.parent, 2, width=3, inner=3))
    assert (loose.topology.width, close.topology.width) == (7, 3)
    assert draft.topology.inner.tolist() == close.topology.inner.tolist() == [[0, 1, 2]]
    due = rule.shares(logits, draft)
    torch.testing.assert_close(rule.shares(logits, close), due)
    torch.testing.assert_close(rule.shares(logits, loose)[:, :3, :3], due)
    assert rule.shares(logits, loose).sum() == pytest.approx(float(due.sum()))


def test_greedy_takes_the_first_of_equals():
    draft = Draft(torch.tensor([[0, 1]]), Topology.of(Tree.chain(1), CPU), torch.tensor([[0, -1]]))
    found = Greedy().accept(torch.tensor([[[0.0, 2.0, 2.0], [0.0, 0.0, 0.0]]]), draft)
    assert (found.count.item(), found.emitted.tolist()) == (1, [[1, 0]])


@settings(max_examples=25)
@given(tree=trees(), seed=st.integers(0, 2**20), epsilon=st.sampled_from([0.09, 0.3]))
def test_typical_acceptance_is_medusas(tree, seed, epsilon):
    """Paths one by one, by the formula of Medusa's `evaluate_posterior`."""
    rule = Typical(Warp(temperature=0.7), epsilon=epsilon, delta=0.3)
    logits, draft = random_draft(rule, tree, seed)
    found = rule.accept(logits, draft)
    p = (logits / 0.7).softmax(-1)
    for row in range(len(logits)):
        best = (0, 0.0, 0)
        for node in range(1, tree.nodes + 1):
            path = [node]
            while path[0]:
                path.insert(0, tree.parents[path[0] - 1] + 1)
            chances = [p[row, a, draft.tokens[row, b]] for a, b in pairwise(path)]
            borders = [
                min(epsilon, 0.3 * float(torch.exp((p[row, a] * torch.log(p[row, a] + 1e-5)).sum()))) for a in path[:-1]
            ]
            if all(c > b for c, b in zip(chances, borders, strict=True)):
                best = max(best, (len(chances), float(torch.stack(chances).log().sum()), node))
        assert int(found.count[row]) == best[0]
        chosen = int(found.last[row])
        text = found.emitted[row, : best[0] + 1].tolist()
        assert text[-1] == int(logits[row, chosen].argmax())
        assert text[:-1] == draft.tokens[row, found.path[row, 1 : best[0] + 1]].tolist()
        if best[0]:
            likelihood = sum(
                float(p[row, a, draft.tokens[row, b]].log())
                for a, b in zip(found.path[row].tolist(), found.path[row, 1 : best[0] + 1].tolist(), strict=False)
            )
            assert likelihood == pytest.approx(best[1], abs=1e-9)


def test_rules_are_what_their_names_say():
    warp, generator = Warp(), torch.Generator()
    made = {name: make_rule(name, warp=None if name == "greedy" else warp, generator=generator) for name in RULES}
    assert {name for name, rule in made.items() if not rule.lossless} == {"typical"}
    drawn = {"leviathan", "block", "specinfer", "sequoia"}
    assert {name for name, rule in made.items() if rule.sampled_candidates} == drawn
    assert {name for name, rule in made.items() if rule.needs_scores} == drawn
    assert len({type(rule) for rule in made.values()}) == len(RULES)


@pytest.mark.parametrize("kwargs", [{"epsilon": 0.0}, {"delta": float("nan")}])
def test_typical_refuses_borders_that_are_none(kwargs):
    with pytest.raises(UsageError, match="must be in"):
        Typical(Warp(), **kwargs)


@pytest.mark.parametrize(
    ("kind", "tree", "says"),
    [
        (Leviathan, FORK, "node 1 of the tree is a sibling of 0"),
        (SpecInfer, Tree.from_paths([(0,), (2,)]), "node 1 has rank 2, expected 1"),
        (Sequoia, Tree.from_paths([(0, 0), (1, 1)]), "node 3 has rank 1, expected 0"),
    ],
)
def test_trees_that_a_rule_cannot_verify_are_refused(kind, tree, says):
    with pytest.raises(ExecutorError, match=says):
        kind(Warp(), torch.Generator()).check(tree)


def test_a_draft_without_scores_is_refused():
    rule = Sequoia(Warp(), torch.Generator())
    logits, draft = random_draft(rule, FORK, 0)
    with pytest.raises(ExecutorError, match="needs the drafter's scores"):
        rule.accept(logits, replace(draft, scores=None))


@pytest.mark.parametrize("kind", COIN_RULES)
def test_a_residual_without_mass_is_the_target(kind):
    """No rule may emit nonsense where rounding leaves nothing: p falls back on itself."""
    rule = kind(Warp(), torch.Generator().manual_seed(0))
    logits = torch.full((1, 2, 3), -torch.inf, dtype=torch.float64)
    logits[..., 1] = 0
    draft = Draft(torch.tensor([[0, 1]]), Topology.of(Tree.chain(1), CPU), torch.tensor([[0, -1]]), logits[:, :1])
    rest = rule.residual(logits, draft, torch.tensor([0]))
    assert rest.tolist() == [[0.0, 1.0, 0.0]]
