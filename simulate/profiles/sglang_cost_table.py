"""SGLang's cost table of DSpark's planner: steps per second by the tokens of a batch, written from a profile and read.

Source: `SpsCostTable` and `SpsAdditiveCostTable` in dspark_components/dspark_sps.py of SGLang 0.5.23. The sampled form
looks a number of tokens up at the largest probe that does not exceed it; the additive one adds a constant, a part by
requests and a part by tokens, on straight lines between probes. Tokens are requests and drafted tokens together, and a
step includes drafting.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from simulate.profiles.profile import Profile
from simulate.profiles.step_tables import BatchTimes
from treeopt.errors import CostError
from treeopt.storage.atomic_files import why, write_text
from treeopt.storage.json_records import RecordError
from treeopt.storage.typed_records import Count, Positive, Record, read_record
from treeopt.storage.user_files import read_text

Rising = Annotated[tuple[Count, ...], Meta(min_length=1)]
Seconds = Annotated[tuple[float, ...], Meta(min_length=1)]
DIGITS = 6  # significant, of a rate
MOST_BATCHES, MOST_TOKENS = 64, 64  # batch sizes, and tokens per request, of the profile that a table makes
ERROR = 0.05  # half-width of step / plain step: SGLang's table has medians and no errors; assumed


class SampledTable(Record, frozen=True):
    """The sampled form."""

    sample_batch_tokens: Rising
    sample_steps_per_sec: Annotated[tuple[Positive, ...], Meta(min_length=1)]
    max_batch_tokens: Count


class AdditiveTable(Record, frozen=True):
    """The additive form."""

    bias_seconds: Positive
    bs_probes: Rising
    alpha_seconds: Seconds
    m_probes: Rising
    theta_seconds: Seconds


def write_cost_table(profile: Profile, path: Path) -> None:
    """Write the sampled form: at each measured batch size, all its verified tokens, the longest chain drafted.

    Where several batch sizes have as many tokens the median counts; more tokens never make steps faster. Probes that
    change nothing are left out.
    """
    known: dict[int, list[float]] = {}
    for batch in sorted({times.batch for times in profile.batches}):
        parts = profile.parts(batch=batch, tokens=MOST_TOKENS, depth=MOST_TOKENS, width=1)
        levels = parts.draft_s[:, 1]
        verify_s = parts.verify_s[1:]
        verify_s[0] = verify_s[0] if np.isfinite(verify_s[0]) else profile.plain_s(batch=batch)
        drafted = min(np.isfinite(levels).sum(), np.isfinite(verify_s).sum() - 1)
        for tokens in np.flatnonzero(np.isfinite(verify_s)).tolist():
            seconds = float(verify_s[tokens] + levels[:drafted].sum())
            known.setdefault(batch * (tokens + 1), []).append(seconds)
    totals = sorted(known)
    slowest = np.maximum.accumulate([float(np.median(known[total])) for total in totals])
    rates = [float(f"{1 / s:.{DIGITS}g}") for s in slowest.tolist()]
    changed = [place for place, rate in enumerate(rates) if not place or rate != rates[place - 1]]
    table = {
        "sample_batch_tokens": [totals[place] for place in changed],
        "sample_steps_per_sec": [rates[place] for place in changed],
        "max_batch_tokens": totals[-1],
    }
    write_text(path, json.dumps(table) + "\n")


def read_cost_table(path: Path, *, device: str) -> Profile | None:
    """Return the step times of a table of either form, as a profile of chains; None if the file holds neither.

    Raises:
        CostError: names the file and the field that is missing or wrong.
    """
    try:
        record: Any = json.loads(read_text(path))
    except (OSError, UnicodeDecodeError) as error:
        raise CostError(f"{path}: cannot be read: {why(error)}") from error
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not {"sample_batch_tokens", "bias_seconds"} & set(record):
        return None
    try:
        if "bias_seconds" in record:
            sizes, last, seconds = _additive(read_record(record, AdditiveTable))
        else:
            sizes, last, seconds = _sampled(read_record(record, SampledTable))
    except RecordError as error:
        raise CostError(f"{path}: {error}") from error
    batches = []
    for batch in [size for size in sizes if 2 * size <= last][:MOST_BATCHES]:
        rest = seconds(batch, batch * np.arange(1, min(MOST_TOKENS, last // batch) + 1)).tolist()
        draft = tuple((levels, 0.0) for levels in range(1, len(rest)))
        batches.append(BatchTimes(batch, rest[0], draft, tuple(enumerate(rest, 1))))
    if not batches:
        raise CostError(f"{path}: has no number of requests with a drafted token: its most tokens are {last}")
    meta = {"imported": {"format": "sglang-cost-table", "file": path.name}, "device": device}
    return Profile(tuple(batches), (0, 2**20), ERROR, meta)


Priced = tuple[tuple[int, ...], int, Callable[[int, NDArray[np.int64]], NDArray[np.float64]]]


def _sampled(table: SampledTable) -> Priced:
    """Return batch sizes, most tokens, and a function from requests and tokens to seconds."""
    probes = _rising(table.sample_batch_tokens, table.sample_steps_per_sec, "sample_batch_tokens")

    def seconds(batch: int, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        place = np.maximum(np.searchsorted(probes, tokens, side="right") - 1, 0)
        return np.asarray(1 / np.array(table.sample_steps_per_sec)[place])

    return table.sample_batch_tokens, table.max_batch_tokens, seconds


def _additive(table: AdditiveTable) -> Priced:
    """Return batch sizes, most tokens, and a function from requests and tokens to seconds."""
    requests = _rising(table.bs_probes, table.alpha_seconds, "bs_probes")
    probes = _rising(table.m_probes, table.theta_seconds, "m_probes")

    def seconds(batch: int, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        alone_s = table.bias_seconds + np.interp(batch, requests, table.alpha_seconds)
        return np.asarray(alone_s + np.interp(tokens, probes, table.theta_seconds))

    return table.bs_probes, table.m_probes[-1], seconds


def _rising(probes: tuple[int, ...], values: tuple[float, ...], name: str) -> NDArray[np.int64]:
    """Return the probes; raise RecordError unless they rise and each has a value."""
    if len(probes) != len(values) or list(probes) != sorted(set(probes)):
        raise RecordError(f"{name}: must rise strictly and have as many values, found {len(values)} values")
    return np.array(probes)
