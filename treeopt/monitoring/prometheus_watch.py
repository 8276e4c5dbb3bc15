"""Acceptance and step time of running servers beside those of a plan: blocks of scrapes, tests, and what they show.

A block ends when several times as many requests have finished as run together: blocks that share requests resemble each
other, which the test does not allow for. Counters grow from one scrape to the next; restarts count from zero.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from treeopt.errors import PlanError, UsageError
from treeopt.monitoring.change_detector import RatioTest, Sums
from treeopt.plans import Plan, PlanEntry
from treeopt.storage.json_records import RecordError, parse
from treeopt.storage.typed_records import read_record
from treeopt.storage.user_files import read_text, why, write_text
from treeopt.traces.importers.acceptance_curves import acceptance
from treeopt.traces.importers.chain_counts import Chain, chain_trace
from treeopt.traces.importers.sources.prometheus_counters import (
    Samples,
    all_samples,
    counter_names,
    of_model,
    totals_by_engine,
)
from treeopt.traces.trace import Trace
from treeopt.tree import Tree

SCHEMA, STATE = "treeopt.watch/1", "treeopt.watch-state/2"
TURNOVER = 4  # requests that finish in a block, per running request
BLOCK_S = 60.0  # of a block where finished requests are not counted
REACH = 1.1  # ratio to the smallest or largest planned batch up to which step times are compared
TAU = "tau"
BEGUN = "process_start_time_seconds"  # tells replicas behind one address apart, and a restart
BEGAN = "began="  # before it in the name of a worker


@dataclass(frozen=True)
class Totals:
    """Totals of one worker, or growth of the totals of all workers behind one address.

    Attributes:
        accepted: steps of a request that accepted at least 1, 2, ... drafted tokens; () where no positions are counted.
        steps: steps of a request that drafted.
        latency_s: seconds between the outputs of a request, summed; 0 where the engine does not count them.
        outputs: outputs of a request after its first.
        iterations: steps of the engine, each for all running requests.
        finished: requests.
        generated: tokens written; 0 where the engine does not count them.
    """

    accepted: tuple[float, ...]
    steps: float
    latency_s: float
    outputs: float
    iterations: float
    finished: float
    generated: float = 0.0

    def plus(self, other: "Totals", sign: int = 1) -> "Totals":
        """Return the sums, or with -1 the differences."""
        accepted = (a + sign * b for a, b in zip_longest(self.accepted, other.accepted, fillvalue=0.0))
        others = (a + sign * b for a, b in zip(astuple(self)[1:], astuple(other)[1:], strict=True))
        return Totals(tuple(accepted), *others)

    def since(self, before: "Totals") -> "Totals":
        """Return the growth; all of it where a total fell, because the worker was restarted (as in Prometheus)."""
        grown = self.plus(before, -1)
        return self if min(*grown.accepted, *astuple(grown)[1:]) < 0 else grown

    @property
    def kept(self) -> float:
        """Drafted tokens that were accepted; without positions, all written tokens but one a step and one a request."""
        return sum(self.accepted) if self.accepted else self.generated - self.steps - self.finished

    @property
    def running(self) -> float | None:
        """Mean number of requests that decode together; None where the engine does not count it."""
        return self.outputs / self.iterations if self.iterations and self.outputs else None


NONE = Totals((), 0, 0, 0, 0, 0)
Workers = dict[str, Totals]  # by the labels that tell data-parallel engines, replicas and workers apart


def models_of(text: str) -> list[str]:
    """Return the names of the models in the labels of a scrape, in order."""
    return sorted({word for _, labels in all_samples(text) for label, word in labels if label == "model_name"})


def totals_of(text: str, model: str | None) -> Workers:
    """Return the totals of a scrape by worker, which are restarted one by one.

    Args:
        text: Prometheus text.
        model: the `model_name` to read, if there are several.

    Raises:
        TraceError: no Prometheus text, no counters of speculative decoding, or several models and none named.
    """
    # Collectors write an underscore for the colon and put names before.
    counted = of_model(all_samples(text), model).items()
    samples = {(name.replace(":", "_"), labels): value for (name, labels), value in counted}
    names = counter_names()[totals_by_engine(samples)[0]]
    latency = (f"{names.latency}_sum", f"{names.latency}_count") if names.latency else ("", "")
    whole = (*latency, names.iterations, names.ended, names.generated)
    start, *ends = (name.replace(":", "_") for name in (names.prefix, *whole))
    used = [key for key in samples if start in key[0] or key[0].endswith(tuple(filter(None, ends)))]
    telling = set.intersection(*({label for label, _ in labels} for _, labels in used)) - {"model_name"}
    began = [f"{BEGAN}{samples[BEGUN, ()]:.15g}"] if (BEGUN, ()) in samples else []
    by_worker: dict[str, Samples] = {}
    for name, labels in used:
        worker = ",".join([f"{label}={word}" for label, word in labels if label in telling] + began)
        by_worker.setdefault(worker, {})[name, labels] = samples[name, labels]

    def totals(some: Samples) -> Totals:
        _, steps, accepted = totals_by_engine(some)
        sums = [sum(value for (name, _), value in some.items() if end and name.endswith(end)) for end in ends]
        return Totals(tuple(map(float, accepted)), steps, *sums)

    drafting = {worker: some for worker, some in by_worker.items() if any(start in name for name, _ in some)}
    return {worker: totals(some) for worker, some in drafting.items()}


@dataclass
class Server:
    """A server at its last scrape.

    Attributes:
        totals: of its counters, by worker; None before the first scrape.
        at_s: when, seconds since 1970.
        state: `new`, `ok`, `idle`, `restarted`, or why the scrape failed.
        tau: tokens per step since the scrape before; None if it was idle.
        running: mean requests that decoded together since then; None if that is not counted.
    """

    totals: Workers | None = None
    at_s: float = 0.0
    state: str = "new"
    tau: float | None = None
    running: float | None = None


@dataclass
class WatchState:
    """Everything that a watch remembers.

    Attributes:
        plan: checksum of the plan's file.
        settings: settings of the tests, which must not change: `hours`, least mean time between false alarms;
            `tolerance`, half-width of the band of a ratio that counts as unchanged; `reference`, what ratios are
            compared with: the plan, or the servers' own first blocks (start).
        servers: by address.
        tests: by name: `position 1`, ..., `tau`, `step time at batch 4`, ...
        open_s: seconds of the block that is not full yet.
        finished: requests that finished in it.
        lanes: most requests that ran together in it.
    """

    plan: str
    settings: dict[str, Any]
    servers: dict[str, Server] = field(default_factory=dict)
    tests: dict[str, RatioTest] = field(default_factory=dict)
    open_s: float = 0.0
    finished: float = 0.0
    lanes: float = 0.0

    @classmethod
    def read(cls, path: Path) -> "WatchState":
        """Read a state file.

        Raises:
            UsageError: it cannot be read, or breaks its format.
        """
        try:
            record = parse(read_text(path), STATE)
            return read_record({key: value for key, value in record.items() if key != "schema"}, cls)
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--state {path}: {why(error)}") from error
        except RecordError as error:
            raise UsageError(f"--state {path}: {error}; remove it to start again") from error

    def write(self, path: Path) -> None:
        """Write the state file, whole or not at all."""
        write_text(path, json.dumps({"schema": STATE, **asdict(self)}, indent=1) + "\n")


class PlanWatch:
    """The comparison of servers with a plan; `tolerance` has those of acceptance and of step time, around 1."""

    def __init__(self, plan: Plan, state: WatchState) -> None:
        """Compare with a plan, from the state of an earlier run or a new one.

        Raises:
            PlanError: the plan drafts at no batch size.
        """
        self.state, self._plan, tolerance = state, plan, state.settings["tolerance"]
        self._hours, self._own = state.settings["hours"], state.settings["reference"] == "start"
        drafting = [entry for entry in plan.entries if not entry.choice.plain]
        if not drafting:
            raise PlanError("the plan drafts at no batch size: its acceptance cannot be compared")
        known = 0.0 if self._own else max(entry.choice.tau.relative for entry in drafting)
        self.tolerance = (max(tolerance, known), tolerance)
        self._entries, self._drafting = sorted(plan.entries, key=lambda entry: entry.batch), drafting

    def add(self, url: str, totals: Workers, at_s: float) -> None:
        """Add a scrape of a server."""
        server = self.state.servers.setdefault(url, Server())
        before, at_before_s = server.totals, server.at_s
        server.totals = {**(before or {}), **totals}  # a worker may be missing for a while
        server.at_s, server.tau, server.running = at_s, None, None
        if before is None:
            server.state = "ok"
            return
        growth, restarted = NONE, False
        for worker, now in totals.items():
            old, began_s = before.get(worker), worker.rpartition(BEGAN)[2]
            if old is None and BEGAN in worker and float(began_s) < at_before_s:
                continue  # another replica behind this address, which began before the last scrape
            grown = now.since(old or NONE)
            restarted |= BEGAN in worker if old is None else grown is now and old.steps > 0
            growth = growth.plus(grown)
        server.state = "restarted" if restarted else "ok" if growth.steps else "idle"
        if not growth.steps:
            return
        server.tau, server.running = 1 + growth.kept / growth.steps, growth.running
        self._compare(growth)
        state = self.state
        state.open_s += max(at_s - at_before_s, 0.0) / len(state.servers)  # clocks may be set back
        state.finished += growth.finished
        state.lanes = max(state.lanes, sum(server.running or 0.0 for server in state.servers.values()))

    def fail(self, url: str, reason: str) -> None:
        """Record that a server did not answer; its counters go on, so the next scrape makes up for this one."""
        server = self.state.servers.setdefault(url, Server())
        server.state, server.tau, server.running = reason, None, None

    def close_block(self) -> bool:
        """End the block and test it, if it is full; return True if it was."""
        state = self.state
        every = (worker for server in state.servers.values() for worker in (server.totals or {}).values())
        counted = any(worker.finished for worker in every)
        full = state.finished >= TURNOVER * max(state.lanes, 1.0) if counted else state.open_s >= BLOCK_S
        if not full:
            return False
        level = self._hours * 2 * (len(self._entries) + sum(not name.startswith("step") for name in state.tests))
        for name, test in state.tests.items():
            tolerance = self.tolerance[name.startswith("step")]
            test.close(hours=state.open_s / 3600, level=level, tolerance=tolerance, own_reference=self._own)
        state.open_s, state.finished, state.lanes = 0.0, 0.0, 0.0
        return True

    def recent(self) -> Trace | None:
        """Return chains that are accepted as of late; None without steps, or with the tau of trees alone.

        By position where positions are counted; else by the published curve of that tau at the plan's length.
        """
        tests = self.state.tests
        known = [test.recent for name, test in tests.items() if name.startswith("position") and test.recent.steps]
        if known:
            rates = np.cumprod([sums.observed / sums.steps for sums in known])
            return chain_trace(
                Chain(tuple(rates.tolist()), round(known[0].steps)), rng=np.random.default_rng(0), meta={}
            )
        tree, tau = self._nearest(self._drafting, None).choice.tree, tests[TAU].recent
        if tree is None or tree != Tree.chain(tree.nodes) or not tau.steps:
            return None
        return acceptance(accepted_length=f"{min(tau.observed / tau.steps, tree.nodes + 1):.6f}@{tree.nodes}")

    def record(self, at: str) -> dict[str, Any]:
        """Return what is known at a time, as JSON values; step times in seconds."""
        tests = [self._row(name, test) for name, test in self.state.tests.items()]
        servers = [
            {"url": url, "state": server.state, "tau": server.tau, "running": server.running}
            for url, server in self.state.servers.items()
        ]
        changed = any(test["verdict"] in ("fell", "rose") for test in tests)
        return {"schema": SCHEMA, "time": at, "changed": changed, "tests": tests, "servers": servers}

    def _row(self, name: str, test: RatioTest) -> dict[str, Any]:
        recent, known = test.recent, bool(test.recent.steps)
        near = known and test.blocks > 1 and abs(recent.ratio - 1) <= self.tolerance[name.startswith("step")]
        return {
            "name": name,
            "planned": recent.expected / recent.steps if known else None,
            "observed": recent.observed / recent.steps if known else None,
            "ratio": recent.ratio if known else None,
            "verdict": test.verdict or ("as planned" if near else "too few"),
            "blocks": test.blocks,
        }

    def _compare(self, growth: Totals) -> None:
        """Add the growth of a server's counters to the tests."""
        nearest = self._nearest(self._drafting, growth.running)
        planned = nearest.choice.accepted[: len(growth.accepted)]
        steps = growth.steps
        before, share_before = steps, 1.0
        for place, (observed, share) in enumerate(zip(growth.accepted, planned, strict=False), 1):
            if share == 0:
                break
            self._test(f"position {place}", share=True).add(Sums(before, observed, before * share / share_before))
            before, share_before = observed, share
        tau = 1 + sum(planned) if planned else nearest.choice.tau.value
        committed = sum(growth.accepted[: len(planned)]) if planned else growth.kept
        self._test(TAU).add(Sums(steps, steps + committed, steps * tau))
        running, batches = growth.running, [entry.batch for entry in self._entries]
        if running is not None and batches[0] / REACH <= running <= batches[-1] * REACH:
            # Seconds per step between batch sizes are on a line.
            expected_s = float(np.interp(running, batches, [entry.choice.step_s for entry in self._entries]))
            batch, number = self._nearest(self._entries, running).batch, growth.iterations
            observed_s = number * growth.latency_s / growth.outputs
            self._test(f"step time at batch {batch}").add(Sums(number, observed_s, number * expected_s))

    def _test(self, name: str, *, share: bool = False) -> RatioTest:
        return self.state.tests.setdefault(name, RatioTest(share))

    def _nearest(self, entries: list[PlanEntry], running: float | None) -> PlanEntry:
        """Return the entry whose batch is nearest to the running requests; the plan's best one if they are unknown."""
        if running is None:
            return next((entry for entry in entries if entry.batch == self._plan.best), entries[0])
        return min(entries, key=lambda entry: abs(math.log(entry.batch / running)))


def write_gauges(record: Mapping[str, Any], path: Path) -> None:
    """Write a record of a watch as gauges for Prometheus' textfile collector, whole or not at all."""
    from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

    registry = CollectorRegistry()
    Gauge("treeopt_watch_changed", "1 if something changed.", registry=registry).set(record["changed"])
    tested = Gauge("treeopt_watch_test_changed", "1 if this figure changed.", ["test"], registry=registry)
    ratio = Gauge("treeopt_watch_ratio", "Observed over planned.", ["test"], registry=registry)
    up = Gauge("treeopt_watch_server_up", "1 if the server answered.", ["url"], registry=registry)
    for test in record["tests"]:
        tested.labels(test["name"]).set(test["verdict"] in ("fell", "rose"))
        if test["ratio"] is not None:
            ratio.labels(test["name"]).set(test["ratio"])
    for server in record["servers"]:
        up.labels(server["url"]).set(server["state"] in ("ok", "idle", "restarted"))
    write_to_textfile(str(path), registry)
