"""Price of tokens on rented devices: an hour's price over an hour's tokens, and the cheapest offer."""

import json

import pytest

from simulate.whatif.scenarios import Scenario
from simulate.whatif.token_prices import Cheapest, Offer, cheapest
from tests.helpers.command_line import done
from tests.simulate.whatif.test_whatif import files, words  # noqa: F401 - a fixture
from treeopt.plans import Choice
from treeopt.statistics import Estimate
from treeopt.tree import Tree


def scenario(device, batch, *, plain_s, speedup=1.25, context=512, fits=None):
    """Where each token is sped up by so much, known to 10 %."""
    value = Estimate(speedup, 0.9 * speedup, 1.1 * speedup)
    choice = Choice("chosen tree", Tree.chain(2), value, plain_s, value)
    return Scenario(device, context, batch, choice, plain_s, 0.5, fits=fits)


def test_a_million_tokens_cost_what_the_device_does_meanwhile():
    """Of 8 sequences in steps of 20 ms: 400 tokens a second, 1.44 million an hour."""
    here = scenario("x", 8, plain_s=0.02)
    plain, planned = Offer.of(here, price=3.6, plain=True), Offer.of(here, price=3.6)
    assert plain.million == Estimate(*[pytest.approx(3.6 / 1.44)] * 3)
    assert plain.tpot_s == 0.02
    assert planned.million.value == pytest.approx(3.6 / 1.44 / 1.25)
    assert planned.tpot_s == pytest.approx(0.02 / 1.25)
    assert planned.million.high / planned.million.value == pytest.approx(1 / 0.9)
    assert planned.million.low / planned.million.value == pytest.approx(1 / 1.1)


def test_the_cheapest_is_of_what_fits_and_keeps_the_limit():
    """The fast device costs more an hour; the cheap one is slow, and its largest batch exceeds its memory."""
    found = [
        scenario("fast", 8, plain_s=0.01),
        scenario("fast", 16, plain_s=0.015, speedup=1.0),
        scenario("cheap", 8, plain_s=0.03),
        scenario("cheap", 16, plain_s=0.04, fits=False),
        scenario("cheap", 8, plain_s=0.05, context=8192),
    ]
    prices = {"fast": 4.0, "cheap": 1.0}
    free = {each.context: each for each in cheapest(found, prices)}
    assert (free[512].planned.device, free[512].planned.batch) == ("cheap", 8)
    quick = cheapest(found, prices, max_tpot_s=0.02)
    at = quick[0]
    assert (at.planned.device, at.planned.batch, at.planned.name) == ("fast", 16, "chosen tree")
    assert (at.plain.device, at.plain.batch, at.plain.name) == ("fast", 16, "no speculation")
    assert quick[1] == Cheapest(8192, 0.02, None, None)
    close = cheapest(found, prices, max_tpot_s=0.01)[0]
    assert (close.planned.batch, close.plain.batch) == (8, 8)
    assert close.planned.million.value < close.plain.million.value


def test_the_command_prices_every_cell_and_finds_the_cheapest(files):  # noqa: F811
    settings = ["--batch", "1,64", "--context", "512,8k", "--max-nodes", "5", "--price", "h100=2.5, L40S=0.8"]
    record = json.loads(done(*words(files, *settings, "--json")).stdout)
    prices = {"H100 SXM": 2.5, "L40S": 0.8}
    assert record["meta"]["settings"]["prices"] == prices
    for cell in record["cells"]:
        assert cell["million"]["value"] == pytest.approx(prices[cell["device"]] / 3600 / cell["tokens_s"] * 1e6)
    for best in record["cheapest"]:
        here = [c for c in record["cells"] if c["context"] == best["context"] and c["fits"]]
        due = min(here, key=lambda cell: cell["million"]["value"])
        assert (best["planned"]["device"], best["planned"]["batch"]) == (due["device"], due["batch"])
        assert best["planned"]["million"] == due["million"]
        assert best["planned"]["tpot_s"] == pytest.approx(due["step_s"] / due["tau"]["value"])
        plain = min(here, key=lambda cell: prices[cell["device"]] * cell["plain_s"] / cell["batch"])
        assert (best["plain"]["device"], best["plain"]["batch"]) == (plain["device"], plain["batch"])
    shown = done(*words(files, *settings, "--max-tpot-ms", "1e-3")).stdout
    assert "Context 8192: nothing takes at most 0.001 ms per token: the least is " in shown
    assert "million" not in done(*words(files, "--batch", "1", "--max-nodes", "3")).stdout


def test_without_prices_a_limit_names_the_most_tokens_per_second(files):  # noqa: F811
    settings = ["--batch", "1,4,64", "--context", "8k", "--max-nodes", "5"]
    cells = json.loads(done(*words(files, *settings, "--json")).stdout)["cells"]
    tpots = {cell["batch"]: cell["batch"] / cell["tokens_s"] for cell in cells if cell["device"] == "L40S"}
    limit_ms = 1e3 * (tpots[4] + tpots[64]) / 2
    (best,) = json.loads(done(*words(files, *settings, "--max-tpot-ms", limit_ms, "--json")).stdout)["cheapest"]
    quick = [cell for cell in cells if cell["fits"] and 1e3 * cell["batch"] / cell["tokens_s"] <= limit_ms]
    due = max(quick, key=lambda cell: cell["tokens_s"])
    assert (best["planned"]["device"], best["planned"]["batch"]) == (due["device"], due["batch"])
    assert best["planned"]["million"] is None
    shown = done(*words(files, *settings, "--max-tpot-ms", limit_ms)).stdout
    assert f"ms per token: most tokens per second on {due['device']}, batch {due['batch']}" in shown
    for close_ms, unsure in ((1.001e3 * due["batch"] / due["tokens_s"], True), (1e6, False)):
        said = " ".join(done(*words(files, *settings, "--max-tpot-ms", close_ms)).stdout.split())
        assert ("within the error of the limit" in said) == unsure
    assert "million" not in shown
    assert f"{1e3 * tpots[4]:.2f}" in shown.partition("L40S, 8192 tokens")[2]
    assert "Break-even acceptance: the acceptance of each drafted token" in shown
