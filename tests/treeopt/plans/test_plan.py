"""Questions to a plan."""

import pytest

from tests.helpers.small_plans import entry, plan_of
from treeopt.errors import PlanError, UsageError
from treeopt.tree import Tree


def test_a_batch_size_that_a_plan_lacks_is_refused_in_words_of_python():
    plan = plan_of(entry(1, Tree.chain(5)), entry(8, Tree.chain(3)))
    with pytest.raises(
        PlanError, match="the plan is for batch 1, 8, not 3: choose one of these batch sizes"
    ) as missing:
        plan.entry(3)
    with pytest.raises(UsageError, match="the plan is for batch 1, 8: choose one of these batch sizes") as several:
        plan.entry(None)
    assert not any("--" in str(error.value) for error in (missing, several))
