"""The page in headless Chromium: it fits every width, needs no network, and computes what the library does."""

import random
from contextlib import ExitStack
from dataclasses import asdict

import pytest

from tests.helpers.browser import started, watched
from tests.helpers.report_files import written_results
from tests.helpers.slider_formulas import Setting, recompute
from treeopt.api.report_files import report_page
from treeopt.report.html_page import as_html
from treeopt.report.slider_model import Drafted
from treeopt.statistics import Estimate

pytestmark = pytest.mark.browser
WIDTHS = (360, 390, 768, 1280, 1920)
SCHEMES = ("light", "dark")
OVERFLOWING = """() => [...document.querySelectorAll("body *")].filter((element) => {
  const box = element.getBoundingClientRect();
  return box.width > 0 && !element.closest(".scroll, .skip") && box.right > document.documentElement.clientWidth + 1;
}).map((element) => element.outerHTML.slice(0, 80))"""
WRAPPED = """() => [...document.querySelectorAll("td, th[scope=row], .figures, dd[id], output")].filter((element) => {
  const range = document.createRange();
  range.selectNodeContents(element);
  const boxes = [...range.getClientRects()].filter((box) => box.width > 1);
  const tops = new Set(boxes.map((box) => Math.round(box.top / 8)));
  return tops.size > 1 && !element.closest("tr.note");
}).map((element) => element.textContent)"""
CLIPPED = """() => [...document.querySelectorAll(".live svg text")].filter((text) => {
  const inner = text.getBoundingClientRect();
  const outer = text.closest("svg").getBoundingClientRect();
  return text.textContent && (inner.left < outer.left - 2 || inner.right > outer.right + 2
    || inner.top < outer.top - 2 || inner.bottom > outer.bottom + 2);
}).map((text) => text.textContent)"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The page of a file of every kind, and the values that it was made from."""
    folder = tmp_path_factory.mktemp("page")
    page = report_page(written_results(folder).values(), title="A file of every kind")
    (folder / "page.html").write_text(as_html(page), encoding="utf-8")
    return page, folder / "page.html"


@pytest.fixture(scope="module")
def browser():
    with started() as browser:
        yield browser


@pytest.fixture
def opened(browser, made):
    """A function that opens the page; afterwards, no page may have complained or asked for anything."""
    pages = []
    with ExitStack() as stack:

        def opened(width=1280, scheme="light", before="", **more):
            look = {"width": width, "dark": scheme == "dark", "levels": ("error", "warning")}
            pages.append(stack.enter_context(watched(browser, **look, **more)))
            view = pages[-1].page
            view.add_init_script(before)
            view.goto(made[1].as_uri())
            view.bring_to_front()  # charts wait for frames, which pages behind another one may not get
            return view

        yield opened
    assert all(seen.clean("file") for seen in pages)


def all_live(view):
    """Scroll to every chart, so that each of them is live."""
    for plot in view.query_selector_all(".plot"):
        plot.scroll_into_view_if_needed()
        view.wait_for_function("plot => plot.querySelector('.live').dataset.ready", arg=plot)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_overflows_is_clipped_or_wraps(opened, width, scheme):
    view = opened(width, scheme)
    all_live(view)
    assert view.evaluate("document.documentElement.scrollWidth") == width
    assert view.evaluate(OVERFLOWING) == []
    assert view.evaluate(WRAPPED) == []
    assert view.evaluate(CLIPPED) == []


@pytest.mark.parametrize("scheme", SCHEMES)
def test_accessibility_rules_find_nothing_serious(opened, scheme):
    from axe_playwright_python.sync_playwright import Axe

    view = opened(1280, scheme)
    all_live(view)
    found = Axe().run(view).response["violations"]
    serious = [(v["id"], v["nodes"][0]["html"][:160]) for v in found if v["impact"] in ("serious", "critical")]
    assert serious == []


def test_sliders_equal_the_library_at_200_places(opened, made):
    view, rng, data = opened(), random.Random(7), made[0].sliders
    places = []
    for _ in range(200):
        tree = rng.choice(data["trees"])
        batch = int(rng.choice(list(tree["step_s"])))
        scales = {"acceptance": rng.uniform(0.5, 1.5), "cost": rng.uniform(0.1, 3), "price": rng.uniform(0.1, 20)}
        places.append((data["trees"].index(tree), batch, scales))
    script = """(places) => places.map(([tree, batch, scales]) =>
      treeoptSliders.recompute(treeoptSliders.data.trees[tree], batch, scales))"""
    for (tree, batch, scales), shown in zip(places, view.evaluate(script, places), strict=True):
        record = data["trees"][tree]
        drafted = Drafted(**{**record, "tau": Estimate(**record["tau"])})
        drafted = Drafted(
            **{**vars(drafted), "step_s": whole_keys(record["step_s"]), "error": whole_keys(record["error"])}
        )
        expected = recompute(drafted, data["plain_s"][str(batch)], Setting(batch, **scales))
        for name, value in asdict(expected).items():
            for end, figure in value.items() if isinstance(value, dict) else [("", value)]:
                got = shown[name][end] if end else shown[name]
                assert got == pytest.approx(figure, rel=1e-9), (name, end)


def whole_keys(by_batch):
    return {int(batch): value for batch, value in by_batch.items()}


def test_sliders_move_by_keyboard_and_show_what_they_compute(opened):
    view = opened()
    before = view.inner_text("#r-speedup")
    view.focus("#s-acceptance")
    for _ in range(20):
        view.keyboard.press("ArrowRight")
    assert view.inner_text("#o-acceptance") == "× 1.20"
    assert view.inner_text("#r-speedup") != before
    view.focus("#s-size")
    view.keyboard.press("End")
    longest = view.inner_text("#o-size")
    other = "chain" if view.is_checked("input[value=tree]") else "tree"
    view.check(f"input[value={other}]")
    assert view.inner_text("#o-size") != longest
    view.click("#sliders-reset")
    assert view.inner_text("#r-speedup") == before


def test_tables_sort_by_mouse_and_keyboard(opened):
    view = opened()
    table = view.locator("#plan table").first
    heading = table.locator("thead th", has_text="tokens/s")
    values = "table => [...table.tBodies[0].rows].map((row) => Number(row.cells[5].dataset.value))"
    heading.locator("button").click()
    rising = table.evaluate(values)
    assert rising == sorted(rising)
    assert heading.get_attribute("aria-sort") == "ascending"
    heading.locator("button").focus()
    view.keyboard.press("Enter")
    assert table.evaluate(values) == sorted(rising, reverse=True)
    assert heading.get_attribute("aria-sort") == "descending"


def test_the_theme_changes_by_keyboard(opened):
    view = opened(scheme="light")
    colour = "getComputedStyle(document.body).backgroundColor"
    light = view.evaluate(colour)
    view.focus("#theme")
    view.keyboard.press("Enter")
    view.keyboard.press("Enter")
    assert view.inner_text("#theme") == "Theme: dark"
    assert view.evaluate(colour) != light
    view.keyboard.press("Tab")
    view.keyboard.press("Shift+Tab")
    assert view.evaluate("document.activeElement.id") == "theme"


def test_a_reader_skips_to_the_summary(opened):
    view = opened()
    view.keyboard.press("Tab")
    assert view.evaluate("document.activeElement.className") == "skip"
    view.keyboard.press("Enter")
    assert view.evaluate("document.activeElement.id") == "summary"


def test_a_mark_shows_its_values(opened):
    view = opened()
    plot = view.locator("#plan .plot").first
    plot.scroll_into_view_if_needed()
    plot.locator(".live[data-ready]").wait_for()
    plot.locator(".live svg .mark-symbol.role-mark path").last.hover()
    view.wait_for_selector("#vg-tooltip-element.visible")
    told = view.inner_text("#vg-tooltip-element")
    assert "speedup over plain decoding" in told
    assert "configuration" in told


def test_browsers_that_cannot_unpack_vega_keep_the_pictures(opened):
    view = opened(before="delete window.DecompressionStream")
    view.locator("#plan .plot").first.scroll_into_view_if_needed()
    assert view.locator("#plan .still svg").first.is_visible()
    assert view.evaluate("window.vegaEmbed") is None


def test_without_scripts_and_in_print_pictures_take_the_place_of_charts(opened):
    view = opened(java_script_enabled=False)
    assert view.locator(".still svg").first.is_visible()
    assert not view.locator(".live").first.is_visible()
    live = opened()
    all_live(live)
    live.emulate_media(media="print")
    assert live.locator(".still svg").first.is_visible()
    assert not live.locator(".live").first.is_visible()
