"""Search against brute force, its two parts of the requests kept apart, and plans that survive a file."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.helpers.slow_params import examples, slow_unless
from tests.helpers.strategies import drawn_trace, traces, with_lengths
from treeopt.constraints import broken, chains_only, depth_at_least, depth_at_most, nodes_at_most
from treeopt.cost_model import CostParts, StepShape, covered_limits
from treeopt.engines import ENGINES
from treeopt.errors import CostError, EngineError, InfeasibleError, TraceError, UsageError
from treeopt.planning.baselines import STATIC, Rivals
from treeopt.planning.evaluator import Judge
from treeopt.planning.search_pipeline import BASELINES, search
from treeopt.planning.search_settings import SearchSettings
from treeopt.planning.search_warnings import UNPRICED
from treeopt.planning.tree_candidates import Proposals
from treeopt.plans import Choice, Proof, from_json, to_json
from treeopt.policies import settings as settings_of
from treeopt.replay.objective import LATENCY, OBJECTIVES, THROUGHPUT, WORST_DOMAIN
from treeopt.replay.static_tree import replay_tree
from treeopt.searchers.best_first import count_prefixes
from treeopt.searchers.choose_policy import Bench
from treeopt.searchers.hydra_growth import grow
from treeopt.searchers.renewal_local_search import improve
from treeopt.searchers.step_prices import Prices
from treeopt.statistics import Estimate, paired_difference, ratio
from treeopt.traces.candidates import Candidates
from treeopt.traces.trace import Trace
from treeopt.tree import Tree
from treeopt.tree_files.choice_lists import published_trees

# --- cost models


@dataclass
class Cost:
    """Weights once, tokens by the stair, draft passes by the level; remembers what it was asked."""

    base: float = 1.0
    token: float = 0.01
    draft: float = 0.05
    stairs: int = 1
    level: float = 0.0
    largest: int = 10**9
    widest: int = 10**9
    deepest: int = 10**9
    off: float = 0.0
    commit: float = 0.0
    anew: float | None = None  # of each level of a tree that is drawn anew; None: not known
    asked: list[StepShape] = field(default_factory=list)

    @property
    def separable(self) -> bool:
        return self.level == 0

    @property
    def growths(self) -> tuple[str, ...]:
        return () if self.anew is None else ("dynamic-tree",)

    @property
    def meta(self) -> Mapping[str, Any]:
        return {"device": "made up"}

    def one(self, shape: StepShape) -> float:
        if shape.tokens > self.largest:
            raise CostError(f"calibrated up to {self.largest} tokens, asked for {shape.tokens}")
        if len(shape.widths) > self.deepest:
            raise CostError(f"calibrated up to {self.deepest} levels, asked for {len(shape.widths)}")
        if max(shape.widths, default=0) > self.widest:
            raise CostError(f"calibrated up to {self.widest} nodes a level, asked for {max(shape.widths)}")
        tokens = math.ceil(shape.batch * shape.tokens / self.stairs) * self.stairs
        levels = sum(self.draft + self.level * math.ceil(width * shape.batch / 2) for width in shape.widths)
        levels += len(shape.widths) * (self.anew or 0.0) * (shape.growth in self.growths)
        return self.base + self.token * tokens + levels + self.commit * (shape.committed or 1)

    def step_s(self, shapes: Sequence[StepShape]) -> np.ndarray:
        self.asked.extend(shapes)
        return np.array([self.one(shape) for shape in shapes])

    def plain_s(self, *, batch: int, context: int | None = None) -> float:
        return self.one(StepShape(batch, 1, (), context))

    def error(self, shape: StepShape) -> float:
        return self.off * shape.batch

    def parts(self, *, batch: int, tokens: int, depth: int, width: int, context: int | None = None) -> CostParts:
        sizes = range(1, min(tokens, self.largest) + 1)
        verify = np.full(tokens + 1, np.inf)
        verify[1 : len(sizes) + 1] = [self.one(StepShape(batch, size, (), context)) for size in sizes]
        fed = [self.draft + self.level * math.ceil(width * batch / 2) for width in range(1, width + 1)]
        fed[self.widest :] = [math.inf] * len(fed[self.widest :])
        drafting = np.tile([0.0, *fed], (depth, 1))
        drafting[self.deepest :, 1:] = np.inf
        return CostParts(verify, drafting)


COSTS = {
    "smooth": Cost(),
    "draft passes are dear": Cost(draft=0.4),
    "tokens are dear": Cost(token=0.15),
    "stairs of 4 tokens": Cost(token=0.1, stairs=4),
    "stairs of 16 tokens": Cost(token=0.05, stairs=16),
    "level widths": Cost(draft=0.0, level=0.15),
    "level widths and stairs": Cost(draft=0.02, level=0.1, token=0.08, stairs=8),
}


def parts(trace: Trace, *, held_out: float = 0.5, seed: int = 0) -> tuple[Trace, Trace]:
    """The requests that are chosen on and those that are judged on."""
    return trace.split(share=1 - held_out, rng=np.random.default_rng(seed))


def rate(tree: Tree, trace: Trace, cost: Cost, batch: int) -> float:
    return replay_tree(tree, trace).tau / cost.one(StepShape.of(tree, batch=batch))


def candidates(fit: Trace, nodes: int, depth: int) -> Iterator[Tree]:
    """Chains, and of each depth cap the most frequent prefixes of each size."""
    times: Counter[tuple[int, ...]] = Counter()
    for row in fit.rank.tolist():
        for k in range(1, depth + 1):
            if row[k - 1] < 0:
                break
            times[tuple(row[:k])] += 1
    for cap in range(1, depth + 1):
        yield from (Tree.chain(k) for k in range(1, min(cap, nodes) + 1))
        best = sorted((p for p in times if len(p) <= cap), key=lambda path: (-times[path], len(path), path))
        yield from (Tree.from_paths(best[:size]) for size in range(1, min(nodes, len(best)) + 1))


searchable = traces(requests=(4, 8), length=10, depth=3, width=3)
MIXED = drawn_trace([[0.8, 0.1, 0.05], [0.3, 0.2, 0.1]], [40] * 30, depth=5, rng=np.random.default_rng(0))


# --- the choice


@pytest.mark.parametrize("name", COSTS)
@given(trace=searchable, batch=st.sampled_from([1, 2, 7]), seed=st.integers(0, 99))
@settings(max_examples=examples(60))
def test_the_choice_is_the_fastest_on_the_fitted_requests(name, trace, batch, seed):
    # At most 15 trees here, so the shortlist holds them all.
    cost = COSTS[name]
    (entry,) = search(trace, cost, batch=batch, max_nodes=5, method="best-first", near=0, shrink=0, seed=seed).entries
    fit, _ = parts(trace, seed=seed)
    best = max(rate(tree, fit, cost, batch) for tree in candidates(fit, 5, trace.depth))
    plain = 1 / cost.plain_s(batch=batch)
    if entry.choice.tree is None:
        assert entry.choice.name == "no speculation"
        assert best <= plain * (1 + 1e-12)  # a tie in the last place
    else:
        own = rate(entry.choice.tree, fit, cost, batch)
        if cost.separable:
            assert own == pytest.approx(best, rel=1e-12)
        assert own >= best * (1 - 1e-12)  # where level widths cost time, an integer programme may find a better one
        assert own > plain
    chain = next(choice for choice in entry.compared if choice.name == "best chain")
    due = max(rate(Tree.chain(k), fit, cost, batch) for k in range(1, min(trace.depth, 5) + 1))
    assert rate(chain.tree, fit, cost, batch) == pytest.approx(due, rel=1e-12)


@given(searchable, st.integers(1, 5), st.integers(1, 3))
@settings(max_examples=examples(60))
def test_limits_are_kept(trace, max_nodes, max_depth):
    for method in ("best-first", "renewal", "hydra"):
        plan = search(trace, Cost(), max_nodes=max_nodes, max_depth=max_depth, method=method)
        for choice in (plan.entries[0].choice, *plan.entries[0].compared):
            if choice.tree is not None and choice.name not in BASELINES:
                assert 1 <= choice.tree.nodes <= max_nodes
                assert choice.tree.depth <= max_depth


@pytest.mark.parametrize("name", slow_unless(lambda name: name in {"smooth", "level widths and stairs"}, COSTS))
@pytest.mark.slow
def test_refining_never_loses_on_the_fitted_requests(name):
    cost = COSTS[name]
    fit, _ = parts(MIXED)
    for batch in (1, 4, 16):
        speeds = {}
        for method in ("best-first", "renewal", "hydra"):
            tree = (
                search(MIXED, cost, batch=batch, max_nodes=20, method=method, near=0, shrink=0).entries[0].choice.tree
            )
            speeds[method] = 1 / cost.plain_s(batch=batch) if tree is None else rate(tree, fit, cost, batch)
        assert speeds["renewal"] >= speeds["best-first"]
        capped = (tree for cap in range(1, 6) for tree in grow(fit, nodes=20, depth=cap))
        grown = max(rate(tree, fit, cost, batch) for tree in capped)
        chains = max(rate(Tree.chain(k), fit, cost, batch) for k in range(1, 6))
        assert speeds["hydra"] == pytest.approx(max(grown, chains, 1 / cost.plain_s(batch=batch)), rel=1e-12)


def two_regimes(first: float, second: float, requests: int = 100) -> Trace:
    """Half the requests with this first-rank acceptance, half with that, the rest halving by rank."""
    regimes = [[best, *((1 - best) * 0.5**rank for rank in range(1, 6))] for best in (first, second)]
    return drawn_trace(regimes, [100] * requests, depth=6, rng=np.random.default_rng(0))


def test_renewal_finds_a_tree_that_averages_miss():
    # test_renewal_local_search.py shows the gap; here it must reach the plan, on requests that nothing was chosen on.
    trace, cost = two_regimes(0.92, 0.3, requests=400), Cost()
    plain, renewed = (search(trace, cost, max_nodes=31, method=m, near=0).entries[0] for m in ("best-first", "renewal"))
    _, held = parts(trace)
    assert rate(renewed.choice.tree, held, cost, 1) > 1.005 * rate(plain.choice.tree, held, cost, 1)


def test_refining_is_not_believed_on_few_requests():
    # Improved trees of 31 nodes gain 3 to 5 % where they are found and lose on other requests.
    trace = two_regimes(0.85, 0.35)
    fit, held = parts(trace)
    limits = SearchSettings(max_nodes=31, max_depth=6, near=0.0, solver_work=0.0)
    proposals = Proposals(Judge(fit, held, Cost(draft=0.0), THROUGHPUT), limits, ())
    start = count_prefixes(fit, nodes=31, depth=6).tree(31, 6)
    better = improve(fit, nodes=31, depth=6)
    assert replay_tree(better, fit).tau > 1.02 * replay_tree(start, fit).tau
    assert replay_tree(better, held).tau < replay_tree(start, held).tau
    assert better not in proposals.trees(1)


@pytest.mark.parametrize("method", ["best-first", "renewal"])
def test_the_shortlist_holds_a_tree_close_to_the_best_of_all_where_requests_differ(method):
    # Averages over positions promise too much of deep trees: a shortlist by averages holds deep trees alone.
    trace, cost = two_regimes(0.92, 0.3), Cost(token=0.03, draft=0.1)
    tree = search(trace, cost, max_nodes=31, method=method).entries[0].choice.tree
    fit, _ = parts(trace)
    assert rate(tree, fit, cost, 1) > 0.99 * max(rate(other, fit, cost, 1) for other in candidates(fit, 31, 6))


@pytest.mark.parametrize("method", ["best-first", "hydra"])
@pytest.mark.parametrize("name", COSTS)
def test_what_is_priced_are_the_trees(name, method):
    fit, held = parts(MIXED)
    judge = Judge(fit, held, COSTS[name], THROUGHPUT, context=777)
    limits = SearchSettings(batch=3, max_nodes=12, max_depth=4, method=method, near=0.0, shrink=0, solver_work=0.0)
    proposals = Proposals(judge, limits, ())
    options, seconds = proposals.options, proposals.seconds(3)
    trees = [options.tree(i) for i in range(len(seconds))]
    assert len(set(trees)) == len(trees) >= 12
    assert options.nodes.tolist() == [tree.nodes for tree in trees]
    shapes = [StepShape.of(tree, batch=3, context=777) for tree in trees]
    np.testing.assert_allclose(seconds, [COSTS[name].one(shape) for shape in shapes], rtol=1e-12)
    if method == "best-first":
        assert set(trees) <= set(candidates(fit, 12, 4))


def test_no_speculation_wins_when_tokens_are_dear():
    (entry,) = search(MIXED, Cost(token=5.0), max_nodes=15).entries
    assert entry.choice == Choice("no speculation", None, Estimate(1, 1, 1), 6.0, Estimate(1, 1, 1))
    assert entry.gain is None
    assert [choice.name for choice in entry.compared] == ["best chain"]
    assert entry.compared[0].speedup.high < 1


def test_a_tie_is_not_worth_speculating():
    # Nothing is ever accepted and drafting is free: equal rates.
    trace = with_lengths(np.full((8, 2), -1), [2] * 4, width=2)
    (entry,) = search(trace, Cost(token=0, draft=0)).entries
    assert entry.choice.tree is None


class Narrow(Cost):
    """A drafter that can hardly be fed two nodes at once."""

    def one(self, shape: StepShape) -> float:
        return super().one(shape) + 100 * (max(shape.widths, default=0) > 1)


def test_a_chain_may_beat_every_frontier_tree():
    # (1, 1) at 60 % comes before (0, 0, 0, 0, 0) at 40 %, so each frontier tree as deep as the chain feeds two.
    rank = np.random.default_rng(0).choice(2, 400, p=[0.4, 0.6])[:, None] * np.ones((1, 5), int)
    rank[:, 2:][rank[:, 2:] == 1] = -1
    trace = with_lengths(rank, [50] * 8, width=2)
    fit, _ = parts(trace)
    cost = Narrow(token=0.0, draft=0.0)
    (entry,) = search(trace, cost, max_nodes=9, method="best-first").entries
    assert entry.choice.tree == Tree.chain(5)
    branching = [tree for tree in candidates(fit, 9, 5) if not tree.is_chain]
    assert rate(Tree.chain(5), fit, cost, 1) > max(rate(tree, fit, cost, 1) for tree in branching)


def test_a_cost_model_that_does_not_cover_the_question_says_so():
    with pytest.raises(CostError, match="calibrated up to 8 tokens, asked for"):
        search(MIXED, Cost(largest=8), max_nodes=15)


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(1, 70), st.integers(1, 7), st.sampled_from([None, 5, 40]))
def test_sizes_that_nobody_gave_stay_within_what_is_covered(largest, levels, nodes):
    assume(nodes is None or nodes < largest)
    cost = Cost(largest=largest, deepest=levels)
    if largest == 1:
        with pytest.raises(CostError, match="cover no tree at batch 1, 2"):
            search(MIXED, cost, batch=(1, 2))
        return
    assert covered_limits(cost, (1, 2), nodes=63, depth=MIXED.depth) == (min(63, largest - 1), min(MIXED.depth, levels))
    plan = search(MIXED, cost, batch=(1, 2), max_nodes=nodes)
    found = plan.meta["search"]
    assert found["max_nodes"] == (min(63, largest - 1) if nodes is None else nodes)
    assert found["max_depth"] == min(MIXED.depth, levels)
    said = " ".join(plan.warnings)
    assert ("nodes were not considered" in said) == (nodes is None and largest < 64)
    assert ("levels were not considered" in said) == (levels < MIXED.depth)


@pytest.mark.parametrize(
    ("drafter", "said"),
    [
        ({}, True),
        ({"kind": "medusa", "heads": 5}, True),
        ({"kind": "medusa", "heads": 3}, False),
        ({"kind": "hydra"}, False),
    ],
)
def test_a_choice_as_deep_as_the_trace_is_told_of(drafter, said):
    """What it would be worth to go deeper nobody knows, unless the drafter has no more heads."""
    meta = {"drafter": drafter}
    trace = replace(with_lengths(np.zeros((60, 3), dtype=np.int16), [15] * 4, width=2), meta=meta)
    plan = search(trace, Cost(), batch=(1, 2), max_nodes=7)
    assert {entry.choice.tree.depth for entry in plan.entries} == {3}
    found = [warning for warning in plan.warnings if "as deep as the trace, 3 levels" in warning]
    assert len(found) == said
    assert all(warning.startswith("batch 1, 2: ") for warning in found)
    assert not any("as deep as" in warning for warning in search(trace, Cost(), max_depth=2).warnings)


def test_a_baseline_outside_the_calibrated_range_is_skipped_not_fatal():
    # Nobody asked for Medusa's 64 tokens.
    rank = np.zeros((40, 5))
    trace = with_lengths(rank, [10] * 4, width=10)
    (entry,) = search(trace, Cost(largest=32), max_nodes=15).entries
    assert entry.choice.tree is not None
    assert "Medusa's tree" in entry.skipped
    assert "EAGLE-1's tree" in [choice.name for choice in entry.compared]


@pytest.mark.parametrize(
    ("method", "widest"),
    slow_unless(
        lambda method, widest: (method == "renewal") == (widest == 4),
        product(["best-first", "renewal", "hydra"], [1, 4]),
    ),
)
def test_levels_wider_than_the_cost_model_knows_are_left_out(method, widest):
    known = Cost(token=0.001, level=0.001, widest=widest)
    entries = search(MIXED, known, batch=(1, 2), max_nodes=31, method=method).entries
    for entry in entries:
        assert max(entry.choice.tree.fed_widths) <= widest
    free = search(MIXED, Cost(token=0.001, level=0.001), batch=1, max_nodes=31, method=method).entries[0]
    assert max(free.choice.tree.fed_widths) > widest  # it is what was missing


def test_the_smaller_of_equal_trees_is_chosen():
    for near, batch in ((0.05, 1), (0.1, 1), (0.05, 4)):
        cost = Cost(token=0.003, off=0.05 / batch)
        exact = search(MIXED, cost, batch=batch, max_nodes=31, near=0).entries[0].choice.tree
        small = search(MIXED, cost, batch=batch, max_nodes=31, near=near).entries[0].choice.tree
        fit, _ = parts(MIXED)
        assert small.nodes < exact.nodes
        assert rate(small, fit, cost, batch) >= (1 - near) * rate(exact, fit, cost, batch)


def test_a_difference_beyond_the_noise_is_kept():
    # The same text throughout: intervals are points, and nothing overlaps.
    trace = with_lengths(np.zeros((4000, 5)), [10] * 400, width=1)
    for near in (0.0, 0.2):
        (entry,) = search(trace, Cost(token=0.3), max_nodes=5, near=near).entries
        fit, _ = parts(trace)
        best = max((Tree.chain(k) for k in range(1, 6)), key=lambda tree: rate(tree, fit, Cost(token=0.3), 1))
        assert entry.choice.tree == best


def test_not_speculating_is_the_smallest_of_all():
    # The best tree is faster than plain decoding by less than 1 %, and the interval holds 1.
    cost = Cost(base=0.0, token=1.0, draft=0.0, off=0.05)
    taus = {tree: rate(tree, parts(MIXED)[0], Cost(1.0, 0.0, 0.0), 1) for tree in map(Tree.chain, (1, 2))}
    cost.token = (taus[Tree.chain(1)] - 1) / 1.004  # of a second token, over a first one that costs 1
    cost.base = 1 - cost.token
    fast, plain = (search(MIXED, cost, max_nodes=1, near=near).entries[0].choice for near in (0, 0.01))
    assert fast.tree == Tree.chain(1)
    assert plain.tree is None


def test_nothing_near_the_best_is_slower_than_plain_decoding():
    for token in np.linspace(0.2, 0.5, 13):
        cost = Cost(token=token, draft=0.0, off=0.2)
        fit, _ = parts(MIXED)
        tree = search(MIXED, cost, max_nodes=15, near=0.05).entries[0].choice.tree
        assert tree is None or rate(tree, fit, cost, 1) > 1 / cost.plain_s(batch=1)


# --- all batch sizes together


def test_switches_lie_where_shapes_change():
    plan = search(MIXED, Cost(token=0.02), batch=(64, 1, 8), max_nodes=15)
    trees = {entry.batch: entry.choice.tree for entry in plan.entries}
    assert len(set(trees.values())) == 3
    assert [(each.small, each.large) for each in plan.switches] == [(1, 8), (8, 64)]


def test_most_tokens_are_made_at_the_largest_batch_that_keeps_the_ceiling():
    cost = Cost(token=0.02)
    free = search(MIXED, cost, batch=(1, 4, 16), max_nodes=15)
    assert free.best == max(free.entries, key=lambda entry: entry.choice.tokens_s(entry.batch)).batch == 16
    tpot = {entry.batch: entry.tpot_s for entry in free.entries}
    ceiling = (tpot[4] + tpot[16]) / 2
    held = search(MIXED, cost, batch=(1, 4, 16), max_nodes=15, max_tpot_s=ceiling)
    assert held.best == 4
    assert held.entries == free.entries
    assert [each for each in held.warnings if each.startswith("batch 16: the fastest configuration takes ")]
    with pytest.raises(
        InfeasibleError,
        match=r"no batch size takes at most 1 ms per token: the fastest configuration takes .* ms at batch 1",
    ):
        search(MIXED, cost, batch=1, max_nodes=15, max_tpot_s=1e-3)


def test_latency_prefers_the_batch_of_least_time_a_token():
    plan = search(MIXED, Cost(token=0.02), batch=(16, 1, 4), max_nodes=15, objective=LATENCY)
    assert plan.best == 1
    assert plan.entries[0].proof.objective == "replayed tokens per second, latency"


# --- other ways to count


def two_domains() -> Trace:
    """Easy requests, twice as many as hard ones; the hard ones match other ranks."""
    easy, hard = [0.85, 0.05, 0.02, 0.01], [0.05, 0.05, 0.3, 0.3]
    trace = drawn_trace([easy, easy, hard], [40] * 90, depth=4, rng=np.random.default_rng(0))
    return replace(trace, domain=np.tile(np.int16([0, 0, 1]), 30), domain_names=("easy", "hard"))


def test_the_worst_domain_gains_what_the_average_loses():
    trace, cost = two_domains(), Cost(token=0.05)
    fit, _ = parts(trace)
    trees = {
        name: search(trace, cost, max_nodes=15, near=0, objective=each).entries[0].choice.tree
        for name, each in OBJECTIVES.items()
    }

    def worst(tree):
        steps = replay_tree(tree, fit).steps
        tau = min(fit.lengths[fit.domain == d].sum() / steps[fit.domain == d].sum() for d in (0, 1))
        return tau / cost.one(StepShape.of(tree, batch=1))

    plan = search(trace, cost, batch=(1, 2), max_nodes=15, objective=WORST_DOMAIN)
    for entry in plan.entries:
        plain = next(choice for choice in (entry.choice, *entry.compared) if choice.plain)
        assert entry.tpot_s == pytest.approx(plain.step_s / entry.choice.speedup.value)
        assert entry.tpot_s > 1.02 * entry.choice.step_s / entry.choice.tau.value  # of all requests
    assert worst(trees["worst-domain"]) > 1.05 * worst(trees["throughput"])
    assert rate(trees["throughput"], fit, cost, 1) > 1.05 * rate(trees["worst-domain"], fit, cost, 1)


def test_every_objective_counts_its_own_tokens_on_the_requests_held_out():
    trace = two_domains()
    fit, held = parts(trace)
    for objective in OBJECTIVES.values():
        (entry,) = search(trace, Cost(), max_nodes=15, objective=objective).entries
        for choice in (entry.choice, *entry.compared):
            if choice.tree is not None:
                counts = replay_tree(choice.tree, held)
                factor = Cost().plain_s(batch=1) / choice.step_s
                assert choice.tau == ratio(counts.committed, counts.steps)
                row = objective.row(replay_tree(choice.tree, fit).steps, fit)  # the worst domain there
                assert choice.speedup == objective.estimate(counts.steps, held, row=row).times(factor)


# --- the prediction


@pytest.mark.parametrize(
    ("method", "held_out", "seed"),
    [("best-first", 0.3, 1), ("renewal", 0.5, 0), ("renewal", 0.9, 2), ("hydra", 0.5, 0)],
)
def test_predictions_are_replayed_on_the_requests_held_out(method, held_out, seed):
    cost = Cost(off=0.02, commit=0.05)
    plan = search(MIXED, cost, batch=(1, 4), max_nodes=15, method=method, held_out=held_out, seed=seed)
    fit, held = parts(MIXED, held_out=held_out, seed=seed)
    assert held.requests == round(held_out * 30)
    assert plan.meta["search"]["requests_chosen_on"] == fit.requests
    assert plan.meta["search"]["requests_judged_on"] == held.requests
    for entry in plan.entries:
        plain_s = cost.plain_s(batch=entry.batch)
        for choice in (entry.choice, *entry.compared):
            if choice.tree is None:
                assert (choice.tau.value, choice.step_s, choice.speedup.value) == (1, plain_s, 1)
                continue
            counts = replay_tree(choice.tree, held)
            assert choice.tau == ratio(counts.committed, counts.steps)
            kept = replay_tree(choice.tree, fit).tau
            assert choice.step_s == cost.one(StepShape.of(choice.tree, batch=entry.batch, committed=kept))
            due = choice.tau.times(plain_s / choice.step_s, relative_error=0.02 * entry.batch)
            assert astuple(choice.speedup) == pytest.approx(astuple(due), rel=1e-12)
            assert choice.tokens_s(entry.batch) == pytest.approx(entry.batch * counts.tau / choice.step_s)


def test_what_the_fitted_requests_accept_is_not_promised():
    # Requests that are chosen on accept everything, those held out nothing.
    trace = with_lengths(np.zeros((100, 3)), [10] * 10, width=2)
    fit, held = parts(trace, seed=4)
    rank = trace.rank.copy()
    kept = np.isin(trace.request, held.request)
    rank[kept & (rank != -2).any(axis=1)] = np.where(rank[kept] == -2, -2, -1)
    (entry,) = search(replace(trace, rank=rank), Cost(), seed=4).entries
    assert fit.requests == held.requests == 5
    assert entry.choice.tree == Tree.chain(3)
    assert entry.choice.tau == Estimate(1.0, 1.0, 1.0)
    assert entry.choice.speedup.value < 1


@given(searchable, st.integers(0, 9), st.integers(0, 2**32 - 1))
@settings(max_examples=examples(60))
def test_requests_held_out_do_not_move_the_choice(trace, seed, noise):
    (before,) = search(trace, Cost(), max_nodes=6, seed=seed).entries
    _, held = parts(trace, seed=seed)
    drawn = np.random.default_rng(noise).integers(-1, trace.width, trace.rank.shape)
    other = np.isin(trace.request, held.request)[:, None] & (trace.rank != -2)
    changed = replace(trace, rank=np.where(other, drawn, trace.rank).astype(np.int16))
    (after,) = search(changed, Cost(), max_nodes=6, seed=seed).entries
    assert after.choice.tree == before.choice.tree


def test_the_gain_over_the_chain_is_paired_by_request():
    (entry,) = search(MIXED, Cost(), max_nodes=15).entries
    _, held = parts(MIXED)
    chain = next(choice.tree for choice in entry.compared if choice.name == "best chain")
    ours, theirs = replay_tree(entry.choice.tree, held), replay_tree(chain, held)
    assert entry.gain == paired_difference((ours.committed, ours.steps), (theirs.committed, theirs.steps))
    own_s, chain_s = (float(tokens_s) for tokens_s in (entry.choice.tokens_s(1), entry.compared[1].tokens_s(1)))
    assert entry.choice.behind is None
    assert entry.compared[1].behind.value == pytest.approx(1 - chain_s / own_s)
    assert 0 < entry.compared[1].behind.low < entry.compared[1].behind.high
    assert entry.gain.value > 0


def test_nothing_is_called_optimal_that_is_not_proved():
    for method in ("best-first", "renewal", "hydra"):
        for cost in (Cost(), Cost(level=0.01)):
            (entry,) = search(MIXED, cost, max_nodes=7, method=method).entries
            assert entry.proof.objective == "replayed tokens per second"
            assert not entry.proof.optimal
            lines = entry.proof.statement.split("\n")
            assert lines[0] == "Searched: trees of up to 7 nodes and depth 5."
            assert lines[-1].startswith(
                "Not proved: the choice is the tree with the highest lower bound of those within"
            )
            labels = [line.partition(": ")[0] for line in lines]
            assert labels[1:-1] == ([] if method == "hydra" else ["Proved"] * (1 if cost.separable else 2))
            widths = not cost.separable and method != "hydra"
            assert ("depend on level widths" in entry.proof.statement) == widths
            assert ("Proved: by integer programme, one candidate is the best tree" in entry.proof.statement) == widths


@pytest.mark.parametrize("known", [True, False])
def test_a_proof_and_a_plan_say_what_was_not_measured(known):
    @dataclass
    class Profiled(Cost):
        widths_known: bool = known

        def priced_at(self, context: int | None = None) -> int | None:
            return 72 if context is None else context

        def unmeasured(self, batches: Sequence[int]) -> Sequence[int]:
            return batches[1:]

        def outside(self, batches: Sequence[int]) -> Sequence[int]:
            return [batch for batch in batches if batch > 8]

        def way_to(self, batches: Sequence[int]) -> tuple[str, str]:
            return f"outside {batches}", "measure"

        def caveats(
            self, *, context: int | None = None, trace: object = None, batches: Sequence[int] = ()
        ) -> Sequence[str]:
            assert (trace, batches) == (MIXED.meta, (1,))
            return (f"caveat at {context}",)

    plan = search(MIXED, Profiled(), max_nodes=7)
    assert ("wider levels are taken to cost the drafter nothing" in plan.entries[0].proof.statement) != known
    assert plan.warnings[-1] == "caveat at None"
    assert plan.meta["search"]["context"] == 72
    partial = search(MIXED, Profiled(), batch=(1, 16), max_nodes=7)
    assert [entry.batch for entry in partial.entries] == [1]
    assert partial.warnings[0] == "outside [16] (`measure`)"
    assert partial.meta["search"]["outside"] == {"batches": [16], "way": "outside [16]", "command": "measure"}
    with pytest.raises(CostError, match=r"outside \[16, 32\]"):
        search(MIXED, Profiled(), batch=(16, 32), max_nodes=7)
    plan = search(MIXED, Profiled(), max_nodes=7, context=9)
    assert plan.warnings[-1] == "caveat at 9"
    assert plan.meta["search"]["context"] == 9
    assert search(MIXED, Cost(), max_nodes=7).meta["search"]["context"] is None


# --- rules


@pytest.mark.parametrize("name", ENGINES.limiting())
def test_what_an_engine_cannot_run_is_not_chosen(name):
    rules = ENGINES[name].rules
    batches = (1, 8)
    free = search(MIXED, Cost(), batch=batches, max_nodes=31, near=0, shrink=0)
    plan = search(MIXED, Cost(), batch=batches, max_nodes=31, near=0, shrink=0, rules=rules, solver_work=0.05)
    fit, _ = parts(MIXED)
    for entry, best in zip(plan.entries, free.entries, strict=True):
        trees = [choice.tree for choice in (entry.choice, *entry.compared) if choice.name not in BASELINES]
        assert [broken(tree, rules) for tree in trees if tree is not None] == [None] * (len(trees) - 1)
        loose = 1.01 * rate(best.choice.tree, fit, Cost(), entry.batch)  # that one was the best of a shortlist
        assert rate(entry.choice.tree, fit, Cost(), entry.batch) <= loose
        binding = {rule.name for rule in rules if broken(best.choice.tree, [rule])}
        assert {price.rule for price in entry.prices} == binding
        for price in entry.prices:
            assert price.source in [rule.source for rule in rules]
            assert price.share.low < price.share.value < 1


def test_the_price_of_a_rule_is_what_the_best_tree_without_it_gains():
    rule = chains_only(source="engine.py")
    (entry,) = search(MIXED, Cost(), max_nodes=31, rules=[rule]).entries
    (best,) = search(MIXED, Cost(), max_nodes=31).entries
    (price,) = entry.prices
    assert entry.choice.tree.is_chain
    assert price.share.value == pytest.approx(1 - entry.choice.tokens_s(1) / best.choice.tokens_s(1))
    assert price.share.low > 0


def test_rules_that_nothing_keeps_are_named():
    rules = [nodes_at_most(3, source="a.py"), depth_at_least(4, source="b.py")]
    for method in ("renewal", "hydra"):
        with pytest.raises(EngineError, match=r"no tree .* keeps the rule `.*` \(b.py\) beside"):
            search(MIXED, Cost(), max_nodes=15, method=method, rules=rules)


def test_the_worst_domain_says_what_it_costs_on_average():
    (entry,) = search(two_domains(), Cost(token=0.05), max_nodes=15, objective=WORST_DOMAIN).entries
    (price,) = entry.prices
    assert (price.rule, price.source) == ("objective worst-domain", "against throughput")
    assert price.share.low > 0.02


@pytest.mark.parametrize("objective", [THROUGHPUT, LATENCY])
def test_prices_compare_trees_that_are_not_refined(objective):
    trace = two_regimes(0.92, 0.3, requests=400)
    rules = [nodes_at_most(20, source="a.py"), depth_at_most(4, source="b.py")]
    found = [
        search(trace, Cost(), max_nodes=31, near=0, objective=objective, method=method, rules=rules).entries[0]
        for method in ("best-first", "renewal")
    ]
    assert found[0].choice.tree != found[1].choice.tree
    assert found[0].prices == found[1].prices
    assert len(found[0].prices) == 3 + (objective is LATENCY)


def test_the_worst_domain_needs_requests_on_either_side():
    trace = with_lengths(np.zeros((80, 2)), [10] * 8, width=2, domain=np.int16([0] * 7 + [1]), domain_names=("a", "b"))
    with pytest.raises(TraceError, match=r"needs 2 requests per domain .* 'b' has [01]: record more than 1 of it$"):
        search(trace, Cost(), objective=WORST_DOMAIN)


def test_few_requests_to_choose_on_are_told_of():
    assert "in the requests used to choose trees" in " ".join(search(MIXED, Cost(), max_nodes=63).warnings)
    plan = search(MIXED, Cost(), max_nodes=7, held_out=0.95)
    assert any(warning.startswith("trees are chosen on 2 requests, so by chance") for warning in plan.warnings)


# --- policies


def sure_or_not(requests: int = 24, length: int = 30) -> Trace:
    """Where the drafter is sure, its best chain of 4 is right; elsewhere any of its 4 first candidates may be."""
    rng = np.random.default_rng(0)
    sure = rng.random(requests * length) < 0.5
    first = np.where(sure, 0, rng.integers(0, 4, len(sure)))
    rank = np.full((len(sure), 4), -1)
    rank[:, 0], rank[sure, 1:] = first, 0
    plain = with_lengths(rank, [length] * requests, width=4)
    parent = [-1] * 4 + [up for level in (0, 4, 20) for up in range(level, level + 4) for _ in range(4)]
    ranks = np.tile(np.arange(4), len(parent) // 4)
    log = np.where(ranks == 0, np.log(0.97), np.log(0.01))
    path = np.array([0, 4, 20, 36])
    hit = np.zeros((len(sure), len(parent)), dtype=bool)
    hit[np.ix_(sure, path)] = True
    hit[~sure, first[~sure]] = True
    return replace(
        plain,
        candidates=Candidates(
            offset=np.arange(len(sure) + 1) * len(parent),
            parent=np.tile(np.int16(parent), len(sure)),
            rank=np.tile(ranks.astype(np.uint8), len(sure)),
            logprob=np.where(sure[:, None], log, np.log(0.25)).astype(np.float32).ravel(),
            hit=hit.ravel(),
        ),
    )


def test_a_policy_is_chosen_where_it_is_faster():
    plan = search(sure_or_not(), Cost(token=0.05), batch=(1, 2), max_nodes=16, policies=("eagle2", "opt-tree"))
    for entry in plan.entries:
        choice = entry.choice
        (other_kind,) = {"eagle2", "opt-tree"} - {choice.grown.kind}
        assert settings_of(choice.grown.policy) == choice.grown.settings
        assert choice.tree is None
        assert choice.behind is None
        names = [other.name for other in entry.compared]
        assert names[:3] == ["no speculation", "best static tree", "best chain"]
        assert names[-2:] == [other_kind, "bound on any policy"]
        own = choice.tokens_s(entry.batch)
        for other in entry.compared:
            assert other.behind.value == pytest.approx(1 - other.tokens_s(entry.batch) / own)
        assert own > 1.05 * entry.compared[1].tokens_s(entry.batch)
        assert entry.compared[-1].behind.value < 0
        assert entry.gain.low > 0
    assert from_json(to_json(plan)) == plan


def test_switches_are_those_of_chosen_policies():
    """From 12 to 16 the best static trees change, the policy does not."""
    batches, cost, kinds = (6, 12, 16, 24), Cost(token=0.05), ("eagle2", "opt-tree")
    fixed, plan = (search(sure_or_not(40), cost, batch=batches, max_nodes=16, policies=each) for each in ((), kinds))
    assert [(each.small, each.large) for each in fixed.switches] == [(6, 12), (12, 16), (16, 24)]
    assert [(each.small, each.large) for each in plan.switches] == [(6, 12), (16, 24)]
    fit, _ = parts(sure_or_not(40))
    ways = [entry.choice.grown.policy for entry in plan.entries[:2]]
    rates = {
        size: [Bench(fit, Prices(cost, size, "widest"), seed=0).replayed(way).rate for way in ways] for size in batches
    }
    up = next((size for size in batches[1:] if rates[size][1] > 1.01 * rates[size][0]), 12)
    assert (plan.switches[0].up, plan.switches[0].down) == (up, 6)


def test_plain_decoding_may_be_the_best_static_way():
    fit, held = parts(sure_or_not())
    rivals = Rivals((), {}, SearchSettings(policies="eagle2", max_nodes=16, max_depth=4), take_policies=True)
    entry = rivals.entry(Judge(fit, held, Cost(token=0.05), THROUGHPUT), 2, None, Proof("rate", False, "none"), ())
    assert entry.choice.grown is not None
    (fixed,) = [choice for choice in entry.compared if choice.name == STATIC]
    assert fixed.plain
    assert fixed == replace(entry.compared[0], name=STATIC)


def test_neither_rules_nor_forwards_of_one_shape_give_way_to_a_policy():
    trace, cost = sure_or_not(), Cost(token=0.05)
    rules = [chains_only(source="engine.py")]
    for entry in search(trace, cost, batch=(1, 2), max_nodes=16, policies=("eagle2",), rules=rules).entries:
        assert entry.choice.grown is None
        (policy,) = [other for other in entry.compared if other.name == "eagle2"]
        assert policy.behind.value < 0
    (entry,) = search(trace, cost, max_nodes=16, policies=("opt-tree",), padding="full").entries
    assert entry.choice.grown is None
    assert "opt-tree" in [other.name for other in entry.compared]


def test_drawing_trees_anew_is_paid_for():
    """A policy whose trees take longer to draw commits as many tokens in longer steps, until it is not worth it."""

    def eagle2(anew):
        plan = search(sure_or_not(), Cost(token=0.05, anew=anew), max_nodes=16, policies=("eagle2",))
        assert not [warning for warning in plan.warnings if warning.startswith("the time to build")]
        (entry,) = plan.entries
        return entry.choice, next(way for way in (entry.choice, *entry.compared) if way.name == "eagle2")

    (_, free), (chosen, paid), (other, dear) = eagle2(0.0), eagle2(0.01), eagle2(10.0)
    assert chosen == paid
    assert paid.grown.policy == free.grown.policy
    assert paid.step_s == pytest.approx(free.step_s + 0.01 * free.grown.depth)
    assert other.name != "eagle2"
    assert dear.grown.depth == 1
    for anew in (None, 0.01):  # what was not timed is not preferred to what was
        plan = search(sure_or_not(), Cost(token=0.05, anew=anew), max_nodes=16, policies=("opt-tree",))
        assert UNPRICED.format("opt-tree") in plan.warnings
        assert (plan.entries[0].choice.grown is None) == (anew is not None)


def test_policies_need_candidates_and_throughput():
    with pytest.raises(TraceError, match="candidates"):
        search(MIXED, Cost(), policies=("eagle2",))
    with pytest.raises(UsageError, match="dynamic trees are judged by throughput, not by latency"):
        search(sure_or_not(), Cost(), policies=("eagle2",), objective=LATENCY)


# --- the same again


def test_seeds_decide_all():
    first, again = (search(MIXED, Cost(), batch=(1, 4), max_nodes=15, seed=3) for _ in range(2))
    assert first == again
    other = search(MIXED, Cost(), batch=(1, 4), max_nodes=15, seed=4)
    assert other.entries[0].choice.tau != first.entries[0].choice.tau
    assert other.meta["search"]["seed"] == 4


def test_batch_sizes_do_not_influence_one_another():
    together = search(MIXED, Cost(), batch=[8, 1], max_nodes=15).entries
    alone = [search(MIXED, Cost(), batch=size, max_nodes=15).entries[0] for size in (8, 1)]
    assert list(together) == alone


def test_a_plan_says_where_it_comes_from():
    trace = replace(MIXED, meta={"target": "byte model"})
    meta = search(trace, Cost(), max_nodes=7, max_depth=99, context=5, seed=8, engine="sglang").meta
    assert meta["search"] == {
        "method": "renewal",
        "objective": "throughput",
        "max_nodes": 7,
        "max_depth": 5,
        "engine": "sglang",
        "rules": [],
        "max_tpot_s": None,
        "near": 0.01,
        "faster": {},
        "shrink": 160.0,
        "solver_work": 0.75,
        "policies": [],
        "dynamic": [],
        "padding": None,
        "context": 5,
        "interpolated": [],
        "outside": None,
        "held_out": 0.5,
        "seed": 8,
        "requests_chosen_on": 15,
        "requests_judged_on": 15,
        "anchors": 1200,
    }
    assert meta["trace"] == {"target": "byte model"}
    assert meta["cost"] == {"device": "made up"}
    assert meta["provenance"]["software"]["numpy"] == np.__version__


# --- baselines


@pytest.mark.parametrize(
    ("depth", "width", "skipped"),
    [
        (5, 10, []),
        (4, 10, ["EAGLE-1's tree"]),
        (5, 9, ["Medusa's tree"]),
        (5, 3, ["Medusa's tree", "EAGLE-1's tree"]),
    ],
)
def test_baselines_are_compared_or_skipped_with_a_reason(depth, width, skipped):
    trace = with_lengths(np.zeros((40, depth)), [10] * 4, width=width)
    (entry,) = search(trace, Cost(), max_nodes=7).entries
    assert list(entry.skipped) == skipped
    reasons = (f"the trace records depth {depth}", f"the trace records ranks below {width}")
    assert all(any(reason in why for reason in reasons) for why in entry.skipped.values())
    compared = {choice.name: choice.tree for choice in entry.compared}
    for name, key in BASELINES.items():
        assert (name in compared) == (name not in skipped)
        if name in compared:
            assert compared[name] == published_trees()[key]


# --- questions without meaning


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"batch": 0}, "batch must be at least 1, got 0"),
        ({"batch": ()}, "at least one batch size is needed"),
        ({"held_out": math.nan}, "held_out must be a finite number, got nan"),
        ({"max_nodes": 8.5}, "max_nodes must be an integer, got 8.5"),
        ({"method": "magic"}, "method must be one of renewal, best-first, hydra, got 'magic'"),
        ({"policies": ("magic",)}, "policies must be one of"),
    ],
)
def test_questions_without_meaning_are_refused(settings_, message):
    with pytest.raises(UsageError, match=message):
        search(MIXED, Cost(), **settings_)


def test_a_rule_that_draws_its_candidates_is_not_replayed_by_ranks():
    trace = with_lengths(np.zeros((40, 2)), [10] * 4, width=2, meta={"verification": "leviathan"})
    with pytest.raises(TraceError, match="rule leviathan draws its candidates, so ranks do not determine"):
        search(trace, Cost())


def test_too_few_requests_to_hold_some_out():
    """The interval of one request would be infinite."""
    with pytest.raises(TraceError, match=r"at least 4 requests, .* has 3"):
        search(with_lengths(np.zeros((9, 1)), [3] * 3, width=1), Cost())
    with pytest.raises(TraceError, match="at least 2 requests held out"):
        search(with_lengths(np.zeros((40, 2)), [10] * 4, width=2), Cost(), held_out=0.2)
