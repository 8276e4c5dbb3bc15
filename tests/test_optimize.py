"""Search against brute force, its two parts of the requests kept apart, and plans that survive a file."""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies import drawn_trace, traces, with_lengths
from treeopt import optimize
from treeopt.cost import StepShape
from treeopt.errors import CostError, PlanError, TraceError, UsageError
from treeopt.estimate import Estimate, paired_difference, ratio
from treeopt.optimize import BASELINES, search
from treeopt.plan import Choice, Plan, PlanEntry, Proof, load_plan, save_plan
from treeopt.provenance import this_run
from treeopt.published import published_trees
from treeopt.searchers.renewal import grow
from treeopt.trace import Trace
from treeopt.tree import Tree
from treeopt.walk import replay


@pytest.fixture(scope="module", autouse=True)
def _no_git():
    """Provenance runs git, 0.1 s a search; one test below looks at the real one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimize, "this_run", lambda: {"commit": "none"})
        yield


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
    relative_error: float = 0.0
    asked: list[StepShape] = field(default_factory=list)

    @property
    def separable(self) -> bool:
        return self.level == 0

    @property
    def meta(self) -> Mapping[str, Any]:
        return {"device": "made up"}

    def one(self, shape: StepShape) -> float:
        if shape.tokens > self.largest:
            raise CostError(f"calibrated up to {self.largest} tokens, asked for {shape.tokens}")
        tokens = math.ceil(shape.batch * shape.tokens / self.stairs) * self.stairs
        levels = sum(self.draft + self.level * math.ceil(width * shape.batch / 2) for width in shape.widths)
        return self.base + self.token * tokens + levels

    def step_s(self, shapes: Sequence[StepShape]) -> np.ndarray:
        self.asked.extend(shapes)
        return np.array([self.one(shape) for shape in shapes])

    def plain_s(self, *, batch: int, context: int | None = None) -> float:
        return self.one(StepShape(batch, 1, (), context))


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
    return replay(tree, trace).tau / cost.one(StepShape.of(tree, batch=batch))


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
@settings(max_examples=40)
def test_the_choice_is_the_fastest_on_the_fitted_requests(name, trace, batch, seed):
    # At most 15 trees here, so the shortlist holds them all.
    cost = COSTS[name]
    (entry,) = search(trace, cost, batch=batch, max_nodes=5, method="best-first", seed=seed).entries
    fit, _ = parts(trace, seed=seed)
    best = max(rate(tree, fit, cost, batch) for tree in candidates(fit, 5, trace.depth))
    plain = 1 / cost.plain_s(batch=batch)
    if entry.choice.tree is None:
        assert entry.choice.name == "no speculation"
        assert best <= plain
    else:
        assert rate(entry.choice.tree, fit, cost, batch) == pytest.approx(best, rel=1e-12)
        assert best > plain
    chain = next(choice for choice in entry.compared if choice.name == "best chain")
    due = max(rate(Tree.chain(k), fit, cost, batch) for k in range(1, min(trace.depth, 5) + 1))
    assert rate(chain.tree, fit, cost, batch) == pytest.approx(due, rel=1e-12)


@given(searchable, st.integers(1, 5), st.integers(1, 3))
@settings(max_examples=60)
def test_limits_are_kept(trace, max_nodes, max_depth):
    for method in ("best-first", "renewal", "hydra"):
        plan = search(trace, Cost(), max_nodes=max_nodes, max_depth=max_depth, method=method)
        for choice in (plan.entries[0].choice, *plan.entries[0].compared):
            if choice.tree is not None and choice.name not in BASELINES:
                assert 1 <= choice.tree.nodes <= max_nodes
                assert choice.tree.depth <= max_depth


@pytest.mark.parametrize("name", COSTS)
def test_refining_never_loses_on_the_fitted_requests(name):
    cost = COSTS[name]
    fit, _ = parts(MIXED)
    for batch in (1, 4, 16):
        speeds = {}
        for method in ("best-first", "renewal", "hydra"):
            tree = search(MIXED, cost, batch=batch, max_nodes=20, method=method).entries[0].choice.tree
            speeds[method] = 1 / cost.plain_s(batch=batch) if tree is None else rate(tree, fit, cost, batch)
        assert speeds["renewal"] >= speeds["best-first"]
        grown = max(rate(tree, fit, cost, batch) for tree in grow(fit, nodes=20, depth=5))
        chains = max(rate(Tree.chain(k), fit, cost, batch) for k in range(1, 6))
        assert speeds["hydra"] == pytest.approx(max(grown, chains, 1 / cost.plain_s(batch=batch)), rel=1e-12)


def two_regimes(first: float, second: float) -> Trace:
    """Half the requests with this first-rank acceptance, half with that, the rest halving by rank."""
    regimes = [[best, *((1 - best) * 0.5**rank for rank in range(1, 6))] for best in (first, second)]
    return drawn_trace(regimes, [100] * 100, depth=6, rng=np.random.default_rng(0))


def test_renewal_finds_a_tree_that_averages_miss():
    # test_renewal.py shows the gap; here it must reach the plan. 1.9 % with this seed.
    trace = two_regimes(0.85, 0.35)
    trees = [
        search(trace, Cost(draft=0.0), max_nodes=31, method=m).entries[0].choice.tree for m in ("best-first", "renewal")
    ]
    fit, _ = parts(trace)
    assert rate(trees[1], fit, Cost(draft=0.0), 1) > 1.01 * rate(trees[0], fit, Cost(draft=0.0), 1)


@pytest.mark.parametrize("method", ["best-first", "renewal"])
def test_the_shortlist_holds_a_tree_close_to_the_best_of_all_where_requests_differ(method):
    # Averages over positions promise too much of deep trees: a shortlist by averages holds deep trees alone.
    trace, cost = two_regimes(0.92, 0.3), Cost(token=0.03, draft=0.1)
    tree = search(trace, cost, max_nodes=31, method=method).entries[0].choice.tree
    fit, _ = parts(trace)
    assert rate(tree, fit, cost, 1) > 0.99 * max(rate(other, fit, cost, 1) for other in candidates(fit, 31, 6))


def test_shapes_that_are_priced_are_those_of_the_trees():
    cost = Cost(level=0.01)
    search(MIXED, cost, batch=3, max_nodes=12, method="best-first", context=777)
    fit, _ = parts(MIXED)
    assert set(cost.asked) == {StepShape.of(tree, batch=3, context=777) for tree in candidates(fit, 12, 5)}


def test_the_larger_the_batch_the_smaller_the_tree():
    plan = search(MIXED, Cost(token=0.02), batch=(1, 4, 16, 64), max_nodes=31)
    assert [entry.batch for entry in plan.entries] == [1, 4, 16, 64]
    nodes = [entry.choice.tree.nodes if entry.choice.tree else 0 for entry in plan.entries]
    assert nodes == sorted(nodes, reverse=True)
    assert nodes[0] > 5
    assert nodes[-1] == 0


def test_free_drafts_and_tokens_take_all_there_is():
    (entry,) = search(MIXED, Cost(token=0, draft=0), max_nodes=31, method="best-first").entries
    fit, _ = parts(MIXED)
    assert entry.choice.tree in list(candidates(fit, 31, 5))
    assert entry.choice.tree.nodes >= 28


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


def test_the_chain_itself_may_be_chosen():
    # One rank only: a chain is all that can be matched.
    trace = drawn_trace([[0.8]], [30] * 8, depth=4, rng=np.random.default_rng(1))
    (entry,) = search(trace, Cost()).entries
    assert entry.choice.tree.is_chain
    assert entry.gain is None
    assert [choice.tree for choice in entry.compared if choice.name == "best chain"] == [entry.choice.tree]


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


def test_a_baseline_outside_the_calibrated_range_is_skipped_not_fatal():
    # Nobody asked for Medusa's 64 tokens.
    rank = np.zeros((40, 5))
    trace = with_lengths(rank, [10] * 4, width=10)
    (entry,) = search(trace, Cost(largest=32), max_nodes=15).entries
    assert entry.choice.tree is not None
    assert "Medusa's tree" in entry.skipped
    assert "EAGLE-1's tree" in [choice.name for choice in entry.compared]


# --- the prediction


@pytest.mark.parametrize(("held_out", "seed"), [(0.5, 0), (0.3, 1), (0.9, 2)])
@pytest.mark.parametrize("method", ["best-first", "renewal", "hydra"])
def test_predictions_are_replayed_on_the_requests_held_out(method, held_out, seed):
    cost = Cost(relative_error=0.02)
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
            counts = replay(choice.tree, held)
            assert choice.tau == ratio(counts.committed, counts.steps)
            assert choice.step_s == cost.one(StepShape.of(choice.tree, batch=entry.batch))
            assert choice.speedup == choice.tau.times(plain_s / choice.step_s, relative_error=0.02)
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
@settings(max_examples=60)
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
    ours, theirs = replay(entry.choice.tree, held), replay(chain, held)
    assert entry.gain == paired_difference((ours.committed, ours.steps), (theirs.committed, theirs.steps))
    assert entry.gain.value > 0


def test_nothing_is_called_optimal_that_is_not_proved():
    for method in ("best-first", "renewal", "hydra"):
        for cost in (Cost(), Cost(level=0.01)):
            (entry,) = search(MIXED, cost, max_nodes=7, method=method).entries
            assert entry.proof.objective == "replayed tokens a second"
            assert not entry.proof.optimal
            assert "at most 7 nodes and depth 5" in entry.proof.statement
            assert ("proved optimal" in entry.proof.statement) == (cost.separable and method != "hydra")
            assert ("depends on level widths" in entry.proof.statement) == (not cost.separable and method != "hydra")


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


def test_a_plan_says_where_it_comes_from(monkeypatch):
    monkeypatch.setattr(optimize, "this_run", this_run)  # what the other tests do without
    trace = replace(MIXED, meta={"target": "byte model"})
    meta = search(trace, Cost(), max_nodes=7, max_depth=99, context=5, seed=8).meta
    assert meta["search"] == {
        "method": "renewal",
        "max_nodes": 7,
        "max_depth": 5,
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
        (5, 4, ["Medusa's tree"]),
        (5, 9, ["Medusa's tree"]),
        (3, 10, ["Medusa's tree", "EAGLE-1's tree"]),
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
        ({"batch": -1}, "batch must be at least 1, got -1"),
        ({"batch": (1, 0)}, "batch must be at least 1, got 0"),
        ({"batch": ()}, "at least one batch size is needed"),
        ({"batch": (4, 1, 4)}, "batch sizes must differ, got 4, 1, 4"),
        ({"max_nodes": 0}, "max-nodes and max-depth must be at least 1, got 0 and 5"),
        ({"max_depth": 0}, "max-nodes and max-depth must be at least 1, got 63 and 0"),
        ({"held_out": 0.0}, "held-out must lie between 0 and 1, got 0.0"),
        ({"held_out": 1}, "held-out must lie between 0 and 1, got 1"),
        ({"held_out": math.nan}, "held-out must lie between 0 and 1, got nan"),
        ({"method": "magic"}, "method must be renewal, best-first or hydra, got magic"),
    ],
)
def test_questions_without_meaning_are_refused(settings_, message):
    with pytest.raises(UsageError, match=message):
        search(MIXED, Cost(), **settings_)


def test_too_few_requests_to_hold_some_out():
    trace = with_lengths(np.zeros((9, 1)), [3] * 3, width=1)
    with pytest.raises(TraceError, match="at least 4, the trace has 3"):
        search(trace, Cost())


@pytest.mark.parametrize("rule", ["leviathan", "specinfer", "sequoia", "block"])
def test_a_rule_that_draws_its_candidates_is_not_replayed_by_ranks(rule):
    trace = with_lengths(np.zeros((40, 2)), [10] * 4, width=2, meta={"verification": rule})
    with pytest.raises(TraceError, match=f"rule {rule} draws its candidates, so ranks do not say what it keeps"):
        search(trace, Cost())


@pytest.mark.parametrize("batch", [np.int64(4), np.array([4]), [np.int32(4)]], ids=["one", "array", "list"])
def test_batch_sizes_from_numpy(batch, tmp_path):
    plan = search(MIXED, Cost(), batch=batch, max_nodes=7)
    assert plan == search(MIXED, Cost(), batch=4, max_nodes=7)
    save_plan(plan, tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json") == plan


# --- plans in files


def plan_of(entries: int = 2) -> Plan:
    """A plan with every kind of entry: a tree, no speculation, a gain, a reason."""
    tree = Tree.from_paths([(0, 0), (0, 1), (2,)])
    fast = Choice("chosen tree", tree, Estimate(2.5, 2.25, 2.75), 0.025, Estimate(2.0, 1.8, 2.2))
    chain = Choice("best chain", Tree.chain(2), Estimate(2.0, 1.9, 2.1), 0.025, Estimate(1.6, 1.5, 1.7))
    plain = Choice("no speculation", None, Estimate(1, 1, 1), 0.02, Estimate(1, 1, 1))
    proof = Proof("replayed tokens a second", optimal=False, statement="best found")
    first = PlanEntry(1, fast, Estimate(0.5, 0.25, 0.75), (plain, chain), {"Medusa's tree": "too deep"}, proof)
    second = PlanEntry(64, plain, None, (chain,), {}, replace(proof, optimal=True))
    return Plan((first, second)[:entries], {"seed": 1, "trace": {"target": "γ"}})


@given(searchable)
@settings(max_examples=30)
def test_plans_survive_json(trace):
    plan = search(trace, Cost(), batch=(1, 8), max_nodes=6)
    assert Plan.from_json(plan.to_json()) == plan


def test_plans_survive_a_file(tmp_path):
    save_plan(plan_of(), tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json") == plan_of()
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]


def test_a_failing_write_leaves_the_old_plan(tmp_path, monkeypatch):
    save_plan(plan_of(), tmp_path / "plan.json")

    def fail(_handle):
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        save_plan(plan_of(1), tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json") == plan_of()
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]


def test_the_record_of_a_plan():
    # What other programs read.
    record = json.loads(plan_of().to_json())
    assert record["schema"] == "treeopt.plan/1"
    assert record["meta"] == {"seed": 1, "trace": {"target": "γ"}}
    assert record["entries"][0]["choice"] == {
        "name": "chosen tree",
        "tree": {"id": Tree.from_paths([(0, 0), (0, 1), (2,)]).id, "paths": [[0], [2], [0, 0], [0, 1]]},
        "tau": {"value": 2.5, "low": 2.25, "high": 2.75},
        "step_s": 0.025,
        "speedup": {"value": 2.0, "low": 1.8, "high": 2.2},
    }
    assert record["entries"][0]["gain_over_chain"] == {"value": 0.5, "low": 0.25, "high": 0.75}
    assert record["entries"][1]["gain_over_chain"] is None
    assert record["entries"][1]["choice"]["tree"] is None


def test_one_request_held_out_is_refused():
    # Its interval would be infinite.
    trace = with_lengths(np.zeros((40, 2)), [10] * 4, width=2)
    with pytest.raises(TraceError, match="at least 2 requests held out"):
        search(trace, Cost(), held_out=0.2)


def test_a_plan_as_a_frame():
    frame = plan_of().frame()
    assert frame["batch"].tolist() == [1, 1, 1, 64, 64]
    assert frame["name"].tolist() == [
        "chosen tree",
        "no speculation",
        "best chain",
        "no speculation",
        "best chain",
    ]
    assert frame["chosen"].tolist() == [True, False, False, True, False]
    assert frame["nodes"].tolist() == [4, 0, 2, 0, 2]
    assert frame["depth"].tolist() == [2, 0, 2, 0, 2]
    assert frame["tau"].tolist() == [2.5, 1, 2, 1, 2]
    assert frame["tokens_s"].tolist() == pytest.approx([100, 50, 80, 3200, 5120])


def refused(path, text: str | bytes) -> str:
    """The message with which a file is refused, after its path."""
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(PlanError) as caught:
        load_plan(path)
    assert str(caught.value).startswith(f"{path}: ")
    return str(caught.value).removeprefix(f"{path}: ")


def at(record: Any, path: Sequence[str | int]) -> Any:
    for key in path:
        record = record[key]
    return record


KEYS = [
    *(("entries", 0, key) for key in ("batch", "choice", "gain_over_chain", "compared", "skipped", "proof")),
    *(("entries", 0, "choice", key) for key in ("name", "tree", "tau", "step_s", "speedup")),
    *(("entries", 1, "proof", key) for key in ("objective", "optimal", "statement")),
    *(("entries", 0, "choice", "tau", key) for key in ("value", "low", "high")),
    *(("entries", 0, "gain_over_chain", key) for key in ("value", "low", "high")),
    ("entries", 0, "choice", "tree", "paths"),
    ("entries", 0, "compared", 1, "tau"),
    ("entries",),
    ("meta",),
    ("schema",),
]


@pytest.mark.parametrize("key", KEYS, ids=lambda key: ".".join(map(str, key)))
def test_missing_keys_are_named(tmp_path, key):
    record = json.loads(plan_of().to_json())
    del at(record, key[:-1])[key[-1]]
    message = refused(tmp_path / "plan.json", json.dumps(record))
    assert str(key[-1]) in message
    if len(key) > 2:
        assert message.startswith(f"entries[{key[1]}]")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (("schema",), "treeopt.plan/2", "schema must be 'treeopt.plan/1', found 'treeopt.plan/2'"),
        (("entries",), [], "`entries`"),
        (("entries",), {}, "`entries` must be a list"),
        (("entries", 0), 1, "entries[0]"),
        (("entries", 1), [], "entries[1]"),
        (("entries", 0, "batch"), 0, "entries[0]: `batch` must be at least 1, found 0"),
        (("entries", 0, "batch"), 1.5, "entries[0]: `batch`"),
        (("entries", 0, "batch"), True, "entries[0]: `batch`"),
        (("entries", 0, "choice"), None, "entries[0]"),
        (("entries", 0, "choice"), [], "entries[0]"),
        (
            ("entries", 0, "choice", "step_s"),
            -0.025,
            "entries[0].choice: `step_s` must be positive, found -0.025",
        ),
        (
            ("entries", 0, "choice", "step_s"),
            0,
            "entries[0].choice: `step_s` must be positive, found 0",
        ),
        (
            ("entries", 0, "choice", "step_s"),
            math.nan,
            "entries[0].choice: `step_s` must be a finite number",
        ),
        (("entries", 0, "choice", "step_s"), 10**400, "entries[0]"),
        (("entries", 0, "choice", "step_s"), "fast", "entries[0]"),
        (("entries", 1, "compared", 0, "step_s"), None, "entries[1]"),
        (("entries", 0, "compared"), None, "entries[0]"),
        (("entries", 0, "compared"), [1], "entries[0]"),
        (("entries", 0, "skipped"), [], "entries[0]"),
        (("entries", 0, "proof"), "proved", "entries[0]"),
        (("entries", 0, "proof", "optimal"), "false", "entries[0]"),
        (("entries", 0, "choice", "tau"), 2.5, "entries[0]"),
        (("entries", 0, "choice", "tau", "value"), math.nan, "entries[0]"),
        (("entries", 0, "choice", "tau", "value"), None, "entries[0]"),
        (("entries", 0, "gain_over_chain"), 0.5, "entries[0]"),
        (("entries", 0, "choice", "tree"), [[0]], "entries[0]"),
        (
            ("entries", 0, "choice", "tree", "id"),
            "0123456789ab",
            "entries[0].choice.tree: `id` 0123456789ab does not",
        ),
        (("entries", 0, "choice", "tree", "paths"), [[0], [1]], "entries[0].choice.tree: `id` "),
        (
            ("entries", 0, "choice", "tree", "paths"),
            [[0], [1.5]],
            "entries[0].choice.tree: path 1 must hold integers, got 1.5",
        ),
        (("entries", 0, "choice", "tree", "paths"), [0], "entries[0]"),
        (("entries", 0, "choice", "tree", "paths", 0), [-1], "entries[0].choice.tree: ranks[0] must be in"),
        (("meta",), [], "`meta` must be an object"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_wrong_values_are_named(tmp_path, key, value, message):
    record = json.loads(plan_of().to_json())
    at(record, key[:-1])[key[-1]] = value
    assert message in refused(tmp_path / "plan.json", json.dumps(record))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"plan", "not JSON"),
        (b"\xff\xfe", "cannot be read"),
        (b"[]", "schema must be 'treeopt.plan/1', found 'list'"),
        (b"null", "schema must be 'treeopt.plan/1', found 'NoneType'"),
        (b"{}", "schema must be 'treeopt.plan/1', found None"),
        (b"[" * 100_000, "not JSON"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_files_that_are_no_plan(tmp_path, text, message):
    assert message in refused(tmp_path / "plan.json", text)


def test_missing_files_and_directories(tmp_path):
    for path in (tmp_path / "nowhere.json", tmp_path):
        with pytest.raises(PlanError, match=f"{path}: cannot be read"):
            load_plan(path)


def test_every_truncated_plan_is_refused(tmp_path):
    text = plan_of().to_json()
    for size in range(0, len(text), 7):
        assert refused(tmp_path / "plan.json", text[:size])


def places(record: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if path:
        yield path
    items = record.items() if isinstance(record, dict) else enumerate(record) if isinstance(record, list) else ()
    for key, value in items:
        yield from places(value, (*path, key))


RECORD = json.loads(plan_of().to_json())
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["value", "paths", "id"]), inner, max_size=2)
    ),
    max_leaves=3,
)


@given(st.sampled_from(list(places(RECORD))), values)
@settings(max_examples=300)
def test_any_value_anywhere_loads_or_is_a_plan_error(place, value):
    record = deepcopy(RECORD)
    at(record, place[:-1])[place[-1]] = value
    try:
        plan = Plan.from_json(json.dumps(record))
    except PlanError:
        return
    # What was let in must be a plan that can be used and written.
    assert len(plan.frame()) == sum(1 + len(entry.compared) for entry in plan.entries)
    assert Plan.from_json(plan.to_json()).entries == plan.entries
