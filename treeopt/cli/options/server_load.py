"""The serving side of `treeopt simulate`: requests that arrive, a server whose plan follows its load."""

import math
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from treeopt.cli.options import general
from treeopt.cli.options.prompt_lengths import Prompts
from treeopt.errors import UsageError
from treeopt.statistics.clustered_estimate import paired_ratio
from treeopt.traces.trace import Trace

if TYPE_CHECKING:
    from simulate.profiles.profile import Profile
    from simulate.profiles.step_tables import Ints
    from simulate.runs.plan_switching import Switching
    from simulate.runs.server import Served
    from simulate.runs.workload import Asked, Workload

REQUESTS = 1000
DEFAULTS = {"replications": 5, "warmup": 0.1, "switch_s": 0.0, "hysteresis": 0}
MOMENTS = 60  # of the load that a record shows


@dataclass(frozen=True)
class Load:
    """What comes to the server, how often it is tried and what counts as served well; None: not given."""

    arrivals: float | None
    capacity: float | None
    requests_file: Path | None
    requests: int | None
    replications: int | None
    warmup: float | None
    ttft_s: float | None
    tpot_s: float | None
    switch_s: float | None
    hysteresis: int | None

    @property
    def given(self) -> bool:
        """Whether the command is to simulate a server.

        Raises:
            UsageError: it is not, yet something was said of it.
        """
        if self.capacity is not None:
            if self.arrivals is not None:
                raise UsageError("--capacity looks for the rate of --arrivals: give one of them")
            if self.ttft_s is None and self.tpot_s is None:
                raise UsageError("--capacity is of limits: give --ttft-s, --tpot-s or both")
            return True
        if self.arrivals is not None or self.requests_file is not None:
            return True
        for name, value in asdict(self).items():
            if value is not None:
                raise UsageError(
                    f"--{name.replace('_', '-')} is for a server: give --arrivals, --capacity or --requests-file"
                )
        return False

    @property
    def settings(self) -> dict[str, Any]:
        """As JSON values, with the defaults in place of what was not given; without `requests` they are the file's."""
        defaults = DEFAULTS if self.requests_file is not None else {"requests": REQUESTS, **DEFAULTS}
        given = {name: value for name, value in asdict(self).items() if value is not None}
        file = {} if self.requests_file is None else {"requests_file": self.requests_file.name}
        return dict.fromkeys(asdict(self)) | defaults | given | file

    def asked(self) -> "Asked | None":
        """The requests of the file, if there is one.

        Raises:
            UsageError: the file is broken, or nobody says when its requests come.
        """
        from simulate.runs.workload import read_requests

        if self.requests_file is None:
            return None
        asked = read_requests(self.requests_file)
        if self.arrivals is None and self.capacity is None and asked.arrived_s is None:
            raise UsageError(f"{self.requests_file}: its requests have no `arrived_s`: give --arrivals")
        if self.arrivals is None and self.capacity is None and self.requests is not None:
            raise UsageError("--requests counts arrivals at a rate: give --arrivals")
        return asked


load = general.bundle(
    "load",
    Load,
    click.option("--arrivals", type=general.Real(1e-9, 1e9), help="Simulate a server: requests a second."),
    click.option(
        "--capacity",
        type=general.Real(0, 1, min_open=True),
        help="In place of a rate: the highest at which this share of the requests is within --ttft-s and --tpot-s.",
    ),
    click.option(
        "--requests-file", type=general.FILE, help="Their lengths: JSON lines with prompt_tokens, tokens [, arrived_s]."
    ),
    click.option("--requests", type=click.IntRange(min=2), help=f"That arrive; default {REQUESTS}, or the file's."),
    click.option(
        "--replications", type=click.IntRange(min=2), help=f"Independent days; default {DEFAULTS['replications']}."
    ),
    click.option("--warmup", type=general.Real(0, 0.9), help=f"Share of a day left out; default {DEFAULTS['warmup']}."),
    click.option("--ttft-s", type=general.Real(0, min_open=True), help="Goodput: most seconds to first token."),
    click.option("--tpot-s", type=general.Real(0, min_open=True), help="Goodput: most seconds a token after it."),
    click.option("--switch-s", type=general.SECONDS, help="Seconds of a change to another tree; default 0."),
    click.option("--hysteresis", type=click.IntRange(min=0), help="Requests by which changes come late; default 0."),
)


def serving_record(
    trace: Trace,
    cost: "Profile",
    ways: "dict[str, Switching]",
    prompts: Prompts,
    load: Load,
    *,
    rows: int,
    pad: bool,
    seed: int,
) -> dict[str, Any]:
    """Figures of every way to decode under the same loads, as JSON values."""
    from simulate.runs.service_levels import FULL, Slo, figures, piles_up, replicate

    asked, slo = load.asked(), Slo(load.ttft_s, load.tpot_s)
    settings = load.settings
    found, warnings = [], []
    for name, switching in ways.items():
        days: list[Served] = []

        def day(rng: np.random.Generator, switching: Any = switching, days: "list[Served]" = days) -> dict[str, float]:
            work = _workload(trace, load, asked, prompts.tokens, rng, rate=load.arrivals)
            days.append(_served(trace, cost, switching, prompts, work, rows=rows, pad=pad))
            return figures(days[-1], slo=slo, warmup_s=settings["warmup"] * float(work.arrived_s[-1]))

        values = replicate(day, replications=settings["replications"], seed=seed)
        if piles_up(values["piled"]):
            grows = f"the queue grows by {values['piled'].value:.1%} of the arrivals"
            warnings.append(f"requests pile up with {name} ({grows}): what they wait grows with the length of a day")
        elif values["running"].value >= FULL * rows:
            taken = f"{values['running'].value:.2f} of {rows} rows are taken"
            warnings.append(f"{name} is near its limit ({taken}): what requests wait depends on the length of a day")
        found.append(
            {
                "name": name,
                **_changes(switching),
                "figures": {key: None if math.isnan(e.value) else asdict(e) for key, e in values.items()},
                "first_day": _over_time(days[0]),
            }
        )
    return {
        "rows": rows,
        "slo": asdict(slo),
        "ways": found,
        "warnings": warnings,
    }


def capacity_record(
    trace: Trace,
    cost: "Profile",
    ways: "dict[str, Switching]",
    prompts: Prompts,
    load: Load,
    *,
    rows: int,
    pad: bool,
    seed: int,
) -> dict[str, Any]:
    """The highest rate that every way to decode carries, and over the last one's, as JSON values.

    Each day has its own rate, at which it keeps the limits; gaps, texts and prompts of a day are the same at all rates
    and for all ways, but for the gaps' scale.
    """
    from simulate.runs.server_capacity import carried, keeps_up
    from simulate.runs.service_levels import Slo, figures, replicate

    assert load.capacity is not None
    share, asked, slo, settings = load.capacity, load.asked(), Slo(load.ttft_s, load.tpot_s), load.settings
    rates: dict[str, list[float]] = {name: [] for name in ways}
    with general.progress("days", len(ways) * settings["replications"]) as done:

        def day(rng: np.random.Generator, name: str) -> dict[str, float]:
            own = int(rng.integers(2**63))

            def holds(rate: float) -> bool:
                work = _workload(trace, load, asked, prompts.tokens, np.random.default_rng(own), rate=rate)
                served = _served(trace, cost, ways[name], prompts, work, rows=rows, pad=pad)
                found = figures(served, slo=slo, warmup_s=settings["warmup"] * float(work.arrived_s[-1]))
                return keeps_up(found, share=share)

            rates[name].append(carried(holds))
            done(1)
            return {"requests_s": rates[name][-1]}

        means = {
            name: replicate(partial(day, name=name), replications=settings["replications"], seed=seed)["requests_s"]
            for name in ways
        }
    last = rates[list(ways)[-1]]
    found = [
        {"name": name, **_changes(switching), "requests_s": asdict(means[name]), "over": _over(rates[name], last)}
        for name, switching in ways.items()
    ]
    never = [f"no rate keeps the limits with {name}" for name, mean in means.items() if not mean.value]
    return {"rows": rows, "share": share, "slo": asdict(slo), "ways": found, "warnings": never}


def _over(own: list[float], other: list[float]) -> dict[str, float] | None:
    """How many times the other's rate, paired by day; None of the other itself, and where one carries nothing."""
    if own is other or not (all(own) and all(other)):
        return None
    ones = np.ones(len(own))
    return asdict(paired_ratio((np.array(own), ones), (np.array(other), ones)))


def _changes(switching: "Switching") -> dict[str, Any]:
    """The trees of a way, and at how many requests it changes between them."""
    trees = [None if tree is None else [list(path) for path in tree.paths] for tree in switching.trees]
    return {"trees": trees, "up": list(switching.up), "down": list(switching.down)}


def _served(
    trace: Trace, cost: "Profile", switching: "Switching", prompts: Prompts, work: "Workload", *, rows: int, pad: bool
) -> "Served":
    from simulate.runs.server import serve

    drafted = any(tree is not None and tree.nodes for tree in switching.trees)
    read_s = prompts.seconds(work.prompt_tokens, drafted=drafted)
    return serve(trace, work, switching, cost, rows=rows, prefill_s=read_s, by_context=prompts.by_context, pad=pad)


def _workload(
    trace: Trace,
    load: Load,
    asked: "Asked | None",
    prompt_tokens: "int | Ints | None",
    rng: np.random.Generator,
    *,
    rate: float | None,
) -> "Workload":
    """Requests that arrive so many a second, or when the file says."""
    from simulate.runs.workload import drawn, poisson

    if rate is None:
        assert asked is not None
        assert asked.arrived_s is not None
        return asked.on(trace, asked.arrived_s, rng=rng)
    count = load.settings["requests"] or (0 if asked is None else len(asked.tokens))
    arrived_s = poisson(count, rate=rate, rng=rng)
    if asked is None:
        return drawn(trace, arrived_s, rng=rng, prompt_tokens=prompt_tokens)
    return asked.on(trace, arrived_s, rng=rng)


def _over_time(served: "Served") -> dict[str, list[float]]:
    times = np.linspace(0, float(served.timeline.arrived_s[-1]), MOMENTS)
    return {
        "times_s": times.tolist(),
        "running": served.running(times).tolist(),
        "waiting": served.waiting(times).tolist(),
    }


def serving_conditions(load: Load, trace: Trace) -> str:
    """What was simulated, in words."""
    settings = load.settings
    count = settings["requests"] or "The file's"
    comes = f"{load.arrivals:g} a second (Poisson)" if load.arrivals is not None else "when the file says"
    limits = [f"{name} {value:g} s" for name, value in (("TTFT", load.ttft_s), ("TPOT", load.tpot_s)) if value]
    if load.capacity is not None:
        return (
            f"The highest rate of Poisson arrivals, to 1 %, at which {load.capacity:.4g} of the requests are within "
            f"{' and '.join(limits)} and the queue grows by no more than 1 % of the arrivals. {count} requests a day, "
            f"texts drawn from the trace's {trace.requests}; {settings['replications']} independent days, the first "
            f"{settings['warmup']:.0%} of each left out; 95 % intervals over days, ratios paired by day."
        )
    return (
        f"{count} requests arrive {comes}, texts drawn from the trace's {trace.requests}; "
        f"{settings['replications']} independent days, the first "
        f"{settings['warmup']:.0%} of each left out; 95 % intervals over days. "
        f"Goodput: within {' and '.join(limits) or 'no limit'}."
    )
