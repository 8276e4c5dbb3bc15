from itertools import product

import pytest
import torch

from executor.target.tree_attention_mask import TreeMasks, additive, fold_heads, tree_seen, tree_table
from executor.verification.tree_tensors import Topology

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


@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("part", [slice(0, 8), slice(4, 7)])
def test_looking_a_mask_up_is_the_same(part, group):
    masks = TreeMasks(torch.bfloat16, group)
    for b, view in product((slice(0, 1), slice(0, 2)), (24, 32, 40, 24)):
        depths, ancestors = TOPOLOGY.depth[b, part], TOPOLOGY.ancestors[b, part, : part.stop]
        for lengths in torch.tensor([[5, 9], [0, view - part.stop], [view, 0]]):
            due = additive(tree_seen(lengths, depths, ancestors, view), torch.bfloat16)[:, None]
            found = masks(lengths, ancestors, view)
            assert found.is_contiguous()
            assert torch.equal(found, fold_heads(due, group))


def test_a_tree_is_laid_out_once_and_forgotten_with_its_tensor(monkeypatch):
    made = []
    monkeypatch.setattr(
        "executor.target.tree_attention_mask.tree_table", lambda *words: made.append(words[2]) or tree_table(*words)
    )
    masks, ancestors = TreeMasks(torch.float32), TOPOLOGY.ancestors.clone()
    for length in range(70):
        masks(torch.tensor([length, 0]), ancestors, length + 8)
    assert made == [8, 16, 32, 64, 128]
    del ancestors
    assert not masks._known
