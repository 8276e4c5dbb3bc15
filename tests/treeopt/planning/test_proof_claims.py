"""Claims of proofs against all trees there are, for every engine's rules, on traces small enough to try them all."""

import re

import numpy as np
import pytest

from tests.helpers.strategies import with_lengths
from tests.system.test_certificates import DEPTH, NODES, WIDTH, every_tree, kept, shapes, worth
from tests.treeopt.planning.test_search_pipeline import Cost
from treeopt.constraints import Constraint, depth_at_least, depth_at_most, joined, ranks_below
from treeopt.engines import ENGINES
from treeopt.errors import EngineError
from treeopt.planning.evaluator import Judge
from treeopt.planning.proof_sentences import PROVED, proof_of
from treeopt.planning.search_settings import SearchSettings
from treeopt.planning.tree_candidates import Proposals
from treeopt.replay.objective import LATENCY, THROUGHPUT, Objective
from treeopt.searchers.best_first import count_prefixes
from treeopt.traces.trace import Trace
from treeopt.tree import Path, Tree

CLAIM = re.compile(f"{PROVED}none of these trees has more position-averaged tokens( .counts shrunk.)? than the best")
DAILY, SLOW = 4, 2000  # traces of each engine, and of all engines together


def small_trace(rng: np.random.Generator, *, width: int = WIDTH, depth: int = DEPTH) -> Trace:
    """2 to 10 requests of 2 to 15 tokens; a drafter whose later ranks may be as good as its first."""
    lengths = rng.integers(2, 16, int(rng.integers(2, 11))).tolist()
    odds = rng.dirichlet(np.full(width + 1, rng.choice([0.3, 1.0, 5.0])), size=depth)
    rank = np.stack([rng.choice(width + 1, p=level, size=sum(lengths)) for level in odds], axis=1)
    return with_lengths(np.where(rank < width, rank, -1), lengths, width=width)


def proposals_of(
    trace: Trace, rules: tuple[Constraint, ...], cost: Cost, *, nodes: int, shrink: float, objective: Objective
) -> Proposals:
    limits = {"max_nodes": nodes, "max_depth": trace.depth, "near": 0.0, "shrink": shrink, "solver_work": 15.0}
    settings = SearchSettings(method="best-first", rules=rules, **limits)
    return Proposals(Judge(trace, trace, cost, objective), settings, rules)


def values_of(trace: Trace, shrink: float, objective: Objective) -> dict[Path, float]:
    """The value of every path that has any."""
    weights = objective.prices(trace).mean(axis=0)[trace.request_index]
    every = count_prefixes(trace, nodes=4096, depth=trace.depth, weights=weights, shrink=shrink)
    return dict(zip(every.paths, every.value.tolist(), strict=True))


def check_claims(trace: Trace, rules: tuple[Constraint, ...], rng: np.random.Generator) -> bool | None:
    """No tree that keeps the rules contradicts a line of the proof; returns whether the candidates were proved best."""
    shrink, objective = float(rng.choice([0.0, 0.0, 3.0])), (THROUGHPUT, LATENCY)[int(rng.integers(2))]
    cost = Cost(
        stairs=int(rng.choice([1, 3])), level=float(rng.choice([0.0, 0.02])), draft=float(rng.choice([0.0, 0.1]))
    )
    try:
        proposals = proposals_of(trace, rules, cost, nodes=NODES, shrink=shrink, objective=objective)
    except EngineError:
        assert not kept(rules).any()
        return None
    sizes, widths, _ = shapes()
    keep, tokens, depths = kept(rules), worth(values_of(trace, shrink, objective)), (widths > 0).sum(axis=1)
    if refined := proposals.refined(1):
        rates = tokens / proposals._parts(1).step_s(sizes + 1, widths)
        best = rates[keep].max()
        assert refined.bound >= best * (1 - 1e-9)
        assert not refined.optimal or refined.rate >= best * (1 - 2e-5)
    claimed = CLAIM.search(proof_of(proposals.judge, proposals, 1).statement) is not None
    if claimed and len(proposals.options.tokens):
        place = {tree: i for i, tree in enumerate(every_tree())}
        best_of = np.zeros((NODES + 1, DEPTH + 1))
        for i in range(len(proposals.options.tokens)):
            at = place[proposals.options.tree(i)]
            assert keep[at]
            best_of[sizes[at] :, depths[at] :] = np.maximum(best_of[sizes[at] :, depths[at] :], tokens[at])
        assert (best_of[sizes[keep], depths[keep]] >= tokens[keep] - 1e-9).all()
    return claimed


MORE: dict[str, tuple[Constraint, ...]] = {
    "ranks": (ranks_below(2, "a.py"),),
    "two levels exactly": (depth_at_least(2, "a.py"), depth_at_most(2, "a.py")),
    "three levels": (depth_at_least(3, "a.py"),),
}
RULES = {name: ENGINES[name].rules for name in ENGINES.limiting()} | MORE


@pytest.mark.parametrize("name", RULES)
def test_no_tree_contradicts_a_proof(name):
    rng = np.random.default_rng(list(RULES).index(name))
    for _ in range(DAILY):
        check_claims(small_trace(rng), RULES[name], rng)


@pytest.mark.slow
def test_no_tree_contradicts_a_proof_on_many_traces():
    """Under a least depth candidates are grown, and mostly nothing is claimed of them."""
    rng = np.random.default_rng(32)
    rules = [RULES[list(RULES)[i % len(RULES)]] for i in range(SLOW)]
    claimed = [check_claims(small_trace(rng), each, rng) for each in rules]
    enumerated = [not any(rule.limits.min_depth for rule in each) for each in rules]
    assert sum(map(bool, claimed)) >= 0.9 * sum(enumerated)
    assert all(claim for claim, whole in zip(claimed, enumerated, strict=True) if whole)


@pytest.mark.parametrize("name", [name for name, rules in RULES.items() if joined(rules).ranks == 1])
def test_chains_are_all_counted(name):
    """Traces of 12 ranks and 5 levels, whose few likely nodes make no long chain."""
    rng = np.random.default_rng(7)
    for _ in range(3 * DAILY):
        trace = small_trace(rng, width=12, depth=5)
        proposals = proposals_of(trace, RULES[name], Cost(), nodes=9, shrink=0.0, objective=THROUGHPUT)
        values = values_of(trace, 0.0, THROUGHPUT)
        assert proposals.options.exact
        found = [proposals.options.tree(i) for i in range(len(proposals.options.tokens))]
        for tree in map(Tree.chain, range(1, 6)):
            tokens = sum(values.get(path, 0.0) for path in tree.paths)
            shorter = [
                sum(values.get(path, 0.0) for path in other.paths) for other in found if other.depth <= tree.depth
            ]
            assert tokens <= 1e-9 + max(shorter, default=0.0)


def test_a_proof_says_that_nodes_were_left_out(monkeypatch):
    """Where the pool may not grow, and rules require nodes that it lacks, nothing is proved."""
    monkeypatch.setattr("treeopt.planning.tree_candidates.MAX_NODES", 16)
    rng = np.random.default_rng(3)
    statements = set()
    for _ in range(12):
        trace = small_trace(rng, width=8, depth=3)
        rules = ENGINES["sequoia"].rules
        proposals = proposals_of(trace, rules, Cost(), nodes=4, shrink=3.0, objective=THROUGHPUT)
        statements.add(proof_of(proposals.judge, proposals, 1).statement.split("\n")[1])
    assert any("rarer nodes were left out" in statement for statement in statements)
