"""Batch sizes between profiled ones: interpolated, with the error that leaving out measured ones shows."""

from dataclasses import replace
from functools import cache
from itertools import combinations

import numpy as np
import pytest

from simulate.profiles.profile import (
    BETWEEN_RUNS,
    OTHER_DEVICES,
    BatchTimes,
    Profile,
    error_between,
    load_profile,
    over_basis,
)
from treeopt.cost_model import StepShape
from treeopt.errors import CostError
from treeopt.storage.user_files import shipped
from treeopt.tree import Tree

TWO = Profile(
    batches=(
        BatchTimes(1, 0.010, ((1, 0.001), (3, 0.004)), ((2, 0.011), (64, 0.040)), relative_error=0.03),
        BatchTimes(4, 0.016, ((1, 0.004), (3, 0.010)), ((2, 0.020), (64, 0.100)), relative_error=0.05),
    ),
    context=(8, 100),
    relative_error=0.2,
)


@cache
def worst(device):
    """The largest error over all batch sizes left out, all pairs around them and all profiles of a device."""
    paths = [*shipped("profiles").glob("*.json"), *shipped("gpu").glob("h200-8b-*.profile.json")]
    profiles = [profile for profile in map(load_profile, paths) if profile.meta["device"] == device]
    found = [
        profile.left_out_error(size, low, high)
        for profile in profiles
        for low, size, high in combinations([times.batch for times in profile.batches], 3)
    ]
    assert len(found) >= 5
    return max(found)


def test_the_stated_errors_are_those_of_batch_sizes_left_out():
    one, two, gpu = (worst(device) for device in ("cpu, 1 threads", "cpu, 2 threads", "NVIDIA H200"))
    assert one <= error_between("cpu, 1 threads") < one + 1e-3
    for device in ("cpu, 2 threads", "NVIDIA H200", "AMD EPYC, 2 cores", "None"):
        assert max(two, gpu) <= error_between(device) < max(two, gpu) + 1e-3


def test_plain_steps_and_drafting_lie_on_the_line_between_the_two_batch_sizes():
    tree = Tree.chain(3)
    step_s = {size: TWO.step_s([StepShape.of(tree, batch=size)])[0] for size in (1, 2, 3, 4)}
    assert step_s[1] < step_s[2] < step_s[3] < step_s[4]
    assert TWO.plain_s(batch=2) == pytest.approx(0.012)
    drafting = [TWO.step_s([StepShape(2, 4, (1,) * depth)])[0] for depth in (1, 3)]
    assert drafting[1] - drafting[0] == pytest.approx(2 / 3 * 0.003 + 1 / 3 * 0.006, rel=1e-12)
    parts = TWO.parts(batch=2, tokens=4, depth=3, width=1)
    assert parts.step_s(np.array([4]), np.array([[1, 1, 1]]))[0] == pytest.approx(step_s[2], rel=1e-12)


def test_a_basis_is_evaluated_at_the_rows_of_the_batch_size():
    profile = load_profile(shipped("profiles") / "eagle-cpu.json")
    four, sixteen = (times for times in profile.batches if times.batch in (4, 16))
    asked = [StepShape(8, 5, (1, 1))]
    rows, basis = 8 * 5, profile.basis
    ratios = [np.interp(rows / t.batch, *np.transpose(over_basis(t, basis))) for t in (four, sixteen)]
    rest, drafts = (
        (2 * low + high) / 3 * scale
        for low, high, scale in (
            (*ratios, basis.rest_s(5, batch=8, context=(2 * four.context + sixteen.context) / 3)),
            (four.drafts(asked)[0], sixteen.drafts(asked)[0], 1.0),
        )
    )
    between = profile.step_s(asked)[0]
    assert between == pytest.approx(rest + drafts, rel=1e-12)
    ends = [profile.step_s([StepShape(size, 5, (1, 1))])[0] for size in (4, 16)]
    assert ends[0] < between < ends[1]


def test_a_profile_whose_own_sizes_show_a_larger_error_says_it():
    """A small model's step on a GPU is launches: between one row and many it is no straight line."""
    small, large = (load_profile(shipped("gpu") / f"h200-{name}.profile.json") for name in ("live-medusa-t0", "8b-400"))
    left_out = [small.left_out_error(*sizes) for sizes in ((4, 1, 16), (16, 4, 64), (4, 1, 64), (16, 1, 64))]
    assert max(left_out[:2]) > 0.4 > OTHER_DEVICES
    roots = np.sqrt(np.log(64) / np.log(16))  # a factor of 64 between the sizes around, and one of 16
    assert min(left_out[2] / left_out[0], left_out[3] / left_out[1]) > roots
    for profile, due in ((small, left_out[0] * np.sqrt(np.log(4) / np.log(16))), (large, OTHER_DEVICES)):
        ends, between = (profile.error(StepShape(batch, 4, (1, 1))) for batch in (16, 8))
        assert between**2 >= due**2 + BETWEEN_RUNS**2 > ends**2
        assert between < 1.1 * np.hypot(due, ends)


@pytest.mark.parametrize("change", [{}, {"rest": ((3, 0.02), (64, 0.03))}, {"draft": ((3, 0.01),)}])
@pytest.mark.parametrize("captured", [(), (1, 16, 24, 512)])
def test_sizes_that_only_some_batch_sizes_have_are_not_compared(change, captured):
    """Nor sizes that are padded to more tokens than were measured."""
    tables = (replace(TWO.batches[0], **change), TWO.batches[1], replace(TWO.batches[1], batch=9))
    profile = replace(TWO, batches=tables, captured=captured)
    assert profile.error(StepShape(2, 5, (1, 1, 1))) >= OTHER_DEVICES


def test_a_batch_size_with_few_trees_hides_no_error_of_others():
    slow = (TWO.batches[0], replace(TWO.batches[1], rest=((2, 0.02), (64, 0.5))), replace(TWO.batches[1], batch=8))
    few = replace(TWO.batches[1], batch=16, rest=((2, 0.02), (3, 0.03)))
    alone, beside = (replace(TWO, batches=batches).left_out_error(4, 1, 8) for batches in (slow, (*slow, few)))
    assert alone == beside > 1


def test_intervals_are_wider_between_and_what_is_interpolated_is_said():
    assert TWO.error(StepShape(4, 2, (1,))) == pytest.approx(np.hypot(0.05, BETWEEN_RUNS))
    assert TWO.error(StepShape(2, 2, (1,))) == pytest.approx(np.sqrt(0.05**2 + BETWEEN_RUNS**2 + OTHER_DEVICES**2))
    assert TWO.unmeasured((1, 2, 3, 4)) == [2, 3]
    (caveat,) = [line for line in TWO.caveats(batches=(1, 2, 3)) if "interpolated" in line]
    assert caveat.startswith(
        "step times of batch 2, 3 are interpolated between those of batch 1, 4, which were profiled"
    )
    assert not [line for line in TWO.caveats(batches=(1, 4)) if "interpolated" in line]


@pytest.mark.parametrize("batch", [5, 64])
def test_outside_the_measured_batch_sizes_there_is_no_price_but_a_way_on(batch):
    with pytest.raises(CostError, match=f"batch {batch} lies outside .* measured batch 1, 4; .*treeopt profile"):
        TWO.step_s([StepShape(batch, 2, (1,))])
    below = replace(TWO, batches=TWO.batches[1:])
    with pytest.raises(CostError, match="batch 1 lies outside"):
        below.plain_s(batch=1)


@pytest.mark.parametrize("name", sorted(path.stem for path in shipped("profiles").glob("*.json")))
def test_every_shipped_profile_prices_all_batch_sizes_within(name):
    profile = load_profile(shipped("profiles") / f"{name}.json")
    sizes = range(profile.batches[0].batch, profile.batches[-1].batch + 1)
    seconds = [profile.step_s([StepShape(size, 4, (1, 1))])[0] for size in sizes]
    assert seconds == sorted(seconds)
    assert all(profile.plain_s(batch=size) > 0 for size in sizes)
