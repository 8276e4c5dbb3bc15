"""The export to TensorRT-LLM, read back by the rules of its `llm_args.py`, with both meanings of the schedule."""

from bisect import bisect_left, bisect_right
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.small_plans import EAGLE3, entry, exported, plan_of, planned
from treeopt.errors import EngineError, UsageError
from treeopt.plans import Plan
from treeopt.tree import Tree

# Fields of Eagle3DecodingConfig and of NGramDecodingConfig; others are forbidden.
TREE_FIELDS = {"max_total_draft_tokens", "use_dynamic_tree", "dynamic_tree_max_topK"}
FIELDS = {"decoding_type", "speculative_model", "max_draft_len", "draft_len_schedule", "max_matching_ngram_size"}
EAGLE = {"method": "Eagle3", "model": EAGLE3["model"]}

falling_plans = st.dictionaries(st.integers(1, 40), st.integers(0, 7), min_size=1, max_size=5).map(
    lambda steps: plan_of(
        *(
            entry(batch, Tree.chain(length) if length else None)
            for batch, length in zip(sorted(steps), sorted(steps.values(), reverse=True), strict=True)
        )
    )
)


def read(text: str) -> dict[str, Any]:
    loaded = yaml.safe_load(text)
    assert set(loaded) == {"speculative_config"}
    config = loaded["speculative_config"]
    assert set(config) <= FIELDS | TREE_FIELDS
    assert type(config["max_draft_len"]) is int
    assert config["max_draft_len"] > 0
    return config


def length_at(config: dict[str, Any], batch: int, *, bounds: str) -> int:
    """The length of a batch: `validate_draft_len_schedule_and_sort` and `get_draft_len_for_batch_size`."""
    longest = config["max_draft_len"]
    schedule = config.get("draft_len_schedule")
    if schedule is None:
        return longest
    keys = sorted(schedule)
    assert all(type(key) is int and key >= 1 and 0 <= schedule[key] <= longest for key in keys)
    assert schedule[keys[0]] == longest
    if bounds == "lower":
        assert 1 in schedule
        return schedule[keys[bisect_right(keys, batch) - 1]]
    at = bisect_left(keys, batch)
    return schedule[keys[at]] if at < len(keys) else 0


@settings(deadline=None)
@given(falling_plans, st.sampled_from(["lower", "upper"]))
def test_each_release_reads_the_planned_lengths(plan: Plan, bounds: Any) -> None:
    if not any(each.choice.tree for each in plan.entries):
        with pytest.raises(EngineError, match="not to speculate"):
            exported("tensorrt-llm", plan, **EAGLE, schedule_bounds=bounds)
        return
    result = exported("tensorrt-llm", plan, **EAGLE, schedule_bounds=bounds)
    config = read(result.text)
    largest = max(each.batch for each in plan.entries)
    beyond = 20 if bounds == "lower" else 0  # newer releases draft nothing beyond the last key, which the notes say
    for batch in range(1, largest + beyond + 1):
        assert length_at(config, batch, bounds=bounds) == planned(plan, batch)
    if bounds == "upper" and "draft_len_schedule" in config:
        last = max(config["draft_len_schedule"])
        assert any(f"above batch {last} TensorRT-LLM drafts nothing" in note for note in result.notes)


def test_the_same_schedule_would_mean_another_in_the_other_release() -> None:
    lower = read(exported("tensorrt-llm", **EAGLE, schedule_bounds="lower").text)
    upper = read(exported("tensorrt-llm", **EAGLE, schedule_bounds="upper").text)
    assert lower["draft_len_schedule"] == {1: 5, 8: 3, 32: 1, 64: 0}
    assert upper["draft_len_schedule"] == {7: 5, 31: 3, 63: 1}
    assert length_at(lower, 4, bounds="lower") == 5
    assert length_at(lower, 4, bounds="upper") == 3  # so that nobody may guess
    with pytest.raises(AssertionError):
        length_at(upper, 4, bounds="lower")


def test_several_lengths_need_the_meaning_of_the_keys() -> None:
    with pytest.raises(UsageError, match=r"several lengths.*--schedule-bounds lower .*upper"):
        exported("tensorrt-llm", **EAGLE)
    one = exported("tensorrt-llm", **EAGLE, batch=8)
    assert read(one.text) == {"decoding_type": "Eagle3", "speculative_model": "someone/eagle3", "max_draft_len": 3}
    alike = plan_of(entry(1, Tree.chain(2)), entry(8, Tree.chain(2)))
    assert read(exported("tensorrt-llm", alike, **EAGLE).text)["max_draft_len"] == 2


@pytest.mark.parametrize("bounds", ["lower", "upper"])
def test_a_schedule_begins_with_its_longest_length(bounds: Any) -> None:
    rising = plan_of(entry(1, Tree.chain(2)), entry(8, Tree.chain(4)))
    with pytest.raises(
        EngineError, match=r"longest length.*2 from batch 1, 4 from batch 8; nearest: one batch size of 1"
    ):
        exported("tensorrt-llm", rising, **EAGLE, schedule_bounds=bounds)
    late = plan_of(entry(1, None), entry(8, Tree.chain(4)))
    with pytest.raises(EngineError, match="0 from batch 1"):
        exported("tensorrt-llm", late, **EAGLE, schedule_bounds=bounds)


def test_methods_and_names() -> None:
    lookup = read(exported("tensorrt-llm", method="NGram", batch=1).text)
    assert lookup == {"decoding_type": "NGram", "max_draft_len": 5, "max_matching_ngram_size": 3}
    assert "speculative_model" not in read(exported("tensorrt-llm", method="MTP", batch=1).text)
    assert read(exported("tensorrt-llm", method="Draft_Target", batch=1).text)["speculative_model"] == "DRAFTER"
    by_kind = plan_of(entry(1, Tree.chain(2)), drafter={"kind": "language-model"})
    assert read(exported("tensorrt-llm", by_kind).text)["decoding_type"] == "Draft_Target"
    with pytest.raises(UsageError, match="takes no model"):
        exported("tensorrt-llm", method="NGram", model="m", batch=1)
    with pytest.raises(EngineError, match="cannot change the length of NGram by batch size"):
        exported("tensorrt-llm", method="NGram", schedule_bounds="upper")
    for model in ("org/model-1", 'a "quoted": name', "null", "1e3", "- x", "#c"):
        result = exported("tensorrt-llm", method="Eagle3", model=model, batch=1)
        assert read(result.text)["speculative_model"] == model
