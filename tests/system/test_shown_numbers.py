"""Two hundred random numbers of the whole product equal the library's own, wherever they are shown."""

import random
from dataclasses import asdict

import pytest

import treeopt
from tests.helpers.report_files import CHROMIUM, FLAGS, Parsed, written_results
from tests.helpers.shown_numbers import (
    Number,
    ShownTable,
    Tables,
    chart_numbers,
    explore_numbers,
    numbers_in,
    slider_numbers,
    table_numbers,
    terminal_numbers,
)
from treeopt.api.page.read_results import report_page
from treeopt.report.html_page import as_html
from treeopt.report.slider_model import Drafted, Setting, recompute
from treeopt.statistics.clustered_estimate import Estimate

CHECKED = 200
SURFACES = ("table", "chart", "sliders", "explore", "terminal")
# The tables of a page as a reader has them.
IN_BROWSER = """() => [...document.querySelectorAll("main table")].map((table) => [
  table.closest("section").id, table.caption.textContent.trim(),
  [...table.tBodies[0].rows].filter((row) => row.className !== "note")
    .map((row) => [...row.cells].map((cell) => cell.textContent.trim()))])"""
# Move the sliders to a place by their inputs, and read what the page then says.
MOVED = """([batch, shape, size, acceptance, cost, price]) => {
  document.querySelector(`input[name=shape][value=${shape}]`).checked = true;
  const set = (id, value) => {
    const input = document.getElementById(id);
    input.value = value;
    input.dispatchEvent(new Event("input", { bubbles: true }));
    return Number(input.value);
  };
  set("s-batch", batch);
  set("s-size", size);
  const at = [set("s-acceptance", acceptance), set("s-cost", cost), set("s-price", price)];
  const text = (id) => document.getElementById(id).textContent;
  return [at, ["speedup", "tau", "step", "tokens", "tpot", "million"].map((name) => text(`r-${name}`))];
}"""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return written_results(tmp_path_factory.mktemp("shown"))


@pytest.fixture(scope="module")
def page(results):
    return report_page(results.values(), title="A file of every kind")


@pytest.fixture(scope="module")
def html(page):
    return as_html(page)


def titles_of(page):
    """Question and title of each chart by its name on the page."""
    return {
        f"chart-{place}-{number}": (finding.question, chart.title)
        for place, finding in enumerate(page.findings)
        for number, chart in enumerate(finding.charts)
    }


@pytest.fixture(scope="module")
def pools(page, html, results):
    """Every number by the surface that shows it."""
    trace, profile, parsed = results["trace"], results["profile"], Parsed(html)
    data = parsed.embedded("slider-data")
    return {
        "table": list(table_numbers(Tables(html).found, results)),
        "chart": list(chart_numbers(parsed.embedded("specs"), titles_of(page), results)),
        "sliders": list(slider_numbers(data, treeopt.load_trace(trace), treeopt.load_profile(profile))),
        "explore": list(explore_numbers(trace, profile)),
        "terminal": list(terminal_numbers(trace, profile)),
    }


@pytest.mark.slow
def test_two_hundred_random_numbers_are_the_library_s(pools):
    assert {name: len(pool) > CHECKED / 10 for name, pool in pools.items()} == dict.fromkeys(SURFACES, True)
    rng = random.Random(33)
    chosen = [rng.choice(pools[rng.choice(SURFACES)]) for _ in range(CHECKED)]
    assert [number for number in chosen if not number.equal] == []


@pytest.mark.slow
@pytest.mark.parametrize("surface", SURFACES)
def test_a_wrong_number_is_found(pools, surface):
    for number in random.Random(4).sample(pools[surface], 20):
        step = 2.1 * number.error or 1e-6 * max(abs(number.own), 1.0)
        assert not Number(number.where, number.shown, number.own + step, number.error).equal


@pytest.mark.browser
def test_two_hundred_random_numbers_of_the_open_page_are_the_library_s(page, html, results, tmp_path):
    """The same from the document in Chromium, with sliders at random places."""
    from playwright.sync_api import sync_playwright

    (tmp_path / "page.html").write_text(html, "utf-8")
    rng = random.Random(34)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        view = chromium.new_page()
        view.goto((tmp_path / "page.html").as_uri())
        tables = [ShownTable(*table) for table in view.evaluate(IN_BROWSER)]
        specs = view.evaluate("JSON.parse(document.getElementById('specs').textContent)")
        moved = [
            number
            for _ in range(CHECKED // 10)
            for number in at_random_place(view, Parsed(html).embedded("slider-data"), rng)
        ]
        chromium.close()
    shown = [list(table_numbers(tables, results)), list(chart_numbers(specs, titles_of(page), results)), moved]
    chosen = [rng.choice(rng.choice(shown)) for _ in range(CHECKED)]
    assert [number for number in chosen if not number.equal] == []


def at_random_place(view, data, rng):
    """Move the sliders, and yield what the page says with the library's own."""
    batches = sorted(map(int, data["plain_s"]))
    shape = rng.choice(["chain", "tree"])
    trees = [tree for tree in data["trees"] if tree["shape"] == shape]
    place, size = rng.randrange(len(batches)), rng.randrange(len(trees))
    scales = [rng.uniform(0.5, 1.5), rng.uniform(0.1, 3), rng.uniform(0.1, 20)]
    at, texts = view.evaluate(MOVED, [place, shape, size, *(f"{scale:.2f}" for scale in scales)])
    batch, tree = batches[place], trees[size]
    if str(batch) not in tree["step_s"]:
        assert texts[0] == "not in the profile"
        return
    whole = {name: {int(key): value for key, value in tree[name].items()} for name in ("step_s", "error")}
    drafted = Drafted(**{**tree, **whole, "tau": Estimate(**tree["tau"])})
    own = recompute(drafted, data["plain_s"][str(batch)], Setting(batch, *at))
    where = f"sliders at batch {batch}, {tree['name']}, {at}"
    exact = [
        asdict(own.speedup).values(), asdict(own.tau).values(), [1e3 * own.step_s], [own.tokens_s], [1e3 * own.tpot_s],
        [own.million],
    ]  # fmt: skip
    for text, values in zip(texts, exact, strict=True):
        yield from numbers_in(where, text, list(values))
