"""What an exact search needs of time: tables that say of every shape what the cost model says of it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.benchmarks.bench_search import Cost as Stairs
from tests.helpers.strategies import trees
from tests.treeopt.planning.test_search_pipeline import COSTS
from treeopt.cost_model import CostModel, CostParts, StepShape
from treeopt.errors import CostError, UsageError
from treeopt.tree import Tree

MODELS: dict[str, CostModel] = {**COSTS, "benchmark": Stairs()}


@pytest.mark.parametrize("name", list(MODELS))
@given(tree=trees(), batch=st.integers(1, 9), spare=st.integers(0, 3))
def test_parts_add_up_to_the_step(name: str, tree: Tree, batch: int, spare: int) -> None:
    shape = StepShape.of(tree, batch=batch)
    width = max(tree.fed_widths, default=0)
    tables = MODELS[name].parts(batch=batch, tokens=shape.tokens + spare, depth=tree.depth + spare, width=width + spare)
    assert tables.draft_s.shape == (tree.depth + spare, width + spare + 1)
    assert len(tables.verify_s) == shape.tokens + spare + 1
    padded = np.array([[*shape.widths, *[0] * spare]], dtype=np.int64)
    # A few sums of positive numbers in another order.
    assert tables.step_s(np.array([shape.tokens]), padded)[0] == pytest.approx(
        MODELS[name].step_s([shape])[0], rel=1e-12
    )


@given(st.lists(trees(), max_size=6), st.integers(1, 20), st.integers(0, 5), st.integers(0, 4), st.randoms())
def test_many_shapes_are_priced_at_once(held, tokens, depth, width, random):
    verify = np.array([random.choice([np.inf, random.random()]) for _ in range(tokens + 1)])
    draft = np.array([[0.0, *(random.random() for _ in range(width))] for _ in range(depth)]).reshape(depth, width + 1)
    levels = max([tree.depth for tree in held], default=0)
    fed = np.array([[*tree.fed_widths, *[0] * (levels - tree.depth)] for tree in held], dtype=np.int64)
    found = CostParts(verify, draft).step_s(
        np.array([tree.nodes + 1 for tree in held], dtype=np.int64), fed.reshape(len(held), levels)
    )
    for tree, seconds in zip(held, found, strict=True):
        within = tree.nodes + 1 <= tokens and tree.depth <= depth and max(tree.fed_widths, default=0) <= width
        due = verify[tree.nodes + 1] + sum(draft[d, w] for d, w in enumerate(tree.fed_widths)) if within else np.inf
        assert seconds == pytest.approx(due, rel=1e-12)


@pytest.mark.parametrize(
    ("verify", "draft", "words"),
    [
        ([[1.0]], [[0.0]], "verify_s"),
        ([np.nan], [[0.0]], "verify_s"),
        ([1.0], [[0.0, np.nan]], "draft_s"),
    ],
)
def test_tables_of_another_shape_are_refused(verify, draft, words):
    with pytest.raises(CostError, match=words):
        CostParts(np.array(verify), np.array(draft))


@pytest.mark.parametrize(("batch", "tokens"), [(0, 1), (1, 0)])
def test_shapes_of_nothing_are_refused(batch, tokens):
    with pytest.raises(UsageError, match="at least 1"):
        StepShape(batch, tokens, ())
