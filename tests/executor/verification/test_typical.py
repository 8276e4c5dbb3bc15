"""Rules that may keep several siblings: what traces of them hold, how trees are replayed, grown and chosen on them."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.helpers.expected_replay import accepted_odds
from tests.helpers.slow_params import examples
from tests.helpers.strategies import assert_equal_traces, trees, with_lengths
from tests.treeopt.planning.test_search_pipeline import Cost
from treeopt import search
from treeopt.comparison.trees_of_size import parse_sizes, sized_trees
from treeopt.constraints import contiguous_ranks
from treeopt.errors import EngineError, TraceError
from treeopt.replay.static_tree import accepted_lengths, covers, deepest, replay_tree
from treeopt.searchers.hydra_growth import grow
from treeopt.traces.merge_split import halves, merge_traces
from treeopt.traces.trace import Trace
from treeopt.traces.trace_files import load_trace, save_trace
from treeopt.tree import Tree

TYPICAL = {"verification": "typical", "temperature": 0.7}


def typical_trace(
    tree: Tree, lengths: list[int], *, seed: int, kept: float = 0.5, width: int = 4, depth: int | None = None
) -> Trace:
    """Every node is kept with this probability where its parent is and the text has room; ranks tell nothing."""
    rng = np.random.default_rng(seed)
    left = np.concatenate([np.arange(length, 0, -1) for length in lengths])
    found = rng.random((len(left), tree.nodes)) < kept
    for node, (above, level) in enumerate(zip(tree.parents, tree.depths, strict=True)):
        found[:, node] &= (left >= level) & (found[:, above] if above >= 0 else True)
    rank = np.random.default_rng(seed + 1).integers(-1, width, (len(left), depth or max(tree.depth, 1)))
    meta = TYPICAL | {"tree": [list(path) for path in tree.paths]}
    return with_lengths(rank, lengths, width=width, tree_kept=found, meta=meta)


def parts_of(tree: Tree) -> st.SearchStrategy[Tree]:
    """Trees whose nodes are some of these, closed under parents."""
    return st.lists(st.sampled_from(tree.paths), max_size=6).map(Tree.from_paths)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Tree, Trace]:
    """A trace of several kept siblings and a tree that it can judge."""
    whole = draw(trees(min_nodes=1))
    lengths = draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
    trace = typical_trace(whole, lengths, seed=draw(st.integers(0, 2**20)), kept=draw(st.sampled_from([0.2, 0.7])))
    return draw(parts_of(whole)), trace


@given(cases())
@settings(max_examples=examples(200))
def test_the_longest_kept_path_is_replayed(case):
    tree, trace = case
    number = {path: node for node, path in enumerate(trace.tree.paths)}
    due = [max((len(p) for p in tree.paths if row[number[p]]), default=0) for row in trace.tree_kept]
    assert accepted_lengths(tree, trace).tolist() == due
    for row, node, length in zip(trace.tree_kept, deepest(tree, trace).tolist(), due, strict=True):
        longest = [i for i, path in enumerate(tree.paths) if len(path) == length and row[number[path]]]
        assert node == (longest[0] if length else -1)
    steps = 0
    for start, stop in zip(trace.starts.tolist(), trace.stops.tolist(), strict=True):
        while start < stop:
            start, steps = start + due[start] + 1, steps + 1
    assert replay_tree(tree, trace).steps.sum() == steps
    assert accepted_odds(tree, trace).argmax(1).tolist() == due
    assert covers(trace, tree)


def test_trees_beyond_the_recorded_one_are_refused():
    trace = typical_trace(Tree.from_paths([(0, 1), (2,)]), [5, 3], seed=0)
    for tree, words in ((Tree.from_paths([(0, 0)]), r"node \[0, 0\]"), (Tree.from_paths([(1,)]), r"node \[1\]")):
        assert not covers(trace, tree)
        with pytest.raises(TraceError, match=f"{words} of the tree is not in the tree that the trace was recorded"):
            replay_tree(tree, trace)
    without = replace(trace, tree_kept=None)
    with pytest.raises(TraceError, match=r"rule typical may accept several siblings, .* no `tree_kept` array"):
        replay_tree(Tree.chain(1), without)


@given(cases())
@settings(max_examples=40)
def test_files_parts_and_wholes(tmp_path_factory, case):
    _, trace = case
    path = tmp_path_factory.mktemp("typical") / "t.npz"
    save_trace(trace, path)
    assert_equal_traces(load_trace(path), trace)
    assert load_trace(path, arrays=("request", "position", "rank", "meta", "tree_kept")).tree == trace.tree
    assume(trace.requests > 1)
    parts = halves(trace, share=0.5, seed=1)
    assert sum(part.tree_kept.sum() for part in parts) == trace.tree_kept.sum()
    assert merge_traces(parts).tree == trace.tree


def test_traces_of_different_trees_do_not_merge():
    one, other = (typical_trace(Tree.from_paths(paths), [4, 4], seed=1) for paths in ([(0,)], [(1,)]))
    with pytest.raises(TraceError, match="trace 1 has tree"):
        merge_traces([one, other])


@pytest.mark.parametrize("seed", range(6))
def test_grown_trees_are_near_the_best_of_all(seed):
    """Every closed part is replayed. Paths that are kept by chance, all alike, are the worst case for growing."""
    whole = Tree.from_paths([(0, 0, 0), (0, 1), (1, 0), (1, 1), (2,), (3,)])
    trace = typical_trace(whole, [20] * 12, seed=seed, kept=0.35)
    best: dict[int, float] = {}
    for count in range(1, 6):
        for nodes in combinations(whole.paths, count):
            if all(path[:-1] in {(), *nodes} for path in nodes):
                best[count] = max(best.get(count, 0), replay_tree(Tree.from_paths(nodes), trace).tau)
    grown = grow(trace, nodes=5, depth=3)
    assert [tree.nodes for tree in grown] == [1, 2, 3, 4, 5]
    taus = [replay_tree(tree, trace).tau for tree in grown]
    assert taus[0] == best[1]
    assert all(tau >= 0.95 * best[tree.nodes] for tau, tree in zip(taus, grown, strict=True))
    assert max(tree.depth for tree in grow(trace, nodes=9, depth=2)) == 2


def test_search_grows_trees_of_the_recorded_one():
    whole = Tree.from_paths([(0, 0, 0), (0, 1), (1, 0), (1, 1), (2,), (3,)])
    trace = typical_trace(whole, [20] * 30, seed=3, kept=0.35, depth=5)
    for method in ("renewal", "best-first", "hydra"):
        plan = search(trace, Cost(), batch=(1, 4), method=method)
        assert plan.meta["search"]["method"] == "hydra"
        for entry in plan.entries:
            assert set(entry.choice.tree.paths) <= set(whole.paths)
            searched, choice = entry.proof.statement.split("\n")
            assert searched.startswith("Searched: trees of up to 63 nodes and depth 5, parts of the tree that")
            assert choice.startswith("Not proved: the choice is the tree with the highest lower bound of those within")
            assert entry.skipped.keys() == {"Medusa's tree", "EAGLE-1's tree"}
            chain = next(each for each in entry.compared if each.name == "best chain")
            assert entry.choice.speedup.value > chain.speedup.value > 1
    found = sized_trees(parse_sizes("chain:2,best:3,best:99"), trace)
    assert [tree.nodes for tree in found.values()] == [2, 3, whole.nodes]
    without = typical_trace(Tree.from_paths([(1, 1), (2,)]), [20] * 30, seed=3)
    entry = search(without, Cost(), max_depth=2).entries[0]
    assert entry.choice.tree.nodes
    assert all(each.name != "best chain" for each in entry.compared)
    with pytest.raises(EngineError, match="no tree grown from the tree that the trace was recorded with keeps the"):
        search(without, Cost(), rules=[contiguous_ranks(source="x")])
