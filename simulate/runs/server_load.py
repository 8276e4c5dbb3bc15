"""The load of a simulated server: when requests arrive, how many days are simulated, which latencies count as good."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from simulate.runs.server_arrivals import Asked, Workload, draw_requests, poisson, read_requests
from simulate.runs.service_levels import Slo
from simulate.runs.timeline import Ints
from treeopt.errors import UsageError
from treeopt.settings import Settings, setting
from treeopt.traces.trace import Trace

SERVER: Mapping[str, float] = MappingProxyType({"requests": 1000, "replications": 5, "warmup": 0.1, "switch_s": 0.0})
MOST = 10**7  # arrivals on all days together


@dataclass(frozen=True, kw_only=True)
class Load(Settings):
    """The load of a simulated server: arrivals, replications, limits of a well-served request; None: not given."""

    arrivals: float | None = setting(None, least=1e-9, most=1e9, help="Simulate a server: requests per second.")
    capacity: float | None = setting(
        None,
        above=0,
        most=1,
        help="In place of --arrivals: find the highest rate at which this share of the requests keeps --ttft-s and "
        "--tpot-s.",
    )
    requests_file: Path | None = setting(
        None, help="Lengths of the server's requests: JSON lines with prompt_tokens, tokens [, arrived_s]."
    )
    requests: int | None = setting(
        None, least=2, help=f"Number of arrivals; default {SERVER['requests']}, or the file's."
    )
    replications: int | None = setting(
        None, least=2, help=f"Number of independent days; default {SERVER['replications']}."
    )
    warmup: float | None = setting(
        None, least=0, most=0.9, help=f"Share of each day that is left out; default {SERVER['warmup']}."
    )
    ttft_s: float | None = setting(None, above=0, help="Goodput: maximum seconds to the first token.")
    tpot_s: float | None = setting(None, above=0, help="Goodput: maximum seconds per token after the first.")
    switch_s: float | None = setting(
        None, least=0, most=1e9, help="Seconds that a change to another tree takes; default 0."
    )

    def check(self) -> None:
        """Raise UsageError for more arrivals in all than `MOST`."""
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
            return draw_requests(trace, arrived_s, rng=rng, prompt_tokens=prompt_tokens)
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
