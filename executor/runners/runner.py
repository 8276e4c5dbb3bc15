"""The interface of whatever decodes, treeopt's own loop or an engine, and the values that pass through it.

A runner decodes requests with a draft at a batch size. One call says both what each request committed and how long
steps took. Collecting, profiling and validating are written once, against this interface; what differs between runners
is an attribute here.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from simulate.device_memory import DeviceMemory
from treeopt.defaults import NEW_TOKENS
from treeopt.errors import UsageError, counted
from treeopt.policies import Policy
from treeopt.storage.typed_records import Index, NotNegative, Positive
from treeopt.storage.work_file import WorkFile
from treeopt.traces.trace import Trace
from treeopt.tree import Tree

if TYPE_CHECKING:
    from executor.target.target_model import Target

Shape = Tree | Policy  # the empty tree decodes plainly
Tokens = Sequence[int]


@dataclass(frozen=True)
class Requests:
    """Requests, and how far they are decoded.

    Attributes:
        prompts: token ids.
        new_tokens: limit for every prompt, or one limit for each.
        stop: tokens that end a request; empty: all have the limit's length.
        replayed: a trace of the same number of requests, whose acceptance is imposed; None: the models decide.
        first: number of the first request, where these are part of more.
    """

    prompts: Sequence[Tokens]
    new_tokens: int | Sequence[int] = NEW_TOKENS
    stop: Tokens = ()
    replayed: Trace | None = None
    first: int = 0

    def __post_init__(self) -> None:
        """Raise UsageError if trace and prompts have different numbers of requests."""
        if self.replayed is not None and self.replayed.requests != len(self.prompts):
            raise UsageError(
                f"{len(self.prompts)} prompts cannot replay a trace of {counted(self.replayed.requests, 'request')}"
            )

    @property
    def limits(self) -> list[int]:
        """The limit of each request; if a trace is replayed, no more tokens than it has."""
        limit = self.new_tokens
        limits = [limit] * len(self.prompts) if isinstance(limit, int) else list(limit)
        if self.replayed is None:
            return limits
        lengths = self.replayed.lengths.tolist()
        return [min(pair) for pair in zip(limits, lengths, strict=True)]

    @property
    def context(self) -> int:
        """Approximate tokens per sequence in the cache, the mean over a run in which no text ends early."""
        return round(float(np.mean([len(prompt) for prompt in self.prompts]) + np.mean(self.limits) / 2))

    def part(self, numbers: NDArray[np.int64]) -> "Requests":
        """Return some of the requests, by ascending consecutive numbers."""
        trace = None if self.replayed is None else self.replayed.select(numbers)
        limits, chosen = self.limits, numbers.tolist()
        return Requests(
            [self.prompts[i] for i in chosen], [limits[i] for i in chosen], self.stop, trace, self.first + chosen[0]
        )


@dataclass(frozen=True)
class RequestSteps:
    """The steps of one request, its prefill left out.

    Attributes:
        request: its number.
        committed: tokens of each step in order.
        drafted: tokens drafted in each; None: not reported.
    """

    request: Index
    committed: tuple[Index, ...]
    drafted: tuple[Index, ...] | None = None

    def __post_init__(self) -> None:
        """Check that both tell of the same steps."""
        if self.drafted is not None and len(self.drafted) != len(self.committed):
            raise ValueError("`committed` and `drafted` must have one entry per step")


@dataclass(frozen=True)
class Run:
    """The measurement of a runner that decoded some requests with one draft.

    Attributes:
        draft_s: seconds of drafting of each timed step, all rows busy; 0 where drafting is not timed apart.
        rest_s: seconds of everything else in it. A runner that times several steps together gives their mean.
        requests: steps of each request.
        context: tokens per sequence in the cache during timed steps, mean.
        wall_s: seconds of the whole run, prompts included.
        timed: steps behind the times.
        drafted: tokens drafted in these; None: not reported, every step drafts.
        repeated: parts that took a second attempt.
    """

    draft_s: tuple[NotNegative, ...]
    rest_s: tuple[Positive, ...]
    requests: tuple[RequestSteps, ...]
    context: NotNegative
    wall_s: NotNegative
    timed: Index
    drafted: Index | None = None
    repeated: Index = 0

    def __post_init__(self) -> None:
        """Check the lengths."""
        if len(self.draft_s) != len(self.rest_s):
            raise ValueError("`draft_s` and `rest_s` must be of one length")

    @property
    def steps_s(self) -> NDArray[np.float64]:
        """Seconds of each timed step."""
        return np.add(self.draft_s, self.rest_s)

    @property
    def step_s(self) -> float:
        """Median seconds of a step."""
        return float(np.median(self.steps_s))

    @property
    def tokens(self) -> int:
        """Tokens that all steps committed."""
        return sum(sum(request.committed) for request in self.requests)

    @property
    def steps(self) -> int:
        """Steps of all requests."""
        return sum(len(request.committed) for request in self.requests)

    @property
    def committed(self) -> float:
        """Tokens per sequence and step."""
        return self.tokens / self.steps

    def scaled(self, factor: float) -> "Run":
        """Return the run with all step times multiplied by `factor`."""
        drafts, rests = (tuple(s * factor for s in seconds) for seconds in (self.draft_s, self.rest_s))
        return replace(self, draft_s=drafts, rest_s=rests)


def joined(runs: Sequence[Run]) -> Run:
    """Return several runs of one draft as one; its times are means, each run weighted by the steps that it timed."""
    weights = [run.timed for run in runs]
    return replace(
        runs[0],
        draft_s=(float(np.average([np.mean(run.draft_s) for run in runs], weights=weights)),),
        rest_s=(float(np.average([np.mean(run.rest_s) for run in runs], weights=weights)),),
        requests=tuple(request for run in runs for request in run.requests),
        context=float(np.average([run.context for run in runs], weights=weights)),
        wall_s=sum(run.wall_s for run in runs),
        timed=sum(weights),
        drafted=None if None in (known := [run.drafted for run in runs]) else sum(n for n in known if n is not None),
        repeated=sum(run.repeated for run in runs),
    )


class Runner(ABC):
    """A decoder of requests, as a context: leaving it stops what it started.

    Attributes:
        single_steps: times are of single steps, with drafting apart; False: each is the mean of a run.
        relaunches: a draft takes a launch, so runs with the same draft follow one another.
        least_batches: full batches that a part of the requests must hold to be timed.
        timing: `module:Class` that times it for a profile, see `executor.profiling.measurement_rounds`.
        concurrency: most requests in flight; set it before the first run.
        target: the target's model; None: the runner loads it itself.
        processes: that share this runner; several keep no work file, since each would write its own.
        late: steps after which a row that ended is filled again; None: the runner decides itself when requests join.
    """

    single_steps = relaunches = False
    least_batches = concurrency = processes = 1
    timing: str
    target: "Target | None" = None
    late: int | None = None

    @property
    @abstractmethod
    def record(self) -> dict[str, Any]:
        """Models, device, engine and verification rule: provenance, and what a run must share to be resumed."""

    @property
    @abstractmethod
    def provenance(self) -> dict[str, Any]:
        """Software and machine."""

    @property
    def weights_read(self) -> tuple[int, int] | None:
        """Weights read by a drafter forward and by a plain step of the target; None where they are not known."""
        return None

    def memory(self, context: int) -> DeviceMemory | None:
        """Return the memory that the models take with sequences of `context` tokens; None where it is not known."""
        return None

    @abstractmethod
    def run(self, shape: Shape, batch: int, requests: Requests) -> Run:
        """Decode the requests to their end, `batch` of them at a time.

        Raises:
            EngineError: the engine fails.
        """

    @abstractmethod
    def warm_up(self, shape: Shape, batch: int, requests: Requests) -> None:
        """Run a little of the requests, so that a new draft has made what it makes once."""

    def why_not(self, shape: Shape, batch: int) -> str | None:
        """Return why this is not run at a batch size; None if it is."""
        return None

    def check(self, shape: Shape, batch: int, requests: Requests) -> None:
        """Raise ExecutorError if the requests cannot be decoded to their end; names the limit of models or memory."""
        return

    def begin(self, number: int) -> None:
        """Begin a part of a measurement: from here on samples are those of this part, whatever was run before."""
        return

    def __enter__(self) -> Self:
        """Return the runner."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop what the runner started."""
        return


def resumable(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a runner's record must be the same for its runs to be resumed."""
    engine = {name: value for name, value in record.get("engine", {}).items() if name not in ("version", "urls")}
    return {**record, "engine": engine}


Visit = tuple[int, ...]


@dataclass(frozen=True)
class VisitRecord:
    """A finished visit in a work file."""

    key: tuple[Index, ...]
    run: Run


class Visits:
    """The runs of a measurement by visit, a key of numbers; a work file keeps them.

    Visits of one group are compared with each other, so that a machine that changes between groups changes nothing.
    After an interruption only whole groups count: what one visit took then says nothing about the machine now.

    Attributes:
        runs: run of each finished visit.
    """

    def __init__(self, work: WorkFile, groups: Sequence[Sequence[Visit]]) -> None:
        """Take up what the work file holds.

        Raises:
            UsageError: a record is damaged, or not in the groups.
        """
        self._work = work
        known = {visit for group in groups for visit in group}
        kept = {record.key: record.run for record in work.pieces("visit", VisitRecord)}
        for key in kept:
            if key not in known:
                raise work.damaged(f"visit {list(key)} is not in the schedule")
        whole = [group for group in groups if all(visit in kept for visit in group)]
        self.runs = {visit: kept[visit] for group in whole for visit in group}

    def make(
        self, group: Sequence[Visit], run: Callable[[Visit], Run], progress: Callable[[int], None] = lambda runs: None
    ) -> None:
        """Make the visits of a group that are not made yet, in order."""
        for visit in group:
            if visit not in self.runs:
                self.runs[visit] = run(visit)
                self._work.put("visit", {"key": visit, "run": asdict(self.runs[visit])})
                progress(1)
