"""Charts: the numbers of their marks, what they say, and that every one of them can be drawn."""

import json
import re
from dataclasses import replace

import matplotlib as mpl
import numpy as np
import pytest

from simulate.profiles.profile import load_profile
from tests.benchmarks.pictures import FOLDER, pictures
from tests.helpers.small_plans import choice, entry, plan_of
from tests.helpers.strategies import drawn_trace
from treeopt import draw_speedups, draw_tau
from treeopt.api.device_charts import profile_chart
from treeopt.charts.marks import DARK, LIGHT, SHAPES, Figure, Palette, as_svg, line, points, series_of, titled
from treeopt.charts.marks import Axis as ChartAxis
from treeopt.charts.speed_charts import (
    agreement,
    load_over_time,
    pareto,
    speedups,
    stops_paying,
    throughput_and_latency,
)
from treeopt.charts.trace_charts import (
    SERIES,
    acceptance_by_depth,
    acceptance_by_domain,
    accepted_shares,
    calibration,
    plan_charts,
    tau_by_nodes,
    tree_picture,
)
from treeopt.plans import Choice, Grown, Plan, PlanEntry, Proof
from treeopt.replay.static_tree import replay_tree, visit
from treeopt.searchers.best_first import count_prefixes
from treeopt.statistics import Estimate, ratio
from treeopt.storage.user_files import shipped
from treeopt.traces.trace_files import load_trace
from treeopt.tree import Tree
from treeopt.tree_files.choice_lists import MEDUSA, published_trees

mpl.use("Agg")
from matplotlib import pyplot as plt

VALIDATION = json.loads(shipped("validations/medusa-cpu.json").read_text("utf-8"))
DAY = {"times_s": [0.0, 1.0, 2.0], "running": [0, 2, 1], "waiting": [0, 1, 0]}


@pytest.fixture(scope="module")
def trace():
    return load_trace(shipped("traces/medusa-t0.npz"))


@pytest.fixture(scope="module")
def charts(trace):
    return {
        "tree": tree_picture(published_trees()[MEDUSA]),
        "agreement": agreement(VALIDATION),
        "acceptance": acceptance_by_depth(trace),
        "calibration": calibration(
            replace(trace, confidence=np.linspace(0, 1, trace.rank.size).astype(np.float16).reshape(trace.rank.shape))
        ),
        "domains": acceptance_by_domain(trace, Tree.chain(2), name="A chain of 2"),
        "profile": profile_chart(load_profile(shipped("profiles/medusa-cpu.json"))),
        "load": load_over_time({"rows": 2, "configurations": [{"name": "tree", "first_day": DAY}]}),
    }


def rows(chart, mark="point"):
    """The rows of a chart's marks of one kind."""
    spec = chart.to_dict()
    layers = [layer for layer in spec["layer"] if layer["mark"]["type"] == mark]
    return [row for layer in layers for row in spec["datasets"][layer["data"]["name"]]]


@pytest.mark.parametrize("name", ["tree", "agreement", "acceptance", "calibration", "domains", "profile", "load"])
def test_every_chart_is_drawn_and_says_what_it_shows_and_under_which_conditions(charts, name):
    figure, svg = Figure.of(charts[name]), as_svg(charts[name].to_dict())
    assert len(figure.words) > 20
    assert figure.conditions
    assert all(text.endswith(".") for text in figure.conditions)
    assert figure.title in svg
    assert svg == as_svg(charts[name].to_dict())
    alone = figure.svg()
    assert figure.title not in alone
    assert LIGHT.back not in alone
    assert figure.spec["width"] == "container"


def test_predicted_and_measured_values_are_those_of_the_record(charts):
    shown = {(row["predicted"], row["measured"]) for row in rows(charts["agreement"])}
    assert shown == {
        (c["predicted"]["speedup"]["value"], c["measured"]["speedup"]["value"]) for c in VALIDATION["cells"]
    }


def test_acceptance_counts_candidates(trace, charts):
    first = next(row for row in rows(charts["acceptance"]) if row["series"] == "best candidate")
    known = trace.rank[:, 0] != -2
    assert first["share"] == pytest.approx((trace.rank[known, 0] == 0).mean())


def test_domains_are_ratios_of_their_own_requests(trace, charts):
    counts = replay_tree(Tree.chain(2), trace)
    for row in rows(charts["domains"]):
        chosen = trace.domain == trace.domain_names.index(row["domain"])
        assert row["tau"] == pytest.approx(ratio(counts.committed[chosen], counts.steps[chosen]).value)


def test_points_left_out_are_predicted_by_the_others(charts):
    profile = load_profile(shipped("profiles/medusa-cpu.json"))
    hollow = [row for row in rows(charts["profile"]) if row["series"] == "predicted without the point"]
    assert len(hollow) == sum(len(times.rest) - 2 for times in profile.batches)
    measured = {}
    for times in profile.batches:
        for tokens, seconds in times.rest:
            measured.setdefault(tokens, []).append(seconds * 1e3)
    errors = [min(abs(np.log(row["ms"] / known)) for known in measured[row["tokens"]]) for row in hollow]
    assert 0 < np.median(errors) < 0.03


def test_shares_of_nodes_add_up_to_tau(trace):
    tree = Tree.from_paths([(0, 0), (0, 1), (1,)])
    shares = accepted_shares(tree, trace)
    walk = visit(tree, trace)
    assert sum(shares) == pytest.approx(walk.accepted.mean(), abs=0.02)  # the last steps of texts are cut
    assert shares[0] >= max(shares[2:])
    assert accepted_shares(Tree.chain(20), trace) is None


def test_nodes_of_a_tree_are_all_drawn(charts):
    tree = published_trees()[MEDUSA]
    nodes = rows(charts["tree"], "circle")
    assert len({(row["depth"], row["row"]) for row in nodes}) == tree.nodes
    assert [row["rank"] for row in nodes] == list(tree.ranks)


def test_chosen_trees_are_drawn_once_with_their_batch_sizes():
    sizes = {1: Tree.chain(2), 4: Tree.chain(1), 8: Tree.chain(2), 16: None, 32: Tree.chain(3), 64: Tree.chain(4)}
    _, _, *pictures = plan_charts(plan_of(*(entry(batch, tree) for batch, tree in sizes.items())))
    titles = [Figure.of(picture).title for picture in pictures]
    assert titles == ["Chosen tree, batch 1, 8", "Chosen tree, batch 4", "Chosen tree, batch 32"]


def test_the_batch_size_is_marked_from_which_speculation_does_not_pay():
    one, fast = Estimate(1.0, 1.0, 1.0), Estimate(1.5, 1.4, 1.6)
    chain = Choice("best chain", Tree.chain(1), fast, 0.01, fast)
    plain = Choice("no speculation", None, one, 0.01, one)
    proof = Proof("tokens", False, "")
    chosen = {1: chain, 2: plain, 4: chain, 8: plain, 16: plain}
    entries = [PlanEntry(b, c, None, tuple({chain, plain} - {c}), {}, proof) for b, c in chosen.items()]
    assert stops_paying(Plan(tuple(entries))) == "Speculation pays at batch 1, 4, and not from batch 8 on."
    assert marked(entries) == [8.0]
    assert stops_paying(Plan(tuple(entries[:1]))) == "Speculation pays at all of these batch sizes."
    assert stops_paying(Plan(tuple(entries[3:]))) == "Speculation pays at none of these batch sizes."
    near = Estimate(1.04, 0.98, 1.1)
    entries[2] = replace(entries[2], choice=replace(chain, speedup=near))
    within = "Speculation pays at batch 1; at batch 4 the interval contains 1, and not from batch 8 on."
    assert stops_paying(Plan(tuple(entries))) == within
    assert within in Figure.of(speedups(Plan(tuple(entries)))).conditions
    open_question = "It is open whether speculation pays at batch 4, and not from batch 8 on."
    assert stops_paying(Plan(tuple(entries[2:]))) == open_question
    assert marked(entries[:1]) == marked(entries[3:]) == []  # everywhere, and nowhere


def marked(entries):
    """Places of lines across the chart of a plan's speedups."""
    layers = speedups(Plan(tuple(entries))).to_dict()["layer"]
    return [layer["encoding"]["x"]["datum"] for layer in layers if "datum" in layer["encoding"].get("x", {})]


def test_a_bound_is_no_operation_point():
    bound = replace(choice("bound on any policy", None, 9.0), grown=Grown("bound", {}, 3.0, 3.0))
    plan = plan_of(entry(1, Tree.chain(2)))
    with_bound = replace(plan, entries=(replace(plan.entries[0], compared=(*plan.entries[0].compared, bound)),))
    assert throughput_and_latency(with_bound).to_dict() == throughput_and_latency(plan).to_dict()


@pytest.mark.parametrize("number", [SERIES, SERIES + 1])
def test_few_named_trees_are_series_and_many_have_labels(number):
    """Labels of a few stood on each other on narrow screens."""
    trace = drawn_trace([[0.6, 0.2]], [20] * 8, depth=3, rng=np.random.default_rng(0))
    named = {f"tree {size}": Tree.chain(1 + size % 3) for size in range(number)}
    chart = tau_by_nodes(trace, named=named)
    series = {row["series"] for row in rows(chart)}
    labels = [row["tree"] for row in rows(chart, "text")]
    assert (series >= {f"{name}, replayed" for name in named}) == (number <= SERIES)
    assert labels == ([] if number <= SERIES else list(named))


def test_no_operation_on_the_edge_is_beaten():
    rng = np.random.default_rng(3)
    operations = [dict(zip(("tokens_s", "tpot_ms"), rng.random(2).tolist(), strict=True)) for _ in range(60)]
    edge = pareto(operations)
    for one in operations:
        beaten = any(o["tokens_s"] > one["tokens_s"] and o["tpot_ms"] < one["tpot_ms"] for o in operations)
        assert (one in edge) == (not beaten)


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
def test_colours_stand_out_from_the_page(palette: Palette):
    back = luminance(palette.back)
    for colour, least in (*((c, 3) for c in palette.series), (palette.text, 7), (palette.muted, 4.5)):
        bright, dark = sorted((luminance(colour), back), reverse=True)
        assert (bright + 0.05) / (dark + 0.05) >= least, colour


def test_series_are_told_apart_by_shape_and_colour():
    found = [{"series": f"series {i}", "x": 1, "y": i} for i in range(len(SHAPES))]
    series, x, y = series_of(found), ChartAxis("x", "x"), ChartAxis("y", "y")
    chart = titled([*line(found, x, y, series), *points(found, x, y, series)], "all", words="")
    encoding = chart.to_dict()["layer"][-1]["encoding"]
    for channel in ("color", "shape"):
        assert len(set(encoding[channel]["scale"]["range"])) == len(SHAPES)


def test_the_pictures_of_the_readme_are_up_to_date():
    """Versions of vl-convert place labels differently: texts and numbers of marks are compared."""
    for name, picture in pictures().items():
        shown = (FOLDER / name).read_text("utf-8")
        for found in (r">([^<>\n]+)</text>", r"mark-symbol"):
            assert re.findall(found, shown) == re.findall(found, picture), f"{name}: run `make pictures`"


@pytest.fixture
def ax():
    figure, ax = plt.subplots()
    yield ax
    plt.close(figure)


def test_speedups_are_drawn_into_axes_with_their_figures(ax):
    plan = plan_of(entry(1, Tree.chain(2)), entry(4, Tree.chain(2)))
    draw_speedups(ax, plan)
    frame = plan.frame().query("speedup != 1")
    for container in ax.containers:
        own = frame[frame["name"] == container.get_label()]
        assert container[0].get_ydata() == pytest.approx(own["speedup"].to_numpy())
    assert {container.get_label() for container in ax.containers} == set(frame["name"])


def test_tau_drawn_into_axes_shows_average_and_replay(ax, trace):
    draw_tau(ax, trace, sizes=(1, 4, 16))
    averaged = next(line for line in ax.get_lines() if line.get_label() == "averaged over positions")
    replayed = next(drawn[0] for drawn in ax.containers if drawn.get_label() == "replayed along the walk")
    frontier = count_prefixes(trace, nodes=16, depth=trace.depth)
    assert averaged.get_ydata()[1] == pytest.approx(frontier.tokens(trace.depth)[4])
    assert replayed.get_ydata()[2] == pytest.approx(replay_tree(frontier.tree(16, trace.depth), trace).tau)
