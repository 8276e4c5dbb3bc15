"""The record of a run: every request's steps in order, kept in a file as requests end, so that a run can resume."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from treeopt.engines.driver import Draft, Driver, EngineRequest, EngineStep
from treeopt.errors import EngineError, UsageError, counted
from treeopt.storage.json_lines import appended, read_lines
from treeopt.storage.json_records import RecordError, get, of_kind

SCHEMA = "treeopt.engine_run/1"


@dataclass(frozen=True)
class RequestRecord:
    """The steps of one request that ended.

    Attributes:
        request: its number.
        committed: tokens of each step in order, the prefill's one token first.
        drafted: tokens drafted in each step, 0 in the prefill; None where the engine does not report it.
        tokens: the ids of the text; None where the engine does not report them.
    """

    request: int
    committed: tuple[int, ...]
    drafted: tuple[int, ...] | None
    tokens: tuple[int, ...] | None

    @classmethod
    def of(cls, steps: Sequence[EngineStep]) -> "RequestRecord":
        """Return the record of a request's steps.

        Raises:
            EngineError: the first step is not the prefill.
        """
        if not steps[0].prefill:
            raise EngineError(f"request {steps[0].request} does not begin with its prefill")
        drafted = [0 if step.prefill else step.drafted for step in steps]
        tokens = [step.tokens for step in steps]
        return cls(
            steps[0].request,
            tuple(step.committed for step in steps),
            None if None in drafted else tuple(number for number in drafted if number is not None),
            None if None in tokens else tuple(token for some in tokens if some is not None for token in some),
        )

    @classmethod
    def read(cls, record: Any) -> "RequestRecord":
        """Read a record from its JSON fields.

        Raises:
            RecordError: names the field.
        """
        number = get(record, "request", int, "a request")
        committed = _counts(record, "committed", least=1) or ()
        drafted, tokens = (_counts(record, name, least=0) for name in ("drafted", "tokens"))
        if not committed or (drafted is not None and len(drafted) != len(committed)):
            raise RecordError(f"request {number}: `committed` and `drafted` must have one entry per step")
        if tokens is not None and len(tokens) != sum(committed):
            raise RecordError(f"request {number}: {len(tokens)} `tokens`, {sum(committed)} committed")
        return cls(number, committed, drafted, tokens)


def _counts(record: Any, name: str, *, least: int) -> tuple[int, ...] | None:
    if record.get(name) is None:
        return None
    values = get(record, name, list, "a request")
    counts = tuple(of_kind(value, int, f"a request: `{name}`[{i}]") for i, value in enumerate(values))
    if any(count < least for count in counts):
        raise RecordError(f"a request: `{name}` must be {least} or more, found {min(counts)}")
    return counts


def record_run(
    engine: Driver,
    requests: Sequence[EngineRequest],
    *,
    draft: Draft,
    concurrency: int,
    work: Path | None = None,
    settings: dict[str, Any] | None = None,
    resume: bool = False,
    progress: Callable[[int], None] = lambda requests: None,
) -> list[RequestRecord]:
    """Decode the requests and return the record of each.

    Args:
        engine: a driver, entered.
        requests: what is decoded.
        draft: the draft setting.
        concurrency: requests in flight.
        work: file that records are appended to as requests end; it stays when the run breaks off.
        settings: what the run depends on; a file of other settings is refused.
        resume: take the requests that `work` holds from there.
        progress: called with the number of requests that ended.

    Raises:
        UsageError: `work` exists and `resume` is not set, or was begun with other settings.
        EngineError: the engine fails; says how many requests `work` holds.
    """
    head = {"schema": SCHEMA, "settings": settings or {}}
    done = {} if work is None else _read(work, head, resume=resume)
    progress(len(done))
    left = [number for number in range(len(requests)) if number not in done]
    try:
        with appended(work, head) if work is not None else nullcontext(lambda record: None) as put:
            decoded = engine.decode([requests[number] for number in left], draft=draft, concurrency=concurrency)
            with closing(decoded) as steps:  # type: ignore[type-var]  # a generator, in every driver
                for record in _ended(steps):
                    record = replace(record, request=left[record.request])
                    done[record.request] = record
                    put({name: value for name, value in asdict(record).items() if value is not None})
                    progress(1)
    except EngineError as error:
        raise EngineError(f"{error}{_kept(work, len(done), len(requests))}") from error
    if len(done) < len(requests):
        raise EngineError(f"{len(requests) - len(done)} of {counted(len(requests), 'request')} did not end")
    return [done[number] for number in range(len(requests))]


def _ended(steps: Iterable[EngineStep]) -> Iterable[RequestRecord]:
    """Yield the record of each request as it ends."""
    open_requests: dict[int, list[EngineStep]] = {}
    for step in steps:
        open_requests.setdefault(step.request, []).append(step)
        if step.ended:
            yield RequestRecord.of(open_requests.pop(step.request))


def _read(work: Path, head: dict[str, Any], *, resume: bool) -> dict[int, RequestRecord]:
    try:
        found = read_lines(work, SCHEMA)
        if found is None or not found[1]:
            work.unlink(missing_ok=True)  # nothing was kept
            return {}
        if not resume:
            raise UsageError(f"{work} holds an interrupted run: add --resume to continue it, or remove it")
        if found[0].get("settings") != head["settings"]:
            raise UsageError(f"{work} was begun with other settings or prompts: remove it to start again")
        records = [RequestRecord.read(record) for record in found[1]]
    except RecordError as error:
        raise UsageError(f"{work}: {error}; remove it to start again") from error
    return {record.request: record for record in records}


def _kept(work: Path | None, done: int, requests: int) -> str:
    if work is None or not done:
        return ""
    return (
        f"; {done} of {counted(requests, 'request')} are kept in {work}: the same command with --resume takes up there"
    )
