from fractions import Fraction
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulate.model_sizes.layer_weights_and_kv import Experts
from simulate.model_sizes.model_shape import Shape
from tests.simulate.model_sizes.test_hf_config import LLAMA_2_7B
from treeopt.errors import CostError


@pytest.mark.parametrize(("count", "active", "tokens"), [(4, 2, 3), (5, 1, 4), (3, 3, 2), (6, 2, 2), (4, 3, 3)])
def test_touched_experts_are_those_of_all_ways_to_pick(count, active, tokens):
    picks = list(combinations(range(count), active))
    sizes = [len(set().union(*chosen)) for chosen in product(picks, repeat=tokens)]
    mean = Fraction(sum(sizes), len(sizes))
    assert Experts(count, active).touched(tokens) == pytest.approx(float(mean), rel=1e-12)


@given(count=st.integers(1, 256), data=st.data(), spread=st.floats(0.01, 1))
def test_touched_experts_grow_with_tokens_and_spread_from_active_to_all(count, data, spread):
    experts = Experts(count, data.draw(st.integers(1, count)))
    touched = experts.touched(np.arange(1, 200), spread=spread)
    assert touched[0] == pytest.approx(experts.active, rel=1e-12)
    assert np.all(np.diff(touched) >= -1e-9)
    assert np.all(touched <= count + 1e-9)
    assert np.all(touched <= experts.touched(np.arange(1, 200)) + 1e-9)
    assert np.all(touched <= experts.active * np.arange(1, 200) + 1e-9)


MIXTRAL = LLAMA_2_7B | {"model_type": "mixtral", "intermediate_size": 14336, "num_key_value_heads": 8}
MIXTRAL |= {"num_local_experts": 8, "num_experts_per_tok": 2}


def test_mixtral():
    shape = Shape.from_config(MIXTRAL)
    assert shape.parameters == 46_702_792_704  # the published checkpoint
    assert shape.step_parameters == pytest.approx(12.75e9, rel=1e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_experts_per_tok": 9}, "experts: active must be at most count, 8, got 9"),
        ({"num_experts_per_tok": None}, "num_experts_per_tok must be a positive integer, got None"),
    ],
)
def test_mixtures_that_cannot_be_counted_are_refused(change, message):
    with pytest.raises(CostError, match=message):
        Shape.from_config(MIXTRAL | change)
