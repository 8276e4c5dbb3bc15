"""The formulas of the sliders against replay and prices of the library."""

from itertools import accumulate

import numpy as np
import pytest

from simulate.profiles.profile import load_profile
from tests.helpers.slider_formulas import Setting, chain_tokens, recompute
from treeopt.cost_model import StepShape
from treeopt.replay.static_tree import replay_tree, step_seconds
from treeopt.report.slider_model import Drafted, conditional_rates, slider_data
from treeopt.statistics import Estimate, ratio
from treeopt.storage.user_files import shipped
from treeopt.traces.trace_files import load_trace
from treeopt.tree import Tree


@pytest.fixture(scope="module")
def inputs():
    trace = load_trace(shipped("traces/medusa-t0.npz"))
    profile = load_profile(shipped("profiles/medusa-cpu.json"))
    return trace, profile, slider_data(trace, profile, name="t.npz")


def drafted_of(record):
    parts = {**record, "tau": Estimate(**record["tau"]), "rates": tuple(record["rates"])}
    return Drafted(**parts)


def test_untouched_sliders_show_the_library_s_figures(inputs):
    trace, profile, data = inputs
    chains = [drafted_of(record) for record in data["trees"] if record["shape"] == "chain"]
    assert [chain.nodes for chain in chains] == list(range(1, trace.depth + 1))
    for chain in chains:
        counts = replay_tree(Tree.chain(chain.nodes), trace)
        tau = ratio(counts.committed, counts.steps, trace.domain)
        for batch, step_s in chain.step_s.items():
            plain_s = data["plain_s"][str(batch)]
            outcome = recompute(chain, plain_s, Setting(batch, price=3.0))
            assert outcome.tau == tau
            assert outcome.step_s == pytest.approx(step_s)
            assert step_s == step_seconds(Tree.chain(chain.nodes), profile, batch=batch, committed=counts.tau)
            error = profile.error(StepShape.of(Tree.chain(chain.nodes), batch=batch))
            expected = tau.times(profile.plain_s(batch=batch) / step_s, relative_error=error)
            assert outcome.speedup.value == pytest.approx(expected.value)
            assert outcome.speedup.low == pytest.approx(expected.low)
            assert outcome.million * outcome.tokens_s * 3600 == pytest.approx(3.0e6)
            assert outcome.tokens_s * outcome.tpot_s == pytest.approx(batch)


def test_best_trees_beat_chains_of_their_size_in_tau(inputs):
    trees = {record["nodes"]: record["tau"]["value"] for record in inputs[2]["trees"] if record["shape"] == "tree"}
    chains = {record["nodes"]: record["tau"]["value"] for record in inputs[2]["trees"] if record["shape"] == "chain"}
    assert len(trees) > 5
    assert all(trees[nodes] >= chains[nodes] for nodes in trees if nodes in chains)


def test_scales_move_what_they_say():
    tree = Drafted("a chain of 2", "chain", 2, 2, Estimate(1.75, 1.7, 1.8), (0.5, 0.5), {1: 0.02}, {1: 0.0})
    double = recompute(tree, 0.01, Setting(1, acceptance=2.0))
    assert double.tau.value == pytest.approx(3.0)
    free = recompute(tree, 0.01, Setting(1, cost=0.0))
    assert free.step_s == pytest.approx(0.01)
    assert free.speedup.value == pytest.approx(1.75)
    assert recompute(tree, 0.01, Setting(1, cost=2.0)).step_s == pytest.approx(0.03)


def test_chain_tokens_is_the_sum_of_products():
    rates = np.random.default_rng(0).random(7)
    for scale in (0.5, 1.0, 1.7):
        clipped = np.minimum(1.0, scale * rates).tolist()
        assert chain_tokens(rates.tolist(), scale) == pytest.approx(1 + sum(accumulate(clipped, lambda a, b: a * b)))


def test_rates_of_steps_that_never_went_deeper_are_zero():
    assert conditional_rates([3, 0, 0]) == (0.0, 0.0)
    assert conditional_rates([5]) == ()
