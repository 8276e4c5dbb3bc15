"""The JSON records of simulated runs, servers and capacities: fields, limits and units."""

from typing import Annotated, Any

from msgspec import Meta

from treeopt.plans import EstimateRecord, SpeedupRecord, TreeRecord
from treeopt.storage.typed_records import Count, Index, NotNegative, Positive, Record

Path = tuple[Index, ...]


class PercentilesRecord(Record, frozen=True):
    """Percentiles of a latency in seconds; null: no request has this latency."""

    p50: EstimateRecord | None
    p95: EstimateRecord | None
    p99: EstimateRecord | None


class SimulatedRunRecord(Record, frozen=True, kw_only=True):
    """A run of all requests in one configuration."""

    name: str
    tokens: Index
    steps: Index
    total_s: NotNegative
    tokens_s: EstimateRecord
    tau: Positive
    occupancy: Annotated[NotNegative, Meta(description="mean number of busy rows")]
    ttft_s: Annotated[PercentilesRecord, Meta(description="time to first token")]
    tpot_s: Annotated[PercentilesRecord, Meta(description="time per output token")]
    itl_s: Annotated[PercentilesRecord, Meta(description="inter-token latency")]
    e2e_s: Annotated[PercentilesRecord, Meta(description="admission to end")]


class GainRecord(Record, frozen=True):
    """The speedup over plain decoding of the machine, and of a request on average."""

    throughput: SpeedupRecord
    per_request: SpeedupRecord


class RunRecord(Record, frozen=True, tag_field="schema", tag="treeopt.run/2", kw_only=True):
    """Simulated runs of all requests of a trace."""

    batch: Count
    mode: str
    tree: TreeRecord | None
    configurations: Annotated[
        tuple[SimulatedRunRecord, ...], Meta(min_length=1, description="a run of each configuration")
    ]
    speedup: Annotated[GainRecord | None, Meta(description="null: only plain decoding was simulated")]
    warnings: tuple[str, ...] = ()
    conditions: tuple[str, ...]
    meta: dict[str, Any]

    def __post_init__(self) -> None:
        """Check that a speedup has its tree."""
        if self.speedup is not None and self.tree is None:
            raise ValueError("`speedup` is of a `tree`, which is null")


class ConfigurationRecord(Record, frozen=True, kw_only=True):
    """A configuration of a server: its trees, and the numbers of requests at which it changes between them."""

    name: Annotated[str, Meta(min_length=1)]
    trees: Annotated[tuple[tuple[Path, ...] | None, ...], Meta(min_length=1, description="rank paths; null: plain")]
    up: tuple[Index, ...]
    down: tuple[Index, ...]

    def __post_init__(self) -> None:
        """Check that there is a change between neighbouring trees."""
        if not len(self.up) == len(self.down) == len(self.trees) - 1:
            raise ValueError("`up` and `down` must hold one number for each change between `trees`")


class LoadRecord(Record, frozen=True):
    """Requests decoding and waiting at times of the first simulated day."""

    times_s: tuple[NotNegative, ...]
    running: tuple[NotNegative, ...]
    waiting: tuple[NotNegative, ...]


class ServedFiguresRecord(Record, frozen=True, kw_only=True):
    """Means over simulated days; latencies and shares of time by tree stand beside them, null where there are none."""

    tokens_s: EstimateRecord
    requests_s: EstimateRecord | None = None
    goodput_s: EstimateRecord | None = None
    within: Annotated[EstimateRecord | None, Meta(description="share of requests within the limits")] = None
    running: Annotated[EstimateRecord | None, Meta(description="requests that decode")] = None
    waiting: Annotated[EstimateRecord | None, Meta(description="requests that wait")] = None
    busy: Annotated[EstimateRecord | None, Meta(description="share of time")] = None
    ttft_s_p95: EstimateRecord | None = None


class ServedRecord(ConfigurationRecord, frozen=True, kw_only=True):
    """A configuration under the load."""

    figures: ServedFiguresRecord
    first_day: LoadRecord | None = None


class ServingRecord(Record, frozen=True, tag_field="schema", tag="treeopt.serving/2", kw_only=True):
    """Simulated days of a server under one load."""

    rows: Annotated[Count, Meta(description="requests that decode together, at most")]
    slo: Annotated[dict[str, Any], Meta(description="limits of latencies in seconds; null: none")]
    configurations: Annotated[tuple[ServedRecord, ...], Meta(min_length=1, description="each configuration")]
    warnings: tuple[str, ...]
    conditions: tuple[str, ...]
    meta: dict[str, Any]


class CarriedRecord(ConfigurationRecord, frozen=True, kw_only=True):
    """The highest rate that a configuration carries."""

    requests_s: EstimateRecord
    over: Annotated[EstimateRecord | None, Meta(description="ratio to the last configuration; null for itself")]


class CapacityRecord(Record, frozen=True, tag_field="schema", tag="treeopt.capacity/2", kw_only=True):
    """The highest rates of requests that a server carries within limits."""

    rows: Annotated[Count, Meta(description="requests that decode together, at most")]
    share: Annotated[NotNegative, Meta(description="of requests that must keep the limits")]
    slo: Annotated[dict[str, Any], Meta(description="limits of latencies in seconds; null: none")]
    configurations: Annotated[tuple[CarriedRecord, ...], Meta(min_length=1, description="each configuration")]
    warnings: tuple[str, ...]
    conditions: tuple[str, ...]
    meta: dict[str, Any]


class ArmRecord(Record, frozen=True, kw_only=True):
    """A configuration under one load."""

    name: Annotated[str, Meta(description="none, fixed, schedule or adaptive")]
    length: Annotated[str, Meta(description="as `simulate --length` takes it")]
    tokens_s: EstimateRecord
    tau: Positive
    over: Annotated[EstimateRecord, Meta(description="tokens/s over those of no speculation")]


class VerdictLoadRecord(Record, frozen=True, kw_only=True):
    """The verdict at one number of running requests."""

    requests: Count
    share: Annotated[NotNegative | None, Meta(description="of the time; null: a sweep")]
    verdict: str
    ratios: Annotated[dict[str, EstimateRecord], Meta(description="tokens/s of the verdict over those of the others")]
    configurations: Annotated[tuple[ArmRecord, ...], Meta(min_length=1)]


class OverallRecord(Record, frozen=True):
    """The verdict over all loads, weighted by time."""

    verdict: str
    over: dict[str, EstimateRecord]


class VerdictRecord(Record, frozen=True, tag_field="schema", tag="treeopt.verdict/1", kw_only=True):
    """No speculation, a fixed length, a schedule or adaptive verification, by running requests."""

    loads: Annotated[tuple[VerdictLoadRecord, ...], Meta(min_length=1)]
    overall: OverallRecord | None
    warnings: tuple[str, ...] = ()
    conditions: tuple[str, ...]
    meta: dict[str, Any]
