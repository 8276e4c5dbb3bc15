"""Losslessness: the law of the emitted text is the target's, whatever is drafted.

Two families of check. *Exact*: vocabulary 3 to 5, float64, all draws of candidates enumerated with their
probabilities, the production code's own shares and residuals summed up; total variation below 1e-12. *Sampled*: 50
tokens, the real `candidates` and `accept`, chi-square over the first two tokens jointly. Then faults are planted in
the production code, and both families must notice them.

Target and drafter are tables over whole prefixes in the first family and over the last token in the second.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from executor.verification import multi_round_rejection, sampling_rules
from executor.verification.acceptance_rules import Greedy, Rule
from executor.verification.multi_round_rejection import BlockVerification, Leviathan, Rounds, Sequoia, SpecInfer
from executor.verification.sampling_rules import CoinRule, PointMass, SampleAndMatch
from executor.verification.temperature_top_k_top_p import Warp
from executor.verification.tree_tensors import Draft, Topology
from executor.verification.typical_acceptance import Typical
from tests.helpers.slow_params import slow_unless
from treeopt.tree import Tree

CPU = torch.device("cpu")
SIX = Warp(temperature=0.8)
FORK = Tree.from_paths([(0, 0), (0, 1), (1, 0)])
WIDE = Tree.cartesian((3,))
TREES = [Tree(parents=(), ranks=()), Tree.chain(1), Tree.chain(3), WIDE, FORK, Tree.cartesian((2, 2))]
KINDS: list[type[CoinRule]] = [SampleAndMatch, PointMass, Leviathan, BlockVerification, SpecInfer, Sequoia]
CASES = [
    pytest.param(kind, tree, id=f"{kind.__name__}-{tree.level_widths}")
    for kind in KINDS
    for tree in TREES
    if tree.is_chain or not issubclass(kind, Leviathan)
]


def rule_of(kind: type[CoinRule], warp: Warp = SIX, seed: int = 0) -> CoinRule:
    return kind(warp, torch.Generator().manual_seed(seed))


def fed_places(tree: Tree) -> Tensor:
    inner = sorted({0, *(parent + 1 for parent in tree.parents)})
    return torch.tensor([[inner.index(n) if n in inner else -1 for n in range(tree.nodes + 1)]])


def families(tree: Tree) -> list[tuple[int, list[int]]]:
    """(node, its children), entries counted from the root."""
    children: dict[int, list[int]] = {}
    for child, parent in enumerate(tree.parents, 1):
        children.setdefault(parent + 1, []).append(child)
    return sorted(children.items())


# --- the exact family


@dataclass(frozen=True)
class Tables:
    """Scores after every prefix: `levels[d]` is float64 (vocabulary ** d, vocabulary), prefixes counted in its base."""

    levels: tuple[Tensor, ...]

    @classmethod
    def random(cls, vocabulary: int, depth: int, seed: int, *, scale: float = 1.5, zeros: float = 0.0) -> "Tables":
        rng = torch.Generator().manual_seed(seed)
        levels = []
        for d in range(depth + 1):
            scores = scale * torch.randn(vocabulary**d, vocabulary, generator=rng, dtype=torch.float64)
            gone = torch.rand(scores.shape, generator=rng) < zeros
            gone.scatter_(1, scores.argmax(1, keepdim=True), False)
            levels.append(scores.masked_fill(gone, -torch.inf))
        return cls(tuple(levels))

    def at(self, tree: Tree, tokens: Tensor) -> Tensor:
        """Scores at every entry: (rows, count, vocabulary)."""
        codes = prefixes(tree, tokens, self.levels[0].shape[1])
        depths = (0, *tree.depths)
        return torch.stack([self.levels[depths[n]][codes[:, n]] for n in range(tree.nodes + 1)], 1)

    def text(self, warp: Callable[[Tensor], Tensor]) -> Tensor:
        """The law of the first depth + 1 tokens, as one vector."""
        law = torch.ones(1, dtype=torch.float64)
        for level in self.levels:
            law = (law[:, None] * warp(level)).flatten()
        return law


def prefixes(tree: Tree, tokens: Tensor, vocabulary: int) -> Tensor:
    codes = [torch.zeros_like(tokens[:, 0])]
    for n, parent in enumerate(tree.parents, 1):
        codes.append(codes[parent + 1] * vocabulary + tokens[:, n])
    return torch.stack(codes, 1)


def all_drafts(tree: Tree, vocabulary: int) -> Tensor:
    """Every way to fill the tree, int64 (vocabulary ** nodes, count); the root is 0."""
    shape = (1, *[vocabulary] * tree.nodes)
    return torch.stack(torch.unravel_index(torch.arange(vocabulary**tree.nodes), shape), 1)


Draws = Callable[[Tensor, Tensor], Tensor]


def put_back(q: Tensor, tokens: Tensor) -> Tensor:
    """P(these draws, independent); q (rows, vocabulary), tokens (rows, siblings)."""
    return q.gather(1, tokens).prod(1)


def kept_out(q: Tensor, tokens: Tensor) -> Tensor:
    """P(these draws, each from what is left); once nothing is left a draw is token 0."""
    chance = torch.ones_like(q[:, 0])
    left = q.clone()
    for token in tokens.split(1, 1):
        total = left.sum(1)
        drawn = left.gather(1, token)[:, 0] / total.clamp(min=1e-300)
        chance = chance * torch.where(total > 0, drawn, (token[:, 0] == 0).to(q.dtype))
        left = left.scatter(1, token, 0)
    return chance


def best(q: Tensor, tokens: Tensor) -> Tensor:
    """P(these are the best tokens, best first), 0 or 1."""
    return (q.argsort(dim=1, descending=True, stable=True)[:, : tokens.shape[1]] == tokens).all(1).to(q.dtype)


def draws_of(rule: Rule) -> Draws:
    return kept_out if isinstance(rule, Sequoia) else put_back if isinstance(rule, Rounds) else best


def stops_of(
    rule: Rule,
    tree: Tree,
    target: Tables,
    drafter: Tables,
    *,
    draws: Draws | None = None,
    drawn_from: Warp | None = None,
    topology: Topology | None = None,
) -> list[Tensor]:
    """Of steps that keep 0, 1, ... tokens: P(they do, and emit these), by the 1, 2, ... tokens that are emitted.

    Siblings are drawn with probability `draws` by the pipeline `drawn_from`; None for those of the rule.
    """
    vocabulary = target.levels[0].shape[1]
    warp = getattr(rule, "warp", None)
    drawn = draws or draws_of(rule)
    tokens = all_drafts(tree, vocabulary)
    scores = drafter.at(tree, tokens)
    chance = torch.ones(len(tokens), dtype=torch.float64)
    for node, children in families(tree):
        q_warp = drawn_from or warp
        q = scores[:, node] if q_warp is None else q_warp.log_probabilities(scores[:, node]).exp()
        chance = chance * drawn(q, tokens[:, children])
    some = chance > 0
    tokens, scores, chance = tokens[some], scores[some], chance[some]
    assert float(chance.sum()) == pytest.approx(1, abs=1e-12)
    logits, fed = target.at(tree, tokens), fed_places(tree)
    inner = [node for node in range(tree.nodes + 1) if fed[0, node] >= 0]
    draft = Draft(tokens, topology or Topology.of(tree, CPU), fed, scores[:, inner])
    reach, ends = odds(rule, logits, draft)

    codes = prefixes(tree, tokens, vocabulary)
    stops = [torch.zeros(vocabulary ** (d + 1), dtype=torch.float64) for d in range(tree.depth + 1)]
    for node, depth in enumerate((0, *tree.depths)):
        mass = (chance * reach[:, node])[:, None] * ends[node]
        index = codes[:, node, None] * vocabulary + torch.arange(vocabulary)
        stops[depth].index_add_(0, index.flatten(), mass.flatten())
    return stops


def continued(law: Tensor, target: Tables, depth: int, rule: Rule) -> Tensor:
    """A law of texts after the target has written one more token, of depth `depth`."""
    warp = getattr(rule, "warp", None)
    p = warp.log_probabilities(target.levels[depth]).exp() if warp else one_hot(target.levels[depth])
    return (law[:, None] * p).flatten()


def law_of(rule: Rule, tree: Tree, target: Tables, drafter: Tables, **settings: Any) -> Tensor:
    """The exact law of the first depth + 1 tokens of the text: steps end early, and then the target goes on."""
    law, *stops = stops_of(rule, tree, target, drafter, **settings)
    for d, stop in enumerate(stops, 1):
        law = continued(law, target, d, rule) + stop
    return law


def odds(rule: Rule, logits: Tensor, draft: Draft) -> tuple[Tensor, list[Tensor]]:
    """P(the step ends at a node), (rows, count), and the law of the bonus there, (rows, vocabulary) each."""
    rows, count = draft.tokens.shape
    if not isinstance(rule, CoinRule):
        found = rule.accept(logits, draft)
        stop = torch.zeros(rows, count, dtype=torch.float64).scatter_(1, found.last[:, None], 1)
        bonus = found.emitted.gather(1, found.count[:, None])
        return stop, [torch.zeros(rows, logits.shape[2], dtype=torch.float64).scatter_(1, bonus, 1)] * count
    topology = draft.topology.expand(rows)
    edges = rule.shares(logits, draft).cumsum(-1).clamp(max=1)  # a coin is below 1: that is all a share can get
    shares = edges.diff(dim=-1, prepend=torch.zeros_like(edges[..., :1]))
    reach = torch.zeros(rows, count, dtype=torch.float64)
    reach[:, 0] = 1
    goes_on = torch.zeros(rows, count, dtype=torch.float64)
    for place in range(topology.inner.shape[1]):  # parents before children
        node = topology.inner[:, place : place + 1]
        here = reach.gather(1, node)
        goes_on.scatter_(1, node, shares[:, place].sum(-1, keepdim=True))
        for rank in range(topology.width):
            child = topology.children[torch.arange(rows)[:, None], node][:, 0, rank : rank + 1]
            on = torch.where(child > 0, here * shares[:, place, rank : rank + 1], 0)
            reach.scatter_add_(1, child, on)
    ends = []
    for node in range(count):
        rest = rule.residual(logits, draft, torch.full((rows,), node))
        assert rest.dtype == torch.float64
        ends.append(rest / rest.sum(-1, keepdim=True))
    return reach * (1 - goes_on), ends


def one_hot(scores: Tensor) -> Tensor:
    return torch.zeros_like(scores).scatter_(-1, scores.argmax(-1, keepdim=True), 1)


def total_variation(
    rule: Rule, tree: Tree, *, vocabulary: int = 3, seed: int = 0, flat: float = 1.5, zeros: float = 0.0, **how: Any
) -> float:
    target = Tables.random(vocabulary, tree.depth, 2 * seed, scale=flat, zeros=zeros)
    drafter = Tables.random(vocabulary, tree.depth, 2 * seed + 1, zeros=zeros)
    warp = getattr(rule, "warp", None)
    due = target.text((lambda scores: warp.log_probabilities(scores).exp()) if warp else one_hot)
    return float((law_of(rule, tree, target, drafter, **how) - due).abs().sum()) / 2


@pytest.mark.parametrize(("kind", "tree"), CASES)
@pytest.mark.parametrize("seed", [0, 1])
def test_every_lossless_rule_is_lossless_exactly(kind, tree, seed):
    assert total_variation(rule_of(kind), tree, seed=seed) < 1e-12


@pytest.mark.parametrize(("kind", "tree"), CASES)
def test_lossless_where_tokens_have_no_probability(kind, tree):
    """p = 0 and q = 0 in many places, so draws run out of tokens and residuals out of mass."""
    assert total_variation(rule_of(kind), tree, zeros=0.4, seed=3) < 1e-12
    assert total_variation(rule_of(kind), tree, zeros=0.7, seed=4) < 1e-12


@pytest.mark.parametrize(("kind", "tree"), CASES)
@pytest.mark.parametrize("noise", [0.0, 1e-15, 1e-9])
def test_lossless_where_the_drafter_is_the_target_but_for_rounding(kind, tree, noise):
    """Nothing, or next to nothing, is left of p - q, and ratios of such rests are easily infinite."""
    for seed in range(3):
        target, other = (Tables.random(3, tree.depth, s) for s in (seed, seed + 50))
        near = Tables(tuple(a + noise * b for a, b in zip(target.levels, other.levels, strict=True)))
        rule = rule_of(kind)
        due = target.text(lambda scores: SIX.log_probabilities(scores).exp())
        assert float((law_of(rule, tree, target, near) - due).abs().sum()) / 2 < 1e-12


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("warp", [Warp(0.6, 2), Warp(1.3, None, 0.7), Warp(0.9, 3, 0.8)], ids=str)
def test_the_law_is_that_of_the_warped_target(kind, warp):
    tree = Tree.chain(2) if issubclass(kind, Leviathan) else FORK
    assert total_variation(rule_of(kind, warp), tree, vocabulary=4, seed=5) < 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_lossless_with_five_tokens(kind):
    tree = Tree.chain(4) if issubclass(kind, Leviathan) else Tree.from_paths([(0, 0), (0, 1), (1,), (2,)])
    assert total_variation(rule_of(kind), tree, vocabulary=5, seed=6) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(10))
def test_lossless_with_five_tokens_and_six_nodes(kind, seed):
    tree = Tree.chain(5) if issubclass(kind, Leviathan) else Tree.cartesian((2, 2))
    assert total_variation(rule_of(kind), tree, vocabulary=5, seed=seed, zeros=0.2 * (seed % 2)) < 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_lossless_with_a_bare_topology(kind):
    """Neither width nor inner nodes known, as for trees that are chosen on the device."""
    tree = Tree.chain(2) if issubclass(kind, Leviathan) else FORK
    parents = torch.tensor([[0, *(parent + 1 for parent in tree.parents)]])
    assert total_variation(rule_of(kind), tree, topology=Topology.from_parents(parents, tree.depth)) < 1e-12


@pytest.mark.parametrize("tree", TREES, ids=repr)
def test_greedy_emits_the_argmax_exactly(tree):
    assert total_variation(Greedy(), tree) == 0


def test_any_distinct_siblings_will_do_for_sample_and_match():
    """The worst tokens, or tokens drawn without replacement."""
    for draws in (lambda q, tokens: best(-q, tokens), kept_out):
        assert total_variation(rule_of(SampleAndMatch), FORK, draws=draws) < 1e-12
        assert total_variation(rule_of(PointMass), FORK, draws=draws) < 1e-12


def test_repeated_siblings_do_no_harm_where_the_rule_passes_over_them():
    """Point masses strike what was tried; without replacement a repeated draw has nothing left."""
    assert total_variation(rule_of(PointMass), FORK, draws=put_back) < 1e-12
    assert total_variation(rule_of(Sequoia), FORK, draws=put_back) < 1e-12


def test_block_verification_keeps_more_than_leviathan():
    """Mean tokens kept, exactly; Sun et al. 2024, theorem 2."""
    means = {}
    for kind in (Leviathan, BlockVerification):
        rule, tree = rule_of(kind), Tree.chain(3)
        target, drafter = Tables.random(3, 3, 0), Tables.random(3, 3, 1)
        tokens = all_drafts(tree, 3)
        scores = drafter.at(tree, tokens)
        chance = torch.ones(len(tokens), dtype=torch.float64)
        for node in range(3):
            chance = chance * put_back(SIX.log_probabilities(scores[:, node]).exp(), tokens[:, node + 1 : node + 2])
        draft = Draft(tokens, Topology.of(tree, CPU), fed_places(tree), scores)
        stop, _ = odds(rule, target.at(tree, tokens), draft)
        means[kind] = float((chance[:, None] * stop * torch.arange(4)).sum())
    assert means[BlockVerification] > means[Leviathan] + 0.01


# --- the sampled family


def p_value(
    rule: Rule,
    tree: Tree,
    *,
    drawn_by: Rule | None = None,
    change: Callable[[Tensor], Tensor] = lambda drawn: drawn,
    steps: int = 40_000,
    flat: float = 2.0,
    seed: int = 0,
) -> float:
    """Chi-square of the first two tokens of `steps` texts against the target's law; 50 tokens, small cells pooled.

    Where a step emits one token, the second is drawn from the target by the rule's own pipeline. Candidates are drawn
    by `drawn_by`, if that is another rule, and changed by `change` before they enter the tree.
    """
    vocabulary, parts = 50, 4
    rng = torch.Generator().manual_seed(seed + 1000)
    shape = torch.randn(vocabulary, vocabulary, generator=rng)
    target, drafter = flat * shape, 1.4 * shape + torch.randn(vocabulary, vocabulary, generator=rng)
    warp = getattr(rule, "warp", Warp())
    p = warp.log_probabilities(target.double()).exp()
    width = max((rank for rank in tree.ranks), default=0) + 1
    counts = torch.zeros(vocabulary, vocabulary)
    fed = fed_places(tree)
    inner = [node for node in range(tree.nodes + 1) if fed[0, node] >= 0]
    for _ in range(parts):
        tokens = torch.zeros(steps // parts, tree.nodes + 1, dtype=torch.int64)
        for node, children in families(tree):
            drawn = change((drawn_by or rule).candidates(drafter[tokens[:, node]], width))
            tokens[:, children] = drawn[:, [tree.ranks[child - 1] for child in children]]
        draft = Draft(tokens, Topology.of(tree, CPU), fed, drafter[tokens[:, inner]])
        found = rule.accept(target[tokens], draft)
        first = found.emitted[:, 0]
        later = torch.multinomial(p[first], 1, generator=rng)[:, 0]
        second = torch.where(found.count > 0, found.emitted[:, min(1, tree.depth)], later)
        counts.view(-1).index_add_(0, first * vocabulary + second, torch.ones(len(first)))
    due = steps * p[0][:, None] * p
    large = due >= 8
    assert large.sum() > 100
    seen = torch.cat([counts[large].double(), counts[~large].sum()[None].double()])
    expected = torch.cat([due[large], due[~large].sum()[None]])
    if expected[-1] == 0:  # everything else is cut by top-k or top-p
        if seen[-1] > 0:
            return 0.0
        seen, expected = seen[:-1], expected[:-1]
    return float(chisquare(seen.numpy(), (expected * (steps / expected.sum())).numpy()).pvalue)


SAMPLED = [(kind, Tree.chain(2) if issubclass(kind, Leviathan) else Tree.cartesian((3, 2))) for kind in KINDS]


@pytest.mark.parametrize(("kind", "tree"), SAMPLED)
def test_every_lossless_rule_passes_the_chi_square(kind, tree):
    """False-alarm probability 1e-4, seeds fixed."""
    assert p_value(rule_of(kind), tree) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "tree"), SAMPLED)
@pytest.mark.parametrize("warp", [Warp(), Warp(1.2, 20), Warp(1.0, None, 0.8), Warp(0.7, 30, 0.9)], ids=str)
def test_every_lossless_rule_passes_with_many_samples(kind, tree, warp):
    """False-alarm probability 1e-4, seeds fixed."""
    assert p_value(rule_of(kind, warp, 7), tree, steps=400_000, seed=1) > 1e-4


# --- tests of the tests


def mutant(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, old: str, new: str) -> None:
    """Plant a fault in the source of a production function or class, which must hold `old` once."""
    source = inspect.getsource(getattr(module, name))
    assert source.count(old) == 1, f"{name} no longer holds {old!r} once"
    space = dict(vars(module))
    exec(source.replace(old, new), space)
    monkeypatch.setattr(module, name, space[name])


def noticed(rule: Rule, tree: Tree, *, draws: Draws | None = None, **sampled: Any) -> None:
    """Both families notice: total variation above 1e-3 and p below 1e-9."""
    drawn_from = getattr(sampled.get("drawn_by"), "warp", None)
    exact = [  # at some tables a fault has no effect; it has most where q is sharper than p
        total_variation(rule, tree, vocabulary=4, seed=seed, flat=0.5, draws=draws, drawn_from=drawn_from)
        for seed in range(3)
    ]
    assert max(exact) > 1e-3
    assert p_value(rule, tree, flat=0.5, **sampled) < 1e-9


@pytest.mark.parametrize(
    "kind", slow_unless(lambda kind: kind is Sequoia, [Leviathan, BlockVerification, SpecInfer, Sequoia])
)
def test_a_drafter_at_another_temperature_is_noticed(kind):
    tree = Tree.chain(2) if issubclass(kind, Leviathan) else Tree.cartesian((3,))
    noticed(rule_of(kind), tree, drawn_by=rule_of(kind, Warp(temperature=2.0), 1))


@pytest.mark.parametrize("kind", slow_unless(lambda kind: kind is Sequoia, [SpecInfer, Sequoia]))
def test_a_missing_renormalisation_of_p_is_noticed(kind, monkeypatch):
    mutant(monkeypatch, multi_round_rejection, "rounds", "mass = torch.addcmul(", "torch.addcmul(")
    noticed(rule_of(kind), WIDE)


@pytest.mark.slow
def test_a_missing_renormalisation_of_q_is_noticed(monkeypatch):
    mutant(monkeypatch, multi_round_rejection, "rounds", "undrawn = left.sum(-1, keepdim=True)", "pass")
    noticed(rule_of(Sequoia), WIDE)


@pytest.mark.parametrize("kind", slow_unless(lambda kind: kind is SpecInfer, [SpecInfer, Sequoia]))
def test_a_residual_of_which_q_is_not_taken_is_noticed(kind, monkeypatch):
    mutant(monkeypatch, multi_round_rejection, "Rounds", "(p - spent * q).clamp(min=0)", "p")
    faulty = type("Faulty", (multi_round_rejection.Rounds,), {"replacement": kind.replacement})
    noticed(rule_of(faulty), WIDE, draws=draws_of(rule_of(kind)))


def test_a_residual_that_keeps_the_children_is_noticed(monkeypatch):
    mutant(monkeypatch, sampling_rules, "SampleAndMatch", "or_else(Siblings.of(draft, nodes).without(p), p)", "p")
    noticed(rule_of(sampling_rules.SampleAndMatch), FORK)


def test_a_block_residual_without_its_prefix_is_noticed(monkeypatch):
    mutant(monkeypatch, multi_round_rejection, "BlockVerification", "(prefix[..., None] * p - q)", "(p - q)")
    noticed(rule_of(multi_round_rejection.BlockVerification), Tree.chain(2), draws=put_back)


@pytest.mark.slow
def test_siblings_in_another_order_are_noticed():
    """Without replacement the first draw is the only one that has the law q."""
    noticed(
        rule_of(Sequoia),
        WIDE,
        draws=lambda q, tokens: kept_out(q, tokens.flip(1)),
        change=lambda drawn: drawn.flip(-1),
    )


@pytest.mark.slow
def test_draws_without_replacement_are_noticed_by_the_rule_for_those_with():
    noticed(rule_of(SpecInfer), WIDE, draws=kept_out, drawn_by=rule_of(Sequoia))


@pytest.mark.slow
def test_repeated_siblings_are_noticed_under_sample_and_match():
    noticed(rule_of(SampleAndMatch), WIDE, draws=put_back, drawn_by=rule_of(SpecInfer))


def test_typical_acceptance_is_noticed():
    assert not Typical.lossless
    noticed(Typical(SIX), FORK)


def test_a_wrong_pairing_of_coins_and_children_is_noticed(monkeypatch):
    """In what only sampling sees: the walk on top of the odds."""
    mutant(monkeypatch, sampling_rules, "toss", "F.pad(entries, ", "F.pad(entries.flip(-1), ")
    assert p_value(rule_of(Sequoia), WIDE) < 1e-9
