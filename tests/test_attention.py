from itertools import product

import pytest
import torch
from torch.nn.attention.flex_attention import create_mask

from executor.attention import (
    additive,
    chunk_seen,
    folded,
    near,
    tree_blocks,
    tree_mask,
    tree_seen,
    tree_table,
    tree_windows,
)
from executor.topology import Topology

PARENTS = torch.tensor([[0, 0, 1, 1, 2, 4, 5, 0], [0, 0, 0, 2, 3, 4, 5, 6]])
TOPOLOGY = Topology.from_parents(PARENTS, 7)


def oracle(length: int, row: int, node: int, column: int, window: int | None) -> bool:
    """Whether a node sees a column: by walking up from it, and by positions."""
    line = [node]
    while line[-1]:
        line.append(int(PARENTS[row, line[-1]]))
    if column < length:
        position = column
    elif column - length in line:
        position = length + len(line) - 1 - line.index(column - length)
    else:
        return False
    return window is None or length + len(line) - 1 - position < window


@pytest.mark.parametrize("window", [None, 1, 3, 6, 40])
def test_a_node_sees_the_text_its_ancestors_and_itself(window):
    lengths, view = torch.tensor([5, 0]), 24
    seen = tree_seen(lengths, TOPOLOGY.depth, TOPOLOGY.ancestors, view, window)
    due = [
        [[oracle(int(lengths[b]), b, q, c, window) for c in range(view)] for q in range(PARENTS.shape[1])]
        for b in range(2)
    ]
    assert torch.equal(seen, torch.tensor(due))
    assert seen.any(-1).all()


@pytest.mark.parametrize("window", [None, 3])
def test_later_nodes_alone_see_the_same(window):
    lengths = torch.tensor([5, 9])
    whole = tree_seen(lengths, TOPOLOGY.depth, TOPOLOGY.ancestors, 24, window)
    part = tree_seen(lengths, TOPOLOGY.depth[:, 4:7], TOPOLOGY.ancestors[:, 4:7, :7], 24, window)
    assert torch.equal(part, whole[:, 4:7])


@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("part", [slice(0, 8), slice(4, 7)])
def test_looking_a_mask_up_is_the_same(part, group):
    depths, ancestors = TOPOLOGY.depth[:, part], TOPOLOGY.ancestors[:, part, : part.stop]
    for b, lengths in product((slice(0, 1), slice(0, 2)), ([5, 9], [0, 24 - part.stop], [24, 0])):
        due = additive(tree_seen(torch.tensor(lengths), depths[b], ancestors[b], 24), torch.bfloat16)[:, None]
        for reach in (24, 32):
            windows = tree_windows(tree_table(ancestors[b], torch.bfloat16, reach, group), reach)
            found = tree_mask(torch.tensor(lengths), *windows, 24)
            assert found.is_contiguous()
            assert torch.equal(found, folded(due, group))


def test_one_topology_serves_all_sequences():
    one = Topology.from_parents(PARENTS[:1], 7)
    lengths = torch.tensor([5, 3, 1])
    shared = tree_seen(lengths, one.depth, one.ancestors, 16, 4)
    each = one.expand(3)
    assert torch.equal(shared, tree_seen(lengths, each.depth, each.ancestors, 16, 4))


@pytest.mark.parametrize("window", [None, 4])
def test_a_piece_of_a_text_sees_like_the_whole(window):
    whole = chunk_seen(0, 12, 16, window, torch.device("cpu"))
    assert torch.equal(chunk_seen(7, 5, 16, window, torch.device("cpu")), whole[:, 7:])
    assert whole.sum(-1).tolist() == [[min(i + 1, window or 12) for i in range(12)]]


def test_an_endless_window_is_none():
    assert torch.equal(near(TOPOLOGY.ancestors, 99), near(TOPOLOGY.ancestors, None))


@pytest.mark.parametrize("window", [None, 3, 100, 300])
def test_blocks_hold_what_the_mask_shows(window):
    lengths, view = torch.tensor([505, 126]), 640
    seen = tree_seen(lengths, TOPOLOGY.depth, TOPOLOGY.ancestors, view, window)
    blocks = tree_blocks(lengths, TOPOLOGY.depth, TOPOLOGY.ancestors, view, window)
    assert torch.equal(create_mask(blocks.mask_mod, 2, 1, 8, view, "cpu")[:, 0], seen)
    for b in range(2):
        full = set(blocks.full_kv_indices[b, 0, 0, : blocks.full_kv_num_blocks[b, 0, 0]].tolist())
        partial = set(blocks.kv_indices[b, 0, 0, : blocks.kv_num_blocks[b, 0, 0]].tolist())
        assert not full & partial
        by_block = seen[b].reshape(8, -1, 128)
        assert all(by_block[:, k].all() for k in full)
        assert all(k in full | partial for k in range(view // 128) if by_block[:, k].any())
