import itertools
from collections import defaultdict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from executor.acceptance import follow, greedy, sample_and_match
from executor.topology import Topology
from tests.strategies import trees
from treeopt.errors import UsageError
from treeopt.tree import Tree

CPU = torch.device("cpu")


def slow_follow(tree: Tree, tokens: list[int], emitted: list[int]) -> tuple[list[int], list[int]]:
    """Walk from the root to the child that holds what its parent emitted, while there is one."""
    here, path = -1, [0]
    while True:
        matches = [n for n, p in enumerate(tree.parents) if p == here and tokens[n + 1] == emitted[here + 1]]
        if not matches:
            return path, [emitted[node] for node in path]
        here = matches[0]
        path.append(here + 1)


@settings(max_examples=150, deadline=None)
@given(tree=trees(), data=st.data())
def test_follow_walks_like_a_loop(tree, data):
    batch = data.draw(st.integers(1, 3))
    rng = torch.Generator().manual_seed(data.draw(st.integers(0, 2**20)))
    topology = Topology.of(tree, CPU)
    tokens = torch.zeros(batch, tree.nodes + 1, dtype=torch.long)
    for row in range(batch):  # siblings hold distinct tokens
        for parent in range(-1, tree.nodes):
            children = [n + 1 for n, p in enumerate(tree.parents) if p == parent]
            tokens[row, children] = torch.randperm(max(3, len(children)), generator=rng)[: len(children)]
    emitted = torch.randint(0, 3, tokens.shape, generator=rng)
    found = follow(tokens, emitted, topology)
    for row in range(batch):
        path, text = slow_follow(tree, tokens[row].tolist(), emitted[row].tolist())
        count = int(found.count[row])
        assert count == len(path) - 1
        assert found.path[row, : count + 1].tolist() == path
        assert found.emitted[row, : count + 1].tolist() == text


@settings(max_examples=100, deadline=None)
@given(tree=trees())
def test_levels_cover_the_tree(tree):
    topology = Topology.of(tree, CPU)
    rank = [0] * (tree.nodes + 1)
    for level in topology.levels:
        for node, slot, r in zip(level.nodes.tolist(), level.slot.tolist(), level.rank.tolist(), strict=True):
            assert level.expanded[slot] == topology.parent[node]
            assert r < level.width
            rank[node] = r
    assert rank[1:] == list(tree.ranks)
    assert [len(level.expanded) for level in topology.levels] == list(tree.fed_widths)


def test_greedy_takes_the_first_of_equals():
    assert greedy(torch.tensor([[[0.0, 2.0, 2.0]]])).item() == 1


def test_sample_and_match_refuses_temperature_zero():
    with pytest.raises(UsageError, match="temperature must be positive"):
        sample_and_match(temperature=0.0, generator=torch.Generator())


@pytest.mark.parametrize(
    "tree", [Tree.chain(2), Tree.from_paths([(0, 0), (0, 1), (1, 0), (2,)]), Tree.full(3, 2)], ids=repr
)
def test_sample_and_match_is_lossless_exactly(tree):
    """Enumerated over all outcomes at every node: the joint law of the emitted tokens is the target's.

    The target is a Markov chain over 3 tokens; node n's emission follows p(. | token at n). A step emits a
    prefix of the text and the rest follows p, so the law of the first three tokens must be p's.
    """
    torch.manual_seed(0)
    vocabulary = 3
    p = torch.rand(vocabulary, vocabulary, dtype=torch.float64).softmax(-1)
    topology = Topology.of(tree, CPU)
    tokens = [0] * (tree.nodes + 1)
    for n, rank in enumerate(tree.ranks):  # siblings distinct: token = (parent's token + rank) mod 3
        tokens[n + 1] = (tokens[tree.parents[n] + 1] + rank) % vocabulary
    law: dict[tuple[int, ...], float] = defaultdict(float)
    inner = sorted({0, *(parent + 1 for parent in tree.parents)})
    leaves = [n for n in range(tree.nodes + 1) if n not in inner]
    for outcome in itertools.product(range(vocabulary), repeat=len(inner)):
        for last in range(vocabulary):
            emitted = torch.zeros(1, tree.nodes + 1, dtype=torch.long)
            chance = 1.0
            for node, token in zip(inner, outcome, strict=True):
                emitted[0, node] = token
                chance *= float(p[tokens[node], token])
            for leaf in leaves:  # at most one leaf is reached: its emission stands for all
                emitted[0, leaf] = last
            found = follow(torch.tensor([tokens]), emitted, topology)
            count = int(found.count[0])
            reached = int(found.path[0, count])
            chance *= float(p[tokens[reached], last]) if reached in leaves else 1.0 / vocabulary
            law[tuple(found.emitted[0, : count + 1].tolist())] += chance
    for text in itertools.product(range(vocabulary), repeat=3):
        due = float(p[0, text[0]] * p[text[0], text[1]] * p[text[1], text[2]])
        got = 0.0
        for emitted_text, chance in law.items():
            if text[: len(emitted_text)] == emitted_text:
                rest = 1.0
                for before, after in itertools.pairwise(text[len(emitted_text) - 1 :]):
                    rest *= float(p[before, after])
                got += chance * rest
        assert got == pytest.approx(due, abs=1e-12)


def test_sampling_follows_the_softmax():
    """Chi-square over 20 tokens; false-alarm probability 1e-4, seed fixed."""
    torch.manual_seed(1)
    logits = torch.randn(20)
    rule = sample_and_match(temperature=0.7, generator=torch.Generator().manual_seed(2))
    draws = 40_000
    counts = torch.bincount(rule(logits.expand(draws, 1, 20))[:, 0], minlength=20).double()
    due = draws * (logits.double() / 0.7).softmax(-1)
    assert chisquare(counts.numpy(), due.numpy()).pvalue > 1e-4
    wrong = draws * logits.double().softmax(-1)  # another temperature must be noticed
    assert chisquare(counts.numpy(), wrong.numpy()).pvalue < 1e-12
