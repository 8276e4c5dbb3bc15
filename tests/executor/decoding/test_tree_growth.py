"""Trees as they are drafted: static levels cover the tree; dynamic ones equal a search by hand, ties included."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from executor.decoding.tree_growth import AskingGrowth, Chances, DynamicGrowth, StaticGrowth
from executor.verification.acceptance_rules import Greedy
from tests.helpers.slow_params import examples
from tests.helpers.strategies import trees
from treeopt.policies import DynamicTree, OptTree
from treeopt.policies.beam import Drafting
from treeopt.statistics import Curve

CPU = torch.device("cpu")
VOCABULARY = 5


class Table:
    """A drafter that reads scores (batch, vocabulary, vocabulary) by the last token, whatever came before."""

    kind, max_depth, abstains = "table", 64, False

    def __init__(self, scores: Tensor) -> None:
        self.scores, self.calls = scores, 0

    def level(self, state: None, tokens: Tensor, parents: Tensor) -> Tensor:
        self.calls += 1
        return self.scores[torch.arange(len(tokens))[:, None], tokens]


@settings(max_examples=examples(100), deadline=None)
@given(tree=trees())
def test_levels_cover_the_tree(tree):
    growth = StaticGrowth(tree, CPU)
    candidates: list[tuple[int, int]] = [(0, 0)]  # parent and rank of every candidate, in the order of drafting
    begin, above, order = 0, [0], []
    for level in growth.levels:
        drafted = {place: node for node, place in enumerate(growth.place.tolist())}
        expanded = [drafted[begin + place] for place in level.expanded.tolist()]
        begin = len(candidates)
        candidates += [(node, rank) for node in expanded for rank in range(level.width)]
        assert [above[place] for place in level.parents[0].tolist()] == growth.topology.parent[0, expanded].tolist()
        above = expanded
        order += expanded
    found = [candidates[place] for place in growth.place.tolist()]
    assert found[1:] == list(zip(growth.topology.parent[0, 1:].tolist(), tree.ranks, strict=True))
    assert max((rank for _, rank in candidates), default=0) == max(tree.ranks, default=0)
    assert [len(level.expanded) for level in growth.levels] == list(tree.fed_widths)
    assert [n for _, n in sorted((f, n) for n, f in enumerate(growth.fed[0].tolist()) if f >= 0)] == order


def by_hand(scores: Tensor, root: int, policy: DynamicTree) -> dict[tuple[int, ...], tuple[int, float]]:
    """Rank path -> (token, log-probability) of the chosen: expand the best of each level, keep the best of all."""
    logs = scores.log_softmax(-1)
    ranked = [row.sort(descending=True, stable=True) for row in logs]
    seen: dict[tuple[int, ...], tuple[int, float]] = {(): (root, 0.0)}
    level: list[tuple[int, ...]] = [()]
    for _ in range(policy.depth):
        new = {}
        for path in level:
            token, value = seen[path]  # values add up in single precision, as they do in the growth
            for rank in range(policy.children):
                here = float(torch.tensor(value) + ranked[token].values[rank].clamp(max=0))
                new[(*path, rank)] = (int(ranked[token].indices[rank]), here)
        seen |= new
        level = sorted(sorted(new, key=lambda path: (-new[path][1], path))[: policy.beam])
    del seen[()]
    order = sorted(seen, key=lambda path: (-seen[path][1], len(path), path))
    return {path: seen[path] for path in order[: policy.nodes]}


def drawn(rows: int, seed: int, grain: float) -> Tensor:
    """Scores in steps of `grain`, so that many candidates tie; distinct within a row of the table."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.stack([torch.randperm(VOCABULARY, generator=generator) for _ in range(rows * VOCABULARY)])
    return (order * grain).view(rows, VOCABULARY, VOCABULARY).double()


def paths_of(growth: DynamicGrowth, scores: Tensor, roots: list[int]) -> list[dict[tuple[int, ...], int]]:
    """Each row's present nodes: rank path -> token."""
    draft = growth.draft(Table(scores), None, torch.tensor(roots), Greedy())
    topology = draft.topology.expand(len(roots))
    found = []
    for row in range(len(roots)):
        nodes: dict[tuple[int, ...], int] = {}
        for node in range(1, topology.count):
            if topology.present is not None and not bool(topology.present[row, node]):
                continue
            line = [*topology.path[row, node, : int(topology.depth[row, node])].tolist(), node]
            text = draft.tokens[row, line].tolist()
            rank = [int((scores[row, a] > scores[row, a, b]).sum()) for a, b in itertools.pairwise(text)]
            nodes[tuple(rank)] = text[-1]
        found.append(nodes)
    return found


@pytest.mark.parametrize("grain", [0.0001, 40.0])
@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize(
    "policy",
    [
        DynamicTree(nodes=9, depth=3, beam=2, width=3),
        DynamicTree(nodes=20, depth=4, beam=4, width=4),
        DynamicTree(nodes=4, depth=5, beam=1, width=5),
        DynamicTree(nodes=5, depth=1, width=5),
    ],
    ids=str,
)
def test_dynamic_trees_equal_a_search_by_hand(policy, grain, adaptive):
    """At grain 40 a row's probabilities are 1 and 0 in single precision: depth and path decide the order."""
    for seed in range(8):
        scores, roots = drawn(3, seed, grain).float(), [0, 3, 1]
        found = paths_of(DynamicGrowth(policy, CPU, adaptive=adaptive), scores, roots)
        for row, nodes in enumerate(found):
            due = by_hand(scores[row], roots[row], policy)
            assert {path: token for path, (token, _) in due.items()} == nodes


@pytest.mark.parametrize("adaptive", [False, True])
def test_the_confidence_stop_leaves_out_what_is_improbable(adaptive):
    policy = DynamicTree(nodes=12, depth=4, beam=3, width=3, min_probability=0.05)
    for seed in range(8):
        scores, roots = drawn(2, seed, 0.9).float(), [2, 4]
        found = paths_of(DynamicGrowth(policy, CPU, adaptive=adaptive), scores, roots)
        for row, nodes in enumerate(found):
            due = by_hand(scores[row], roots[row], policy)
            assert set(nodes) == {path for path, (_, value) in due.items() if value >= torch.tensor(0.05).log()}


def test_idle_rows_take_nothing_from_the_others():
    """Levels are drafted for those alone that are busy."""
    scores, roots = torch.cat([drawn(1, 0, 9.0), drawn(2, 1, 0.1)]).float(), torch.tensor([0, 1, 2])
    idle = torch.tensor([True, False, True])
    sure = DynamicTree(nodes=8, depth=3, beam=3, width=3, min_probability=0.1)
    for growth, calls in (  # with the first row all call for three levels
        (DynamicGrowth(sure, CPU, adaptive=True), 2),
        (AskingGrowth(OptTree(nodes=8, depth=3, threshold=0.7, beam=3, width=3), CPU), 1),
    ):
        table = Table(scores)
        draft = growth.draft(table, None, roots, Greedy(), idle=idle)
        present = draft.topology.present.sum(1) - 1
        assert present[idle].tolist() == [0, 0]
        alone = growth.draft(Table(scores[1:2]), None, roots[1:2], Greedy())
        assert present[1] == alone.topology.present.sum() - 1 > 0
        assert table.calls == calls
        everyone = Table(scores)
        growth.draft(everyone, None, roots, Greedy())
        assert everyone.calls == 3


def curve(knots: int, seed: int) -> Curve:
    rng = np.random.default_rng(seed)
    x, y = (np.sort(rng.choice(101, knots, replace=False)) / 100 for _ in range(2))
    return Curve(tuple(x.tolist()), tuple(y.tolist()))


def test_calibrations_on_the_device_are_the_curves():
    """At knots, between, below and beyond them, of curves of unlike lengths; a chance of 0 is a logarithm of -inf."""
    calibration = tuple(tuple(curve(1 + 3 * depth + rank, 5 * depth + rank) for rank in range(4)) for depth in range(3))
    calibration = (*calibration[:2], (*calibration[2][:3], Curve((0.25, 0.5), (0.0, 0.5))))
    chances = Chances(calibration, Drafting(3, 2, 4), CPU)
    at = torch.tensor([1e-6, 0.005, *(k / 100 for k in range(1, 101)), 0.3333]).log()
    for depth, curves in enumerate(calibration):
        found = chances.logs(depth, at[None, :, None].expand(2, -1, 4))
        for rank, each in enumerate(curves):
            with np.errstate(divide="ignore"):
                due = np.log(each.at(np.exp(at.double().numpy())))
            np.testing.assert_allclose(found[1, :, rank].numpy(), due.astype(np.float32), rtol=1e-6)
