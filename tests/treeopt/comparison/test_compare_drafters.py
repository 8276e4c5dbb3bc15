"""Drafters side by side: judged as if alone, paired, what is unlike is said; best trees of given sizes."""

import json
from dataclasses import astuple, replace
from itertools import combinations, product
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from simulate.profiles.profile import BETWEEN_RUNS, BatchTimes, Profile, save_profile
from tests.helpers.command_line import done, refused, run
from tests.helpers.strategies import drawn_trace, traces
from treeopt.comparison.compare_drafters import compare
from treeopt.comparison.mismatch_warnings import model_warnings
from treeopt.comparison.trees_of_size import USUAL, Size, parse_sizes, sized_trees
from treeopt.errors import UsageError
from treeopt.planning.held_out_split import hold_out
from treeopt.planning.search_pipeline import search
from treeopt.replay.static_tree import accepted_lengths, replay_tree
from treeopt.statistics import paired_ratio, ratio
from treeopt.traces.importers.acceptance_curves import acceptance
from treeopt.traces.merge_split import halves, merge_traces
from treeopt.traces.trace_files import save_trace
from treeopt.tree import Tree

LENGTHS = [20, 30, 1, 25] * 10
DOUBT = "do they belong together"
TARGET = {"name": "m", "weights": "aa", "dtype": "float32"}
META = {"target": TARGET, "verification": "greedy", "temperature": 0.0, "new_tokens": 30, "text_sha256": "t"}
BETTER, WORSE = [[0.7, 0.2], [0.6, 0.2]], [[0.4, 0.2], [0.3, 0.2]]


def recorded(law, seed=0, lengths=LENGTHS, **meta):
    trace = drawn_trace(law, lengths, depth=4, rng=np.random.default_rng(seed))
    return replace(trace, meta=META | {"drafter": {"kind": "medusa", "weights": f"{law}{seed}"}} | meta)


def times(*, plain_s=0.01, level_s=0.001, error=0.02, **meta):
    rest = tuple((tokens, plain_s * (1 + 0.002 * tokens)) for tokens in range(2, 65))
    draft = tuple((depth, level_s * depth) for depth in range(1, 5))
    batches = tuple(BatchTimes(batch, plain_s, draft, rest) for batch in (1, 4))
    return Profile(batches, (0, 4096), error, {"device": "d"} | meta)


@pytest.fixture(scope="module")
def two():
    return {"worse": recorded(WORSE, 1), "better": recorded(BETTER, 2)}


def counts(draw, clusters):
    """Clusters, as many as there must be for the linearised interval, each drawn one repeated 60 times."""
    numbers = st.lists(st.integers(1, 9), min_size=clusters, max_size=clusters)
    return np.tile(draw(numbers), 60), np.tile(draw(numbers), 60)


@given(st.data())
def test_a_paired_ratio_is_linearised_in_every_cluster(data):
    """The oracle is the jackknife's first order: each cluster's weight is moved a little, by finite differences."""
    drawn = data.draw(st.integers(2, 3))
    first, second = counts(data.draw, drawn), counts(data.draw, drawn)
    found, clusters = paired_ratio(first, second), 60 * drawn

    def value(weights):
        a, b = ((weights @ n) / (weights @ d) for n, d in (first, second))
        return np.log(a / b)

    one, h = np.ones(clusters), 1e-6
    influence = np.array([(value(one + h * row) - value(one - h * row)) / (2 * h) for row in np.eye(clusters)])
    assert np.log(found.value) == pytest.approx(value(one), abs=1e-12)
    from scipy.stats import t

    half = t.ppf(0.975, clusters - 1) * np.sqrt(clusters / (clusters - 1) * np.sum(influence**2))
    ends = [np.log(end / found.value) for end in (found.low, found.high)]
    assert ends == pytest.approx([-min(half, 100), min(half, 100)], rel=1e-5, abs=1e-7)
    turned = paired_ratio(second, first)
    assert (turned.low, turned.high) == pytest.approx((1 / found.high, 1 / found.low))


@given(st.data())
def test_of_the_same_texts_the_paired_ratio_of_taus_is_that_of_steps(data):
    tokens, steps = counts(data.draw, 5)
    fewer = counts(data.draw, 5)[0]
    found, due = paired_ratio((tokens, fewer), (tokens, steps)), ratio(steps, fewer)
    assert found.value == pytest.approx(due.value)
    assert np.log(found.high / found.value) == pytest.approx(min((due.high - due.value) / due.value, 100))


def test_each_drafter_is_judged_as_if_alone(two):
    costs = {"worse": times(), "better": times(level_s=0.002)}
    found = compare(two, costs, batch=(1, 4), sizes=parse_sizes("chain:3,best:7"), seed=3)
    assert [contest.batch for contest in found.contests] == [None, None, 1, 4]
    chain, _, *batches = found.contests
    for name, trace in two.items():
        held = hold_out(trace, seed=3)[1]
        (standing,) = (each for each in chain.standings if each.drafter == name)
        assert standing.tau.value == replay_tree(Tree.chain(3), held).tau
        plan = search(trace, costs[name], batch=(1, 4), compare={}, seed=3)
        for entry, contest in zip(plan.entries, batches, strict=True):
            (standing,) = (each for each in contest.standings if each.drafter == name)
            choice = entry.choice
            assert (standing.tree.paths, standing.step_s) == (choice.tree.paths, choice.step_s)
            assert structs.astuple(standing.tau) == astuple(choice.tau)
            assert structs.astuple(standing.speedup) == pytest.approx(astuple(choice.speedup))


def test_sizes_that_no_trace_holds_are_left_out_and_named(two):
    found = compare(two, sizes=parse_sizes("chain:2,chain:9"))
    assert [contest.name for contest in found.contests] == ["chain of 2"]
    assert "chain of 9 is left out: the tree has depth 9, the trace records depth 4" in found.warnings
    with pytest.raises(UsageError, match=r"^--shapes: chain of 9 is left out"):
        compare(two, sizes=parse_sizes("chain:9"))


def test_a_drafter_is_once_as_good_as_itself(two):
    same = two["worse"]
    found = compare({"a": same, "b": same}, {"a": times(), "b": times()}, batch=1)
    *sizes, priced = found.contests
    for contest in sizes:
        first, again = contest.standings
        assert first.over is None
        assert (again.over.value, again.over.low, again.over.high) == (1, 1, 1)
    assert structs.astuple(priced.standings[1].over) == (1, 1, 1)  # the same step times are off alike
    apart = compare({"a": same, "b": same}, {"a": times(), "b": times(plain_s=0.011)}, batch=1, sizes=())
    over = apart.contests[0].standings[1].over  # others are taken to be off independently of each other
    assert np.log(over.high / over.value) == pytest.approx(np.hypot(0.02, BETWEEN_RUNS) * 2**0.5)
    assert over.high / over.value == pytest.approx(over.value / over.low)


def test_what_is_over_the_first_is_paired_by_request(two):
    """On texts whose difficulty varies, pairing takes the part of the noise away that both drafters share."""
    rng = np.random.default_rng(5)
    laws = [[p, 0.1] for p in rng.uniform(0.1, 0.85, size=len(LENGTHS))]
    harder = [[p - 0.08, 0.1] for p, _ in laws]
    traces = {"first": recorded(laws, 1, [40] * len(laws)), "second": recorded(harder, 2, [40] * len(laws))}
    apart = {name: replace(trace, meta={**trace.meta, "text_sha256": name}) for name, trace in traces.items()}
    paired, alone = (
        compare(each, sizes=parse_sizes("chain:4")).contests[0].standings[1].over for each in (traces, apart)
    )
    assert paired.value == pytest.approx(alone.value)
    assert paired.high - paired.low < 0.75 * (alone.high - alone.low)
    assert paired.high < 1


def test_pairing_is_by_what_the_traces_say(two):
    first, second = two.values()
    prompts = [
        replace(t, meta={**t.meta, "text_sha256": n, "prompts_sha256": "p"}) for n, t in enumerate((first, second))
    ]
    untold = [replace(t, meta={**t.meta, "text_sha256": None}) for t in (first, second)]
    halves_of = [halves(each, share=0.5, seed=0) for each in prompts]
    merges = [[merge_traces([half[i] for i in order]) for order in ((0, 1), (1, 0))] for half in halves_of]
    parted = [first, replace(second, meta={**second.meta, "split": {"part": "rest"}})]
    some = [first.select(np.arange(20)), second.select(np.arange(20, 40))]

    def pairing(pair, **how):
        return compare(dict(zip("ab", pair, strict=True)), sizes=(), **how).pairing

    assert pairing((first, second)) == "texts"
    assert pairing(prompts) == "prompts"
    for pair in (untold, parted, some):
        assert pairing(pair) is None
        assert pairing(pair, same_prompts=True) == "caller"
    assert pairing([each.select(np.arange(20)) for each in (first, second)]) == "texts"
    assert pairing([half[0] for half in halves_of]) == "prompts"
    assert pairing([both[0] for both in merges]) == "prompts"
    for pair in ((merges[0][0], merges[1][1]), (prompts[0], merges[1][0]), (halves_of[0][0], halves_of[1][1])):
        assert pairing(pair) is None  # of one list, in another order or another part
        with pytest.raises(UsageError, match="other parts of it or in another order"):
            pairing(pair, same_prompts=True)


def test_prompts_that_cannot_be_the_same_are_not_taken_for_the_same(two):
    first = replace(two["worse"], meta={**META, "text_sha256": None})
    other = recorded(BETTER, 2, [*LENGTHS[:-1], 24])
    with pytest.raises(
        UsageError, match="to request 39 the target wrote 24 tokens in b, 25 in a, although both decode greedily"
    ):
        compare({"a": first, "b": other}, same_prompts=True)
    with pytest.raises(UsageError, match="b has 39 requests, a 40"):
        compare({"a": first, "b": first.select(np.arange(39))}, same_prompts=True)
    sampled = {"verification": "sample-and-match", "temperature": 1.0, "text_sha256": None}
    pair = {name: replace(t, meta={**t.meta, **sampled}) for name, t in {"a": first, "b": other}.items()}
    assert compare(pair, same_prompts=True, sizes=()).pairing == "caller"  # lengths of sampled texts may differ


@pytest.mark.parametrize("odd", [5, [{}], {"a": [1]}])
def test_what_traces_say_of_themselves_may_be_anything(two, odd):
    keys = ("text_sha256", "prompts_sha256", "split", "merged", "target", "verification", "new_tokens")
    for key in keys:
        pair = {name: replace(trace, meta={**trace.meta, key: odd}) for name, trace in two.items()}
        for said in (False, True):
            assert len(compare(pair, sizes=parse_sizes("chain:1"), same_prompts=said).contests) == 1


UNLIKE = (
    ({"target": TARGET | {"weights": "bb"}}, "different targets"),
    ({"target": TARGET | {"dtype": "bfloat16"}}, "different number types"),
    ({"verification": "sample-and-match", "temperature": 1.0}, "different rules"),
    ({"new_tokens": 31}, "different numbers of new tokens"),
)


@pytest.mark.parametrize(("meta", "said"), UNLIKE)
def test_what_is_unlike_is_said(two, meta, said):
    def told(pair):
        return " ".join(compare(pair, sizes=parse_sizes("chain:1")).warnings)

    assert "different" not in told(two)
    assert said in told(two | {"better": replace(two["better"], meta={**two["better"].meta, **meta})})


def test_step_times_that_are_unlike_are_told(two):
    def told(**other):
        return " ".join(compare(two, {"worse": times(), "better": times(**other)}, batch=1, sizes=()).warnings)

    assert "different" not in told()
    assert "plain steps" not in told(plain_s=0.0105)
    three = told(device="e", provenance={"processor": "x"}, graphs=[[1, 2]]).partition("have different ")[2]
    assert set(three.partition(",")[0].split(" and ")) == {"devices", "processors", "use of CUDA graphs"}
    slow = told(plain_s=0.013)
    assert "batch 1: plain steps, which should be equal, take 10.00 to 13.00 ms" in slow
    assert "the machine's speed differed" in slow
    carried = told(plain_s=0.013, transfer={"to": "e"})
    assert "different devices" in carried
    assert "the machine's speed differed" not in carried
    assert "different targets" in told(predicted={"target": {"hidden": 1}})


def test_a_tree_that_a_trace_cannot_judge_is_named(two):
    shallow = replace(two["better"], rank=two["better"].rank[:, :2])
    chain, plain = compare(two | {"better": shallow}, sizes=parse_sizes("chain:3,chain:2")).contests
    assert chain.skipped == {"better": "the tree has depth 3, the trace records depth 2"}
    assert len(plain.standings) == 2
    others = compare({"better": shallow, "worse": two["worse"]}, sizes=parse_sizes("chain:3")).contests[0]
    assert others.standings[0].over is None  # there is nothing that it could be over


def test_four_requests_suffice_and_are_warned_of(two):
    found = compare({name: trace.select(np.arange(4)) for name, trace in two.items()}, sizes=parse_sizes("chain:2"))
    assert [contest.name for contest in found.contests] == ["chain of 2"]
    assert any("2 requests are few" in warning for warning in found.warnings)


def test_a_warning_of_all_drafters_stands_once(two):
    few = {name: trace.select(np.arange(8)) for name, trace in two.items()}
    warnings = compare(few, {"worse": times(), "better": times()}, batch=1).warnings
    assert len(warnings) == len(set(warnings))
    assert any("requests" in each and not each.startswith(("worse", "better")) for each in warnings)


def test_the_frame_has_a_row_for_each_standing(two):
    found = compare(two, {"worse": times(), "better": times()}, batch=4, sizes=parse_sizes("chain:2"))
    frame = found.frame()
    assert list(frame["drafter"]) == ["worse", "better"] * 2
    assert frame["over"].isna().tolist() == [True, False, True, False]
    assert frame["step_s"].isna().tolist() == [True, True, False, False]


def test_two_drafters_of_one_law_are_rarely_told_apart():
    """The interval holds 1 in about 95 of 100 comparisons; 12 or more misses have P < 0.005, and seeds are fixed."""
    wrong = 0
    for draw in range(100):
        pair = {str(n): recorded(BETTER, 2 * draw + n) for n in range(2)}
        over = compare(pair, sizes=parse_sizes("chain:2"), seed=draw).contests[0].standings[1].over
        wrong += not over.low <= 1 <= over.high
    assert 0 < wrong < 12


# --- the command


@pytest.fixture
def files(two, tmp_path):
    for name, trace in two.items():
        save_trace(trace, tmp_path / f"{name}.npz")
        save_profile(times(**{part: trace.meta[part] for part in ("target", "drafter")}), tmp_path / f"{name}.json")
    return tmp_path


def words(files, *more):
    return ["compare", files / "worse.npz", files / "better.npz", "--verbose", *more]


def test_the_command_finds_each_trace_its_step_times(files, two):
    result = done(*words(files, "--batch", "1,4", "--shapes", "chain:2", "--json", "--output", files / "out.json"))
    record = json.loads(result.stdout)
    assert record == json.loads((files / "out.json").read_text("utf-8"))
    assert "profile: worse.json" in result.stderr
    assert "profile: better.json" in result.stderr
    assert (record["first"], record["pairing"]) == ("worse", "texts")
    costs = {"worse": times(), "better": times()}
    due = compare(two, costs, batch=(1, 4), sizes=parse_sizes("chain:2"))
    for contest, expected in zip(record["contests"], due.contests, strict=True):
        for each, standing in zip(contest["standings"], expected.standings, strict=True):
            assert each["tau"]["value"] == standing.tau.value
            assert (each["over"] or {}).get("value") == getattr(standing.over, "value", None)


def test_step_times_may_be_named_in_the_order_of_the_traces(files):
    swapped = done(*words(files, "--batch", "1", "--profile", files / "better.json", "--profile", files / "worse.json"))
    assert swapped.stderr.count("Warning: trace") == 2
    again = done(*words(files, "--batch", "1", "--profile", files / "worse.json", "--profile", files / "better.json"))
    assert "Warning: trace" not in again.stderr


def test_rules_that_draw_are_judged_by_chains(tmp_path):
    kept = np.zeros((40 * 10, 2, 2), dtype=np.float16)
    kept[..., 0] = 0.6
    for name in ("a", "b"):
        trace = drawn_trace([[0.6, 0.2]], [10] * 40, depth=2, rng=np.random.default_rng(0))
        save_trace(replace(trace, kept=kept, meta={"verification": "leviathan"}), tmp_path / f"{name}.npz")
    result = done("compare", tmp_path / "a.npz", tmp_path / "b.npz", "--shapes", "chain:2,best:2", "--json")
    chain, best = json.loads(result.stdout)["contests"]
    assert 1.7 < chain["standings"][0]["tau"]["value"] < 2.1  # 1 + 0.6 + 0.36, less what the ends cut
    assert all(each["tree"]["depth"] == each["tree"]["nodes"] for each in best["standings"])


REFUSED = (
    (["--profile", "p.json"], "give --batch"),
    (["--batch", "1", "--profile", "worse.json"], "once for each trace, 2 times, got 1"),
    (["--shapes", "ladder:4"], "chain:N or best:N"),
    (["--requests", "41"], "worse.npz has 40: give fewer"),
)


@pytest.mark.parametrize(("more", "why"), REFUSED)
def test_what_has_no_meaning_is_refused(files, more, why):
    given = [files / word if word.endswith((".npz", ".json")) else word for word in more]
    refused(run(*words(files, *given)), why, code=2)
    refused(run("compare", files / "worse.npz"), "at least 2 traces", code=2)


def test_files_of_one_name_are_told_apart_by_their_folders(files, two):
    for name in ("one", "two"):
        (files / name).mkdir()
        save_trace(two["worse"], files / name / "trace.npz")
    given = (files / name / "trace.npz" for name in ("one", "two"))
    record = json.loads(done("compare", *given, "--requests", "20", "--json").stdout)
    assert record["meta"]["requests_judged_on"] == 10
    assert [each["drafter"] for each in record["contests"][0]["standings"]] == ["one/trace", "two/trace"]


def test_traces_of_chains_are_compared_by_chains_alone():
    names = [contest.name for contest in compare({"a": acceptance("0.7"), "b": acceptance("0.5,0.3")}).contests]
    assert names == ["chain of 2", "chain of 4", "chain of 8"]


def test_no_tree_is_compared_with_a_drafter_of_which_chains_alone_were_counted(two):
    """Trees of the other would seem better than what its trees would do; a drafter of chains loses against trees."""
    chains = recorded([[0.5], [0.4]])
    counted = replace(chains, meta=chains.meta | {"imported": {"format": "counters"}})
    sizes = parse_sizes("chain:2,best:6")
    found = compare({"chains": chains, "better": two["better"]}, sizes=sizes).contests
    assert [contest.name for contest in found] == ["chain of 2", "best tree of 6"]
    found = compare({"counted": counted, "better": two["better"]}, sizes=sizes).contests
    assert [contest.name for contest in found] == ["chain of 2", "chain of 4"]


def test_a_trace_that_names_no_models_is_said_to_name_none():
    (warning,) = model_warnings(
        "trace and profile", {}, {"target": TARGET, "drafter": {"kind": "medusa", "weights": "b"}}
    )
    assert warning == "trace and profile: the first names no models, the second is of m (float32) with medusa: " + DOUBT


def test_usual_sizes():
    assert parse_sizes("chain:2,chain:4,best:7,best:15,best:31,best:63") == USUAL
    assert [size.nodes for size in USUAL] == [2, 4, 7, 15, 31, 63]
    assert parse_sizes("best:3, best:3") == (Size("best", 3),)


@pytest.mark.parametrize("text", ["", "chain", "chain:0", "tree:3", "chain:2,,best:3", "chain:²"])
def test_sizes_without_meaning(text):
    with pytest.raises(UsageError, match="chain:N or best:N"):
        parse_sizes(text)


def trees_of_size(nodes: int, width: int, depth: int):
    paths = [path for d in range(1, depth + 1) for path in product(range(width), repeat=d)]
    for chosen in combinations(paths, nodes):
        if all(path[:-1] in chosen for path in chosen if len(path) > 1):
            yield Tree.from_paths(chosen)


@settings(max_examples=40, deadline=None)
@given(traces(requests=(1, 8), length=1, depth=2, width=3), st.data())
def test_at_one_position_the_best_tree_keeps_most(trace, data):
    """Where each request is one position there is no walk, and all trees can be tried; counts are not shrunk."""
    nodes = data.draw(st.integers(1, trace.width))
    with mock.patch("treeopt.comparison.trees_of_size.fit_strength", return_value=0.0):
        tree = sized_trees([Size("best", nodes)], trace)[f"best tree of {nodes}"]
    every = trees_of_size(nodes, trace.width, trace.depth)
    most = max(int(accepted_lengths(other, trace).sum()) for other in every)
    assert int(accepted_lengths(tree, trace).sum()) == most


@settings(max_examples=25, deadline=None)
@given(traces(length=8, depth=3), st.integers(2, 6))
def test_only_covered_trees_are_taken_where_there_are_any(trace, nodes):
    found = sized_trees([Size("best", nodes), Size("chain", 2)], trace, covered=lambda tree: tree.depth <= 1)
    assert list(found) == [f"best tree of {nodes}", "chain of 2"]
    assert found["chain of 2"] == Tree.chain(2)
    assert found[f"best tree of {nodes}"].depth == 1
    assert found[f"best tree of {nodes}"].nodes <= nodes
    none = sized_trees([Size("best", nodes)], trace, covered=lambda tree: False)
    assert none == sized_trees([Size("best", nodes)], trace)
