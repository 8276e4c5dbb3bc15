"""A measured profile: exact where it was measured, linear between, refused elsewhere, whole in its file."""

import json
import math
import os
import re
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulate.model_sizes.layer_weights_and_kv import Experts
from simulate.profiles.basis import Basis
from simulate.profiles.profile import BETWEEN_RUNS, SCHEMA, BatchTimes, Profile, load_profile, save_profile
from simulate.profiles.step_tables import Growing
from tests.helpers.strategies import metas
from treeopt.cost_model import StepShape
from treeopt.errors import CostError, UsageError

PROFILE = Profile(
    batches=(
        BatchTimes(1, 0.010, ((1, 0.001), (3, 0.004)), ((2, 0.011), (6, 0.013), (64, 0.040))),
        BatchTimes(4, 0.012, ((2, 0.002),), ((4, 0.020),)),
    ),
    context=(8, 100),
    relative_error=0.03,
    meta={"device": "made up"},
)

seconds = st.floats(1e-9, 1e3)


@st.composite
def points(draw, *, largest):
    """(size, seconds) by rising size."""
    sizes = draw(st.lists(st.integers(1, largest), min_size=1, max_size=6, unique=True).map(sorted))
    return tuple((size, draw(seconds)) for size in sizes)


@st.composite
def profiles(draw):
    """Valid profiles with any meta that JSON can hold."""
    batches = draw(st.lists(st.integers(1, 64), min_size=1, max_size=3, unique=True).map(sorted))
    context = draw(st.tuples(st.integers(0, 500), st.integers(0, 500)).map(sorted))
    times = [BatchTimes(b, draw(seconds), draw(points(largest=12)), draw(points(largest=80))) for b in batches]
    return Profile(tuple(times), (context[0], context[1]), draw(st.floats(0, 2)), draw(metas))


@st.composite
def rich_profiles(draw):
    """Valid profiles with widths, contexts, a basis and captured sizes."""
    plain = draw(profiles())
    batches = []
    for times in plain.batches:
        contexts = draw(st.lists(st.integers(0, 999), min_size=1, max_size=3, unique=True).map(sorted))
        widths = draw(st.just(()) | st.builds(lambda s: ((1, 0.0), (4, s)), seconds))
        more = {"widths": widths, "relative_error": 0.1, "widths_told": draw(st.sampled_from([None, False, True]))}
        batches += [replace(times, context=float(c), commit_s=draw(seconds), **more) for c in contexts]
    basis = Basis({"step": draw(seconds), "cache": draw(seconds), "experts": 1.0}, Experts(8, 2), 0.5)
    captured = tuple(draw(st.lists(st.integers(1, 99), max_size=3, unique=True).map(sorted)))
    return replace(plain, batches=tuple(batches), basis=basis, committed=1.5, captured=captured)


def shape(batch, tokens, depth, context=None):
    return StepShape(batch, tokens, (1,) * depth, context)


def between(measured, size):
    """Slow twin of the interpolation, in exact fractions."""
    for (left, low), (right, high) in pairwise(measured):
        if left <= size <= right:
            share = Fraction(size - left, right - left)
            return Fraction(low) + (Fraction(high) - Fraction(low)) * share
    (only,) = [s for at, s in measured if at == size]
    return Fraction(only)


# --- prices


@settings(max_examples=30)
@given(profile=profiles())
def test_measured_sizes_cost_exactly_what_was_measured(profile):
    for times in profile.batches:
        shapes = [shape(times.batch, tokens, depth) for depth, _ in times.draft for tokens, _ in times.rest]
        due = [draft_s + rest_s for _, draft_s in times.draft for _, rest_s in times.rest]
        assert profile.step_s(shapes).tolist() == due
        assert profile.plain_s(batch=times.batch) == times.plain_s


@given(profile=profiles(), data=st.data())
def test_sizes_between_are_linear(profile, data):
    shapes, due = [], []
    for _ in range(data.draw(st.integers(0, 5))):
        times = data.draw(st.sampled_from(profile.batches))
        depth = data.draw(st.integers(times.draft[0][0], times.draft[-1][0]))
        tokens = data.draw(st.integers(times.rest[0][0], times.rest[-1][0]))
        context = data.draw(st.none() | st.integers(*profile.context))
        shapes.append(shape(times.batch, tokens, depth, context))
        due.append(float(between(times.draft, depth) + between(times.rest, tokens)))
    found = profile.step_s(shapes)
    assert found.dtype == np.float64
    assert found.shape == (len(shapes),)
    # Two products and three sums in float64, of positive numbers.
    np.testing.assert_allclose(found, due, rtol=1e-13)
    assert found.tolist() == [profile.step_s([one])[0] for one in shapes]


@given(profile=profiles(), data=st.data())
def test_parts_price_what_the_profile_prices(profile, data):
    times = data.draw(st.sampled_from(profile.batches))
    if times.draft[0][0] > 1:
        with pytest.raises(CostError, match="measured from depth"):
            profile.parts(batch=times.batch, tokens=4, depth=2, width=1)
        return
    size, depth, width = data.draw(st.tuples(st.integers(1, 90), st.integers(0, 14), st.integers(1, 5)))
    tables = profile.parts(batch=times.batch, tokens=size, depth=depth, width=width, context=profile.context[0])
    assert (tables.verify_s.shape, tables.draft_s.shape) == ((size + 1,), (depth, width + 1))
    for tokens in range(1, size + 1):
        for levels in range(depth + 1):
            widths = data.draw(st.integers(1, width)) if levels else 1
            found = tables.step_s(np.array([tokens]), np.array([[widths] * levels], dtype=np.int64))[0]
            try:
                due = profile.step_s([StepShape(times.batch, tokens, (widths,) * levels)])[0]
            except CostError:
                due = math.inf
            # Differences of the drafting times, summed up again: rounding of the largest of them.
            assert found == pytest.approx(due, rel=1e-12, abs=1e-15 * max(s for _, s in times.draft) * 20)


@pytest.mark.parametrize(
    ("outside", "words"),
    [
        (shape(1, 1, 1), ("tokens 1", "batch 1", "2 to 64")),
        (shape(4, 4, 1), ("depth 1", "batch 4", "2 to 2")),
        (shape(1, 2, 1, 101), ("context 101", "8 to 100")),
    ],
)
def test_outside_what_was_measured_is_refused(outside, words):
    with pytest.raises(CostError) as caught:
        PROFILE.step_s([shape(1, 2, 1, 8), outside, shape(4, 4, 2, 100)])
    assert all(word in str(caught.value) for word in words), caught.value
    with pytest.raises(CostError, match=r"context 7.*8 to 100"):
        PROFILE.plain_s(batch=1, context=7)


# --- widths, contexts, bases, captured sizes

WIDE = replace(
    PROFILE,
    batches=(
        replace(PROFILE.batches[0], widths=((1, 0.0), (4, 0.003), (8, 0.003)), context=10.0),
        BatchTimes(1, 0.020, ((1, 0.002), (3, 0.006)), ((2, 0.031), (40, 0.05)), ((1, 0.0), (8, 0.0)), 90.0),
    ),
)


def test_widths_enter_level_by_level():
    assert not WIDE.separable
    found = WIDE.step_s([StepShape(1, 2, (1, 4, 2)), StepShape(1, 2, (1, 1, 1))])
    assert found[0] - found[1] == pytest.approx(0.003 + 0.001)
    table = WIDE.parts(batch=1, tokens=4, depth=3, width=9)
    assert table.step_s(np.array([2]), np.array([[1, 4, 2]]))[0] == pytest.approx(found[0])
    assert np.isinf(table.draft_s[:, 9]).all()
    with pytest.raises(CostError, match="width 9 at batch 1: the profile measured width 1 to 8"):
        WIDE.step_s([StepShape(1, 2, (1, 9))])


def test_what_a_profile_leaves_open_is_told():
    mixed = replace(PROFILE, context=(200, 1000))
    assert mixed.priced_at() is None
    assert mixed.caveats() == mixed.caveats(context=600) == mixed.caveats(context=400) == []
    said = (
        "step times were measured at mixed contexts of 200 to 1000 tokens (mean 600), not at each context: at {} they"
    )
    for context in (399, 901):
        (caveat,) = mixed.caveats(context=context)
        assert caveat.startswith(said.format(context))
    labelled = replace(mixed, batches=tuple(replace(times, context=300.2) for times in mixed.batches))
    assert (labelled.priced_at(), labelled.priced_at(7)) == (300, 7)
    assert labelled.caveats(context=600)
    assert (mixed.apart, WIDE.apart) == (False, True)
    assert (WIDE.priced_at(), WIDE.caveats(context=95)) == (10, [])


SAMPLED = {"verification": "sample-and-match", "temperature": 1.0}


def test_step_times_of_another_rule_are_told_of():
    """Profiles that do not say how they chose tokens did so greedily; how hot makes no work."""
    sampled = replace(PROFILE, meta=SAMPLED)
    (caveat,) = PROFILE.caveats(trace=SAMPLED)
    assert caveat.startswith(
        "step times were measured with greedy and the trace was recorded with sample-and-match at temperature 1:"
    )
    for trace in ({"verification": "greedy", "temperature": 0.0}, SAMPLED | {"top_p": 0.9}, SAMPLED | {"top_k": 40}):
        assert len(sampled.caveats(trace=trace)) == 1
    for trace in (SAMPLED, SAMPLED | {"temperature": 0.5}, {}, None):
        assert sampled.caveats(trace=trace) == []
    assert PROFILE.caveats(trace={"verification": "greedy", "temperature": 0.0}) == []


@pytest.mark.parametrize("kind", ["eagle", "hydra", "ngram", "language-model"])
def test_widths_that_nobody_measured_are_told_of(kind):
    def told(*widths_told, kind=kind, whole=PROFILE):
        batches = tuple(replace(t, widths_told=told) for t, told in zip(whole.batches, widths_told, strict=True))
        return replace(whole, batches=batches, meta={"drafter": {"kind": kind}}).caveats()

    for unknown in ((None, None), (True, None), (False, True)):
        (caveat,) = told(*unknown)
        assert caveat.startswith("the drafter's cost of wider levels was not measured")
        assert told(*unknown, kind="medusa") == told(*unknown, whole=WIDE) == []
    assert told(True, True) == []


def test_time_between_contexts_lies_between_theirs():
    near, middle, far = (WIDE.step_s([shape(1, 2, 1, c)])[0] for c in (8, 50, 95))
    assert near == WIDE.step_s([shape(1, 2, 1)])[0] == 0.012
    assert far == pytest.approx(0.033)
    assert middle == pytest.approx((near + far) / 2)
    assert WIDE.plain_s(batch=1, context=50) == pytest.approx(0.015)
    assert WIDE.parts(batch=1, tokens=2, depth=1, width=1, context=50).step_s(
        np.array([2]), np.array([[1]])
    ) == pytest.approx(middle)
    with pytest.raises(CostError, match="tokens 41 at batch 1: the profile measured tokens 2 to 40"):
        WIDE.step_s([shape(1, 41, 1, 50)])


def test_shapes_that_are_too_large_come_with_what_to_ask_for():
    """The largest sizes named are covered, one more is not."""
    padded = replace(PROFILE, captured=(8, 24))
    for profile, batch in ((padded, 1), (PROFILE, 4)):
        deepest = min(times.deepest for times in profile.batches if times.batch == batch)
        with pytest.raises(CostError, match="the profile measured tokens") as refused:
            profile.step_s([shape(batch, 900, deepest), shape(batch, 500, deepest)])
        assert "--max-depth" not in str(refused.value)
        most = int(re.search(r"; choose fewer nodes \(search: --max-nodes (\d+)\)$", str(refused.value))[1])
        assert profile.step_s([shape(batch, most + 1, deepest)]) > 0
        with pytest.raises(CostError, match=f"--max-nodes {most}"):
            profile.step_s([shape(batch, most + 2, deepest)])
        with pytest.raises(CostError, match=rf"the profile measured depth .*\(search: --max-depth {deepest}\)$"):
            profile.step_s([shape(batch, most + 1, deepest + 1)])
    with pytest.raises(CostError, match=r"the profile measured tokens 4 to 4$"):  # padded sizes pass over what was
        padded.step_s([shape(4, 4, 2)])
    with pytest.raises(CostError, match=r"the profile measured tokens 2 to \d+$"):
        PROFILE.step_s([shape(1, 1, 0)])


@given(sizes=st.lists(st.integers(2, 64), min_size=2, max_size=9, unique=True).map(sorted), data=st.data())
def test_a_law_of_the_basis_is_met_between_measured_sizes(sizes, data):
    """The breaks of a known law stay where they are, whichever sizes were measured."""
    law = Basis({"step": 0.01, "tile16": 1e-4, "cache": 1e-5, "mask": 1e-6})
    tables = [
        BatchTimes(3, 1.0, ((1, 1e-3),), tuple((n, law.rest_s(n, batch=3, context=c).item()) for n in sizes), context=c)
        for c in (100.0, 400.0)
    ]
    profile = Profile(tuple(tables), (100, 400), 0.0, basis=law)
    tokens = data.draw(st.integers(sizes[0], sizes[-1]))
    context = data.draw(st.integers(100, 400))
    found = profile.step_s([StepShape(3, tokens, (), context)])[0]
    assert found == pytest.approx(law.rest_s(tokens, batch=3, context=context).item(), rel=1e-12)


def test_captured_sizes_are_paid_for():
    padded = replace(PROFILE, captured=(8, 24))
    assert padded.step_s([shape(1, 3, 1)]) == PROFILE.step_s([shape(1, 8, 1)])
    assert padded.step_s([shape(1, 24, 1)]) == PROFILE.step_s([shape(1, 24, 1)])
    assert padded.step_s([shape(1, 25, 1)]) == PROFILE.step_s([shape(1, 25, 1)])  # beyond the largest
    table = padded.parts(batch=1, tokens=30, depth=1, width=1)
    assert table.verify_s[9] == table.verify_s[24] == PROFILE.step_s([shape(1, 24, 0)])[0]
    with pytest.raises(CostError, match="tokens 6 at batch 4: the profile measured tokens 4 to 4"):
        padded.step_s([shape(4, 4, 2)])


def test_more_committed_tokens_take_longer():
    moving = replace(PROFILE, batches=tuple(replace(t, commit_s=1e-4) for t in PROFILE.batches), committed=1.5)
    usual, more, none = (replace(shape(1, 2, 1), committed=committed) for committed in (None, 3.5, 1))
    found = moving.step_s([usual, more, none])
    assert found - found[0] == pytest.approx([0, 2e-4, -5e-5])
    assert found[0] == moving.step_s([replace(usual, committed=1.5)])[0]
    dear = replace(moving, batches=tuple(replace(t, commit_s=1e3) for t in moving.batches))
    assert dear.step_s([none])[0] > PROFILE.step_s([none])[0] / 2  # never less than half of what was measured
    with pytest.raises(UsageError, match=r"committed must be at least 1 and finite, got 0\.5"):
        replace(usual, committed=0.5)


def test_drawing_trees_anew_is_added_where_it_was_measured():
    anew = {"opt-tree": Growing(1e-3, 2e-3, 1e-4, 1e-5, widest=8, spread=0.02)}
    both = tuple(replace(times, growth=anew) for times in PROFILE.batches)
    known = replace(PROFILE, batches=both)
    static = [StepShape(1, 6, (1, 8)), StepShape(4, 4, (1, 2)), StepShape(1, 2, (1,))]
    found = known.step_s([replace(s, growth="opt-tree") for s in static])
    assert found - PROFILE.step_s(static) == pytest.approx([5e-3 + 9e-4 + 6e-5, 5e-3 + 3e-4 + 4e-5, 3e-3 + 1e-4 + 2e-5])
    assert known.step_s([replace(s, growth="dynamic-tree") for s in static]).tolist() == PROFILE.step_s(static).tolist()
    with pytest.raises(CostError, match=r"width 9 at batch 1: .* dynamic trees \(opt-tree\) of width 1 to 8"):
        known.step_s([StepShape(1, 20, (1, 9), growth="opt-tree")])
    assert set(known.growths) == {"opt-tree"}
    anew = math.hypot(0.03, 1.96 * 0.02, BETWEEN_RUNS)
    assert known.error(static[0]) == PROFILE.error(static[0]) == math.hypot(0.03, BETWEEN_RUNS)
    assert known.error(replace(static[0], growth="opt-tree")) == pytest.approx(anew)
    assert known.error(replace(static[0], growth="dynamic-tree")) == PROFILE.error(static[0])
    with pytest.raises(UsageError, match=r"growth must be one of .*, got 'luck'"):
        replace(static[0], growth="luck")


# --- the file


@given(profile=profiles() | rich_profiles())
def test_a_profile_survives_its_file(tmp_path_factory, profile):
    path = tmp_path_factory.mktemp("profile") / "p.json"
    save_profile(profile, path)
    assert load_profile(path) == profile
    assert json.loads(path.read_text("utf-8"))["schema"] == SCHEMA
    assert os.listdir(path.parent) == ["p.json"]


GROWING = {"step_s": 1e-4, "level_s": 2e-4, "node_s": 1e-5, "token_s": 2e-5, "widest": 8, "spread": 0.01}
ONE = {"batch": 1, "plain_s": 0.01, "draft": [[1, 0.001], [2, 0.002]], "rest": [[2, 0.011], [64, 0.04]], "widths": []}
FOUR = {"batch": 4, "plain_s": 0.02, "draft": [[1, 0.003]], "rest": [[2, 0.02], [3, 0.03]]}
FOUR |= {"widths": [[1, 0.0], [8, 0.001]]}
MORE = {"context": 0.0, "commit_s": 0.0, "relative_error": None, "growth": {"opt-tree": GROWING}}
RECORD = {
    "schema": SCHEMA,
    "batches": [ONE | MORE, FOUR | MORE | {"commit_s": 1e-6, "relative_error": 0.02}],
    "context": [8, 100],
    "relative_error": 0.03,
    "meta": {"device": "made up"},
    "basis": {"seconds": {"step": 0.01, "experts": 0.001}, "experts": {"count": 8, "active": 2}, "spread": 0.5},
    "committed": 1.5,
    "captured": [2, 12],
}
MISSING = "missing"


def broken(place, value):
    """The valid record with one entry replaced, or taken out."""
    record = json.loads(json.dumps(RECORD))
    *outer, last = place
    holder = record
    for key in outer:
        holder = holder[key]
    if value is MISSING:
        del holder[last]
    else:
        holder[last] = value
    return record


def test_the_record_by_hand_is_valid(tmp_path):
    path = tmp_path / "p.json"
    path.write_text(json.dumps(RECORD))
    assert load_profile(path).step_s([shape(1, 2, 2), shape(4, 3, 1)]) == pytest.approx([0.002 + 0.011, 0.033])
    assert load_profile(path).error(shape(1, 2, 1)) == math.hypot(0.03, BETWEEN_RUNS)
    assert load_profile(path).error(shape(4, 4, 2)) == math.hypot(0.02, BETWEEN_RUNS)


GROWTH = ("growth", "opt-tree")
IN_A_BATCH = [
    (("plain_s",), MISSING, "plain_s"),
    ((*GROWTH, "spread"), MISSING, "spread"),
    (("batch",), 2.5, "batch"),
    (("batch",), 1, "batches"),
    (("draft", 0, 0), 2**63, "draft"),
    (("draft",), [[2, 0.1], [1, 0.2]], "draft[1]"),
    (("rest",), 3, "rest"),
    (("rest",), [[3, 0.1, 0.2]], "rest"),
    (("rest", 1, 1), math.nan, "rest"),
    (("rest", 0, 1), 1e-320, "rest[0] must have at least 1e-12 seconds"),
    (("plain_s",), 0, "plain_s"),
    (("widths", 1, 1), "three", "widths"),
    (("commit_s",), math.inf, "commit_s"),
    (("relative_error",), -1, "relative_error"),
    ((*GROWTH, "widest"), 10**400, "growth"),
    (("growth",), {"luck": GROWING}, "'luck' must be one of"),
]
OUTSIDE_BATCHES = [
    (("schema",), "treeopt.profile/1", "schema"),
    (("captured",), MISSING, "captured"),
    (("batches",), [], "batches"),
    (("context",), [100, 8], "context"),
    (("context", 1), None, "context"),
    (("committed",), True, "committed"),
    (("captured",), [8, 8], "captured"),
    (("basis", "seconds"), {}, "a term that any step has"),
    (("basis", "experts"), None, "needs their counts"),
    (("meta",), 3, "meta"),
]
WRONG = [(("batches", 1, *place), value, word) for place, value, word in IN_A_BATCH] + OUTSIDE_BATCHES


@pytest.mark.parametrize(("place", "value", "word"), WRONG, ids=lambda each: str(each)[:40])
def test_a_broken_record_is_refused_in_one_line_with_its_field(tmp_path, place, value, word):
    path = tmp_path / "p.json"
    path.write_text(json.dumps(broken(place, value)))
    with pytest.raises(CostError) as caught:
        load_profile(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert word in message.removeprefix(str(path))
    assert "\n" not in message


@pytest.mark.parametrize("text", ["[]", "3", "null", "{}"])
def test_what_is_no_profile_is_refused(tmp_path, text):
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(CostError, match=r"p\.json: .*schema"):
        load_profile(tmp_path / "p.json")
    with pytest.raises(CostError, match=r"none\.json: cannot be read: No such file"):
        load_profile(tmp_path / "none.json")


def test_a_profile_as_a_frame_holds_every_measured_time():
    times = BatchTimes(2, 0.01, ((1, 1e-3), (3, 2e-3)), ((2, 0.01), (64, 0.02)), ((1, 0.0), (4, 1e-4)), context=50.0)
    frame = Profile((times,), (0, 100), 0.02).frame()
    assert list(frame.columns) == ["batch", "context", "part", "size", "unit", "time_s"]
    assert frame[["part", "size", "time_s"]].to_numpy().tolist() == [
        ["plain", 1, 0.01],
        ["draft", 1, 1e-3],
        ["draft", 3, 2e-3],
        ["rest", 2, 0.01],
        ["rest", 64, 0.02],
        ["width", 1, 0.0],
        ["width", 4, 1e-4],
    ]
    assert set(frame["batch"]) == {2}
    assert set(frame["context"]) == {50.0}
    assert dict(zip(frame["part"], frame["unit"], strict=True))["draft"] == "levels"
