"""How often intervals hold the truth or are doubted, over the processes of `make coverage`, with fewer samples."""

import numpy as np
import pytest

from tests.benchmarks.bench_coverage import PROCESSES, coverage, worst_domain_bias

NAMES = [process.name for process in PROCESSES]


def test_intervals_that_cannot_be_trusted_are_doubted():
    """8 requests: doubted, whatever they are. 120 alike: trusted, and 150 samples of them cover within 4 deviations."""
    by_name = dict(zip(NAMES, PROCESSES, strict=True))
    rng = np.random.default_rng(0)
    few = coverage(by_name["lognormal lengths, tau varies"], 8, samples=150, rng=rng)
    assert few["warned"] == 1
    assert few["covered"] > few["linearised"]
    many = coverage(by_name["equal lengths, tau varies"], 120, samples=150, rng=rng)
    assert many["warned"] < 0.05
    assert many["covered"] == many["linearised"] > 0.87


@pytest.mark.slow
@pytest.mark.parametrize("process", PROCESSES, ids=NAMES)
@pytest.mark.parametrize("requests", [5, 30, 60, 125, 250])
def test_intervals_hold_or_are_doubted(process, requests):
    """400 samples of a share of 0.92 have a deviation of 1.4 %: 3.5 of them below, at 75 seeds fixed."""
    found = coverage(process, requests, samples=400, rng=np.random.default_rng(requests))
    assert found["covered_or_warned"] > 0.92 - 3.5 * 0.014


@pytest.mark.slow
def test_the_worst_domain_is_hardly_biased():
    found = worst_domain_bias(10, 10, samples=200, rng=np.random.default_rng(0))
    assert found["chosen_on_the_same"] < -0.05
    assert abs(found["chosen_on_others"]) < 5 * found["error"] + 0.01  # a ratio of sums over 10 requests
