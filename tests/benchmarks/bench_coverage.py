"""How often the 95 % interval of tau holds the true tau, over processes that requests may come from.

Run as `python -m tests.benchmarks.bench_coverage --output data/benchmarks/coverage.json`. Requests are drawn from a
process whose tau, E tokens / E steps, is known from a large draw. Each sample of requests gets an interval by `ratio`,
and the warnings that `search` and `trace info` print for it. A sample is answered well if its interval holds tau, or if
the warning says that it cannot be trusted. `linearised` is the interval that treeopt had before: Student's t with R − 1
degrees of freedom.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulate.profiles.profile import NORMAL_95, BatchTimes, Profile
from simulate.runs.run_costs import PromptSettings
from simulate.runs.server_figures import simulated_server
from simulate.runs.server_load import Load
from simulate.runs.simulate_settings import SimulateSettings
from tests.helpers.strategies import with_lengths
from treeopt.comparison.compare_drafters import compare
from treeopt.planning.search_warnings import doubts
from treeopt.replay.objective import WORST_DOMAIN
from treeopt.replay.static_tree import replay_tree
from treeopt.statistics import _influence, _linearised, group_factor, quantile, ratio
from treeopt.storage.provenance import this_run
from treeopt.storage.user_files import write_text
from treeopt.traces.trace import Trace
from treeopt.tree import Tree

SCHEMA = "treeopt.coverage/1"
SAMPLES = 2000
REQUESTS = (5, 8, 15, 30, 60, 120, 300)
LARGE = 1_000_000  # requests that the true tau is computed from

Floats = NDArray[np.float64]
Generator = np.random.Generator


@dataclass(frozen=True)
class Process:
    """A law of requests.

    Attributes:
        name: a few words for the table.
        tokens: tokens of each of n requests.
        tau: tokens per step of requests of these lengths.
        groups: number of groups that tau is drawn for; 0: requests are independent.
        uneven: True if group k holds a share of 1 / k of the requests.
    """

    name: str
    tokens: Callable[[Generator, int], Floats]
    tau: Callable[[Generator, Floats], Floats]
    groups: int = 0
    uneven: bool = False

    def draw(self, rng: Generator, requests: int) -> tuple[Floats, Floats, NDArray[np.int64] | None]:
        """Tokens, steps and groups of requests; each step commits its request's tau tokens, give or take 0.8 tau."""
        tokens, group = self.tokens(rng, requests), None
        if self.groups:
            shares = 1 / np.arange(1, self.groups + 1) ** float(self.uneven)
            group = rng.choice(self.groups, requests, p=shares / shares.sum())
            tau = np.clip(self.tau(rng, np.ones(self.groups))[group] + rng.normal(0, 0.5, requests), 1.01, 6)
        else:
            tau = self.tau(rng, tokens)
        steps = tokens / tau
        steps = steps * (1 + 0.8 * rng.normal(0, 1, requests) / np.sqrt(np.maximum(steps, 1)))
        return tokens, np.clip(np.rint(steps), 1, tokens), group


@cache
def truth(process: Process) -> float:
    """The tau of all requests; of many groups of equal sizes where tau is drawn by group."""
    law = replace(process, groups=LARGE // 100, uneven=False) if process.groups else process
    tokens, steps, _ = law.draw(np.random.default_rng(0), LARGE)
    return float(tokens.sum() / steps.sum())


def equal(rng: Generator, n: int) -> Floats:
    return np.full(n, 200.0)


def spread(rng: Generator, n: int) -> Floats:
    return np.rint(np.clip(rng.normal(200, 60, n), 20, None))


def lognormal(rng: Generator, n: int) -> Floats:
    return np.rint(np.clip(np.exp(rng.normal(4.5, 1, n)), 2, None))


def pareto(rng: Generator, n: int) -> Floats:
    return np.rint(np.clip(20 * (1 - rng.random(n)) ** (-1 / 1.3), 4, 20_000))


def alike(rng: Generator, tokens: Floats) -> Floats:
    return np.full(len(tokens), 2.5)


def varied(rng: Generator, tokens: Floats) -> Floats:
    return np.asarray(1 + 3 * rng.beta(3, 3, len(tokens)))


def two_kinds(rng: Generator, tokens: Floats) -> Floats:
    return np.where(rng.random(len(tokens)) < 0.5, 1.4, 3.5)


def rare_easy(rng: Generator, tokens: Floats) -> Floats:
    return np.where(rng.random(len(tokens)) < 0.1, 6.0, 1.6)


def heavy(rng: Generator, tokens: Floats) -> Floats:
    return np.asarray(1 + np.minimum(np.exp(rng.normal(-0.5, 1, len(tokens))), 9))


def long_easy(rng: Generator, tokens: Floats) -> Floats:
    return np.asarray(1 + np.minimum(np.log(tokens / 4 + 1), 6))


PROCESSES = (
    Process("equal lengths, tau alike", equal, alike),
    Process("equal lengths, tau varies", equal, varied),
    Process("lengths vary, two kinds of text", spread, two_kinds),
    Process("equal lengths, 1 text in 10 is easy", equal, rare_easy),
    Process("lognormal lengths, tau varies", lognormal, varied),
    Process("lognormal lengths, tau heavy-tailed", lognormal, heavy),
    Process("lognormal lengths, long texts are easy", lognormal, long_easy),
    Process("Pareto lengths, tau alike", pareto, alike),
    Process("Pareto lengths, tau varies", pareto, varied),
    Process("Pareto lengths, long texts are easy", pareto, long_easy),
    Process("Pareto lengths, 1 text in 10 is easy", pareto, rare_easy),
    Process("3 groups", equal, varied, 3),
    Process("10 groups", equal, varied, 10),
    Process("30 groups", equal, varied, 30),
    Process("30 groups of uneven sizes", equal, varied, 30, uneven=True),
)


def coverage(process: Process, requests: int, *, samples: int, rng: Generator) -> dict[str, float]:
    """Shares of samples, and the median width of intervals over tau."""
    tau = truth(process)
    rows = []
    for _ in range(samples):
        tokens, steps, group = process.draw(rng, requests)
        estimate, before = ratio(tokens, steps), quantile(requests) * _linearised(_influence(tokens, steps)[1])
        factor = None if group is None else group_factor(tokens, steps, group)
        half, off = (estimate.high - estimate.low) / 2, abs(estimate.value - tau)
        warned = doubts(tokens, steps) is not None or factor is not None
        wide = np.isinf(factor or 1.0) or off <= half * (factor or 1.0)
        rows.append((off <= before, off <= half, warned, off <= half or warned, wide, half / estimate.value))
    linear, covered, doubted, answered, by_group, width = np.array(rows, dtype=float).T
    found = {
        "linearised": linear.mean(),
        "covered": covered.mean(),
        "warned": doubted.mean(),
        "covered_or_warned": answered.mean(),
        "half_width": np.median(width),
    }
    found |= {"covered_by_group": by_group.mean()} if process.groups else {}
    return {key: float(value) for key, value in found.items()}


def worst_domain_bias(domains: int, requests: int, *, samples: int, rng: Generator) -> dict[str, float]:
    """Mean error of the worst domain's tau over the true one, where all domains are alike, with its standard error."""
    lengths = [20] * (domains * requests)
    label = np.tile(np.arange(domains, dtype=np.int16), requests)
    chain, shares = Tree.chain(1), []
    law = {"width": 1, "domain": label, "domain_names": tuple(map(str, range(domains)))}
    for _ in range(samples):
        easy = np.repeat(rng.beta(2, 2, 2 * len(lengths)), 20)
        rank = np.where(rng.random(len(easy)) < easy, 0, -1)[:, None]
        fit, held = (with_lengths(half, lengths, **law) for half in np.split(rank, 2))
        row = WORST_DOMAIN.row(replay_tree(chain, fit).steps, fit)
        steps = replay_tree(chain, held).steps
        pooled = held.anchors / steps.sum()
        same, other = (WORST_DOMAIN.estimate(steps, held, row=chosen).value for chosen in (None, row))
        shares.append((same / pooled - 1, other / pooled - 1))
    mean, error = np.mean(shares, axis=0), np.std(shares, axis=0) / np.sqrt(samples)
    return {"chosen_on_the_same": mean[0], "chosen_on_others": mean[1], "error": float(error.max())}


def equal_trace(requests: int, rng: Generator) -> Trace:
    """A trace of a law that all drafters share: the difficulty of a request is beta distributed."""
    lengths = [40] * requests
    easy = np.repeat(rng.beta(2, 2, requests), 40)
    return with_lengths(np.where(rng.random(len(easy)) < easy, 0, -1)[:, None], lengths, width=1)


def best_of(drafters: int, requests: int, *, samples: int, rng: Generator) -> dict[str, float]:
    """Error and coverage of the drafter that `compare` names first among equals, and how often it is said to lead."""
    large = replay_tree(Tree.chain(1), equal_trace(LARGE // 40, rng)).tau
    rows = []
    for _ in range(samples):
        traces = {str(i): equal_trace(2 * requests, rng) for i in range(drafters)}
        contest = compare(traces, sizes="chain:1").contests[0]
        tau = next(standing.tau for standing in contest.standings if standing.drafter == contest.best)
        top = max(standing.tau.value for standing in contest.standings)
        assert contest.lead is not None
        rows.append((tau.value / large - 1, tau.low <= large <= tau.high, contest.lead.low > 1, top / large - 1))
    error, covered, leads, top = np.array(rows, dtype=float).T.mean(axis=1).tolist()
    return {"error": error, "covered": covered, "said_to_lead": leads, "error_of_the_largest": top}


def served_trace(requests: int, rng: Generator) -> Trace:
    """A trace of texts of 10 to 30 tokens, whose difficulty is beta distributed."""
    lengths = rng.integers(10, 31, requests).tolist()
    easy = np.repeat(rng.beta(2, 2, requests), lengths)
    return with_lengths(np.where(rng.random(len(easy)) < easy, 0, -1)[:, None], lengths, width=1)


def carried(trace: Trace, *, error: float, faster: float = 1.0, days: int = 5, seed: int = 0) -> list[dict[str, Any]]:
    """Rates that a server of 8 rows carries with a chain of 1 and without speculation, steps being `faster`."""
    batches = [
        BatchTimes(
            batch,
            0.02 * (1 + batch / 20),
            ((1, 0.003 / faster),),
            ((2, 0.022 * (1 + batch / 15) / faster), (3, 0.05)),
            relative_error=error,
        )
        for batch in (1, 2, 3, 4, 5, 6, 7, 8)
    ]
    profile = Profile(tuple(batches), (0, 100), error, {"predicted": {}})  # no error between runs
    load = Load(capacity=0.9, ttft_s=0.5, tpot_s=0.03, requests=40, replications=days)
    settings = SimulateSettings(tree=Tree.chain(1), batch=8, load=load, seed=seed)
    prompts = PromptSettings().on(trace, profile)
    answer = simulated_server(trace, profile, None, prompts, settings)
    return list(answer["configurations"])


@cache
def true_rates() -> dict[str, Floats]:
    """By how much faster steps are than predicted, the rate that a large trace carries, and its ratio to plain."""
    trace, faster = served_trace(3000, np.random.default_rng(0)), np.linspace(0.2, 2.0, 25)
    rates = [carried(trace, error=0.0, faster=f, days=30) for f in faster]
    chain, plain = (np.array([of[place]["requests_s"]["value"] for of in rates]) for place in (0, 1))
    return {"faster": faster, "requests_s": chain, "over": chain / plain}


def capacity(requests: int, error: float, *, samples: int, rng: Generator) -> dict[str, float]:
    """How often the intervals of a capacity and of its ratio to plain decoding hold the true ones."""
    true, rows = true_rates(), []
    for seed in range(samples):
        chain, _ = carried(served_trace(requests, rng), error=error, seed=seed)
        faster = 1 + error / NORMAL_95 * rng.standard_normal()
        due = {key: float(np.interp(faster, true["faster"], true[key])) for key in ("requests_s", "over")}
        found = {key: chain[key] for key in due if chain[key] is not None}  # no ratio where a day carries nothing
        rows.append([of["low"] <= due[key] <= of["high"] if (of := found.get(key)) else np.nan for key in due])
    covered, over = np.nanmean(np.array(rows, dtype=float), axis=0).tolist()
    return {"covered": covered, "ratio_covered": over}


CAPACITIES = {f"{n} requests, steps within {100 * e:.0f} %": (n, e) for n in (30,) for e in (0.1, 0.4)}


def measured(samples: int) -> dict[str, Any]:
    """The record that is written."""
    sizes = {process: (60, 125, 250) if process.groups else REQUESTS for process in PROCESSES}
    return {
        "schema": SCHEMA,
        "samples": samples,
        "coverage": {
            process.name: {
                str(n): coverage(process, n, samples=samples, rng=np.random.default_rng([number, n]))
                for n in sizes[process]
            }
            for number, process in enumerate(PROCESSES)
        },
        "worst_domain": {
            f"{domains} domains of {requests} requests": worst_domain_bias(
                domains, requests, samples=max(samples // 10, 1), rng=np.random.default_rng([domains, requests])
            )
            for domains, requests in ((3, 10), (3, 50), (10, 10), (10, 50))
        },
        "best_of": {
            f"{drafters} drafters, {requests} requests": best_of(
                drafters, requests, samples=max(samples // 4, 1), rng=np.random.default_rng([drafters, requests])
            )
            for drafters in (2, 4, 10)
            for requests in (10, 30, 100)
        },
        "capacity": {
            name: capacity(*of, samples=max(samples // 10, 1), rng=np.random.default_rng([of[0], int(100 * of[1])]))
            for name, of in CAPACITIES.items()
        },
        "provenance": this_run(),
    }


def table(record: dict[str, Any]) -> list[str]:
    """The rows of docs/results/coverage.md: process, requests, and percentages."""
    rows = []
    for name, sizes in record["coverage"].items():
        for requests, of in sizes.items():
            keys = ("linearised", "covered", "warned", "covered_or_warned")
            by_group = f"{100 * of['covered_by_group']:.0f}" if "covered_by_group" in of else ""
            cells = [name, requests, *(f"{100 * of[key]:.0f}" for key in keys), by_group]
            rows.append(f"| {' | '.join(cells)} |")
    return rows


def bias_table(record: dict[str, Any]) -> list[str]:
    """The rows of the second table: biases in percent."""
    return [
        f"| {name} | {100 * of['chosen_on_the_same']:+.1f} | {100 * of['chosen_on_others']:+.1f} |"
        for name, of in record["worst_domain"].items()
    ]


def best_table(record: dict[str, Any]) -> list[str]:
    """The rows of the third table, in percent."""
    keys = ("error_of_the_largest", "error", "covered", "said_to_lead")
    return [
        f"| {name} | {' | '.join(f'{100 * of[key]:.1f}' for key in keys)} |" for name, of in record["best_of"].items()
    ]


def capacity_table(record: dict[str, Any]) -> list[str]:
    """The rows of the fourth table, in percent."""
    return [
        f"| {name} | {100 * of['covered']:.0f} | {100 * of['ratio_covered']:.0f} |"
        for name, of in record["capacity"].items()
    ]


def main() -> None:
    """Measure, print, and write if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=SAMPLES, help="samples of each process and number of requests")
    parser.add_argument("--output", type=Path)
    words = parser.parse_args()
    record = measured(words.samples)
    print("\n".join([*table(record), "", *bias_table(record), "", *best_table(record), "", *capacity_table(record)]))
    if words.output:
        write_text(words.output, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
