"""Attention of a tree's nodes against torch's, with the masks of `tree_seen`."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from executor.kernels import tree_attention
from executor.kernels.tree_attention import MOST_SPLITS, attend_to_tree, splits_of
from executor.target.tree_attention_mask import tree_seen
from tests.helpers.interpreted_kernels import allowed, mend_products_of_bfloat16, poison_new_memory, relative_error

SCALE = 0.3


def random_ancestors(trees: int, nodes: int) -> Tensor:
    """Random trees, parents before children: bool (trees, nodes, nodes)."""
    ancestors = torch.eye(nodes, dtype=torch.bool).repeat(trees, 1, 1)
    for tree in ancestors:
        for node in range(1, nodes):
            tree[node] |= tree[torch.randint(node, ())]
    return ancestors


def compare(
    monkeypatch, lengths, view, *, nodes=7, fed=None, heads=4, shared=2, width=16, trees=1, dtype=torch.float32
):
    """Attend to a cache that is larger than the view, and of which what is not seen holds NaN."""
    mend_products_of_bfloat16(monkeypatch)
    torch.manual_seed(nodes + width)
    fed, batch = fed or nodes, len(lengths)
    ancestors = random_ancestors(trees, nodes)[:, nodes - fed :].contiguous()
    q = torch.randn(batch, fed, heads, width).to(dtype)
    keys, values = (torch.randn(3, batch, shared, view + 5, width).to(dtype) for _ in range(2))
    starts = torch.tensor(lengths)
    seen = tree_seen(starts, torch.zeros(1, fed, dtype=torch.long), ancestors, view)
    grouped = [store[1, :, :, :view].repeat_interleave(heads // shared, 1).double() for store in (keys, values)]
    expected = F.scaled_dot_product_attention(
        q.transpose(1, 2).double(), *grouped, attn_mask=seen[:, None], scale=SCALE
    ).transpose(1, 2)
    for row, length in enumerate(lengths):
        for store in (keys, values):
            store[:, row, :, length + nodes :] = torch.nan
            store[[0, 2], row] = torch.nan
    poison_new_memory(monkeypatch)
    found = attend_to_tree(q, keys[1], values[1], starts, ancestors, view, SCALE)
    assert (found.shape, found.dtype) == (q.shape, dtype)
    error = relative_error(found, expected)
    assert error < allowed(dtype), error
    return error


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [16, 24, 80, 256])
def test_heads_have_any_width(width, dtype, monkeypatch):
    compare(monkeypatch, [0, 57, 20], 64, width=width, heads=2, shared=1, dtype=dtype)


@pytest.mark.parametrize(("heads", "shared"), [(1, 1), (3, 3), (6, 2), (7, 1)])
def test_query_heads_share_key_heads(heads, shared, monkeypatch):
    compare(monkeypatch, [0, 11], 24, heads=heads, shared=shared)


@pytest.mark.parametrize("trees", [1, 3])
@pytest.mark.parametrize("nodes", [1, 2, 16, 40])
def test_trees_are_one_for_all_or_one_for_each(nodes, trees, monkeypatch):
    compare(monkeypatch, [0, 3, 60 - nodes], 64, nodes=nodes, trees=trees, heads=2)


@pytest.mark.parametrize("trees", [1, 2])
@pytest.mark.parametrize("fed", [1, 4])
def test_nodes_that_are_in_the_cache_already_are_seen(fed, trees, monkeypatch):
    compare(monkeypatch, [0, 30], 64, nodes=9, fed=fed, trees=trees)


@pytest.mark.parametrize("lengths", [[0], [250], [249, 3], [127, 128], [192, 63]], ids=str)
def test_long_views_are_split(lengths, monkeypatch):
    """Some splits hold nothing of a short sequence; some begin or end within the tree."""
    monkeypatch.setattr(tree_attention, "TILE_BYTES", 64 * 16)  # of 16 columns
    compare(monkeypatch, lengths, 256, nodes=6, heads=2, shared=1)


@pytest.mark.parametrize("long", [0, 1 << 30])
def test_tiles_of_queries_are_larger_for_long_texts(long, monkeypatch):
    """And there are several, the last of which is not full."""
    monkeypatch.setattr(tree_attention, "LONG", long)
    monkeypatch.setattr(tree_attention, "TILE_BYTES", 64 * 16)
    monkeypatch.setattr(tree_attention, "PROGRAMS", 8)
    compare(monkeypatch, [60], 96, nodes=21, heads=2, shared=1)


def test_splits_are_no_more_than_there_are_blocks():
    for view in (1, 15, 16, 17, 512, 1000, 40960):
        for block in (16, 64):
            for wanted in (0, 1, 3, 132, 10**4):
                assert 1 <= splits_of(view, block, wanted) <= max(1, min(wanted, MOST_SPLITS, -(-view // block)))
