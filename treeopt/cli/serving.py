"""The serving side of `treeopt simulate`: requests that arrive, a server whose plan follows its load."""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from treeopt.cli import options
from treeopt.cli.prefill import Prompts
from treeopt.errors import UsageError
from treeopt.trace import Trace

if TYPE_CHECKING:
    from simulate.profile import Profile
    from simulate.serving import Served
    from simulate.switching import Switching
    from simulate.tables import Ints
    from simulate.workload import Asked, Workload

REQUESTS = 1000
DEFAULTS = {"replications": 5, "warmup": 0.1, "switch_s": 0.0, "hysteresis": 0}
MOMENTS = 60  # of the load that a record shows


@dataclass(frozen=True)
class Load:
    """What comes to the server, how often it is tried and what counts as served well; None: not given."""

    arrivals: float | None
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
        if self.arrivals is not None or self.requests_file is not None:
            return True
        for name, value in asdict(self).items():
            if value is not None:
                raise UsageError(f"--{name.replace('_', '-')} is for a server: give --arrivals or --requests-file")
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
        from simulate.workload import read_requests

        if self.requests_file is None:
            return None
        asked = read_requests(self.requests_file)
        if self.arrivals is None and asked.arrived_s is None:
            raise UsageError(f"{self.requests_file}: its requests have no `arrived_s`: give --arrivals")
        if self.arrivals is None and self.requests is not None:
            raise UsageError("--requests counts arrivals at a rate: give --arrivals")
        return asked


load = options.bundle(
    "load",
    Load,
    click.option("--arrivals", type=click.FloatRange(1e-9, 1e9), help="Simulate a server: requests a second."),
    click.option(
        "--requests-file", type=options.FILE, help="Their lengths: JSON lines with prompt_tokens, tokens [, arrived_s]."
    ),
    click.option("--requests", type=click.IntRange(min=2), help=f"That arrive; default {REQUESTS}, or the file's."),
    click.option(
        "--replications", type=click.IntRange(min=2), help=f"Independent days; default {DEFAULTS['replications']}."
    ),
    click.option(
        "--warmup", type=click.FloatRange(0, 0.9), help=f"Share of a day left out; default {DEFAULTS['warmup']}."
    ),
    click.option("--ttft-s", type=click.FloatRange(0, min_open=True), help="Goodput: most seconds to first token."),
    click.option("--tpot-s", type=click.FloatRange(0, min_open=True), help="Goodput: most seconds a token after it."),
    click.option("--switch-s", type=options.SECONDS, help="Seconds of a change to another tree; default 0."),
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
    from simulate.levels import FULL, Slo, figures, piles_up, replicate
    from simulate.serving import serve

    asked, slo = load.asked(), Slo(load.ttft_s, load.tpot_s)
    settings = load.settings
    found, warnings = [], []
    for name, switching in ways.items():
        days: list[Served] = []
        drafted = any(tree is not None and tree.nodes for tree in switching.trees)

        def day(
            rng: np.random.Generator,
            switching: Any = switching,
            days: "list[Served]" = days,
            drafted: bool = drafted,
        ) -> dict[str, float]:
            work = _workload(trace, load, asked, prompts.tokens, rng)
            read_s = prompts.seconds(work.prompt_tokens, drafted=drafted)
            served = serve(
                trace, work, switching, cost, rows=rows, prefill_s=read_s, by_context=prompts.by_context, pad=pad
            )
            days.append(served)
            return figures(served, slo=slo, warmup_s=settings["warmup"] * float(work.arrived_s[-1]))

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
                "trees": [None if t is None else [list(path) for path in t.paths] for t in switching.trees],
                "up": list(switching.up),
                "down": list(switching.down),
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


def _workload(
    trace: Trace, load: Load, asked: "Asked | None", prompt_tokens: "int | Ints | None", rng: np.random.Generator
) -> "Workload":
    from simulate.workload import drawn, poisson

    if load.arrivals is None:
        assert asked is not None
        assert asked.arrived_s is not None
        return asked.on(trace, asked.arrived_s, rng=rng)
    count = load.settings["requests"] or (0 if asked is None else len(asked.tokens))
    arrived_s = poisson(count, rate=load.arrivals, rng=rng)
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
    return (
        f"{count} requests arrive {comes}, texts drawn from the trace's {trace.requests}; "
        f"{settings['replications']} independent days, the first "
        f"{settings['warmup']:.0%} of each left out; 95 % intervals over days. "
        f"Goodput: within {' and '.join(limits) or 'no limit'}."
    )
