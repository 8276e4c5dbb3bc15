"""Topology: one form for equal trees, derived arrays against slow twins, and what is refused."""

import hashlib
import json
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.strategies import rank_paths, trees
from treeopt.errors import TreeError
from treeopt.storage.user_files import shipped
from treeopt.tree import MAX_NODES, MAX_RANK, Path, Tree
from treeopt.tree_files.choice_lists import EAGLE, MEDUSA, published_trees


def closure(paths: list[Path]) -> set[Path]:
    """All paths and all their prefixes."""
    return {path[:k] for path in paths for k in range(1, len(path) + 1)}


# --- one form


@given(rank_paths())
def test_paths_are_the_prefix_closure_in_breadth_first_order(paths):
    tree = Tree.from_paths(paths)
    assert list(tree.paths) == sorted(closure(paths), key=lambda path: (len(path), path))
    assert Tree.from_paths([list(path) for path in paths]) == tree
    assert Tree.from_paths(np.array(path, dtype=np.int16) for path in paths) == tree
    assert Tree.from_paths([tuple(np.int64(rank) for rank in path) for path in paths]) == tree


@given(trees())
def test_parents_and_ranks_say_what_the_paths_say(tree):
    for node, path in enumerate(tree.paths):
        parent = tree.parents[node]
        assert path == (*(tree.paths[parent] if parent >= 0 else ()), tree.ranks[node])
        assert tree.depths[node] == len(path)
    assert list(zip(tree.parents, tree.ranks, strict=True)) == sorted(zip(tree.parents, tree.ranks, strict=True))


@given(rank_paths(), st.randoms(use_true_random=False), st.data())
def test_equal_topologies_are_equal_values(paths, shuffle, data):
    tree = Tree.from_paths(paths)
    again = sorted(closure(paths))
    shuffle.shuffle(again)
    again += data.draw(st.lists(st.sampled_from(again), max_size=3)) if again else []
    other = Tree.from_paths(again)
    assert other == tree
    assert hash(other) == hash(tree)
    assert other.id == tree.id
    assert len({tree, other}) == 1


@given(trees(), trees())
def test_trees_are_equal_exactly_when_their_nodes_are(first, second):
    same = set(first.paths) == set(second.paths)
    assert (first == second) == same
    assert (first.id == second.id) == same


def test_values_from_numpy_ints_are_plain_ints():
    tree = Tree.from_paths([np.array([1, 0], dtype=np.uint8)])
    assert {type(value) for value in tree.parents + tree.ranks} == {int}
    assert json.dumps([tree.parents, tree.ranks]) == "[[-1, 0], [1, 0]]"


@given(trees(min_nodes=2), st.data())
def test_no_other_order_of_the_nodes_is_accepted(tree, data):
    order = data.draw(st.permutations(range(tree.nodes)))
    place = {old: new for new, old in enumerate(order)} | {-1: -1}
    parents = tuple(place[tree.parents[old]] for old in order)
    ranks = tuple(tree.ranks[old] for old in order)
    if order == list(range(tree.nodes)):
        assert Tree(parents, ranks) == tree
    else:
        with pytest.raises(TreeError):
            Tree(parents, ranks)


def test_ids_do_not_change_between_versions():
    # Plans and caches keep them. SHA-256 of `repr((parents, ranks))`, 12 digits.
    assert Tree(parents=(), ranks=()).id == "56546d2909af"
    assert Tree.chain(2).id == hashlib.sha256(b"((-1, 0), (0, 0))").hexdigest()[:12] == "1378112126f1"
    assert published_trees()[MEDUSA].id == "74e392ec5169"


def test_a_tree_cannot_be_changed():
    tree = Tree.chain(2)
    with pytest.raises(AttributeError):
        tree.parents = (-1,)
    with pytest.raises(ValueError, match="read-only"):
        tree.ancestor_mask[0, 1] = True


# --- constructors


@pytest.mark.parametrize("length", [0, 1, 2, 5])
def test_chain(length):
    tree = Tree.chain(length)
    assert tree.paths == tuple((0,) * k for k in range(1, length + 1))
    assert tree.is_chain
    assert tree.nodes == tree.depth == length
    assert tree.level_widths == tree.fed_widths == (1,) * length


@given(st.lists(st.integers(1, 4), max_size=4))
def test_cartesian_holds_every_product(widths):
    tree = Tree.cartesian(widths)
    assert set(tree.paths) == {
        path for depth in range(1, len(widths) + 1) for path in product(*map(range, widths[:depth]))
    }
    assert tree.level_widths == tuple(np.cumprod(widths, dtype=int).tolist())


def test_largest_trees():
    assert Tree.chain(MAX_NODES).depth == MAX_NODES
    assert Tree.from_paths([(MAX_RANK,)]).ranks == (MAX_RANK,)
    wide = Tree.cartesian([MAX_NODES])
    assert (wide.nodes, wide.depth, wide.fed_widths) == (MAX_NODES, 1, (1,))


# --- derived arrays against slow twins


@given(trees())
def test_widths_depth_and_masks_are_those_of_the_paths(tree):
    depths = [len(path) for path in tree.paths]
    assert tree.depth == max(depths, default=0)
    assert tree.level_widths == tuple(depths.count(level) for level in range(1, tree.depth + 1))
    assert sum(tree.level_widths) == tree.nodes
    assert tree.is_chain == all(depths.count(depth) == 1 for depth in depths)
    nodes = ((), *tree.paths)
    expected = [[here[: len(seen)] == seen for seen in nodes] for here in nodes]
    assert tree.ancestor_mask.dtype == np.bool_
    assert tree.ancestor_mask.tolist() == expected
    parents = {path[:-1] for path in tree.paths}
    fed = tuple(sum(len(path) == level for path in parents) for level in range(tree.depth))
    assert tree.fed_widths == fed
    assert all(width >= 1 for width in tree.fed_widths)


# --- what is refused


@pytest.mark.parametrize(
    ("parents", "ranks", "message"),
    [
        ((-1,), (), r"the same length, got 1 and 0"),
        ((0,), (0,), r"parents\[0\] must be in \[-1, -1\], got 0"),
        ((-1, 1), (0, 0), r"parents\[1\] must be in \[-1, 0\], got 1"),
        ((-1, 0), (0, -1), r"ranks\[1\] must be in \[0, 32767\], got -1"),
        ((-1,), (MAX_RANK + 1,), r"ranks\[0\] must be in \[0, 32767\], got 32768"),
        ((-1, 0.0), (0, 0), r"parents\[1\] must be an integer, got 0.0"),
        ((-1,), (True,), r"ranks\[0\] must be an integer, got True"),
        ((-1,), (np.int64(0),), r"ranks\[0\] must be an integer"),
        ((-1, -1), (1, 0), r"node 1 .* must come after \(-1, 1\) in breadth-first order, got \(-1, 0\)"),
        ((-1,) * (MAX_NODES + 1), tuple(range(MAX_NODES + 1)), r"at most 4096 nodes, got 4097"),
    ],
)
def test_constructor_names_the_field_and_the_index(parents, ranks, message):
    with pytest.raises(TreeError, match=message):
        Tree(parents, ranks)


@pytest.mark.parametrize("make", [list, np.array])
def test_parents_and_ranks_of_a_tree_are_tuples_or_refused(make):
    # Lists inside would make equal topologies unequal, and the tree unhashable.
    try:
        tree = Tree(parents=make([-1, 0]), ranks=make([0, 0]))
    except TreeError:
        return
    assert tree == Tree.chain(2)
    assert hash(tree) == hash(Tree.chain(2))


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ([(0,), ()], r"path 1 is empty: the root is not a node"),
        ([(0,), (0, 1.0)], r"path 1 must hold integers, got 1.0"),
        ([(True,)], r"path 0 must hold integers, got True"),
        (["01"], r"path 0 must hold integers, got '0'"),
        ([(0, -1)], r"ranks\[1\] must be in \[0, 32767\], got -1"),
        ([(MAX_RANK + 1,)], r"ranks\[0\] must be in \[0, 32767\], got 32768"),
        ([(0,) * (MAX_NODES + 1)], r"path 0 has 4097 steps"),
        ([(rank,) for rank in range(MAX_NODES + 1)], r"at most 4096 nodes, got 4097"),
        ([0, 1], r"path 0 .*got 0"),
    ],
)
def test_from_paths_names_the_path(paths, message):
    with pytest.raises(TreeError, match=message):
        Tree.from_paths(paths)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Tree.chain(-1), r"0 or more nodes, got -1"),
        (lambda: Tree.cartesian((2,) * 10_000), r"at most 4096 nodes"),
        (lambda: Tree.full(2, -1), r"-1"),
        (lambda: Tree.chain("3"), "the length of a chain must be an integer, got '3'"),
        (lambda: Tree.full(2.5, 2), r"widths\[0\] must be an integer, got 2.5"),
        (lambda: Tree.full(2, None), "depth must be an integer, got None"),
        (lambda: Tree.cartesian(3), "widths must be a sequence of integers, got 3"),
    ],
)
def test_constructors_refuse_what_is_no_tree_or_too_large(make, message):
    with pytest.raises(TreeError, match=message):
        make()


def test_from_paths_stops_reading_once_the_tree_is_too_large():
    def endless():
        yield from ((0, rank) for rank in range(2 * MAX_NODES))
        raise AssertionError("read on")

    with pytest.raises(TreeError, match="at most 4096 nodes"):
        Tree.from_paths(endless())


# --- published trees


def test_published_trees_are_the_files_and_every_prefix_is_there():
    records = json.loads(shipped("published/trees.json").read_text("utf-8"))
    assert [record["name"] for record in records] == list(published_trees())
    for record in records:
        paths = [tuple(path) for path in record["paths"]]
        tree = published_trees()[record["name"]]
        assert closure(paths) == set(paths)
        assert len(set(paths)) == len(paths) == tree.nodes
        assert set(tree.paths) == set(paths)


@pytest.mark.parametrize(
    ("name", "widths"),
    [
        (MEDUSA, (10, 28, 23, 2)),
        ("hydra/mc_sim_7b_63", (10, 28, 23, 2)),
        ("medusa/vicuna_13b_stage2", (10, 19, 25, 9)),
        (EAGLE, (4, 8, 8, 3, 2)),
        ("eagle1/chain5", (1, 1, 1, 1, 1)),
    ],
)
def test_published_widths(name, widths):
    # tree_search.md §2, counted there from the projects' own source.
    assert published_trees()[name].level_widths == widths


def test_published_orders_are_nested():
    orders = {
        record["name"]: [tuple(path) for path in record["order_in_source"]]
        for record in json.loads(shipped("published/trees.json").read_text("utf-8"))
        if "order_in_source" in record
    }
    assert len(orders) == 9
    for name, order in orders.items():
        assert set(order) == set(published_trees()[name].paths)
        for size in range(len(order) + 1):
            assert Tree.from_paths(order[:size]).nodes == size


def test_published_ranks_have_no_gaps():
    for tree in published_trees().values():
        nodes = set(tree.paths)
        assert all(path[-1] == 0 or (*path[:-1], path[-1] - 1) in nodes for path in nodes)
