"""The load of a simulated server: when requests arrive, how many days are simulated, which latencies count as good."""

from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from simulate.runs.server_arrivals import Asked, Workload, drawn, poisson, read_requests
from simulate.runs.service_levels import Slo
from simulate.runs.timeline import Ints
from treeopt.defaults import SERVER
from treeopt.errors import UsageError
from treeopt.traces.trace import Trace

MOST = 10**7  # arrivals on all days together


@dataclass(frozen=True)
class Load:
    """The load of a simulated server: arrivals, replications, and the limits of a well-served request; None: not given.

    Attributes:
        arrivals: requests per second, a Poisson process.
        capacity: in place of a rate, the share of requests that must keep the limits; the highest such rate is found.
        requests_file: JSON lines with `prompt_tokens`, `tokens` and, without a rate, `arrived_s`.
        requests: number of arrivals; default 1000, or the file's.
        replications: independent days.
        warmup: share of a day that is left out.
        ttft_s: limit of the time to the first token, seconds.
        tpot_s: limit of the time per output token after it, seconds.
        switch_s: seconds of a change to another tree.
    """

    arrivals: float | None = None
    capacity: float | None = None
    requests_file: Path | None = None
    requests: int | None = None
    replications: int | None = None
    warmup: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    switch_s: float | None = None

    def __post_init__(self) -> None:
        """Check that the days can be simulated.

        Raises:
            UsageError: more arrivals in all than `MOST`.
        """
        requests = SERVER["requests"] if self.requests is None else self.requests
        days = SERVER["replications"] if self.replications is None else self.replications
        if requests * days > MOST:
            raise UsageError(f"--requests {requests} for {days} --replications are more than {MOST} arrivals in all")

    @property
    def given(self) -> bool:
        """The caller asks for a server.

        Raises:
            UsageError: settings of a server without arrivals, or both a rate and `capacity`.
        """
        if self.capacity is not None:
            if self.arrivals is not None:
                raise UsageError("--capacity finds the rate that --arrivals gives; use one of them")
            if self.ttft_s is None and self.tpot_s is None:
                raise UsageError("--capacity needs limits: give --ttft-s, --tpot-s or both")
            return True
        if self.arrivals is not None or self.requests_file is not None:
            return True
        for name, value in asdict(self).items():
            if value is not None:
                option = f"--{name.replace('_', '-')}"
                raise UsageError(f"{option} is for a server: give --arrivals, --capacity or --requests-file")
        return False

    @property
    def settings(self) -> dict[str, Any]:
        """The settings as JSON values, defaults filled in; `requests` of a file stay None."""
        defaults = dict(SERVER)
        if self.requests_file is not None:
            del defaults["requests"]
        given = {name: value for name, value in asdict(self).items() if value is not None}
        file = {} if self.requests_file is None else {"requests_file": self.requests_file.name}
        return dict.fromkeys(asdict(self)) | defaults | given | file

    @property
    def slo(self) -> Slo:
        """The limits."""
        return Slo(self.ttft_s, self.tpot_s)

    @cached_property
    def asked(self) -> Asked | None:
        """The requests of the file, if there is one.

        Raises:
            UsageError: the file is broken, or neither it nor the caller says when requests arrive.
        """
        if self.requests_file is None:
            return None
        asked = read_requests(self.requests_file)
        if self.arrivals is None and self.capacity is None and asked.arrived_s is None:
            raise UsageError(f"{self.requests_file}: its requests have no `arrived_s`: give --arrivals")
        if self.arrivals is None and self.capacity is None and self.requests is not None:
            raise UsageError("--requests counts arrivals at a rate: give --arrivals")
        return asked

    def workload(
        self, trace: Trace, prompt_tokens: int | Ints | None, rng: np.random.Generator, *, rate: float | None
    ) -> Workload:
        """Return one day's requests: at `rate` per second, or when the file says (None)."""
        if rate is None:
            assert self.asked is not None
            assert self.asked.arrived_s is not None
            return self.asked.on(trace, self.asked.arrived_s, rng=rng)
        count = self.settings["requests"] or (0 if self.asked is None else len(self.asked.tokens))
        arrived_s = poisson(count, rate=rate, rng=rng)
        if self.asked is None:
            return drawn(trace, arrived_s, rng=rng, prompt_tokens=prompt_tokens)
        return self.asked.on(trace, arrived_s, rng=rng)

    def description(self, trace: Trace) -> str:
        """Return what is simulated, in words."""
        settings = self.settings
        count = settings["requests"] or "The file's"
        limits = [f"{name} {value:g} s" for name, value in (("TTFT", self.ttft_s), ("TPOT", self.tpot_s)) if value]
        days = (
            f"texts drawn from the trace's {trace.requests}; {settings['replications']} independent days, the first "
            f"{settings['warmup']:.0%} of each left out; 95 % intervals over days"
        )
        if self.capacity is not None:
            return (
                f"The highest rate of Poisson arrivals, to 1 %, at which {self.capacity:.4g} of the requests are "
                f"within {' and '.join(limits)} and the queue grows by no more than 1 % of the arrivals. {count} "
                f"requests per day, {days}, ratios paired by day."
            )
        when = f"at {self.arrivals:g} per second (Poisson)" if self.arrivals is not None else "when the file says"
        return f"{count} requests arrive {when}, {days}. Goodput: within {' and '.join(limits) or 'no limit'}."
