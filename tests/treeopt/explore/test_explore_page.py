"""The page of `treeopt explore` in headless Chromium: what it shows, changes, hands out and asks for."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import treeopt
from tests.helpers.browser import Watched, overflow, started, watched
from treeopt.engines import ENGINES
from treeopt.results.words import interval

pytestmark = pytest.mark.browser

ROOT = Path(__file__).parents[3]
TRACES = ("data/traces/medusa-t0.npz", "data/traces/eagle-t0.npz")
PROFILES = ("data/profiles/medusa-cpu.json", "data/profiles/eagle-cpu.json")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of a server of two traces and two profiles."""
    with served(TRACES, PROFILES) as (_, address):
        yield address


@contextmanager
def served(traces: Sequence[str], profiles: Sequence[str]) -> Iterator[tuple[Any, str]]:
    """Start a server of these files; yield its process and its address."""
    files = [word for path in traces for word in ("--trace", path)]
    files += [word for path in profiles for word in ("--profile", path)]
    words = [sys.executable, "-m", "treeopt", "explore", *files, "--no-browser"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT) as server:
        assert server.stdout is not None
        yield server, server.stdout.readline().split(": ")[1].split(" ")[0]
        server.send_signal(signal.SIGTERM)
        server.wait(timeout=60)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with started() as browser:
        yield browser


@contextmanager
def opened(browser: Any, address: str, **look: Any) -> Iterator[Watched]:
    """Open the page and wait for its first answer."""
    with watched(browser, **look) as seen:
        seen.page.goto(address)
        seen.page.get_by_text("Batch 1: ").first.wait_for()
        settle(seen.page)
        yield seen


def settle(page: Any) -> None:
    """Wait until nothing is searched or drawn: no part of the page is out of date."""
    page.wait_for_timeout(400)
    page.wait_for_function("!document.querySelector('.searching, .marimo-output-stale')")
    page.wait_for_timeout(400)


def headline(page: Any) -> str:
    return str(page.locator(".headline").inner_text()).replace("\n", " ")


def searched(**settings: Any) -> treeopt.Plan:
    settings = {"batch": (1, 4)} | settings
    return treeopt.search(ROOT / TRACES[0], ROOT / PROFILES[0], **settings)


def in_table(page: Any, name: str) -> list[list[str]]:
    rows = page.get_by_role("region", name=name).locator("tbody tr")
    return [rows.nth(i).locator("td").all_inner_texts() for i in range(rows.count())]


def test_the_page_shows_the_library_s_numbers_and_asks_no_other_host(browser, address):
    plan = searched()
    with opened(browser, address) as seen:
        page = seen.page
        for batch in (1, 4):
            page.get_by_role("radio", name=str(batch), exact=True).click()
            page.get_by_text(f"Configurations at batch {batch}").wait_for()
            settle(page)
            entry = plan.entry(batch)
            assert interval(entry.choice.speedup) in headline(page)
            rows = in_table(page, f"Configurations at batch {batch}")
            for row, choice in zip(rows, (entry.choice, *entry.compared), strict=True):
                assert row[0] == choice.name
                assert row[4:6] == [f"{choice.step_s * 1e3:.2f}", f"{choice.tokens_s(batch):,.0f}"]
                assert row[3] == ("1" if choice.plain else interval(choice.tau))
        page.locator(".figures svg.marks").nth(3).wait_for()
        assert page.locator(".figures figure").count() == 4
        assert seen.clean("127.0.0.1", "data", "blob")


def test_controls_change_the_answer(browser, address):
    with opened(browser, address) as seen:
        page = seen.page
        before = headline(page)
        page.get_by_label("Trace").select_option("eagle-t0.npz")
        page.get_by_text("eagle as drafter").first.wait_for()
        settle(page)
        assert page.get_by_label("Profile").input_value().startswith("eagle-cpu.json")
        assert headline(page) != before
        batches, profile = page.get_by_role("textbox", name="Batch sizes"), page.get_by_label("Profile")
        batches.fill("1")
        batches.press("Enter")
        profile.select_option("medusa-cpu.json")
        settle(page)
        page.get_by_label("Step times").select_option("from a data sheet")
        page.get_by_label("Device", exact=True).wait_for()
        settle(page)
        page.get_by_text("predicted for H100 SXM from its data sheet").first.wait_for()
        page.get_by_label("Step times").select_option("measured")
        profile.wait_for()
        assert (batches.input_value(), profile.input_value().split("-")[0]) == ("1", "medusa")
        assert seen.clean("127.0.0.1", "data", "blob")


def test_the_keyboard_is_enough(browser, address):
    with opened(browser, address) as seen:
        page = seen.page
        slider = page.get_by_role("slider", name="Nodes, at most")
        slider.focus()
        page.keyboard.press("Home")
        page.get_by_role("heading", name="a chain of 1").wait_for()
        settle(page)
        assert interval(searched(max_nodes=1).entry(1).choice.speedup) in headline(page)
        page.get_by_role("textbox", name="Batch sizes").focus()
        page.keyboard.press("Control+a")
        page.keyboard.type("4")
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="Batch 4:").wait_for()
        settle(page)
        assert interval(searched(batch=4, max_nodes=1).entry(4).choice.speedup) in headline(page)
        assert seen.clean("127.0.0.1", "data", "blob")


def test_an_error_is_one_line_and_the_page_works_on(browser, address):
    with opened(browser, address) as seen:
        page = seen.page
        field = page.get_by_role("textbox", name="Batch sizes")
        for text, line in (
            ("1, x", "batch sizes must be whole numbers such as 1, 4, 16, got '1, x'"),
            ("999", "batch 999 "),
        ):
            field.fill(text)
            field.press("Enter")
            alert = page.get_by_role("alert")
            alert.get_by_text(line).wait_for()
            settle(page)
            assert alert.count() == 1
            assert "\n" not in alert.inner_text()
            assert "Traceback" not in page.inner_text("body")
            assert page.locator(".headline").count() == 0
        for text, absent in (("1, 999", "999"), ("1", None)):
            field.fill(text)
            field.press("Enter")
            page.get_by_text("Batch 1: ").first.wait_for()
            settle(page)
            assert page.get_by_role("alert").count() == 0
            if absent is not None:
                page.get_by_text(f"Batch {absent} lies outside").first.wait_for()
        assert seen.clean("127.0.0.1", "data", "blob")


@pytest.mark.parametrize("width", [360, 390, 1280, 1920])
@pytest.mark.parametrize("dark", [False, True])
def test_nothing_is_wider_than_the_window(browser, address, width, dark):
    with opened(browser, address, width=width, dark=dark) as seen:
        assert overflow(seen.page) == 0
        wide = seen.page.evaluate(
            "[...document.querySelectorAll('#App *')].filter(e => !e.closest('[role=region], pre, svg') && "
            "e.getBoundingClientRect().right > innerWidth + 1).map(e => e.tagName + '.' + e.className).slice(0, 5)"
        )
        assert wide == []
        back = seen.page.evaluate("getComputedStyle(document.querySelector('#App')).backgroundColor")
        assert (sum(map(float, re.findall(r"[\d.]+", back))) < 1.5) == dark  # parts of color(srgb ...)


def test_the_method_comes_from_the_drafter_and_labels_name_options(browser, address):
    with opened(browser, address) as seen:
        page = seen.page
        page.get_by_label("Trace").select_option("eagle-t0.npz")
        page.get_by_text("eagle as drafter").first.wait_for()
        settle(page)
        page.get_by_label("Engine").select_option("vllm")
        page.get_by_label("Drafting method").wait_for()
        settle(page)
        assert page.get_by_label("Drafting method").input_value().startswith("eagle")
        assert "--model" in page.get_by_role("alert").inner_text()
        page.get_by_role("textbox", name="Checkpoint of the drafter").fill("heads")
        page.keyboard.press("Enter")
        page.get_by_text('"model": "heads"').first.wait_for()
        assert seen.clean("127.0.0.1", "data", "blob")


def test_the_last_answer_is_hidden_while_a_search_runs(browser, address):
    with opened(browser, address) as seen:
        page = seen.page
        page.evaluate("""() => {
          window.shown = [];
          new MutationObserver(() => {
            const answer = document.querySelector(".figures");
            if (document.querySelector(".searching") && answer) shown.push(getComputedStyle(answer).visibility);
          }).observe(document.body, { childList: true, subtree: true, characterData: true });
        }""")
        page.get_by_label("Engine").select_option("sglang")
        page.wait_for_function("shown.length > 0")
        settle(page)
        assert set(page.evaluate("shown")) == {"hidden"}
        assert page.locator(".headline").is_visible()
        assert seen.clean("127.0.0.1", "data", "blob")


def test_prices_stand_beside_the_answer(browser, address):
    with opened(browser, address) as seen:
        page = seen.page
        page.get_by_role("textbox", name="Price of a device per hour").fill("2.5")
        page.keyboard.press("Enter")
        page.get_by_text("A million tokens cost least").wait_for()
        entry = searched().entry(4)
        row = page.get_by_role("region", name="Price of a million tokens").locator("tbody tr").nth(1)
        million = 2.5 * 1e6 / (3600 * entry.choice.tokens_s(4))
        assert row.locator("td").nth(2).inner_text().startswith(f"{million:.3g} [")
        assert seen.clean("127.0.0.1", "data", "blob")


def test_the_page_says_that_the_server_has_stopped(browser):
    with served(TRACES[:1], PROFILES[:1]) as (server, address), opened(browser, address) as seen:
        server.send_signal(signal.SIGTERM)
        server.wait(timeout=60)
        seen.page.get_by_text("The server has stopped.").wait_for()
        assert seen.page.locator(".headline").is_visible()


def downloaded(page: Any, name: str) -> tuple[str, str]:
    with page.expect_download() as download:
        page.get_by_role("link", name=name).or_(page.get_by_role("button", name=name)).first.click()
    file = download.value
    return file.suggested_filename, Path(file.path()).read_text("utf-8")


def test_downloads_are_the_library_s_files(browser, address, tmp_path):
    with opened(browser, address) as seen:
        page = seen.page
        page.get_by_label("Engine").select_option("lmdeploy")
        page.get_by_label("Drafting method").wait_for()
        settle(page)
        name, text = downloaded(page, "Plan")
        plan = searched(engine="lmdeploy")
        treeopt.save_plan(plan, tmp_path / "plan.json")
        own, written = json.loads(text), json.loads((tmp_path / "plan.json").read_text("utf-8"))
        for record in (own, written):
            record["meta"].pop("provenance")
        assert (name, own) == ("plan.json", written)

        page.get_by_role("combobox", name="Batch sizes").select_option("1")
        settle(page)
        page.get_by_label("Drafting method").select_option("eagle3")
        settle(page)
        name, text = downloaded(page, "Configuration for lmdeploy")
        assert text == ENGINES["lmdeploy"].export(plan, method="eagle3", batch=1).text + "\n"

        name, text = downloaded(page, "Report")
        assert name == "report.html"
        assert interval(plan.entry(1).choice.speedup) in text
        assert seen.clean("127.0.0.1", "data", "blob")
