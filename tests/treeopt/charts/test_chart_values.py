"""Charts as values: columns, series, limits; both renderers show all of a chart's marks."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from simulate.profiles.profile import load_profile
from tests.helpers.pictures import FOLDER, pictures
from tests.helpers.small_plans import choice, entry, plan_of
from tests.helpers.strategies import drawn_trace
from treeopt.api.page.chart_inputs import profile_chart
from treeopt.charts.acceptance_charts import acceptance_by_depth, acceptance_by_domain
from treeopt.charts.agreement_charts import agreement
from treeopt.charts.chart import Axis, Chart, Layer, columns, decimal, decimal_ticks
from treeopt.charts.latency_charts import Operation, pareto, throughput_and_latency
from treeopt.charts.matplotlib_axes import as_svg
from treeopt.charts.page_charts import accepted_shares
from treeopt.charts.palette import DARK, LIGHT, Palette
from treeopt.charts.roofline_chart import Roof, roofline
from treeopt.charts.server_charts import load_over_time
from treeopt.charts.speedup_charts import speedups, stops_paying
from treeopt.charts.tau_chart import SERIES, tau_by_nodes
from treeopt.charts.tree_chart import tree_picture
from treeopt.charts.vega_lite import as_vega_lite
from treeopt.plans.plan import Choice, Grown, Plan, PlanEntry, Proof
from treeopt.replay.static_tree import replay_tree, visit
from treeopt.statistics.clustered_estimate import Estimate, ratio
from treeopt.storage.atomic_files import shipped
from treeopt.traces.trace import load_trace
from treeopt.tree import Tree
from treeopt.tree_files.paper_trees import MEDUSA, published_trees


@pytest.fixture(scope="module")
def trace():
    return load_trace(shipped("traces/medusa-t0.npz"))


@pytest.fixture(scope="module")
def charts(trace):
    record = json.loads(shipped("validations/medusa-cpu.json").read_text("utf-8"))
    roofs = [Roof("X", 1e15, 3e12, [("batch 1", 4.0, 1e12)])]
    return {
        "tree": tree_picture(published_trees()[MEDUSA]),
        "agreement": agreement(record),
        "acceptance": acceptance_by_depth(trace),
        "domains": acceptance_by_domain(trace, Tree.chain(2), name="A chain of 2"),
        "profile": profile_chart(load_profile(shipped("profiles/medusa-cpu.json"))),
        "roofline": roofline(roofs),
        "load": load_over_time({"rows": 2, "ways": [{"name": "tree", "first_day": DAY}]}),
    }


DAY = {"times_s": [0.0, 1.0, 2.0], "running": [0, 2, 1], "waiting": [0, 1, 0]}
NAMES = ("tree", "agreement", "acceptance", "domains", "profile", "roofline", "load")


@pytest.mark.parametrize("name", NAMES)
def test_every_chart_is_a_vega_lite_specification_that_compiles(charts, name):
    altair = pytest.importorskip("altair", reason="altair validates specifications")
    import vl_convert

    for width in ("container", 600):
        spec = as_vega_lite(charts[name], width=width)
        altair.Chart.from_dict(spec)
        assert vl_convert.vegalite_to_vega(spec)["marks"]


@pytest.mark.parametrize("name", NAMES)
def test_every_chart_says_what_it_shows_and_under_which_conditions(charts, name):
    chart = charts[name]
    assert chart.title
    assert len(chart.alt) > 20
    assert all(text.endswith(".") for text in chart.conditions)
    assert chart.conditions
    spec, svg = as_vega_lite(chart), as_svg(chart, title=True)
    assert spec["description"] == chart.alt
    assert svg == as_svg(chart, title=True)
    assert chart.title in svg


def test_predicted_and_measured_values_are_those_of_the_record(charts):
    record = json.loads(shipped("validations/medusa-cpu.json").read_text("utf-8"))
    points = {
        (x, y) for layer in charts["agreement"].layers if layer.series for x, y in zip(layer.x, layer.y, strict=True)
    }
    assert points == {(c["predicted"]["speedup"]["value"], c["measured"]["speedup"]["value"]) for c in record["cells"]}


def test_acceptance_counts_candidates(trace, charts):
    first = next(layer for layer in charts["acceptance"].layers if layer.series == "best candidate")
    known = trace.rank[:, 0] != -2
    assert first.y[0] == pytest.approx((trace.rank[known, 0] == 0).mean())


def test_domains_are_ratios_of_their_own_requests(trace, charts):
    chart = charts["domains"]
    counts = replay_tree(Tree.chain(2), trace)
    for name, value in zip(chart.y.names, chart.layers[1].x, strict=True):
        chosen = trace.domain == trace.domain_names.index(name)
        assert value == pytest.approx(ratio(counts.committed[chosen], counts.steps[chosen]).value)


def test_points_left_out_are_predicted_by_the_others(charts):
    profile = load_profile(shipped("profiles/medusa-cpu.json"))
    hollow = next(layer for layer in charts["profile"].layers if layer.dashed)
    assert len(hollow) == sum(len(times.rest) - 2 for times in profile.batches)
    measured = {}
    for times in profile.batches:
        for tokens, seconds in times.rest:
            measured.setdefault(tokens, []).append(seconds * 1e3)
    errors = [min(abs(np.log(y / known)) for known in measured[x]) for x, y in zip(hollow.x, hollow.y, strict=True)]
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
    chart = charts["tree"]
    assert {layer.mark: len(layer) for layer in chart.layers}["edges"] == tree.nodes
    rows = [(x, y) for x, y in zip(chart.layers[2].x, chart.layers[2].y, strict=True)]
    assert len(set(rows)) == len(rows) == tree.nodes
    assert chart.layers[3].text == tuple(map(str, tree.ranks))


def test_the_batch_size_is_marked_from_which_speculation_does_not_pay():
    one, fast = Estimate(1.0, 1.0, 1.0), Estimate(1.5, 1.4, 1.6)
    chain = Choice("best chain", Tree.chain(1), fast, 0.01, fast)
    plain = Choice("no speculation", None, one, 0.01, one)
    proof = Proof("tokens", False, "")
    chosen = {1: chain, 2: plain, 4: chain, 8: plain, 16: plain}
    entries = [PlanEntry(b, c, None, tuple({chain, plain} - {c}), {}, proof) for b, c in chosen.items()]
    assert stops_paying(Plan(tuple(entries))) == "Speculation pays at batch 1, 4, and not from batch 8 on."
    assert Layer("rule", x=(8.0,)) in speedups(Plan(tuple(entries))).layers
    assert stops_paying(Plan(tuple(entries[:1]))) == "Speculation pays at all of these batch sizes."
    assert stops_paying(Plan(tuple(entries[3:]))) == "Speculation pays at none of these batch sizes."
    near = Estimate(1.04, 0.98, 1.1)
    entries[2] = replace(entries[2], choice=replace(chain, speedup=near))
    within = "Speculation pays at batch 1; at batch 4 the interval contains 1, and not from batch 8 on."
    assert stops_paying(Plan(tuple(entries))) == within
    assert within in speedups(Plan(tuple(entries))).conditions
    open_question = "It is open whether speculation pays at batch 4, and not from batch 8 on."
    assert stops_paying(Plan(tuple(entries[2:]))) == open_question
    for part in (entries[:1], entries[3:]):  # everywhere, and nowhere
        assert not any(layer.mark == "rule" and layer.x for layer in speedups(Plan(tuple(part))).layers)


def test_a_bound_is_no_operation_point():
    bound = replace(choice("bound on any policy", None, 9.0), grown=Grown("bound", {}, 3.0, 3.0))
    plan = plan_of(entry(1, Tree.chain(2)))
    with_bound = replace(plan, entries=(replace(plan.entries[0], compared=(*plan.entries[0].compared, bound)),))
    assert throughput_and_latency(with_bound) == throughput_and_latency(plan)


@pytest.mark.parametrize("number", [2, 5])
def test_few_named_trees_are_series_and_many_have_labels(number):
    """Labels of a few stood on each other on narrow screens."""
    trace = drawn_trace([[0.6, 0.2]], [20] * 8, depth=3, rng=np.random.default_rng(0))
    named = {f"tree {size}": Tree.chain(1 + size % 3) for size in range(number)}
    chart = tau_by_nodes(trace, named=named)
    labels = [layer.text for layer in chart.layers if layer.mark == "labels"]
    if number <= SERIES:
        assert {f"{name}, replayed" for name in named} <= set(chart.series)
        assert labels == []
    else:
        assert labels == [tuple(named)]


def test_a_server_of_an_earlier_version_has_no_load():
    assert load_over_time({"rows": 2, "ways": [{"name": "tree"}]}) is None


def test_no_operation_on_the_edge_is_beaten():
    rng = np.random.default_rng(3)
    operations = [Operation(str(i), 1, *rng.random(2).tolist()) for i in range(60)]
    edge = pareto(operations)
    for one in operations:
        beaten = any(o.tokens_s > one.tokens_s and o.tpot_ms < one.tpot_ms for o in operations)
        assert (one in edge) == (not beaten)


def test_columns_must_have_one_length():
    with pytest.raises(ValueError, match="column low must have 2 values, got 1"):
        Layer("intervals", (1.0, 2.0), (1.0, 2.0), low=(1.0,))


def test_numbers_must_be_finite():
    with pytest.raises(ValueError, match="column y must hold finite numbers"):
        Layer("points", (1.0,), (float("nan"),))


def test_ends_that_are_infinite_are_not_drawn():
    assert columns([Estimate(2.0, -np.inf, np.inf)]) == ((2.0,), (2.0,), (2.0,))


def test_ticks_are_decimal():
    assert decimal_ticks(0.03, 0.9) == (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
    assert decimal_ticks(1, 1e7)[1] == 10.0
    assert [decimal(value) for value in (1e-5, 123456.0, 0.1 + 0.2)] == ["0.00001", "123,456", "0.3"]


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
    layers = tuple(Layer("points", (1.0,), (float(i),), f"series {i}") for i in range(6))
    chart = Chart("all", Axis("x"), Axis("y"), layers)
    points = [layer["mark"] for layer in as_vega_lite(chart)["layer"]]
    assert len({(point["shape"], point["stroke"]) for point in points}) == 6
    assert len({point["shape"] for point in points}) == 6


def test_the_pictures_of_the_readme_are_up_to_date():
    """Versions of matplotlib place labels differently: texts and numbers of marks are compared."""
    for name, picture in pictures().items():
        shown = (FOLDER / name).read_text("utf-8")
        for found in (r">([^<>\n]+)</text>", r"<use "):
            assert re.findall(found, shown) == re.findall(found, picture), f"{name}: run `make pictures`"
