"""The comparison of an engine's steps with replay; engines themselves run by hand."""

import numpy as np

from tests.benchmarks.engine_acceptance import compared
from treeopt.traces.trace import Trace
from treeopt.tree import Tree

# One request of 6 tokens: from anchor 1 a chain of 2 accepts both; from anchor 4 too, but only 2 tokens are left.
RANK = np.int16([[0, 0], [0, 0], [0, 1], [1, 0], [0, 0], [0, -2]])
TRACE = Trace(np.zeros(6, np.int32), np.arange(6, dtype=np.int32), RANK, 2)
TEXT = [5, 6, 7, 8, 9, 10]


def found(steps, tokens=TEXT):
    return compared(TRACE, [TEXT], [{"steps": steps, "tokens": tokens}], Tree.chain(2))


def test_equal_steps():
    """The prefill's token, a full chain with its bonus, and what is left of a chain at the end."""
    result = found([1, 3, 2])
    assert (result["anchors_shared"], result["anchors_equal"], result["texts_equal"]) == (2, 2, 1)
    assert result["replayed_by_position"] == [2, 2]
    assert result["differing"] == []


def test_a_step_that_differs_is_named():
    result = found([1, 2, 1, 2])
    assert (result["anchors_shared"], result["anchors_equal"]) == (3, 2)
    assert result["differing"] == [{"request": 0, "at": 1, "engine": 2, "replay": 3}]


def test_a_text_that_differs_is_compared_up_to_there():
    result = found([1, 3, 2], [5, 6, 7, 8, 9, 11])
    assert (result["texts_equal"], result["anchors_shared"], result["anchors_equal"]) == (0, 1, 1)
