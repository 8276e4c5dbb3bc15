"""The end of a greedy step in one kernel, against the loop's own operations."""

import copy
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from executor.decoding import batch_rows
from executor.decoding.batch_rows import Rows
from executor.drafters.base.drafter import Committed
from executor.kernels.accepted_path import move_accepted
from executor.target.kv_cache import Layout, TreeCache
from executor.verification.acceptance_rules import Greedy, follow
from executor.verification.tree_tensors import Draft, Topology

BATCH, DEEPEST, WIDTH = 3, 4, 5


def drawn(count: int, *, trees: int, absent: bool) -> tuple[Draft, torch.Tensor, Rows]:
    """Random trees of tokens 0 and 1, what is emitted, and rows of which the second is idle."""
    parent = torch.zeros(trees, count, dtype=torch.long)
    depth = torch.zeros_like(parent)
    for tree, node in ((tree, node) for tree in range(trees) for node in range(1, count)):
        known = [other for other in range(node) if depth[tree, other] < DEEPEST]
        parent[tree, node] = known[torch.randint(len(known), ())]
        depth[tree, node] = depth[tree, parent[tree, node]] + 1
    present = (torch.rand(trees, count) < 0.8).index_fill(1, torch.tensor([0]), True) if absent else None
    topology = Topology.from_parents(parent, DEEPEST, present)
    draft = Draft(torch.randint(2, (BATCH, count)), topology, torch.randint(-1, count, (trees, count)))
    rows = Rows.__new__(Rows)
    steps = DEEPEST + 1
    state = torch.randint(50, (BATCH, steps)), torch.randn(BATCH, steps, WIDTH), torch.randint(9, (BATCH, steps))
    rows.committed = Committed(*state, torch.randint(5, (BATCH,)), False)
    rows.lengths, rows.root, rows.outcome = torch.randint(50, (BATCH,)), torch.randint(9, (BATCH,)), torch.zeros(3, 8)
    rows.outcome, rows.idle = rows.outcome.long(), torch.tensor([False, True, False])
    rows.batch, rows.drafter, rows.taps, rows.growth = BATCH, object(), None, SimpleNamespace(in_place=True)
    rows.target, rows.rule = SimpleNamespace(cache=object(), fused=object(), recurrent=False), Greedy()
    return draft, torch.randint(2, (BATCH, count)), rows


@pytest.mark.parametrize(("trees", "absent"), [(1, False), (BATCH, False), (BATCH, True)])
@pytest.mark.parametrize("count", [1, 2, 40, 65])
def test_the_longest_path_is_committed(count, trees, absent, monkeypatch):
    longest = []
    for seed in range(3):
        torch.manual_seed(seed)
        draft, emitted, rows = drawn(count, trees=trees, absent=absent)
        other, before = copy.deepcopy(rows), rows.lengths.clone()
        accepted = follow(draft, emitted)
        longest.append(int(accepted.count.max()))
        rows.commit(draft, None, accepted)
        moved = []
        monkeypatch.setattr(other, "_move", lambda *args, moved=moved: moved.extend(args), raising=False)
        monkeypatch.setattr(batch_rows, "best_of", lambda logits: logits)
        other.settle(draft, SimpleNamespace(logits=emitted))
        changed = other.committed
        assert moved[1].equal(before)
        assert moved[2].equal(accepted.path)
        for name in ("tokens", "fed", "counts"):
            assert getattr(changed, name).equal(getattr(rows.committed, name)), name
        for name in ("lengths", "root", "outcome"):
            assert getattr(other, name).equal(getattr(rows, name)), name
    assert count < 40 or max(longest) > 2


def test_trees_that_would_compile_for_minutes_are_committed_by_the_loop(monkeypatch):
    draft, _, rows = drawn(batch_rows.MOST_COMMITTED + 1, trees=1, absent=False)
    monkeypatch.setattr(rows, "commit", Mock(), raising=False)
    rows.settle(draft, SimpleNamespace(logits=torch.randn(BATCH, draft.topology.count, 2)))
    assert rows.commit.call_count == 1


@pytest.mark.parametrize(("width", "steps"), [(64, 1), (80, 3), (128, 6)])
def test_entries_of_accepted_paths_are_moved_as_the_cache_moves_them(width, steps):
    torch.manual_seed(steps)
    cache = TreeCache(Layout(2, 3, width, width, torch.float32), BATCH, 40, torch.device("cpu"))
    for store in cache.stores:
        store.normal_()
    before, moved = cache.stores[0].clone(), tuple(store.clone() for store in cache.stores)
    path = 1 + torch.rand(BATCH, 12).argsort(1)[:, :steps].sort(1)[0]
    path[:, 0] = 0
    lengths = torch.tensor([0, 5, 27])
    move_accepted(moved, lengths, path)
    cache.compact(lengths, path)
    assert all(found.equal(expected) for found, expected in zip(moved, cache.stores, strict=True))
    assert moved[0].equal(before) == (steps == 1)
